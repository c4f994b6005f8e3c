//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A mutation that no longer applies would run a sound build, or none.
func TestEachMutationAppliesToTheSource(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range mutations {
		t.Run(name, func(t *testing.T) {
			files, err := m.mutate(root)
			if err != nil {
				t.Fatal(err)
			}
			if len(files) == 0 {
				t.Error("it edits nothing")
			}
			for _, e := range m.edits {
				if strings.Contains(files[e.file], e.old) == !strings.Contains(e.new, e.old) {
					t.Errorf("%s is not changed from %q to %q", e.file, e.old, e.new)
				}
			}
			if events, err := parse(strings.NewReader(m.schedule)); err != nil || len(events) == 0 {
				t.Errorf("%d events, error %v", len(events), err)
			}
		})
	}
}

func TestTheOverlayNamesMutatedFiles(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for name := range mutations {
		if path, err := (options{dir: t.TempDir(), mut: name}).overlay(root); err != nil || path == "" {
			t.Errorf("%s: %q, error %v", name, path, err)
		}
	}
	if path, err := (options{dir: t.TempDir()}).overlay(root); err != nil || path != "" {
		t.Errorf("without a mutation: %q, error %v", path, err)
	}
}

func TestBuiltInSchedulesAreRead(t *testing.T) {
	for name, text := range schedules {
		if events, err := parse(strings.NewReader(text)); err != nil || len(events) == 0 {
			t.Errorf("%s: %d events, error %v", name, len(events), err)
		}
	}
}

func TestAScheduleIsDrawnFromItsSeed(t *testing.T) {
	kinds := map[string]bool{}
	for seed := range uint64(50) {
		a, b := draw(seed, time.Minute, false), draw(seed, time.Minute, false)
		var out strings.Builder
		if err := write(&out, a); err != nil {
			t.Fatal(err)
		}
		var again strings.Builder
		if err := write(&again, b); err != nil {
			t.Fatal(err)
		}
		if out.String() != again.String() {
			t.Fatalf("seed %d: drawn twice, it is\n%s\nand\n%s", seed, &out, &again)
		}
		read, err := parse(strings.NewReader(out.String()))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, &out)
		}
		if len(read) != len(a) || len(a) < 10 {
			t.Fatalf("seed %d: drew %d events, read %d", seed, len(a), len(read))
		}
		for i := range a {
			if read[i] != a[i] {
				t.Fatalf("seed %d: wrote %v, read %v", seed, a[i], read[i])
			}
			kinds[a[i].fault] = true
		}
	}
	for _, k := range faults {
		if kinds[k.name] == k.aimed {
			t.Errorf("%s: drawn %v, aimed %v", k.name, kinds[k.name], k.aimed)
		}
	}
}

func TestAnEmbeddedHistoryIsNotHit(t *testing.T) {
	for seed := range uint64(50) {
		for _, e := range draw(seed, time.Minute, true) {
			if e.target == onHistory {
				t.Fatalf("seed %d: %v", seed, e)
			}
		}
	}
}

func TestABadScheduleIsRefusedByLine(t *testing.T) {
	_, err := parse(strings.NewReader("# fine\n1s kill sync-1 1s\nkill sync-1\n1s melt kafka 1s\nx flush redis 0s\n1s flush kafka 0s\n"))
	for _, want := range []string{"line 3: want", `line 4: unknown fault "melt"`, "line 5: time", "line 6: flush does not go with kafka"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}
