package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const committed = "../../deploy/grafana/dashboards"

// TestCommittedDashboardsAreCurrent: what is deployed is what this makes.
func TestCommittedDashboardsAreCurrent(t *testing.T) {
	dir := t.TempDir()
	if err := generate(dir); err != nil {
		t.Fatal(err)
	}
	names := func(dir string) (out []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	if have, want := names(committed), names(dir); !slices.Equal(have, want) {
		t.Fatalf("there are %v, want %v: go -C tools/dashboards run . generate", have, want)
	}
	for _, name := range names(dir) {
		have, err := os.ReadFile(filepath.Join(committed, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is not what is generated: go -C tools/dashboards run . generate", name)
		}
	}
}

// TestEveryPanelIsWhole: a panel says what it shows, and pictures do not
// overwrite each other.
func TestEveryPanelIsWhole(t *testing.T) {
	pictures := map[string]bool{}
	for _, b := range boards() {
		titles := map[string]bool{}
		for _, r := range b.rows {
			for _, p := range r.panels {
				if p.title == "" || p.about == "" || p.unit == "" || len(p.queries) == 0 {
					t.Errorf("%s: %+v lacks something", b.title, p)
				}
				if titles[r.title+p.title] {
					t.Errorf("%s: %s stands twice", b.title, p.title)
				}
				titles[r.title+p.title] = true
				if p.picture != "" && pictures[p.picture] {
					t.Errorf("two pictures are named %s", p.picture)
				}
				pictures[p.picture] = true
			}
		}
	}
}
