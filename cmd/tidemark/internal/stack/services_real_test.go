//go:build real

package stack_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// services are of one test, which may kill them.
type services struct {
	t       testing.TB
	dir     string
	options []string
	env     map[string]string
}

// ownServices starts services, by the options of deploy/local/up.
func ownServices(t testing.TB, options ...string) *services {
	t.Helper()
	s := &services{t: t, dir: t.TempDir(), options: options}
	t.Cleanup(func() {
		if out, err := exec.Command("../../../../deploy/local/down", "--dir", s.dir).CombinedOutput(); err != nil {
			t.Errorf("stop services: %v\n%s", err, out)
		}
	})
	s.start()
	return s
}

// start starts those that do not run, again at the addresses that they had.
func (s *services) start() {
	s.t.Helper()
	up := exec.Command("../../../../deploy/local/up", append([]string{"--dir", s.dir}, s.options...)...)
	var said bytes.Buffer
	up.Stderr = &said
	out, err := up.Output()
	if err != nil {
		s.t.Fatalf("start services: %v\n%s", err, said.Bytes())
	}
	before := s.env
	s.env = map[string]string{}
	for l := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(l, "export ")), "=")
		value = strings.Trim(value, "'")
		if was, ok := before[name]; ok && was != value {
			s.t.Fatalf("%s was %s and is %s now", name, was, value)
		}
		s.env[name] = value
	}
}

// addresses gives the servers that a variable names.
func (s *services) addresses(name string) []string {
	s.t.Helper()
	if s.env[name] == "" {
		s.t.Fatalf("%s is not set: %v", name, s.env)
	}
	return strings.Split(s.env[name], ",")
}

// signal sends a signal to a server, named by its folder. After SIGKILL it
// returns when the server is gone.
func (s *services) signal(name string, sig syscall.Signal) {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name, "pid"))
	if err != nil {
		s.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		s.t.Fatal(err)
	}
	for until := time.Now().Add(patience); sig == syscall.SIGKILL && lives(pid); {
		if time.Now().After(until) {
			s.t.Fatalf("%s does not end", name)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// lives tells whether a process still holds its ports: one that only waits to
// be noticed by its parent has an empty command line.
func lives(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && len(b) > 0
}
