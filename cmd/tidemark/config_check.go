package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

type checkLine struct {
	Name        string  `json:"name"`
	OK          bool    `json:"ok"`
	Detail      string  `json:"detail"`
	Error       string  `json:"error"`
	TookSeconds float64 `json:"tookSeconds"`
}

func newConfigCheckCmd(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration, and try every connection that it names",
		Long: `Check reads the configuration as a role would, and tries Kafka and its topics,
Redis, history, the keys of callers and the certificates of the ports. It changes
nothing, and fails with every fault that it found.`,
		Example: `  tidemark config check --config tidemark.yaml
  tidemark config check --config tidemark.yaml -o json | jq 'select(.ok | not)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usagef("--timeout must be above 0, is %s", timeout)
			}
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			checked := stack.Check(ctx, cfg, slog.New(slog.DiscardHandler))
			if cmd.Context().Err() != nil {
				return errInterrupted
			}
			return a.printChecked(checked)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Second, "how long to wait for answers")
	return cmd
}

func (a *app) printChecked(checked []stack.Checked) error {
	var errs []error
	var rows [][]string
	for _, c := range checked {
		line := checkLine{Name: c.Name, OK: c.Err == nil, Detail: c.Detail, TookSeconds: c.Took.Seconds()}
		state, says := "ok", c.Detail
		if c.Err != nil {
			// One line for each thing that was tried.
			says = strings.ReplaceAll(c.Err.Error(), "\n", "; ")
			state, line.Error, line.Detail = "WRONG", says, ""
			errs = append(errs, fmt.Errorf("%s: %s", c.Name, says))
		}
		a.emit(line, func() { rows = append(rows, []string{c.Name, state, c.Took.Round(time.Millisecond).String(), says}) })
	}
	if rows != nil {
		a.table([]string{"WHAT", "STATE", "TOOK", ""}, rows)
	}
	return errors.Join(errs...)
}
