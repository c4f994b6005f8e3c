package main

import (
	"runtime/debug"
	"testing"
)

// The environment has the last word on when Go collects.
func TestGOGCOverridesWhenGoCollects(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	for env, want := range map[string]int{"": 250, "50": 100, "off": 100} {
		t.Setenv("GOGC", env)
		collectAt(250)
		if got := debug.SetGCPercent(100); got != want {
			t.Errorf("GOGC=%q: %d, want %d", env, got, want)
		}
	}
}
