package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/demo"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/watermark"
)

func newDemoCmd(a *app) *cobra.Command {
	var input, user string
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job, on servers inside this process",
		Long: `Demo publishes messages of several people over Kafka while one user is away,
one is kicked and one joins late. It prints what the returning user finds, pulls
and reads, empties Redis, restarts every worker, and audits every seq.

The exit code is 0 only if all of it was right. With --keep it goes on running, and
prints where its console is (docs/console.md).

With --input it takes your own messages: one JSON message a line, as a producer
would publish them, for example
  {"conversation":"single:ann:zoe","sender":"zoe","clientMessageId":"1","text":"hi"}

The configuration holds here too, save what follows from the servers being
inside this process.`,
		Example: `  tidemark demo
  tidemark demo --keep
  tidemark demo --input messages.jsonl --user ann
  generate-messages | tidemark demo --input -`,
		GroupID: groupRun,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), input, user, keep) },
	}
	cmd.Flags().StringVar(&input, "input", "", "JSON lines `file` with your own messages; - for standard input")
	cmd.Flags().StringVar(&user, "user", "", "the `user` who returns (default: the one with most conversations)")
	cmd.Flags().BoolVar(&keep, "keep", false, "go on running at the end, with the console, until Ctrl-C")
	return cmd
}

func (a *app) demo(ctx context.Context, input, user string, keep bool) error {
	base := config.Default()
	base.Kafka.Partitions, base.Log.Level = 4, "error"
	settings, err := a.loadEmbedded("demo", &base, "sync.listen", "gateway.listen", "admin.listen")
	if err != nil {
		return err
	}
	cfg := demo.Config{Out: a.out, Base: &settings, Keep: keep}
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
	if cfg.Logger, err = telemetry.NewLogger(a.errOut, settings.Log.Level, settings.Log.Format); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return interrupted(ctx, demo.Run(ctx, cfg))
}
