package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/storage/history"
)

const placesHelp = `A history is named by one of
  sqlite:PATH                      a file
  mongodb://HOST[,...]/DATABASE    a MongoDB, also mongodb+srv
  env:NAME                         what the environment variable NAME holds, which
                                   keeps a password off the command line
  config                           the one of the configuration (history.*)
Secrets are never printed.`

func newHistoryCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "history",
		Short:   "Copy a history to another store, or compare two",
		Long:    "History moves what Tidemark keeps for good between SQLite and MongoDB, in either direction.\n\n" + placesHelp,
		Example: "  tidemark history copy --from sqlite:history.db --to mongodb://db1/tidemark",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return usagef("history needs one of copy, compare") },
	}
	copying := &cobra.Command{
		Use:   "copy",
		Short: "Copy a history to another store, and check the copy",
		Long: `Copy brings one history to what another one holds: messages with tombstones,
bounds, windows, marks, client ids. It writes what is missing or has risen and
nothing else, so it can be stopped or killed anywhere and be called again. Then
it reads both and compares them; the exit code is 0 only if they are the same.

Nothing may write either history at the end. To move a deployment: copy while it
runs, which takes long and is not the same in the end; stop toMongo, and nothing
else; copy again, which takes what changed since; start every role on the new
history, toMongo last. docs/history.md has the steps.

` + placesHelp,
		Example: `  tidemark history copy --from sqlite:/var/lib/tidemark/history.db --to mongodb://db1,db2,db3/tidemark
  NEW='mongodb://tidemark:p@ss/w:rd@db1/tidemark' tidemark history copy --from config --to env:NEW
  tidemark history copy --from mongodb://db1/tidemark --to sqlite:backup.db -o json`,
	}
	a.transfers(copying, true)
	comparing := &cobra.Command{
		Use:     "compare",
		Short:   "Compare two histories, and change nothing",
		Long:    "Compare reads two histories and tells where they differ. The exit code is 0 only if\nthey are the same, which needs that nothing writes either.\n\n" + placesHelp,
		Example: "  tidemark history compare --from sqlite:history.db --to mongodb://db1/tidemark",
	}
	a.transfers(comparing, false)
	cmd.AddCommand(copying, comparing)
	return cmd
}

// transfers makes cmd one that compares two histories, after it has copied one
// to the other when copies.
func (a *app) transfers(cmd *cobra.Command, copies bool) {
	var from, to string
	cmd.Flags().StringVar(&from, "from", "", "the `history` that is read")
	cmd.Flags().StringVar(&to, "to", "", "the `history` that is brought to the same")
	require(cmd, "from", "to")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return interrupted(cmd.Context(), a.transfer(cmd.Context(), from, to, copies))
	}
}

func (a *app) transfer(ctx context.Context, from, to string, copies bool) (err error) {
	source, err1 := a.historyAt("from", from)
	target, err2 := a.historyAt("to", to)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if shown(source) == shown(target) && shown(source) != history.Masked("") {
		return usagef("--from and --to are the same history, %s", shown(source))
	}
	for flag, h := range map[string]config.History{"from": source, "to": target} {
		if h.Backend == "sqlite" && (flag == "from" || !copies) {
			if _, err := os.Stat(h.Path); errors.Is(err, fs.ErrNotExist) {
				return usagef("--%s %s: no such file", flag, shown(h))
			} else if err != nil {
				return usagef("--%s: %w", flag, err)
			}
		}
	}
	logger, err := telemetry.NewLogger(a.errOut, "warn", "text")
	if err != nil {
		return err
	}
	src, closeSrc, err := stack.OpenHistory(ctx, source, logger)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(source), err)
	}
	defer func() { err = errors.Join(err, closeSrc()) }()
	sizes, err := src.Sizes(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(source), err)
	}
	total := sizes.Conversations + sizes.Members + sizes.Rows
	if total == 0 {
		return fmt.Errorf("--from %s holds no history", shown(source))
	}
	dst, closeDst, err := stack.OpenHistory(ctx, target, logger)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(target), err)
	}
	defer func() { err = errors.Join(err, closeDst()) }()
	for _, prepare := range []func(context.Context) error{src.Prepare, dst.Prepare} {
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	return a.copyAndCompare(ctx, transfer.Config{From: src, To: dst}, copies, total)
}

type transferLine struct {
	Copied    *transfer.Counts `json:"copied,omitempty"`
	Same      bool             `json:"same"`
	Comparing *transfer.Report `json:"comparison"`
}

