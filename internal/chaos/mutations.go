//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutation is a build of tidemark without one safety.
type mutation struct {
	// edits replace a text that stands exactly once in a file.
	edits []edit
	// schedule aims at what the safety is for, where drawn faults seldom hit it.
	schedule string
}

type edit struct{ file, old, new string }

// apply gives the text of a file after the edit.
func (e edit) apply(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, e.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), e.old); n != 1 {
		return "", fmt.Errorf("%s: what is to be replaced stands there %d times, not once: %q", e.file, n, e.old)
	}
	return strings.Replace(string(text), e.old, e.new, 1), nil
}

// overlay writes the mutated files and gives what 'go build -overlay' takes, or
// nothing without a mutation.
func (o options) overlay(root string) (string, error) {
	if o.mut == "" {
		return "", nil
	}
	dir := filepath.Join(o.dir, "mutated")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for i, e := range mutations[o.mut].edits {
		text, err := e.apply(root)
		if err != nil {
			return "", err
		}
		file := filepath.Join(dir, fmt.Sprint(i, "-", filepath.Base(e.file)))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, e.file)] = file
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

var mutations = map[string]mutation{}

// schedules are those that have a name.
var schedules = map[string]string{
	// Two workers of each kind share the partitions, a third joins, one is
	// killed under load.
	"processes": `
5s join toredis-3 20s
8s join tomongo-3 20s
10s kill toredis-1 3s
14s kill tomongo-2 3s
`,
}
