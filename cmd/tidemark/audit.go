package main

import (
	"context"
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
	"github.com/tidemark-im/tidemark/watermark"
)

// auditFlags is what a command line asks of an audit.
type auditFlags struct {
	data          string
	conversations []string
	sample        int
	all, readLog  bool
	repair        bool
}

func newAuditCmd(a *app) *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check every seq, mark and window: history, Redis and the log against each other",
		Long: `Audit checks history, what Redis may be believed about, and the sequenced log
against each other, beside the traffic: no hole, no seq and no client message id
twice, the same messages, windows and marks everywhere, nothing left below the
minimum. It needs little memory, however much there is to check.

What looks wrong is looked at again once the workers have passed what stood in
their topics at that moment, so what is under way is no finding. When they do
not get there within audit.patience, it is undecided.

Without --conversation and --sample everything is checked, the log included. With
them the log is read only with --log.

It changes nothing, except with --repair, which mends what follows from another
store without guessing: a conversation of which Redis is wrong is made cold, rows
below the minimum are deleted, the maximum is raised to the rows, a mark is
raised in Redis, what only the log or only Redis has is written to history. It
says what it did; docs/audit.md says what to do about the rest.

With --data it audits what 'tidemark dev --data' left behind, however that
ended: it starts the same servers on it, lets the workers finish what stands in
the topics, and audits then.

Exit codes:
  0  everything was checked and nothing is wrong
  1  something is wrong, mended or not; run it again to see what is left
  2  it could not finish, something is undecided, or the command line is wrong`,
		Example: `  tidemark audit --config tidemark.yaml
  tidemark audit --conversation group:g1 --conversation single:ann:bob
  tidemark audit --sample 1000 --output json
  tidemark audit --all --repair
  tidemark audit --data ./data`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.audit(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.data, "data", "", "audit this `directory` of tidemark dev, which must not be running")
	flags.StringArrayVar(&f.conversations, "conversation", nil, "audit this conversation; repeatable")
	flags.IntVar(&f.sample, "sample", 0, "audit so many conversations, chosen by chance")
	flags.BoolVar(&f.all, "all", false, "audit everything, as without any of these")
	flags.BoolVar(&f.readLog, "log", false, "read the sequenced log, too, with --conversation or --sample")
	flags.BoolVar(&f.repair, "repair", false, "mend what can be mended without guessing")
	cmd.MarkFlagsMutuallyExclusive("conversation", "sample", "all")
	return cmd
}

// scope gives what is to be audited. All faults are reported.
func (f *auditFlags) scope() (audit.Scope, error) {
	var errs []error
	s := audit.Scope{Sample: f.sample}
	if f.sample < 0 || f.sample > audit.MaxSample {
		errs = append(errs, fmt.Errorf("--sample must be within 1..%d, is %d", audit.MaxSample, f.sample))
	}
	for _, c := range f.conversations {
		id, err := watermark.ParseConversationID(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("--conversation: %w", err))
		}
		s.Conversations = append(s.Conversations, id)
	}
	if err := errors.Join(errs...); err != nil {
		return s, usageError{err}
	}
	return s, nil
}

func (a *app) audit(ctx context.Context, f auditFlags) (err error) {
	// Only a finding exits with 1.
	defer func() {
		if _, is := errors.AsType[exitError](err); err != nil && !is && !errors.Is(err, errInterrupted) {
			err = exitError{exitUnfinished, err}
		}
	}()
	scope, err := f.scope()
	if err != nil {
		return err
	}
	cfg, err := a.auditConfig(f.data)
	if err != nil {
		return err
	}
	logger, err := telemetry.NewLogger(a.errOut, "warn", cfg.Log.Format)
	if err != nil {
		return err
	}
	cfg.Kafka.CreateTopics = false
	sc := stack.Config{Config: cfg, Logger: logger}
	if f.data != "" {
		if err := isDevData(f.data); err != nil {
			return err
		}
		unlock, err := lockDir(f.data)
		if err != nil {
			return err
		}
		defer unlock()
		emb, err := stack.StartEmbedded(stack.EmbeddedConfig{DataDir: f.data, Partitions: cfg.Kafka.Partitions, Base: &cfg, Logger: logger})
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
	printer := newAuditPrinter(a)
	ac := stack.AuditConfig{
		ReadLog: f.readLog || len(f.conversations) == 0 && f.sample == 0, Repair: f.repair,
		Patience: cfg.Audit.Patience, Found: printer.finding, Progress: printer.progress(),
	}
	audits := func(ctx context.Context) (*audit.Report, error) { return s.Audit(ctx, ac, scope) }
	rep, err := beside(ctx, s, len(sc.Roles) > 0, audits)
	printer.done()
	if err != nil {
		return interrupted(ctx, err)
	}
	return printer.report(rep)
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

// beside audits s, after its workers, when it has any, have finished what there
// was, and while they go on. One that fails ends it.
func beside(ctx context.Context, s *stack.Stack, work bool, audits func(context.Context) (*audit.Report, error)) (rep *audit.Report, err error) {
	if !work {
		return audits(ctx)
	}
	run, cancel := context.WithCancel(ctx)
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
	if rep, err = audits(alive); err != nil || rep.Mended == 0 {
		return rep, err
	}
	// What was mended by appending to the log has its way to history yet to go.
	return rep, s.Settle(alive)
}
