package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// result is one run of a benchmark: a process that makes so many operations.
type result struct {
	cpu           time.Duration // of the whole process
	own           time.Duration // of an operation, as the benchmark tells it; 0: it does not
	allocs, bytes uint64        // of an operation
}

// read takes the line that a benchmark prints of times operations, in the format
// that testing documents: its name, how many, and pairs of a value and a unit.
func (r *result) read(out string, times int) bool {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") || f[1] != strconv.Itoa(times) {
			continue
		}
		units := map[string]float64{}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return false
			}
			units[f[i+1]] = v
		}
		r.own, r.allocs, r.bytes = time.Duration(units["cpu-ns/op"]), uint64(units["allocs/op"]), uint64(units["B/op"])
		_, ok := units["allocs/op"]
		return ok
	}
	return false
}

// environment is this process's, without what would let one commit do something
// else than the other: services that tests look for, settings of the runtime. One
// processor, since what idle ones do for the collector is no cost of an operation.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "TIDEMARK_") && !strings.HasPrefix(name, "GOMAX") && name != "GOGC" && name != "GOMEMLIMIT" && name != "GODEBUG" {
			env = append(env, v)
		}
	}
	return append(env, "GOMAXPROCS=1")
}

// errMissing is of a benchmark that a tree does not have.
type errMissing struct{ what, output string }

func (e errMissing) Error() string { return fmt.Sprintf("%s did not run:\n%s", e.what, e.output) }

// run makes times operations of a benchmark, and fails with errMissing where the
// tree does not have it.
func (t *binaries) run(ctx context.Context, b *Benchmark, times int) (result, error) {
	program := t.program(b)
	if _, err := os.Stat(program); err != nil {
		return result{}, errMissing{b.String(), err.Error()}
	}
	c := exec.CommandContext(ctx, program, "-test.run", "^$", "-test.bench", b.pattern(), "-test.benchmem",
		"-test.benchtime", fmt.Sprintf("%dx", times), "-test.timeout", "120s")
	c.Dir, c.Env = filepath.Join(t.root, b.Package), environment()
	out, err := c.CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("%s: %w\n%s", b, err, out)
	}
	r := result{cpu: c.ProcessState.UserTime() + c.ProcessState.SystemTime()}
	if !r.read(string(out), times) {
		return r, errMissing{b.String(), string(out)}
	}
	return r, nil
}

// side is what the cheapest runs of one commit came to.
type side struct {
	all time.Duration // of the process
	own time.Duration // of an operation, where the benchmark tells it
}

// cost of an operation, in microseconds: as the benchmark tells it, else its share
// of the process. What a benchmark prepares is in that share and is not taken off:
// a difference of two figures that are both disturbed is disturbed by far more than
// either, and a ratio of two such differences by more again.
func (s side) cost(times int) float64 {
	us := float64(time.Microsecond)
	if s.own > 0 {
		return float64(s.own) / us
	}
	return float64(s.all) / us / float64(times)
}

// pair is one benchmark of both commits.
type pair struct {
	*Benchmark
	before, now   side
	runs          int  // of each; 0: not compared
	missing       bool // the other commit has no such benchmark
	allocs, bytes uint64
}

// measure runs both commits in turn. other may be nil.
func (p *pair) measure(ctx context.Context, this, other *binaries, o options) error {
	if other == nil || !p.Paired {
		r, err := this.run(ctx, p.Benchmark, p.Times)
		p.allocs, p.bytes = r.allocs, r.bytes
		return err
	}
	for p.runs < o.rounds || (!p.within(o.limit) && p.runs < o.rounds+o.more) {
		if err := p.round(ctx, this, other); err != nil || p.missing {
			return err
		}
	}
	return nil
}

// round lets both have a turn; the one that was first is second the next time.
func (p *pair) round(ctx context.Context, this, other *binaries) error {
	p.runs++
	now := func() error {
		r, err := p.turn(ctx, this, &p.now)
		p.allocs, p.bytes = r.allocs, r.bytes
		return err
	}
	before := func() error {
		_, err := p.turn(ctx, other, &p.before)
		if _, p.missing = errors.AsType[errMissing](err); p.missing {
			return nil
		}
		return err
	}
	if p.runs%2 == 1 {
		return cmp.Or(before(), now())
	}
	return cmp.Or(now(), before())
}

// turn makes a run.
func (p *pair) turn(ctx context.Context, t *binaries, s *side) (result, error) {
	r, err := t.run(ctx, p.Benchmark, p.Times)
	if err == nil {
		s.all, s.own = least(s.all, r.cpu), least(s.own, r.own)
	}
	return r, err
}

// least is the smaller one of two of which the first may not be there yet.
func least(known, d time.Duration) time.Duration {
	if known == 0 {
		return d
	}
	return min(known, d)
}

// ratio is what this commit's operation costs to what it cost.
func (p *pair) ratio() float64 { return p.now.cost(p.Times) / p.before.cost(p.Times) }

func (p *pair) within(limit float64) bool { return p.ratio() <= limit }

// faults says what is out of bounds.
func (p *pair) faults(limit float64) []error {
	errs := p.deviates(p.allocs, p.bytes)
	if p.runs == 0 || p.missing || p.within(limit) {
		return errs
	}
	return append(errs, fmt.Errorf("%s: an operation takes %.2f times the processor time that it took, at most %g is right (of %d runs each)", p, p.ratio(), limit, p.runs))
}

// text gives the columns of a report.
func (p *pair) text() (before, now, ratio string) {
	us := func(s side) string { return fmt.Sprintf("%.1f", s.cost(p.Times)) }
	switch {
	case p.runs == 0:
		return "", "", ""
	case p.missing:
		return "none", us(p.now), ""
	}
	return us(p.before), us(p.now), fmt.Sprintf("%.2f", p.ratio())
}