func (a *app) copyAndCompare(ctx context.Context, cfg transfer.Config, copies bool, total int64) error {
	var line transferLine
	if copies {
		b := newBar(a.errOut, "copying", total)
		cfg.Step = func(n transfer.Counts) { b.step(n.Sum()) }
		copied, err := transfer.Copy(ctx, cfg)
		b.finish()
		if err != nil {
			return fmt.Errorf("the copy is not complete, call it again to go on: %w", err)
		}
		line.Copied = &copied
		if a.output != "json" {
			fmt.Fprintf(a.out, "copied %s\n", countsText(copied))
		}
	}
	b := newBar(a.errOut, "comparing", total)
	cfg.Step = func(n transfer.Counts) { b.step(n.Sum()) }
	rep, err := transfer.Compare(ctx, cfg)
	b.finish()
	if err != nil {
		return err
	}
	line.Same, line.Comparing = rep.Same(), rep
	a.emit(line, func() { a.printReport(rep) })
	if rep.Same() {
		return nil
	}
	err = fmt.Errorf("the two histories differ, in %s", count(int(rep.Differing), "place"))
	if copies {
		err = fmt.Errorf("%w; if the source was written meanwhile, stop toMongo and copy again", err)
	}
	return err
}

func (a *app) printReport(rep *transfer.Report) {
	if rep.Same() {
		fmt.Fprintf(a.out, "the same: %s, sha256 %s\n", countsText(rep.To.Counts), rep.To.Digest)
		return
	}
	fmt.Fprintf(a.out, "source: %s, sha256 %s\n", countsText(rep.From.Counts), rep.From.Digest)
	fmt.Fprintf(a.out, "target: %s, sha256 %s\n", countsText(rep.To.Counts), rep.To.Digest)
	for _, d := range rep.Differences {
		where := string(d.Conversation)
		if d.User != "" {
			where += " " + string(d.User)
		}
		if d.From != nil && d.To != nil {
			where += fmt.Sprintf(" (%s sha256 %.12s in the source, %s sha256 %.12s in the target)",
				count(int(d.From.Messages), "message"), d.From.Digest, count(int(d.To.Messages), "message"), d.To.Digest)
		}
		fmt.Fprintf(a.out, "%-12s %s: %s\n", d.Kind, oneLine(where), oneLine(d.Detail))
	}
	if more := rep.Differing - int64(len(rep.Differences)); more > 0 {
		fmt.Fprintf(a.out, "and %d more\n", more)
	}
}

func countsText(c transfer.Counts) string {
	return fmt.Sprintf("%s, %s, %s", count(int(c.Conversations), "conversation"), count(int(c.Members), "member"), count(int(c.Messages), "message"))
}

// historyAt reads what names a history.
func (a *app) historyAt(flag, place string) (config.History, error) {
	if name, ok := strings.CutPrefix(place, "env:"); ok {
		value, found := a.getenv(name)
		if !found || value == "" {
			return config.History{}, usagef("--%s: the environment variable %q is not set", flag, name)
		}
		if value == "config" || strings.HasPrefix(value, "env:") {
			return config.History{}, usagef("--%s: the environment variable %q does not hold sqlite:PATH or mongodb://...", flag, name)
		}
		return a.historyAt(flag, value)
	}
	if place == "config" {
		cfg, err := a.load(nil)
		if err != nil {
			return config.History{}, err
		}
		h := cfg.History
		if h.Backend == "sqlite" && h.Path == "" {
			return h, usagef("--%s config: history.path is empty, which is a history in memory", flag)
		}
		return absolute(h)
	}
	h := config.Default().History
	switch path, ok := strings.CutPrefix(place, "sqlite:"); {
	case ok && path != "":
		h.Backend, h.Path = "sqlite", path
		return absolute(h)
	case strings.HasPrefix(place, "mongodb://"), strings.HasPrefix(place, "mongodb+srv://"):
		h.Backend, h.URI = "mongodb", place
		return h, nil
	}
	// The value is not repeated: it may be a secret in the wrong form.
	return h, usagef("--%s must be sqlite:PATH, mongodb://..., env:NAME or config", flag)
}

// absolute makes the path of a file the same however it was written.
func absolute(h config.History) (config.History, error) {
	if h.Backend != "sqlite" {
		return h, nil
	}
	path, err := filepath.Abs(h.Path)
	if err != nil {
		return h, usageError{err}
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	h.Path = path
	return h, nil
}

func (a *app) getenv(name string) (string, bool) {
	if a.environ == nil {
		return "", false
	}
	for _, line := range a.environ() {
		if key, value, _ := strings.Cut(line, "="); key == name {
			return value, true
		}
	}
	return "", false
}

// shown names a history without its secrets.
func shown(h config.History) string {
	if h.Backend == "sqlite" {
		return "sqlite:" + h.Path
	}
	return strings.TrimSuffix(history.Masked(h.URI)+" "+h.Database, " ")
}
