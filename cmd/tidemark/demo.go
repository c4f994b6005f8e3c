package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/demo"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/watermark"
)

func newDemoCmd(a *app) *cobra.Command {
	var input, user string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job, on servers inside this process",
		Long: `Demo publishes messages of several people over Kafka while one user is away,
one is kicked and one joins late. It prints what the returning user finds, pulls
and reads, empties Redis, restarts every worker, and audits every seq.

The exit code is 0 only if all of it was right.

With --input it takes your own messages: one JSON message a line, as a producer
would publish them, for example
  {"conversation":"single:ann:zoe","sender":"zoe","clientMessageId":"1","text":"hi"}`,
		Example: `  tidemark demo
  tidemark demo --input messages.jsonl --user ann
  generate-messages | tidemark demo --input -`,
		GroupID: groupRun,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), input, user) },
	}
	cmd.Flags().StringVar(&input, "input", "", "JSON lines `file` with your own messages; - for standard input")
	cmd.Flags().StringVar(&user, "user", "", "the `user` who returns (default: the one with most conversations)")
	return cmd
}

func (a *app) demo(ctx context.Context, input, user string) error {
	cfg := demo.Config{Out: a.out}
	if user != "" {
		u, err := watermark.ParseUserID(user)
		if err != nil {
			return usagef("--user: %w", err)
		}
		cfg.User = u
	}
	var in io.Reader
	switch input {
	case "":
	case "-":
		in = a.in
	default:
		f, err := os.Open(input)
		if err != nil {
			return usagef("--input: %w", err)
		}
		defer f.Close()
		in = f
	}
	cfg.Input = in
	logger, err := telemetry.NewLogger(a.errOut, "error", "text")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	cfg.Logger = logger
	return demo.Run(ctx, cfg)
}
