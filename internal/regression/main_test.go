package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestTheTableNamesWhatIsThere: each package and benchmark exists, its own part of
// the name at least, and the table is written as it is read.
func TestTheTableNamesWhatIsThere(t *testing.T) {
	t1, err := readTable("benchmarks.json")
	if err != nil {
		t.Fatal(err)
	}
	paired := 0
	for _, b := range t1.Benchmarks {
		name, _, _ := strings.Cut(b.Name, "/")
		files, err := filepath.Glob(filepath.Join("../..", b.Package, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			found = found || strings.Contains(string(text), "func Benchmark"+name+"(b *testing.B)")
			if err != nil {
				t.Fatal(err)
			}
		}
		if !found {
			t.Errorf("%s: no test file has it", b)
		}
		if b.Allocs == 0 || b.Bytes == 0 {
			t.Errorf("%s: nothing is written down", b)
		}
		if b.Paired {
			paired++
		}
	}
	if paired < 5 {
		t.Errorf("%d benchmarks are compared in processor time, too few", paired)
	}
	file := filepath.Join(t.TempDir(), "again.json")
	if err := t1.write(file); err != nil {
		t.Fatal(err)
	}
	before, err1 := os.ReadFile("benchmarks.json")
	after, err2 := os.ReadFile(file)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(before), string(after)); diff != "" {
		t.Errorf("written anew (-was +is): %s", diff)
	}
}

