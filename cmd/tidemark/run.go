package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/telemetry"
)

func newRunCmd(a *app) *cobra.Command {
	var onLost string
	cmd := &cobra.Command{
		Use:   "run ROLE...",
		Short: "Run roles of a deployment against its Kafka, Redis and history",
		Long: `Run runs one or more roles until it is told to stop (SIGINT or SIGTERM), then
finishes what is at hand. A second signal ends it at once, which loses nothing:
what was not committed is read again.

Roles:
  toredis    gives messages their numbers and appends the sequenced log
  tomongo    writes the sequenced log into history
  topush     hands events to devices
  sync       answers the sync API
  gateway    holds the devices' connections
  tooffline  notifies users who are not connected (docs/offline-push.md)
  audit      checks history and Redis slowly and for ever; one is enough
  lag        shows how far behind the workers are; needs Kafka alone, one is enough`,
		Example: `  tidemark run toredis tomongo topush sync gateway --config tidemark.yaml
  TIDEMARK_KAFKA_BROKERS=k1:9092,k2:9092 tidemark run toredis
  tidemark run sync --set sync.listen=127.0.0.1:9080 --set log.format=json`,
		GroupID: groupRun,
		Args:    roleArgs,
		ValidArgsFunction: func(_ *cobra.Command, args []string, given string) ([]string, cobra.ShellCompDirective) {
			var out []string
			for _, r := range stack.Runnable() {
				if !slices.Contains(args, string(r)) && strings.HasPrefix(string(r), given) {
					out = append(out, string(r))
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("on-lost-offsets") {
				a.sets = append(a.sets, "kafka.on_lost_offsets="+onLost)
			}
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			logger, level, err := telemetry.NewLeveled(a.errOut, cfg.Log.Level, cfg.Log.Format)
			if err != nil {
				return err
			}
			roles := make([]stack.Role, len(args))
			for i, r := range args {
				roles[i] = stack.Role(r)
			}
			collectAt(gcPercent)
			svc, err := openService(cmd.Context(), cfg, roles, logger, level)
			if err != nil {
				if err := interrupted(cmd.Context(), err); errors.Is(err, errInterrupted) {
					return err
				}
				return fmt.Errorf("cannot start %s: %w", strings.Join(args, ", "), err)
			}
			for _, x := range svc.addresses() {
				a.emit(x, func() { fmt.Fprintf(a.out, "%-8s %s\n", x.Name, x.URL) })
			}
			err = svc.runReady(cmd.Context(), func() error {
				logger.Info("all roles are ready", "roles", args)
				return nil
			})
			return errors.Join(err, svc.close())
		},
	}
	cmd.Flags().StringVar(&onLost, "on-lost-offsets", "stop", "`how` a worker goes on where it cannot read on at its start: stop, earliest or latest (docs/runbook.md)")
	return cmd
}

// gcPercent is how much of the heap may be garbage before Go collects it, where
// GOGC says nothing: what a worker allocates lives as long as its batch, so each
// collection finds the same caches alive, and half as many cost half as much. GOMEMLIMIT
// still holds.
const gcPercent = 200

// collectAt sets Go's collector to percent, unless the environment has it.
func collectAt(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

func roleArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("run needs at least one role: %s", roleNames())
	}
	var errs []error
	for i, r := range args {
		if !slices.Contains(stack.Runnable(), stack.Role(r)) {
			errs = append(errs, fmt.Errorf("unknown role %q; there are %s", r, roleNames()))
		}
		if slices.Contains(args[:i], r) {
			errs = append(errs, fmt.Errorf("role %s is named twice", r))
		}
	}
	return errors.Join(errs...)
}

func roleNames() string {
	var names []string
	for _, r := range stack.Runnable() {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}
