package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
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
	cfg, err := a.auditConfig(data)
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
		if err := isDevData(data); err != nil {
			return err
		}
		unlock, err := lockDir(data)
		if err != nil {
			return err
		}
		defer unlock()
		emb, err := stack.StartEmbedded(stack.EmbeddedConfig{DataDir: data, Partitions: cfg.Kafka.Partitions, Base: &cfg, Logger: logger})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, emb.Cluster.Close()) }()
		sc.Config, sc.Roles = emb.Config, []stack.Role{stack.ToRedis, stack.ToMongo}
		// With another topic prefix than dev had, new topics would be found clean.
		sc.Config.Kafka.CreateTopics = false
	}
	s, err := stack.Open(ctx, sc)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	rep, err := settledAudit(ctx, s, len(sc.Roles) > 0)
	if err != nil {
		return interrupted(ctx, err)
	}
	return a.printAudit(rep)
}

func (a *app) auditConfig(data string) (config.Config, error) {
	if data == "" {
		return a.load(nil)
	}
	return a.loadEmbedded("audit --data", nil, "sync.listen", "gateway.listen", "admin.listen")
}

// isDevData refuses a directory that tidemark dev has not written: an empty one
// would be made, and found clean.
func isDevData(dir string) error {
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return usagef("--data %s: no such directory", dir)
	} else if err != nil {
		return usagef("--data: %w", err)
	} else if !info.IsDir() {
		return usagef("--data %s: is no directory", dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "kafka")); errors.Is(err, fs.ErrNotExist) {
		return usagef("--data %s: has no tidemark dev data", dir)
	} else if err != nil {
		return usagef("--data: %w", err)
	}
	return nil
}

// settledAudit audits s, after its workers have finished what there was when it
// has any.
func settledAudit(ctx context.Context, s *stack.Stack, work bool) (rep *audit.Report, err error) {
	if !work {
		return s.Audit(ctx)
	}
	run, cancel := context.WithCancel(ctx)
	// A worker that fails ends the wait for it.
	alive, ended := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		defer ended()
		done <- s.Run(run)
	}()
	defer func() {
		cancel()
		err = errors.Join(err, <-done)
	}()
	if err := s.Settle(alive); err != nil {
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
		fmt.Fprintf(a.out, "%s, %s, %s, %s warm in Redis\n", count(rep.Conversations, "conversation"), count(rep.Messages, "message"),
			count(rep.Members, "member"), count(rep.Warm, "conversation"))
		if rep.Refused > 0 {
			fmt.Fprintf(a.out, "%s of the log cannot be decoded: dead letters\n", count(rep.Refused, "record"))
		}
		if rep.Clean() {
			fmt.Fprintln(a.out, "clean")
		} else {
			fmt.Fprintln(a.out, count(len(rep.Findings), "finding"))
		}
		for _, f := range rep.Findings {
			fmt.Fprintf(a.out, "%-14s %s: %s\n", f.Kind, f.Conversation, f.Detail)
		}
	}
	if !rep.Clean() {
		return fmt.Errorf("the audit is not clean: %s", count(len(rep.Findings), "finding"))
	}
	return nil
}
