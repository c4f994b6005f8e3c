package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A change of the code that a mutation is about has to change the mutation too.
func TestEveryMutationStillFitsTheCode(t *testing.T) {
	ms, err := table(guarantees, "../..")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]int)
	for _, m := range ms {
		seen[m.Guarantee]++
	}
	for i := 1; i <= 8; i++ {
		if g := fmt.Sprint("G", i); seen[g] < 3 {
			t.Errorf("%d mutations of %s", seen[g], g)
		}
	}
}

func TestEveryMutationIsInTheDocument(t *testing.T) {
	ms, err := table(guarantees, "../..")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, m := range ms {
		if row := m.row(); !strings.Contains(string(doc), row) {
			t.Errorf("not in docs/guarantees.md:\n%s", row)
		}
	}
	for line := range strings.Lines(string(doc)) {
		if strings.HasPrefix(line, "| G") {
			rows++
		}
	}
	if rows != len(ms) {
		t.Errorf("docs/guarantees.md has %d rows for %d mutations", rows, len(ms))
	}
}

// A test that is renamed, or goes, leaves a guarantee that nothing holds: that
// shows here, and not only when the mutations are run.
func TestEveryMutationNamesATest(t *testing.T) {
	ms, err := table(guarantees, "../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		files, err := filepath.Glob(filepath.Join("../..", m.Package, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		stands := slices.ContainsFunc(files, func(name string) bool {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Error(err)
			}
			return strings.Contains(string(text), "\nfunc "+m.Test+"(")
		})
		if !stands {
			t.Errorf("%s %s: there is no %s in %s", m.Guarantee, m.Name, m.Test, m.Package)
		}
	}
}

func TestOnlyTheNamedTestTells(t *testing.T) {
	m := &Mutation{Guarantee: "G1", Name: "x", Test: "TestX"}
	for _, tc := range []struct {
		out            string
		green          bool
		noticed, fault bool
	}{
		{out: "--- FAIL: TestX (0.1s)\nFAIL", noticed: true},
		{out: "--- PASS: TestX (0.1s)\nok", green: true},
		{out: "--- FAIL: TestXY (0.1s)\nFAIL", fault: true},
		{out: "x.go:1: declared and not used\nFAIL [build failed]", fault: true},
		{out: "testing: warning: no tests to run\nok", green: true, fault: true},
		{out: "=== RUN   TestX\npanic: test timed out after 5m0s", noticed: true},
		{out: "=== RUN   TestY\npanic: no", fault: true},
	} {
		noticed, err := m.verdict(tc.green, tc.out)
		if noticed != tc.noticed || (err != nil) != tc.fault {
			t.Errorf("%q: noticed %v, %v", tc.out, noticed, err)
		}
	}
}

func TestATableThatDoesNotFitIsRefused(t *testing.T) {
	for _, data := range []string{
		`{}`, `[{"unknown": 1}]`, `[{"guarantee": "G1"}]`,
		`[{"guarantee":"G1","name":"n","file":"go.mod","old":"nowhere in it","new":"","package":"p","test":"T"}]`,
		`[{"guarantee":"G1","name":"n","file":"go.mod","old":"\n","new":"","package":"p","test":"T"}]`,
		`[{"guarantee":"G1","name":"n","file":"nowhere","old":"a","new":"","package":"p","test":"T"}]`,
	} {
		if _, err := table([]byte(data), "../.."); err == nil {
			t.Errorf("%s was taken", data)
		}
	}
}
