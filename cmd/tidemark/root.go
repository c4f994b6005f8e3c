package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
	"github.com/tidemark-im/tidemark/internal/config"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnfinished  = 2 // of a check: it can say neither yes nor no
	exitInterrupted = 130
)

const defaultServer = "http://127.0.0.1:8080"

// app is what all commands share. A new one is made for each command line.
type app struct {
	in          io.Reader
	out, errOut io.Writer
	// environ gives the environment that configuration is read from. nil: none.
	environ func() []string

	configFile string
	sets       []string
	output     string
	server     string
	// token and tokenFile say who calls the sync API. Both empty: what the
	// environment says.
	token, tokenFile string
	// ca names a file with the authority of the servers' certificates. Empty: the
	// system's authorities.
	ca string
}

// execute runs one command line and gives the exit code. It returns when
// everything that the command started has ended.
func (a *app) execute(ctx context.Context, args []string) int {
	root := newRootCmd(a)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errInterrupted) {
		a.complain(errInterrupted)
		return exitInterrupted
	}
	_, ran := errors.AsType[runError](err)
	_, usage := errors.AsType[usageError](err)
	_, invalid := errors.AsType[bench.InvalidError](err)
	a.complain(err)
	if ran && !usage && !invalid {
		if e, ok := errors.AsType[exitError](err); ok {
			return e.code
		}
		return exitFailed
	}
	fmt.Fprintf(a.errOut, "Run '%s --help' for usage.\n", cmd.CommandPath())
	return exitUsage
}

// complain prints an error, one line for each fault that it holds.
func (a *app) complain(err error) {
	text := err.Error()
	// The library puts its suggestions on lines of their own.
	text = strings.Replace(text, "\n\nDid you mean this?\n\t", "; did you mean ", 1)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintf(a.errOut, "tidemark: %s\n", line)
		}
	}
}

// usageError is a fault of the command line or the configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	error
}

func (e exitError) Unwrap() error { return e.error }

// runError is what a command returned after its command line was accepted. All
// other errors are the library's complaints about the command line.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "tidemark",
		Short: "Message sync over Kafka: sequenced, stored, queried, pushed",
		Long: `Tidemark gives every message of a conversation the next number, keeps them,
and tells every device what it missed.

Start with 'tidemark dev': everything in one process, nothing to install.`,
		Example: `  tidemark dev
  tidemark join --conversation group:g1 --user alice
  tidemark send --conversation group:g1 --from alice --text hello --wait
  tidemark pull --user alice --conversation group:g1`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       thisBuild().String(),
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	flags := root.PersistentFlags()
	flags.StringVar(&a.configFile, "config", "", "YAML `file` with settings")
	flags.StringArrayVar(&a.sets, "set", nil, "set `key=value` over file and environment; repeatable (keys: tidemark config keys)")
	flags.StringVarP(&a.output, "output", "o", "text", "`format` of what is printed: text or json")
	flags.StringVar(&a.server, "server", defaultServer, "base `URL` of the sync API")
	flags.StringVar(&a.token, "token", "", "`token` that says who calls (default TIDEMARK_TOKEN)")
	flags.StringVar(&a.ca, "ca", "", "PEM `file` with the authority that signed the certificates of sync API and gateway (default: the system's)")
	flags.StringVar(&a.tokenFile, "token-file", "", "`file` with the token (default TIDEMARK_TOKEN_FILE)")
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return oneOf("output", a.output, "text", "json") }
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run it:"},
		&cobra.Group{ID: groupMessages, Title: "Messages:"},
		&cobra.Group{ID: groupMembers, Title: "Windows:"},
		&cobra.Group{ID: groupOperate, Title: "Operate:"},
	)
	root.AddCommand(
		newDemoCmd(a), newDevCmd(a), newRunCmd(a),
		newSendCmd(a), newPullCmd(a), newWatchCmd(a), newListCmd(a), newWatermarksCmd(a), newReadCmd(a), newReadersCmd(a),
		newJoinCmd(a), newLeaveCmd(a), newKickCmd(a), newClearCmd(a), newRaiseMinCmd(a), newRevokeCmd(a), newAttributesCmd(a), newPolicyCmd(a),
		newStatusCmd(a), newLogLevelCmd(a), newTopicsCmd(a), newLagCmd(a), newBenchCmd(a), newAuditCmd(a), newHistoryCmd(a), newImportCmd(a), newDLQCmd(a), newTokenCmd(a), newConfigCmd(a), newVersionCmd(a),
	)
	root.SetHelpCommandGroupID(groupOperate)
	root.SetCompletionCommandGroupID(groupOperate)
	completeFlags(root)
	markRuns(root)
	return root
}

const (
	groupRun      = "run"
	groupMessages = "messages"
	groupMembers  = "members"
	groupOperate  = "operate"
)

// markRuns tells errors of the commands themselves from the library's.
func markRuns(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		markRuns(c)
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if err := run(c, args); err != nil {
				return runError{err}
			}
			return nil
		}
	}
}

// load reads the configuration: base, file, environment, --set. Every fault is
// reported.
func (a *app) load(base *config.Config) (config.Config, error) {
	var errs []error
	values := map[string]string{}
	for _, s := range a.sets {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			// The value is not repeated: it may be a secret put in the wrong place.
			errs = append(errs, fmt.Errorf("--set takes key=value, one of them has no key or no '='"))
			continue
		}
		values[key] = value
	}
	cfg, err := config.Load(config.Source{File: a.configFile, Environ: a.environ, Flags: values, Base: base})
	if err := errors.Join(append(errs, err)...); err != nil {
		return config.Config{}, usageError{err}
	}
	return cfg, nil
}

// oneOf checks a flag with a fixed set of values.
func oneOf(flag, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return usagef("--%s: %q is none of %s", flag, value, strings.Join(allowed, ", "))
}
