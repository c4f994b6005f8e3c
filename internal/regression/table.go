package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
)

// tablePath is where the table is, from the module's root.
const tablePath = "internal/regression/benchmarks.json"

// table is what is measured, and what it may allocate.
type table struct {
	// Base is the commit whose processor time is the measure: the last release, or
	// a later one where a change was meant to cost more, or a benchmark is new.
	Base       string       `json:"base"`
	Benchmarks []*Benchmark `json:"benchmarks"`
}

// Benchmark is one that go test -bench can run.
type Benchmark struct {
	Package string `json:"package"` // as go test takes it, from the root: ./pipeline/wire
	Name    string `json:"name"`    // without the word Benchmark: DecodeInput/binary
	// Times is how many operations a run makes, at least 2: always as many, since
	// what is prepared and allocated once is shared by all, and so many that it is
	// the smaller part by far. Beyond that a run should take about a tenth of a
	// second: of many short ones one is left in peace sooner than of few long ones.
	Times int `json:"times"`
	// Paired tells that its processor time is compared, too.
	Paired bool `json:"paired,omitempty"`
	// Of an operation, on average.
	Allocs uint64 `json:"allocs"`
	Bytes  uint64 `json:"bytes"`
}

func (b *Benchmark) String() string { return strings.TrimPrefix(b.Package, "./") + " " + b.Name }

// pattern is what go test -bench takes.
func (b *Benchmark) pattern() string {
	parts := strings.Split("Benchmark"+b.Name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// How far an operation's allocations may be from the table, as shares of it. Of
// bytes more, since buffers grow by doubling.
const (
	allocsTolerance = 0.08
	bytesTolerance  = 0.15
)

// deviates says what of allocs and bytes is not as the table has it.
func (b *Benchmark) deviates(allocs, bytes uint64) []error {
	var errs []error
	for _, x := range []struct {
		what      string
		got, want uint64
		tolerance float64
	}{{"objects", allocs, b.Allocs, allocsTolerance}, {"bytes", bytes, b.Bytes, bytesTolerance}} {
		if math.Abs(float64(x.got)-float64(x.want)) > x.tolerance*float64(x.want) {
			errs = append(errs, fmt.Errorf("%s: an operation allocates %d %s, written down are %d (go run ./internal/regression -update writes anew)", b, x.got, x.what, x.want))
		}
	}
	return errs
}

func readTable(path string) (*table, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t := &table{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var errs []error
	if t.Base == "" || strings.HasPrefix(t.Base, "-") {
		errs = append(errs, fmt.Errorf("%s: base must name a commit, is %q", path, t.Base))
	}
	seen := map[string]bool{}
	for _, b := range t.Benchmarks {
		if !strings.HasPrefix(b.Package, "./") || b.Name == "" || b.Times < 2 || seen[b.String()] {
			errs = append(errs, fmt.Errorf("%s: %s: a package begins with ./, a name is not empty and stands there once, times are at least 2", path, b))
		}
		seen[b.String()] = true
	}
	return t, errors.Join(errs...)
}

func (t *table) matching(match *regexp.Regexp) []*Benchmark {
	var out []*Benchmark
	for _, b := range t.Benchmarks {
		if match.MatchString(b.String()) {
			out = append(out, b)
		}
	}
	return out
}

// write keeps a line for each benchmark, so that a change shows as one.
func (t *table) write(path string) error {
	var b bytes.Buffer
	base, err := json.Marshal(t.Base)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b, "{\n  \"base\": %s,\n  \"benchmarks\": [", base)
	for i, x := range t.Benchmarks {
		line, err := json.Marshal(x)
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n    %s", line)
	}
	b.WriteString("\n  ]\n}\n")
	return os.WriteFile(path, b.Bytes(), 0o600)
}
