package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/importer"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/telemetry"
)

type importFlags struct {
	to, format, input, messages, seq, seqUser string

	sort, skipBad, intoLive bool
}

func newImportCmd(a *app) *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Write what another system exported into a history",
		Long: `Import reads JSON lines of conversations, messages and members and writes them
into a history, before the deployment is started on it. All of the input is read
and checked first; with a fault nothing is written (--skip-bad: nothing of the
conversations with faults). It can be stopped or killed anywhere and be called
again, and a later export of the same adds what came since. In the end what
stands is read back.

The lines must be sorted by conversation, in byte order; --sort sorts them, in
the directory for temporary files (TMPDIR). docs/import.md has the format of the
lines, and the steps for OpenIM.

` + placesHelp,
		Example: `  tidemark import --to sqlite:history.db --input export.jsonl
  export-it | tidemark import --to mongodb://db1/tidemark --input - --sort
  tidemark import --to config --format openim --messages msg.jsonl --seq seq.jsonl --seq-user seq_user.jsonl`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return interrupted(cmd.Context(), a.importing(cmd.Context(), f))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", "", "the `history` that is written")
	flags.StringVar(&f.format, "format", "lines", "`format` of the input: lines or openim")
	flags.StringVar(&f.input, "input", "", "lines: the `file` with the lines; - for standard input")
	flags.BoolVar(&f.sort, "sort", false, "lines: take them in any order")
	flags.StringVar(&f.messages, "messages", "", "openim: `file` with the collection msg")
	flags.StringVar(&f.seq, "seq", "", "openim: `file` with the collection seq")
	flags.StringVar(&f.seqUser, "seq-user", "", "openim: `file` with the collection seq_user")
	flags.BoolVar(&f.skipBad, "skip-bad", false, "import the conversations without faults although others have some")
	flags.BoolVar(&f.intoLive, "into-live", false, "the history is that of a deployment: its roles are stopped, and Redis is emptied before they start")
	require(cmd, "to")
	return cmd
}

func (f *importFlags) check() error {
	if err := oneOf("format", f.format, "lines", "openim"); err != nil {
		return err
	}
	lines, openIM := f.input != "" || f.sort, f.messages != "" || f.seq != "" || f.seqUser != ""
	switch {
	case f.format == "lines" && openIM:
		return usagef("--messages, --seq and --seq-user are for --format openim")
	case f.format == "lines" && f.input == "":
		return usagef("--input is missing")
	case f.format == "openim" && lines:
		return usagef("--input and --sort are for --format lines")
	case f.format == "openim" && (f.messages == "" || f.seq == "" || f.seqUser == ""):
		return usagef("--format openim needs --messages, --seq and --seq-user")
	}
	return nil
}

func (a *app) importing(ctx context.Context, f importFlags) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	target, err := a.historyAt("to", f.to)
	if err != nil {
		return err
	}
	cfg, err := a.load(nil)
	if err != nil {
		return err
	}
	logger, err := telemetry.NewLogger(a.errOut, "warn", "text")
	if err != nil {
		return err
	}
	src, done, err := a.importSource(ctx, f, convert.Limits{MaxBody: cfg.Limits.MaxBody})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	to, closeTo, err := stack.OpenHistory(ctx, target, logger)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(target), err)
	}
	defer func() { err = errors.Join(err, closeTo()) }()
	if err := to.Prepare(ctx); err != nil {
		return err
	}
	bars := &stageBars{a: a}
	rep, err := importer.Import(ctx, importer.Config{Source: src, To: to, SkipBad: f.skipBad, IntoLive: f.intoLive, Step: bars.step})
	bars.finish()
	if errors.Is(err, importer.ErrLive) {
		return fmt.Errorf("%s: %w; docs/import.md has the steps that make it safe, with --into-live", shown(target), err)
	}
	a.emit(rep, func() { a.printImport(rep) })
	if err != nil && !errors.Is(err, importer.ErrFaults) {
		return fmt.Errorf("the import is not complete, call it again to go on: %w", err)
	}
	return err
}

// importSource opens the input. done removes what it keeps in temporary files.
func (a *app) importSource(ctx context.Context, f importFlags, l convert.Limits) (_ importer.Source, done func() error, err error) {
	b := newBar(a.errOut, "sorting", 0)
	defer b.finish()
	step := func() { b.step(1) }
	if f.format == "openim" {
		s, err := importer.OpenIM(ctx, importer.OpenIMFiles{Messages: f.messages, Seq: f.seq, SeqUser: f.seqUser, Limits: l, Step: step})
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	}
	path, remove := f.input, func() error { return nil }
	if path == "-" {
		if path, remove, err = importer.Spool(ctx, a.in); err != nil {
			return nil, nil, fmt.Errorf("--input: %w", err)
		}
	}
	if !f.sort {
		return importer.Lines(path, l), remove, nil
	}
	s, err := importer.Sort(ctx, path, l, step)
	if err = errors.Join(err, remove()); err != nil {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
		return nil, nil, err
	}
	return s, s.Close, nil
}

// stageBars shows one bar after the other. How much there is the first stage
// tells the others.
type stageBars struct {
	a     *app
	stage importer.Stage
	bar   *bar
}

func (s *stageBars) step(stage importer.Stage, n int64) {
	if stage != s.stage {
		s.finish()
		total := int64(0)
		if s.bar != nil {
			total = s.bar.done
		}
		s.stage, s.bar = stage, newBar(s.a.errOut, string(stage), total)
	}
	s.bar.step(n)
}

func (s *stageBars) finish() {
	if s.bar != nil {
		s.bar.finish()
	}
}

func (a *app) printImport(rep *importer.Report) {
	for _, f := range rep.Faults {
		where := f.At
		if f.Conversation != "" {
			where += " " + f.Conversation
		}
		fmt.Fprintf(a.out, "%s: %s\n", oneLine(where), oneLine(f.Detail))
	}
	if more := rep.Faulty - int64(len(rep.Faults)); more > 0 {
		fmt.Fprintf(a.out, "and %d faults more\n", more)
	}
	of := func(c importer.Counts) string {
		return fmt.Sprintf("%s, %s, %s", count(int(c.Conversations), "conversation"), count(int(c.Members), "member"), count(int(c.Messages), "message"))
	}
	if rep.Imported != (importer.Counts{}) {
		fmt.Fprintf(a.out, "imported and read back: %s\nwritten now: %s\n", of(rep.Imported), of(rep.Written))
	}
	s := rep.Skipped
	for _, line := range []struct {
		n    int64
		what string
	}{
		{rep.Bad, "conversations with faults, not imported"},
		{rep.Live, "conversations in use, passed over: they have all of the input"},
		{s.Holes, "holes, now tombstones"},
		{s.Notifications, "notifications, not imported"},
		{s.BelowMin, "messages below a minimum, not imported"},
		{s.Unused, "seqs set aside behind the last message, not taken over"},
		{s.Lowered, "marks above the last message, lowered to it"},
		{s.DeletedForOne, "messages that one user had deleted for himself, visible again"},
	} {
		if line.n > 0 {
			fmt.Fprintf(a.out, "%d %s\n", line.n, line.what)
		}
	}
	if rep.IntoLive && rep.Imported != (importer.Counts{}) {
		fmt.Fprintln(a.out, "Empty Redis before the roles start.")
	}
}