func TestTablesAreChecked(t *testing.T) {
	for name, text := range map[string]string{
		"no base":        `{"benchmarks":[]}`,
		"an option":      `{"base":"--upload-pack=x"}`,
		"unknown field":  `{"base":"x","limit":1}`,
		"twice":          `{"base":"x","benchmarks":[{"package":"./a","name":"B","times":2},{"package":"./a","name":"B","times":2}]}`,
		"once":           `{"base":"x","benchmarks":[{"package":"./a","name":"B","times":1}]}`,
		"another module": `{"base":"x","benchmarks":[{"package":"a","name":"B","times":2}]}`,
	} {
		file := filepath.Join(t.TempDir(), "table.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readTable(file); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAllocationsAreHeldBothWays(t *testing.T) {
	b := &Benchmark{Package: "./a", Name: "B", Times: 2, Allocs: 100, Bytes: 1000}
	for _, c := range []struct {
		allocs, bytes uint64
		faults        int
	}{{100, 1000, 0}, {108, 1150, 0}, {92, 850, 0}, {109, 1000, 1}, {91, 1000, 1}, {100, 1151, 1}, {100, 849, 1}, {200, 2000, 2}} {
		if got := b.deviates(c.allocs, c.bytes); len(got) != c.faults {
			t.Errorf("%d objects, %d bytes: %v, want %d faults", c.allocs, c.bytes, got, c.faults)
		}
	}
	// One object more where there is one.
	if got := (&Benchmark{Allocs: 1}).deviates(2, 0); len(got) != 1 {
		t.Errorf("2 objects instead of 1: %v", got)
	}
}

func TestResultsAreRead(t *testing.T) {
	out := "goos: linux\nBenchmarkX/b=1-2   \t   20\t  9710301 ns/op\t   3597950 cpu-ns/op\t 1945939 B/op\t   12090 allocs/op\nPASS\n"
	var r result
	if !r.read(out, 20) || r != (result{own: 3597950, allocs: 12090, bytes: 1945939}) {
		t.Errorf("%+v", r)
	}
	if r.read(out, 21) || r.read("BenchmarkX\nPASS\n", 20) || r.read("BenchmarkX 20 5 ns/op\n", 20) {
		t.Error("what is not there was read")
	}
}

func TestTheCheapestRunsCount(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	s := side{all: ms(100)}
	if got := s.cost(100); got != 1000 {
		t.Errorf("an operation costs %g us, want 1000", got)
	}
	s.own = ms(3)
	if got := s.cost(100); got != 3000 {
		t.Errorf("an operation that tells its own cost costs %g us, want 3000", got)
	}
	if least(0, ms(3)) != ms(3) || least(ms(2), ms(3)) != ms(2) || least(ms(4), ms(3)) != ms(3) {
		t.Error("the least of two")
	}
	p := pair{Benchmark: &Benchmark{Times: 100}, runs: 1, before: side{all: ms(100)}, now: side{all: ms(151)}}
	if got := p.faults(1.5); len(got) != 1 || !strings.Contains(got[0].Error(), "1.51 times") {
		t.Errorf("half as much again and more: %v", got)
	}
	if p.now.all = ms(149); len(p.faults(1.5)) != 0 {
		t.Errorf("less than half as much again: %v", p.faults(1.5))
	}
}

func TestPatternsNameOneBenchmark(t *testing.T) {
	b := Benchmark{Package: "./a", Name: "X/b=1.5"}
	if got, want := b.pattern(), `^BenchmarkX$/^b=1\.5$`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A small module whose work can be made dearer.
const (
	work = `package work

import "crypto/sha256"

var Sink []byte

func Work(n int) {
	text := make([]byte, 64)
	for range n {
		sum := sha256.Sum256(text)
		copy(text, sum[:])
	}
	Sink = text
}
`
	bench = `package work_test

import (
	"testing"

	"example.test/small/work"
)

func BenchmarkWork(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		work.Work(10)
	}
}
`
	listed = `{"base":"HEAD","benchmarks":[{"package":"./work","name":"Work","times":20000,"paired":true,"allocs":1,"bytes":64}]}`
)

// repository makes a commit of the module.
func repository(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	write(t, root, "go.mod", "module example.test/small\n\ngo 1.26\n")
	write(t, root, "work/work.go", work)
	write(t, root, "work/work_test.go", bench)
	write(t, root, "table.json", listed)
	git(t, root, "init", "-q")
	commit(t, root)
	return root
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, root string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=x", "-c", "user.email=x@example.test"}, args...)...)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func commit(t *testing.T, root string) {
	t.Helper()
	git(t, root, "add", "-A")
	git(t, root, "commit", "-q", "-m", "work")
}

// compare gives what the command prints. The limit is far above what a busy machine
// makes of the same code.
func compare(ctx context.Context, root string, args ...string) (string, error) {
	var out strings.Builder
	err := run(ctx, &out, append([]string{"-root", root, "-table", filepath.Join(root, "table.json"), "-rounds", "2", "-more", "2", "-limit", "5"}, args...))
	return out.String(), err
}

// TestWhatCostsMoreIsRed compares a tree with its last commit: as it is, with
// needless work, with a needless object, and with a benchmark that is new.
func TestWhatCostsMoreIsRed(t *testing.T) {
	root := repository(t)
	out, err := compare(t.Context(), root)
	if err != nil || !regexp.MustCompile(`Work +\d+\.\d +\d+\.\d +[0-4]\.\d\d +[2-4] +1 +64`).MatchString(out) {
		t.Errorf("nothing has changed: %v\n%s", err, out)
	}

	write(t, root, "work/work.go", strings.Replace(work, "range n", "range 15 * n", 1))
	out, err = compare(t.Context(), root)
	if err == nil || !strings.Contains(err.Error(), "times the processor time") || !strings.Contains(err.Error(), "of 4 runs each") {
		t.Errorf("needless work: %v\n%s", err, out)
	}

	write(t, root, "work/work.go", strings.Replace(work, "copy(text, sum[:])", "text = append([]byte{}, sum[:]...)", 1))
	out, err = compare(t.Context(), root)
	if err == nil || !strings.Contains(err.Error(), "objects, written down are 1") {
		t.Errorf("needless objects: %v\n%s", err, out)
	}
	if _, err := compare(t.Context(), root, "-update"); err != nil {
		t.Fatal(err)
	}
	if out, err = compare(t.Context(), root, "-counts"); err != nil || !strings.Contains(out, "NOT COMPARED") {
		t.Errorf("written down anew: %v\n%s", err, out)
	}

	write(t, root, "work/work_test.go", strings.ReplaceAll(bench, "BenchmarkWork", "BenchmarkOther"))
	write(t, root, "work/new.go", "package work\n\nconst New = 1\n") // the earlier commit is built without it
	write(t, root, "table.json", strings.ReplaceAll(listed, `"Work"`, `"Other"`))
	write(t, root, "work/work.go", work)
	if out, err = compare(t.Context(), root); err != nil || !regexp.MustCompile(`Other +none`).MatchString(out) {
		t.Errorf("a new benchmark: %v\n%s", err, out)
	}
	write(t, root, "table.json", listed)
	if out, err = compare(t.Context(), root); err == nil {
		t.Errorf("a benchmark that is gone is no fault:\n%s", out)
	}
}

// TestAShallowCloneIsSaid, and what is allocated is compared all the same.
func TestAShallowCloneIsSaid(t *testing.T) {
	origin := repository(t)
	write(t, origin, "table.json", strings.Replace(listed, "HEAD", "0123456789012345678901234567890123456789", 1))
	out, err := compare(t.Context(), origin)
	if err != nil || !strings.Contains(out, "NOT COMPARED with commit 0123456789012345678901234567890123456789") {
		t.Errorf("%v\n%s", err, out)
	}
	write(t, origin, "work/work.go", strings.Replace(work, "copy(text, sum[:])", "text = append([]byte{}, sum[:]...)", 1))
	if _, err := compare(t.Context(), origin); err == nil {
		t.Error("needless objects are not noticed without an earlier commit")
	}
	// A folder that is no clone at all.
	if err := os.RemoveAll(filepath.Join(origin, ".git")); err != nil {
		t.Fatal(err)
	}
	write(t, origin, "work/work.go", work)
	if out, err := compare(t.Context(), origin); err != nil || !strings.Contains(out, "NOT COMPARED") {
		t.Errorf("no clone: %v\n%s", err, out)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-limit", "0.5"}, {"-limit", "NaN"}, {"-run", "("}, {"something"}, {"-more", "-1"}} {
		if err := run(t.Context(), &strings.Builder{}, args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	if err := run(t.Context(), &strings.Builder{}, []string{"-root", "../..", "-run", "nobody has this name"}); err == nil {
		t.Error("no benchmark matches, and that is no error")
	}
}
