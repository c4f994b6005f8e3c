//go:build unix

// Chaos proves that nothing is lost, doubled or leaked: it runs a deployment of
// Tidemark on real services, breaks whatever can be broken while messages come
// in and clients read, heals everything, and lets a checker that knows nothing
// of Tidemark's insides judge what was seen.
//
//	go run ./internal/chaos --seed 7 --duration 60s
//	go run ./internal/chaos --schedule faults.txt
//	go run ./internal/chaos --mutation NAME
//	go run ./internal/chaos --check history.jsonl
//
// The faults are drawn from the seed; the schedule is printed and kept, so that
// it can be run again. What the run then does is up to the machine: a schedule
// repeats the faults, not the order of everything else. Everything that was
// started is ended, also on an error and on an interrupt. See docs/chaos.md.
//
// The exit code is 0 when the checker found nothing, 1 when it did, 2 when the
// run itself failed. With --mutation it is 0 when the checker found something.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/check"
	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

type options struct {
	seed                      uint64
	duration, settle          time.Duration
	services                  string
	dir, schedule, check, mut string
	keep                      bool
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "what faults and load are drawn from")
	flag.DurationVar(&o.duration, "duration", time.Minute, "how long the load and the faults go on")
	flag.DurationVar(&o.settle, "settle", 2*time.Minute, "how long the deployment may take to come to rest afterwards")
	flag.StringVar(&o.services, "services", "real", "real: history in the MongoDB stand-in; embedded-history: in an SQLite file that the processes share")
	flag.StringVar(&o.dir, "dir", "", "folder of services, logs and history (default: a new one, removed when nothing was found)")
	flag.StringVar(&o.schedule, "schedule", "", "file with the faults, or the name of a schedule that is built in, instead of drawing them")
	flag.StringVar(&o.check, "check", "", "only judge this history")
	flag.StringVar(&o.mut, "mutation", "", "run a build without one safety, which the checker has to notice: "+strings.Join(slices.Sorted(maps.Keys(mutations)), ", "))
	flag.BoolVar(&o.keep, "keep", false, "leave the folder behind")
	flag.Parse()
	if flag.NArg() > 0 || (o.services != "real" && o.services != "embedded-history") {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := o.run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		code = 2
	}
	os.Exit(code)
}

func (o options) run(ctx context.Context, out io.Writer) (int, error) {
	if o.check != "" {
		found, err := judge(o.check, out)
		return verdict(found), err
	}
	events, err := o.events()
	if err != nil {
		return 2, err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "chaos-"); err != nil {
			return 2, err
		}
	} else if err := os.MkdirAll(o.dir, 0o750); err != nil {
		return 2, err
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return 2, err
	}
	fmt.Fprintf(out, "seed %d, %v, %s; everything stands in %s\n", o.seed, o.duration, o.services, o.dir)
	path := filepath.Join(o.dir, "history.jsonl")
	if err := o.wreak(ctx, events, path, out); err != nil {
		return 2, err
	}
	found, err := judge(path, out)
	if err != nil {
		return 2, err
	}
	code := verdict(found)
	if o.mut != "" {
		code = o.missed(found, out)
	}
	if code == 0 && !o.keep {
		return code, os.RemoveAll(o.dir)
	}
	fmt.Fprintf(out, "judge it again: go run ./internal/chaos --check %s\n", path)
	return code, nil
}

// events gives the faults of the run.
func (o *options) events() ([]event, error) {
	var m mutation
	if o.mut != "" {
		var ok bool
		if m, ok = mutations[o.mut]; !ok {
			return nil, fmt.Errorf("unknown mutation %q", o.mut)
		}
	}
	text := m.schedule
	if o.schedule != "" {
		b, err := os.ReadFile(o.schedule)
		if built, ok := builtIn(o.schedule); ok && err != nil {
			b, err = []byte(built), nil
		}
		if err != nil {
			return nil, err
		}
		text = string(b)
	}
	if text == "" {
		return draw(o.seed, o.duration, o.services != "real"), nil
	}
	return parse(strings.NewReader(text))
}

