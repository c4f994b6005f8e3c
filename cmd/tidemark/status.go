package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/internal/telemetry"
)

const defaultAdmin = "http://127.0.0.1:8082"

// maxAdminAnswer bounds what is read of an answer of the operator's port.
const maxAdminAnswer = 1 << 20

type statusLine struct {
	Admin string `json:"admin"`
	Live  bool   `json:"live"`
	// Error says why the process does not answer; empty: it does.
	Error string `json:"error"`
	telemetry.Status
}

func newStatusCmd(a *app) *cobra.Command {
	var admins []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether processes are ready, part by part, and why not",
		Long: `Status asks processes on their operator's ports (admin.listen) how they are: what
each part of them says, and what stands in its way. It fails when one does not
answer or is not ready.`,
		Example: `  tidemark status
  tidemark status --admin http://10.0.0.7:8082 --admin http://10.0.0.8:8082
  tidemark status -o json | jq -r '.parts[] | select(.ready | not).why'`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, url := range admins {
				if err := checkAdmin(url); err != nil {
					return err
				}
			}
			if timeout <= 0 {
				return usagef("--timeout must be above 0, is %s", timeout)
			}
			return a.status(cmd.Context(), admins, timeout)
		},
	}
	adminFlag(cmd, &admins)
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for each answer")
	return cmd
}

func adminFlag(cmd *cobra.Command, admins *[]string) {
	cmd.Flags().StringArrayVar(admins, "admin", []string{defaultAdmin}, "`URL` of a process's operator's port; repeatable")
}

func checkAdmin(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return usagef("--admin: %q is no URL like %s", s, defaultAdmin)
	}
	return nil
}

func (a *app) status(ctx context.Context, admins []string, timeout time.Duration) error {
	var errs []error
	for i, admin := range admins {
		s := statusOf(ctx, admin, timeout)
		switch {
		case s.Error != "":
			errs = append(errs, fmt.Errorf("%s does not answer: %s", admin, s.Error))
		case !s.Ready:
			errs = append(errs, fmt.Errorf("%s is not ready", admin))
		}
		a.emit(s, func() {
			if i > 0 {
				fmt.Fprintln(a.out)
			}
			a.printStatus(&s)
		})
	}
	return errors.Join(errs...)
}

func statusOf(ctx context.Context, admin string, timeout time.Duration) statusLine {
	s := statusLine{Admin: admin}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := askAdmin(ctx, http.MethodGet, admin, "/status", "")
	if err == nil {
		if err = json.Unmarshal(body, &s.Status); err != nil {
			err = fmt.Errorf("is no process of this version of tidemark: %w", err)
		}
	}
	if err != nil {
		s.Error = err.Error()
		return s
	}
	s.Live = true
	return s
}

// askAdmin gives what the operator's port answers.
func askAdmin(ctx context.Context, method, admin, path, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(admin, "/")+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	// One question is all there is; a connection kept would outlive the command.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAdminAnswer))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(answer)))
	}
	return answer, nil
}

func (a *app) printStatus(s *statusLine) {
	if s.Error != "" {
		fmt.Fprintf(a.out, "%s  does not answer\n", s.Admin)
		return
	}
	state := "ready"
	if !s.Ready {
		state = "NOT READY"
	}
	fmt.Fprintf(a.out, "%s  %s  %s, up %s, log level %s\n", s.Admin, state, strings.Join(s.Roles, " "),
		time.Since(s.Started).Round(time.Second), s.LogLevel)
	fmt.Fprintf(a.out, "%s\n", oneLine(s.Version))
	var rows [][]string
	for _, p := range s.Parts {
		if p.Ready {
			rows = append(rows, []string{p.Name, "ready", ""})
			continue
		}
		// A part has as many lines as things stand in its way.
		name, state := p.Name, "NOT READY"
		for why := range strings.Lines(p.Why) {
			rows = append(rows, []string{name, state, strings.TrimSuffix(why, "\n")})
			name, state = "", ""
		}
	}
	a.table([]string{"PART", "STATE", "WHY"}, rows)
}

func newLogLevelCmd(a *app) *cobra.Command {
	var admins []string
	cmd := &cobra.Command{
		Use:   "log-level [LEVEL]",
		Short: "Show or change what running processes log",
		Long: `Log-level shows the level of processes' logs, or changes it to debug, info, warn
or error until they end. It asks their operator's ports (admin.listen), which let
it be changed where admin.debug says so: unless set, on loopback alone.`,
		Example: `  tidemark log-level
  tidemark log-level debug --admin http://127.0.0.1:8082`,
		GroupID:   groupOperate,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		RunE: func(cmd *cobra.Command, args []string) error {
			method, body := http.MethodGet, ""
			if len(args) > 0 {
				if _, err := telemetry.ParseLevel(args[0]); err != nil {
					return usageError{err}
				}
				method, body = http.MethodPut, args[0]
			}
			var errs []error
			for _, admin := range admins {
				if err := checkAdmin(admin); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Second)
				answer, err := askAdmin(ctx, method, admin, "/log-level", body)
				cancel()
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", admin, err))
					continue
				}
				level := strings.TrimSpace(string(answer))
				a.emit(map[string]string{"admin": admin, "level": level}, func() { fmt.Fprintf(a.out, "%s  %s\n", admin, oneLine(level)) })
			}
			return errors.Join(errs...)
		},
	}
	adminFlag(cmd, &admins)
	return cmd
}
