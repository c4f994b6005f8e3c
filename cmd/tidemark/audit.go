package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/telemetry"
)

func newAuditCmd(a *app) *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check every seq: log, history and Redis against each other",
		Long: `Audit reads the whole sequenced log, history and what Redis may be believed
about, and compares them: no hole, no seq and no client message id twice, every
message of the log in history, the same windows and marks everywhere.

It changes nothing. Only a deployment at rest (see 'tidemark lag --until-zero')
gives a clean report. The exit code is 0 only if it is clean.

With --data it audits what 'tidemark dev --data' left behind, however that
ended: it starts the same servers on it, lets the workers finish what stands in
the topics, and audits then.`,
		Example: `  tidemark audit --config tidemark.yaml
  tidemark audit --data ./data
  tidemark audit --output json`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.audit(cmd.Context(), data) },
	}
	cmd.Flags().StringVar(&data, "data", "", "audit this `directory` of tidemark dev, which must not be running")
	return cmd
}

func (a *app) audit(ctx context.Context, data string) (err error) {
	cfg, err := a.load(nil)
	if err != nil {
		return err
	}
	logger, err := telemetry.NewLogger(a.errOut, "warn", cfg.Log.Format)
	if err != nil {
		return err
	}
	cfg.Kafka.CreateTopics = false
	sc := stack.Config{Config: cfg, Logger: logger}
	if data != "" {
		unlock, err := lockDir(data)
		if err != nil {
			return err
		}
		defer unlock()
		emb, err := stack.StartEmbedded(stack.EmbeddedConfig{DataDir: data, Logger: logger})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, emb.Cluster.Close()) }()
		sc.Config, sc.Roles = emb.Config, []stack.Role{stack.ToRedis, stack.ToMongo}
	}
	s, err := stack.Open(ctx, sc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	rep, err := settledAudit(ctx, s, len(sc.Roles) > 0)
	if err != nil {
		return err
	}
	return a.printAudit(rep)
}

// settledAudit audits s, after its workers have finished what there was when it
// has any.
func settledAudit(ctx context.Context, s *stack.Stack, work bool) (rep *audit.Report, err error) {
	if !work {
		return s.Audit(ctx)
	}
	run, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(run) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-done)
	}()
	if err := s.Settle(ctx); err != nil {
		return nil, err
	}
	return s.Audit(ctx)
}

func (a *app) printAudit(rep *audit.Report) error {
	if a.output == "json" {
		if err := json.NewEncoder(a.out).Encode(rep); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.out, "%d conversations, %d messages, %d members, %d conversations warm in Redis\n", rep.Conversations, rep.Messages, rep.Members, rep.Warm)
		for _, f := range rep.Findings {
			fmt.Fprintf(a.out, "%-14s %s: %s\n", f.Kind, f.Conversation, f.Detail)
		}
	}
	if !rep.Clean() {
		return fmt.Errorf("%d findings", len(rep.Findings))
	}
	return nil
}
