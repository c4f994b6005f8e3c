package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How long a process may take to be ready, and to stop.
const (
	readyWithin = 60 * time.Second
	stopWithin  = 40 * time.Second
)

// Command is one process of the system under test.
type Command struct {
	Name string
	// Args are those of the binary: "dev ..." or "run ROLE... ...". They must
	// print where it listens as JSON.
	Args []string
	// Wants are the addresses that it prints before it counts as started.
	Wants []string
}

// process is one that runs.
type process struct {
	name  string
	cmd   *exec.Cmd
	stop  context.CancelFunc
	ended chan struct{} // closed when it has; err is set then
	err   error
	said  *tail

	mu    sync.Mutex
	where map[string]string // addresses by name
}

// OutliveReaders: whoever reads what a benchmark prints may go away, as head does;
// then writing fails instead of ending this process, which has others to end and
// something to clean up.
func OutliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// start starts a process and waits until it is ready.
func start(ctx context.Context, binary string, c Command) (_ *process, err error) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &process{name: c.Name, stop: stop, ended: make(chan struct{}), said: &tail{}, where: map[string]string{}}
	p.cmd = exec.CommandContext(run, binary, c.Args...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(os.Interrupt) }
	p.cmd.WaitDelay = stopWithin
	p.cmd.Stderr = p.said
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		stop()
		return nil, err
	}
	endWithParent(p.cmd)
	started := make(chan error)
	go p.run(out, started)
	if err := <-started; err != nil {
		stop()
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer func() {
		switch {
		case err == nil:
		case p.dead() != nil: // which err says
			stop()
		default:
			err = errors.Join(err, p.close())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		why := p.unready(ctx, c.Wants)
		if why == nil {
			return p, nil
		}
		select {
		case <-p.ended:
			return nil, p.gone()
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is not ready: %w: %s", c.Name, errors.Join(ctx.Err(), why), p.said)
		case <-tick.C:
		}
	}
}

// run starts the process and reads what it prints until it ends. Linux takes the
// end of the thread that started it for the end of its parent, so that thread
// stays.
func (p *process) run(out io.Reader, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	defer close(p.ended)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var x struct{ Name, URL string }
		if json.Unmarshal(lines.Bytes(), &x) == nil && x.Name != "" {
			p.mu.Lock()
			p.where[x.Name] = x.URL
			p.mu.Unlock()
		}
	}
	p.err = p.cmd.Wait()
}

func (p *process) address(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.where[name]
}

func (p *process) unready(ctx context.Context, wants []string) error {
	for _, w := range append(slices.Clone(wants), "admin") {
		if p.address(w) == "" {
			return fmt.Errorf("it has not said where its %s listens", w)
		}
	}
	body, status, err := get(ctx, p.address("admin")+"/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s", bytes.TrimSpace(body))
	}
	return err
}

func get(ctx context.Context, url string) (body []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	// Packing what stays on this machine would cost both sides more than it saves.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	body, err = io.ReadAll(resp.Body)
	return body, resp.StatusCode, errors.Join(err, resp.Body.Close())
}

// close tells the process to stop, as a supervisor does, and waits for it.
func (p *process) close() error {
	dead := p.dead()
	p.stop()
	<-p.ended
	if dead != nil {
		return dead
	}
	var exit *exec.ExitError
	if p.err == nil || errors.Is(p.err, context.Canceled) || (errors.As(p.err, &exit) && exit.ExitCode() == 130) {
		return nil
	}
	return fmt.Errorf("%s: %w: %s", p.name, p.err, p.said)
}

// dead gives an error when the process has ended.
func (p *process) dead() error {
	select {
	case <-p.ended:
		return p.gone()
	default:
		return nil
	}
}

// gone is the error of a process that has ended and should not have.
func (p *process) gone() error {
	err := p.err
	if err == nil {
		err = errors.New("with exit status 0")
	}
	if said := p.said.String(); said != "" {
		return fmt.Errorf("%s ended by itself: %w: %s", p.name, err, said)
	}
	return fmt.Errorf("%s ended by itself: %w", p.name, err)
}

// tail keeps the last of what was written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 4096

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if over := len(t.b) - tailBytes; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
