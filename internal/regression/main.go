// Command regression holds this tree's benchmarks against what is written down
// and against an earlier commit.
//
//	go run ./internal/regression                  what the gate does
//	go run ./internal/regression -base v1.2.0     against another commit
//	go run ./internal/regression -run wire        those whose package or name match
//	go run ./internal/regression -update          write down what is allocated now
//
// The table is benchmarks.json. It promises:
//   - What an operation allocates, objects and bytes, is compared with the table
//     in both directions: it depends neither on the machine nor on its load.
//   - What an operation costs is processor time, of a process for each run, never
//     time on the clock, and never compared with a stored figure: both commits
//     run in turn, on this machine, as often, and of each its cheapest run counts.
//     What a benchmark prepares is in a run, so a run makes many operations, or the
//     benchmark tells what they cost. What looks dearer than it may be is measured
//     again, several times, before it counts: others on the machine make runs
//     dearer, never cheaper.
//
// It finds gross regressions only: half as much again. A commit that this clone
// does not have, a shallow one for example, is said and not compared with; the
// table still is. A benchmark that the earlier commit does not have is said too.
//
// benchstat compares times by their distribution, which takes ten runs each to say
// something, knows no bound to fail at, and reads the clock; so it is not used here.
// It exits with 1 when something is out of bounds or could not be measured.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"text/tabwriter"
)

type options struct {
	root, table, base string
	match             *regexp.Regexp
	rounds, more      int
	limit             float64
	update, counts    bool
}

func flagsOf(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("regression", flag.ContinueOnError)
	flags.StringVar(&o.root, "root", ".", "root of the module")
	flags.StringVar(&o.table, "table", "", "another table than the root's "+tablePath)
	flags.StringVar(&o.base, "base", "", "commit to compare with (default: the table's)")
	only := flags.String("run", "", "regular expression: only benchmarks whose package or name match")
	flags.IntVar(&o.rounds, "rounds", 5, "how often each of the two commits runs")
	flags.IntVar(&o.more, "more", 20, "how often again where the ratio is above the limit")
	flags.Float64Var(&o.limit, "limit", 1.5, "highest ratio of processor time, this tree's to the other's")
	flags.BoolVar(&o.update, "update", false, "write what is allocated into the table, and compare nothing")
	flags.BoolVar(&o.counts, "counts", false, "compare what is allocated only")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var errs []error
	var err error
	if o.match, err = regexp.Compile(*only); err != nil {
		errs = append(errs, fmt.Errorf("-run: %w", err))
	}
	if o.root, err = filepath.Abs(o.root); err != nil {
		errs = append(errs, fmt.Errorf("-root: %w", err))
	}
	o.table = cmp.Or(o.table, filepath.Join(o.root, tablePath))
	if o.rounds < 1 || o.more < 0 || !(o.limit >= 1) || math.IsInf(o.limit, 0) || flags.NArg() > 0 {
		errs = append(errs, errors.New("rounds and limit are from 1 on, more from 0 on, and there are no arguments"))
	}
	return o, errors.Join(errs...)
}

func run(ctx context.Context, w io.Writer, args []string) (err error) {
	o, err := flagsOf(args)
	if err != nil {
		return err
	}
	t, err := readTable(o.table)
	if err != nil {
		return err
	}
	chosen := t.matching(o.match)
	if len(chosen) == 0 {
		return fmt.Errorf("-run: no benchmark of %s matches", o.table)
	}
	dir, err := os.MkdirTemp("", "regression-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	this, err := build(ctx, o.root, filepath.Join(dir, "this"), o.root, chosen)
	if err != nil {
		return err
	}
	if o.update {
		return update(ctx, w, t, chosen, this, o.table)
	}
	base := cmp.Or(o.base, t.Base)
	var other *binaries
	absent := "by -counts"
	if !o.counts {
		if other, absent, err = earlier(ctx, o.root, base, dir, chosen); err != nil {
			return err
		}
	}
	pairs := make([]*pair, len(chosen))
	for i, b := range chosen {
		pairs[i] = &pair{Benchmark: b}
		if err := pairs[i].measure(ctx, this, other, o); err != nil {
			return err
		}
	}
	return report(w, pairs, base, absent, o)
}

// update writes down what is allocated now, where that is another figure and not
// the last digit of it: a change should show what it changes.
func update(ctx context.Context, w io.Writer, t *table, chosen []*Benchmark, this *binaries, path string) error {
	for _, b := range chosen {
		r, err := this.run(ctx, b, b.Times)
		if err != nil {
			return err
		}
		if near(r.allocs, b.Allocs) && near(r.bytes, b.Bytes) {
			continue
		}
		fmt.Fprintf(w, "%s: %d objects, %d bytes an operation; were %d and %d\n", b, r.allocs, r.bytes, b.Allocs, b.Bytes)
		b.Allocs, b.Bytes = r.allocs, r.bytes
	}
	return t.write(path)
}

// near tells whether two figures are within half a hundredth of one another.
func near(a, b uint64) bool { return math.Abs(float64(a)-float64(b)) <= 0.005*float64(b) }

// report prints all of it, and says what is out of bounds. absent says why there is
// no earlier commit to compare with.
func report(w io.Writer, pairs []*pair, base, absent string, o options) error {
	if absent == "" {
		fmt.Fprintf(w, "Processor time of an operation, beside commit %s; above %g times as much is too much.\n\n", base, o.limit)
	} else {
		fmt.Fprintf(w, "NOT COMPARED with commit %s: %s\nWhat is allocated is held against the table, all the same.\n\n", base, absent)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "BENCHMARK\tBEFORE US\tNOW US\tRATIO\tRUNS\tOBJECTS\tBYTES")
	var errs []error
	for _, p := range pairs {
		before, now, ratio := p.text()
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%d\t%d\n", p.Benchmark, before, now, ratio, p.runs, p.allocs, p.bytes)
		errs = append(errs, p.faults(o.limit)...)
	}
	return errors.Join(append(errs, tw.Flush())...)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "regression:", err)
		os.Exit(1)
	}
}
