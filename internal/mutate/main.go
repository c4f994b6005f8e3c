// Command mutate breaks the code on purpose, one place at a time, and checks
// that the test that should notice does: a guarantee is worth as much as the
// test that goes red without it. The table is guarantees.json, which
// docs/guarantees.md explains.
//
//	go run ./internal/mutate                 all of the table, some minutes
//	go run ./internal/mutate -run 'G4|G6'    those whose guarantee or name match
//	go run ./internal/mutate -table x.json   another table
//
// Nothing in the tree is changed: the changed file reaches the compiler by
// go test -overlay. It promises that a mutation counts as noticed only when the
// named test itself fails; a test that does not compile, is not there, or fails
// without the mutation too is an error of the table. It exits with 1 when any
// mutation was not noticed.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

//go:embed guarantees.json
var guarantees []byte

// Mutation is one change of one file.
type Mutation struct {
	Guarantee string   `json:"guarantee"` // G1 to G8
	Name      string   `json:"name"`      // what is broken, in a few words
	File      string   `json:"file"`      // from the module's root
	Old       string   `json:"old"`       // stands in the file exactly once
	New       string   `json:"new"`
	Package   string   `json:"package"` // as go test takes it
	Test      string   `json:"test"`
	Args      []string `json:"args,omitempty"` // of the test, for example -rapid.checks=1000
}

// table reads mutations and checks that each still fits the tree at root.
func table(data []byte, root string) ([]Mutation, error) {
	var ms []Mutation
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	if err := d.Decode(&ms); err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	var errs []error
	for _, m := range ms {
		if _, err := m.apply(root); err != nil {
			errs = append(errs, err)
		}
	}
	return ms, errors.Join(errs...)
}

func (m *Mutation) String() string { return m.Guarantee + " " + m.Name }

// row is m in docs/guarantees.md.
func (m *Mutation) row() string {
	return fmt.Sprintf("| %s | %s | `%s` | `%s` in `%s` |\n", m.Guarantee, m.Name, m.File, m.Test, strings.TrimPrefix(m.Package, "./"))
}

// apply gives the changed text of the file.
func (m *Mutation) apply(root string) (string, error) {
	if m.Guarantee == "" || m.Name == "" || m.Package == "" || m.Test == "" || m.Old == m.New {
		return "", fmt.Errorf("%s: a field is missing, or nothing is changed", m)
	}
	text, err := os.ReadFile(filepath.Join(root, m.File))
	if err != nil {
		return "", fmt.Errorf("%s: %w", m, err)
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return "", fmt.Errorf("%s: %q stands %d times in %s, must be once", m, m.Old, n, m.File)
	}
	return strings.Replace(string(text), m.Old, m.New, 1), nil
}

// noticed tells whether the named test fails with the mutation.
func (m *Mutation) noticed(ctx context.Context, root string) (bool, error) {
	text, err := m.apply(root)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	changed := filepath.Join(dir, filepath.Base(m.File))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.File): changed}})
	if err != nil {
		return false, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := errors.Join(os.WriteFile(changed, []byte(text), 0o600), os.WriteFile(list, overlay, 0o600)); err != nil {
		return false, err
	}
	green, out := m.test(ctx, root, "-overlay", list)
	return m.verdict(green, out)
}

// verdict reads what go test said.
func (m *Mutation) verdict(green bool, out string) (noticed bool, err error) {
	failed := regexp.MustCompile(`(?m)^\s*--- FAIL: ` + regexp.QuoteMeta(m.Test) + `\b`).MatchString(out)
	passed := regexp.MustCompile(`(?m)^\s*--- PASS: ` + regexp.QuoteMeta(m.Test) + `\b`).MatchString(out)
	// A panic in another goroutine ends the process before the test is said to
	// have failed; no other test runs in it.
	died := !green && strings.Contains(out, "=== RUN   "+m.Test+"\n") && strings.Contains(out, "\npanic: ")
	switch {
	case failed, died:
		return true, nil
	case green && passed:
		return false, nil
	}
	return false, fmt.Errorf("%s: %s neither passed nor failed:\n%s", m, m.Test, out[max(0, len(out)-2000):])
}

// test runs the named test, without keeping what a property test shrunk.
func (m *Mutation) test(ctx context.Context, root string, flags ...string) (green bool, out string) {
	args := append([]string{"test", "-count=1", "-v", "-timeout", "300s", "-run", "^" + m.Test + "$"}, flags...)
	args = append(append(args, m.Package), m.Args...)
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = root
	text, err := c.CombinedOutput()
	return err == nil, string(text)
}

func run(ctx context.Context, w io.Writer, args []string) error {
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	root := flags.String("root", ".", "root of the module")
	path := flags.String("table", "", "another table, as JSON")
	rows := flags.Bool("rows", false, "print the rows of docs/guarantees.md and run nothing")
	only := flags.String("run", "", "regular expression: only mutations whose guarantee or name match")
	if err := flags.Parse(args); err != nil {
		return err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	data := guarantees
	if *path != "" {
		if data, err = os.ReadFile(*path); err != nil {
			return err
		}
	}
	at, err := filepath.Abs(*root)
	if err != nil {
		return err
	}
	ms, err := table(data, at)
	if err != nil {
		return err
	}
	if *rows {
		for _, m := range ms {
			fmt.Fprint(w, m.row())
		}
		return nil
	}
	missed, sound := 0, make(map[string]bool)
	for _, m := range ms {
		if !match.MatchString(m.String()) || ctx.Err() != nil {
			continue
		}
		start := time.Now()
		err := m.sound(ctx, at, sound)
		ok := false
		if err == nil {
			ok, err = m.noticed(ctx, at)
		}
		word := "noticed"
		switch {
		case err != nil:
			missed, word = missed+1, "ERROR"
			fmt.Fprintln(w, err)
		case !ok:
			missed, word = missed+1, "MISSED"
		}
		fmt.Fprintf(w, "%-8s %s: %s %s (%s)\n", word, &m, m.Package, m.Test, time.Since(start).Round(time.Second))
	}
	if missed > 0 {
		return fmt.Errorf("%d mutations were not noticed", missed)
	}
	return ctx.Err()
}

// sound checks, once for each test, that it passes when nothing is broken.
func (m *Mutation) sound(ctx context.Context, root string, known map[string]bool) error {
	key := m.Package + m.Test + strings.Join(m.Args, " ")
	if known[key] {
		return nil
	}
	known[key] = true
	green, out := m.test(ctx, root)
	if noticed, err := m.verdict(green, out); err != nil || noticed {
		return cmp.Or(err, fmt.Errorf("%s: %s fails also when nothing is broken:\n%s", m, m.Test, out[max(0, len(out)-2000):]))
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}