// wreak is the run itself: up, load and faults, rest, down.
func (o options) wreak(ctx context.Context, events []event, path string, out io.Writer) (err error) {
	began := time.Now()
	c := &cluster{dir: o.dir, embedded: o.services != "real", workers: map[string]*worker{}}
	c.say = func(format string, args ...any) {
		fmt.Fprintf(out, "%7.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	if c.root, err = rootOf(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.down(false)) }()
	overlay, err := o.overlay(c.root)
	if err != nil {
		return err
	}
	if err := c.build(ctx, overlay); err != nil {
		return err
	}
	if err := c.up(ctx); err != nil {
		return err
	}
	if c.hist, err = history.Create(path); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.hist.Close()) }()
	for _, name := range deployed {
		if err := c.deploy(name); err != nil {
			return err
		}
	}
	if err := c.ready(ctx, startUp); err != nil {
		return err
	}
	c.say("%d workers are ready; the faults:", len(deployed))
	if err := o.tell(events, out); err != nil {
		return err
	}
	return o.load(ctx, c, events)
}

func (o options) load(ctx context.Context, c *cluster, events []event) (err error) {
	l := newLoad(c)
	defer func() {
		for _, d := range l.devices {
			err = errors.Join(err, d.end())
		}
	}()
	if err := l.connect(ctx); err != nil {
		return err
	}
	run, stop := context.WithTimeout(ctx, o.duration)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- l.run(run, o.seed) }()
	newNemesis(c).run(run, events)
	c.say("all faults are healed")
	if err := <-ended; err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return errors.New("interrupted")
	}
	l.settle(ctx, o.settle)
	if err := ctx.Err(); err != nil {
		return errors.New("interrupted")
	}
	return nil
}

// tell prints the schedule, and keeps it.
func (o options) tell(events []event, out io.Writer) error {
	f, err := os.Create(filepath.Join(o.dir, "schedule.txt"))
	if err != nil {
		return err
	}
	return errors.Join(write(io.MultiWriter(f, out), events), f.Close())
}

// rootOf gives the folder of the repository.
func rootOf(ctx context.Context) (string, error) {
	text, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// verdict gives the exit code of what was found.
func verdict(found map[string]int) int {
	if len(found) == 0 {
		return 0
	}
	return 1
}

// missed gives 0 when what was found tells that a safety is gone, else 1.
func (o options) missed(found map[string]int, out io.Writer) int {
	for rule := range found {
		if rules := mutations[o.mut].rules; len(rules) == 0 || slices.Contains(rules, rule) {
			fmt.Fprintf(out, "the mutation %s is caught\n", o.mut)
			return 0
		}
	}
	fmt.Fprintf(out, "the mutation %s is NOT caught\n", o.mut)
	return 1
}

// judge checks a history, prints what it came to, and gives how often each rule
// was violated.
func judge(path string, out io.Writer) (map[string]int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	ops, err := history.Read(f)
	if err != nil {
		return nil, err
	}
	r := check.Check(ops)
	for _, op := range ops {
		if op.Kind == history.Exit {
			fmt.Fprintf(out, "%7.1fs  %s ended by itself: %s\n", float64(op.T0)/1e9, op.Text, op.Err)
		}
	}
	fmt.Fprintf(out, "%d conversations, %d messages (%d acknowledged, %d sent more than once), %d pages with %d messages, %d messages on devices, %d marks, %d commands, %d calls failed; %d faults, %d workers ended by themselves\n",
		r.Conversations, r.Messages, r.Acknowledged, r.Resent, r.Pulls, r.Served, r.Followed, r.Marks, r.Commands, r.Failed, r.Faults, r.Exits)
	for _, v := range r.Violations {
		fmt.Fprintln(out, v)
	}
	if len(r.ByRule) == 0 {
		fmt.Fprintln(out, "no violation")
	}
	for _, rule := range slices.Sorted(maps.Keys(r.ByRule)) {
		fmt.Fprintf(out, "%s: %d\n", rule, r.ByRule[rule])
	}
	return r.ByRule, nil
}
