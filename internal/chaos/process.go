//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program that is started and ended by its id. One that another
// program started may be adopted.
type process struct {
	name string
	argv []string
	env  []string // nil: ours
	dir  string   // of its log and pid

	mu   sync.Mutex
	pid  int
	done chan struct{} // closed when our child has ended; nil for an adopted one
	err  error
}

// adopt takes over a daemon of deploy/local by its pid file.
func adopt(name, dir string) (*process, error) {
	p := &process{name: name, dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if p.pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.argv = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	return p, nil
}

// start runs the program, with more arguments than it has when they are given.
// It belongs to a process group of its own, so that an interrupt from the
// terminal does not reach it.
func (p *process) start(more ...string) error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	// It is ended by end, and not with a context, which would kill it.
	cmd := exec.CommandContext(context.Background(), p.argv[0], append(p.argv[1:len(p.argv):len(p.argv)], more...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.pid, p.done = cmd.Process.Pid, done
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	}()
	return os.WriteFile(filepath.Join(p.dir, "pid"), fmt.Appendln(nil, p.pid), 0o600)
}

func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 || !p.runsLocked() {
		return fmt.Errorf("%s: %w", p.name, errAbsent)
	}
	return syscall.Kill(p.pid, sig)
}

// runsLocked tells a process from what is left of it, and from another program
// that was given its id.
func (p *process) runsLocked() bool {
	if p.done != nil {
		select {
		case <-p.done:
			return false
		default:
			return true
		}
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	if err != nil || len(line) > 0 && !strings.HasPrefix(string(line), p.argv[0]+"\x00") {
		return false
	}
	// One that is dying has no command line any more, but still its ports, until
	// it is a zombie.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	_, state, ok := strings.Cut(string(stat), ") ")
	return err == nil && ok && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

func (p *process) runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid != 0 && p.runsLocked()
}

// exit says how it ended.
func (p *process) exit() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return "exit code 0"
	}
	return p.err.Error()
}

// end sends sig and waits until the process has ended. What does not end in time
// is killed, and that is an error.
func (p *process) end(sig syscall.Signal, within time.Duration) error {
	if !p.runs() {
		return nil
	}
	// One that is stopped takes no other signal than a kill.
	// Whether it took a signal shows in whether it ends.
	_ = p.signal(syscall.SIGCONT)
	_ = p.signal(sig)
	if until(context.Background(), within, func() bool { return !p.runs() }) == nil {
		return nil
	}
	_ = p.signal(syscall.SIGKILL)
	err := until(context.Background(), 10*time.Second, func() bool { return !p.runs() })
	return errors.Join(fmt.Errorf("%s did not end within %v", p.name, within), err)
}

// until polls.
func until(ctx context.Context, within time.Duration, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for !is() {
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// pause waits, or gives the error of ctx when that ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
