//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// shell makes a process that runs a script.
func shell(t *testing.T, script string) *process {
	t.Helper()
	p := &process{name: "script", argv: []string{"sh", "-c", script}, dir: t.TempDir()}
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.end(syscall.SIGKILL, time.Second) })
	return p
}

func TestAProcessIsEndedByItsID(t *testing.T) {
	p := shell(t, "while :; do sleep 0.05; done")
	if err := p.end(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Error(err)
	}
	if p.runs() || !strings.Contains(p.exit(), "terminated") {
		t.Errorf("runs %v, exit %q", p.runs(), p.exit())
	}
	if err := p.signal(syscall.SIGTERM); !errors.Is(err, errAbsent) {
		t.Errorf("a signal to what has ended: %v", err)
	}
}

func TestAStoppedProcessIsEnded(t *testing.T) {
	p := shell(t, "while :; do sleep 0.05; done")
	if err := p.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.end(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Error(err)
	}
}

func TestWhatDoesNotEndIsKilledAndReported(t *testing.T) {
	p := shell(t, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	if err := until(t.Context(), 10*time.Second, func() bool {
		log, err := os.ReadFile(filepath.Join(p.dir, "log"))
		return err == nil && strings.Contains(string(log), "ready")
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.end(syscall.SIGTERM, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "did not end") {
		t.Errorf("error %v", err)
	}
	if p.runs() {
		t.Error("it still runs")
	}
}

func TestADaemonIsAdoptedWithItsCommandLine(t *testing.T) {
	p := shell(t, "while :; do sleep 0.05; done")
	q, err := adopt("script", p.dir)
	if err != nil {
		t.Fatal(err)
	}
	if q.pid != p.pid || strings.Join(q.argv, " ") != strings.Join(p.argv, " ") || !q.runs() {
		t.Errorf("adopted %d %q", q.pid, q.argv)
	}
	if err := p.end(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if q.runs() {
		t.Error("what has ended seems to run")
	}
}

// clusterOf gives a cluster whose workers run a script.
func clusterOf(t *testing.T, script string) (*cluster, func() []history.Op) {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{dir: dir, bin: filepath.Join(dir, "worker"), workers: map[string]*worker{}, say: t.Logf}
	if err := os.WriteFile(c.bin, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "history.jsonl")
	var err error
	if c.hist, err = history.Create(path); err != nil {
		t.Fatal(err)
	}
	return c, func() []history.Op {
		if err := errors.Join(c.down(false), c.hist.Close()); err != nil {
			t.Error(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		ops, err := history.Read(f)
		if err != nil {
			t.Fatal(err)
		}
		return ops
	}
}

// starts counts how often a worker was started, by what it logs.
func (c *cluster) starts(name string) int {
	log, _ := os.ReadFile(filepath.Join(c.dir, name, "log"))
	return strings.Count(string(log), "started")
}

func TestAKilledWorkerIsStartedAgain(t *testing.T) {
	c, ops := clusterOf(t, "echo started; while :; do sleep 0.05; done")
	if err := c.deploy("sync-1"); err != nil {
		t.Fatal(err)
	}
	if err := c.deploy("sync-1"); err == nil {
		t.Error("deployed twice")
	}
	if err := until(t.Context(), 10*time.Second, func() bool { return c.starts("sync-1") == 1 }); err != nil {
		t.Fatal(err)
	}
	if err := c.ofRole("sync")[0].kill(10 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := until(t.Context(), 10*time.Second, func() bool { return c.starts("sync-1") == 2 }); err != nil {
		t.Error("it was not started again")
	}
	if err := c.retire("sync-1"); err != nil {
		t.Error(err)
	}
	if err := c.retire("sync-1"); !errors.Is(err, errAbsent) {
		t.Errorf("retired twice: %v", err)
	}
	if got := ops(); len(got) != 0 {
		t.Errorf("our own doing was noted as its end: %v", got)
	}
}

func TestAWorkerThatEndsByItselfIsNotedAndStartedAgain(t *testing.T) {
	c, ops := clusterOf(t, "echo started; exit 3")
	if err := c.deploy("topush-1"); err != nil {
		t.Fatal(err)
	}
	if err := until(t.Context(), 10*time.Second, func() bool { return c.starts("topush-1") >= 2 }); err != nil {
		t.Error("it was not started again")
	}
	got := ops()
	if len(got) == 0 || got[0].Kind != history.Exit || got[0].Text != "topush-1" || !strings.Contains(got[0].Err, "exit status 3: started") {
		t.Errorf("noted %v", got)
	}
}
