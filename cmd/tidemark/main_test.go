package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// patience is how long anything may take on a busy machine.
const patience = 60 * time.Second

// asMain makes the test binary behave as the command, for tests of what only a
// process does.
const asMain = "TIDEMARK_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		if err := os.Unsetenv(asMain); err != nil {
			panic(err)
		}
		main()
		return
	}
	stack.Quiet()
	// The Kafka driver's meters have one goroutine for the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		// The WebSocket driver's wait for an answer on a connection that broke; it
		// ends by itself within seconds.
		goleak.IgnoreAnyFunction("github.com/centrifugal/centrifuge-go.(*Client).sendAsync.func1"),
		// A gateway that tidies up after a connection that ended; the same.
		goleak.IgnoreAnyFunction("github.com/centrifugal/centrifuge/internal/dissolve.(*Dissolver).runWorker"))
}

// buffer is written by a command while a test reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// result is what a command line came to.
type result struct {
	code        int
	out, errOut string
}

// tidemark runs a command line to its end.
func tidemark(t testing.TB, in string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errOut buffer
	a := &app{in: strings.NewReader(in), out: &out, errOut: &errOut}
	code := a.execute(ctx, args)
	return result{code, out.String(), errOut.String()}
}

// background is a command that runs until it is stopped.
type background struct {
	t           testing.TB
	out, errOut *buffer
	cancel      context.CancelFunc
	done        chan struct{}
	code        int // valid once done is closed
}

func start(t testing.TB, args ...string) *background {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &background{t: t, out: &buffer{}, errOut: &buffer{}, cancel: cancel, done: make(chan struct{})}
	a := &app{in: strings.NewReader(""), out: b.out, errOut: b.errOut}
	go func() {
		defer close(b.done)
		b.code = a.execute(ctx, args)
	}()
	t.Cleanup(func() { b.stop() })
	return b
}

// stop stops the command, as a signal does, and gives what it came to.
func (b *background) stop() result {
	b.t.Helper()
	b.cancel()
	return b.wait()
}

func (b *background) wait() result {
	b.t.Helper()
	select {
	case <-b.done:
	case <-time.After(patience):
		b.t.Fatalf("the command does not end; it said\n%s%s", b.out, b.errOut)
	}
	return result{b.code, b.out.String(), b.errOut.String()}
}

// await waits until the command has printed text.
func (b *background) await(text string) {
	b.t.Helper()
	b.awaitIn(b.out, text)
}

func (b *background) awaitIn(where *buffer, text string) {
	b.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(where.String(), text) {
		select {
		case <-tick.C:
		case <-b.done:
			if !strings.Contains(where.String(), text) {
				b.t.Fatalf("the command ended without saying %q:\n%s%s", text, b.out, b.errOut)
			}
			return
		case <-deadline:
			b.t.Fatalf("the command does not say %q:\n%s%s", text, b.out, b.errOut)
		}
	}
}

// dev is a running 'tidemark dev' on free ports.
type dev struct {
	*background
	kafka, sync, gateway, admin string
}

func startDev(t testing.TB, args ...string) *dev {
	t.Helper()
	args = append([]string{
		"dev", "-o", "json", "--kafka-port", "0", "--sync", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--set", "kafka.partitions=2", "--set", "tomongo.flush_interval=50ms",
	}, args...)
	d := &dev{background: start(t, args...)}
	d.await(`"admin"`)
	for _, x := range objects[address](t, d.out.String()) {
		switch x.Name {
		case "kafka":
			d.kafka = x.URL
		case "sync":
			d.sync = x.URL
		case "gateway":
			d.gateway = x.URL
		case "admin":
			d.admin = x.URL
		}
	}
	return d
}

// run runs a command line against d.
func (d *dev) run(in string, args ...string) result {
	d.t.Helper()
	return tidemark(d.t, in, append(args, "--server", d.sync, "--set", "kafka.brokers="+d.kafka)...)
}

// ok runs a command line that must succeed silently, and gives what it printed.
func (d *dev) ok(args ...string) string {
	d.t.Helper()
	r := d.run("", args...)
	if r.code != exitOK || r.errOut != "" {
		d.t.Fatalf("%s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.errOut)
	}
	return r.out
}

// objects reads JSON lines. Every line must be one object.
func objects[T any](t testing.TB, text string) []T {
	t.Helper()
	var out []T
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q is not a JSON object: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

// wantSays checks that text holds every one of wants.
func wantSays(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, w := range wants {
		if !strings.Contains(text, w) {
			t.Errorf("it does not say %q:\n%s", w, text)
		}
	}
}
