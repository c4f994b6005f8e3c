package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/access"
)

// The environment variables that client commands take their token from.
const (
	tokenEnv     = "TIDEMARK_TOKEN"
	tokenFileEnv = "TIDEMARK_TOKEN_FILE"
)

// tokenSource gives the token of client commands: a flag's, or the
// environment's. nil: there is none.
func (a *app) tokenSource() (client.TokenSource, error) {
	token, file := a.token, a.tokenFile
	if token != "" && file != "" {
		return nil, usagef("--token and --token-file do not go together")
	}
	if token == "" && file == "" {
		token, file = a.env(tokenEnv), a.env(tokenFileEnv)
	}
	switch {
	case token != "":
		return client.StaticToken(token), nil
	case file != "":
		return client.FileToken(file), nil
	}
	return nil, nil
}

func (a *app) env(name string) string {
	if a.environ == nil {
		return ""
	}
	for _, kv := range a.environ() {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

type tokenLine struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

func newTokenCmd(a *app) *cobra.Command {
	c := access.Claims{}
	var admin bool
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a token for development",
		Long: `Token makes a token for a user, signed with auth.secret (or auth.secret_file), as
a deployment takes it that has the same settings. With keys of an issuer
(auth.jwks_url) it is the issuer who makes tokens.`,
		Example: `  export TIDEMARK_AUTH_SECRET=$(openssl rand -base64 32)
  export TIDEMARK_TOKEN=$(tidemark token --user alice)
  tidemark token --user ops --admin --ttl 5m`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			if cfg.Auth.Secret == "" && cfg.Auth.SecretFile == "" {
				return usagef("there is no auth.secret to sign with; set TIDEMARK_AUTH_SECRET to that of the deployment")
			}
			conf, err := stack.AccessConfig(cfg.Auth)
			if err != nil {
				return usageError{err}
			}
			if admin {
				c.Scopes = append(c.Scopes, cfg.Auth.AdminScope)
			}
			token, err := access.Mint(conf, c)
			if err != nil {
				return usageError{err}
			}
			a.emit(tokenLine{token, time.Now().Add(c.TTL).UTC().Truncate(time.Second)}, func() { fmt.Fprintln(a.out, token) })
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.Subject, "user", "", "`user` whom the token speaks for")
	flags.StringArrayVar(&c.Scopes, "scope", nil, "`scope` of the token; repeatable")
	flags.BoolVar(&admin, "admin", false, "give it the administrator's scope (auth.admin_scope)")
	flags.DurationVar(&c.TTL, "ttl", time.Hour, "how long it is good")
	require(cmd, "user")
	return cmd
}
