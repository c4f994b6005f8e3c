//go:build browser

// Package browser_test drives the console in a real, headless Chromium against
// all roles on the embedded servers. .ci/browser runs it.
//
// Each test has a conversation and a profile of its own, and ends with what the
// page must never do: throw, or be stopped by its own policy.
package browser_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

// patience is how long anything may take on a busy machine.
const patience = 60 * time.Second

// browser is the one Chromium of all tests, shared the one stack.
var (
	browser context.Context
	shared  *deployment
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	name := ""
	for _, n := range []string{os.Getenv("TIDEMARK_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(n); n != "" && err == nil {
			name = p
			break
		}
	}
	if name == "" {
		fmt.Fprintln(os.Stderr, "there is no chromium; .ci/browser installs one, TIDEMARK_TEST_CHROMIUM names another")
		return 1
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(name), chromedp.Flag("headless", "new"),
		chromedp.Flag("hide-scrollbars", true))
	if os.Geteuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	alloc, end := chromedp.NewExecAllocator(context.Background(), opts...)
	defer end()
	var stop context.CancelFunc
	browser, stop = chromedp.NewContext(alloc)
	defer stop()
	if err := chromedp.Do(browser); err != nil {
		fmt.Fprintln(os.Stderr, "chromium does not start:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "tidemark-browser-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if shared, err = deploy(dir, nil, append(stack.Roles(), stack.Lag)...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := shared.end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// deployment is embedded servers and the roles on them.
type deployment struct {
	emb    *stack.Embedded
	stack  *stack.Stack
	stop   func() error
	client tidemarkv1connect.SyncServiceClient
}

func deploy(dir string, change func(*config.Config), roles ...stack.Role) (*deployment, error) {
	base := config.Default()
	base.Sync.Console.Enabled = true
	if change != nil {
		change(&base)
	}
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{DataDir: dir, Base: &base})
	if err != nil {
		return nil, err
	}
	d := &deployment{emb: emb}
	if d.stack, d.stop, err = start(stack.Config{Config: emb.Config, Roles: roles}); err != nil {
		return nil, errors.Join(err, emb.Cluster.Close())
	}
	d.client = tidemarkv1connect.NewSyncServiceClient(http.DefaultClient, d.stack.SyncURL())
	return d, nil
}

func (d *deployment) end() error { return errors.Join(d.stop(), d.emb.Cluster.Close()) }

// start runs roles and waits until they are ready.
func start(cfg stack.Config) (*stack.Stack, func() error, error) {
	cfg.Logger = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	s, err := stack.Open(ctx, cfg)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-done, s.Close())
	})
	wait, end := context.WithTimeout(ctx, patience)
	defer end()
	if err := s.Health().Await(wait); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return s, stop, nil
}

// desk is a page of the console in a profile of its own.
type desk struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu     sync.Mutex
	faults []string // what the page should not have done
	expect []string // parts of faults that this test provokes
	frames []string // what came over WebSockets
}

// sit opens a page; hash is what follows # in its address.
func sit(t *testing.T, base, hash string, more ...step) *desk {
	t.Helper()
	ctx, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(end)
	d := &desk{t: t, ctx: ctx, base: base}
	// Without it the first call with a deadline would be the end of the page.
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, d.listen); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	d.run(chromedp.EmulateViewport(1280, 900))
	d.run(more...)
	d.run(chromedp.Navigate(base + "#" + hash))
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, f := range d.faults {
			t.Errorf("the page: %s", f)
		}
		if t.Failed() {
			d.picture("failed-" + strings.ReplaceAll(t.Name(), "/", "-"))
		}
	})
	return d
}

func (d *desk) listen(ev any) {
	fault := ""
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		fault = e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			fault += " " + x.Description
		}
	case *network.EventWebSocketFrameReceived:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.frames = append(d.frames, string(e.Response.PayloadData))
		return
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			fault = e.Entry.Text + " " + e.Entry.URL
		}
	}
	if fault == "" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range d.expect {
		if strings.Contains(fault, x) {
			return
		}
	}
	d.faults = append(d.faults, fault)
}

// provoke says what the page may complain about in this test.
func (d *desk) provoke(parts ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expect = append(d.expect, parts...)
}

// step is something that is done with the page.
type step = chromedp.Action[chromedp.Void]

// received gives what came over WebSockets.
func (d *desk) received() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.frames)
}

func (d *desk) run(steps ...step) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		d.t.Fatalf("%v\n%s", err, d.text())
	}
}

// text is what stands on the page, for messages.
func (d *desk) text() string {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body?.innerText ?? ''`))
	if err != nil {
		return err.Error()
	}
	return out
}

// eval gives the value of an expression, which may be a promise.
func eval[T any](d *desk, format string, args ...any) T {
	d.t.Helper()
	return evalFor[T](d.t, d, format, args...)
}

// evalFor is eval for another test.
func evalFor[T any](t *testing.T, d *desk, format string, args ...any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	expression := fmt.Sprintf(format, args...)
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v\n%s", expression, err, d.text())
	}
	return out
}

// await polls an expression until it is true.
func (d *desk) await(what, format string, args ...any) {
	d.t.Helper()
	for end := time.Now().Add(patience); ; {
		if eval[bool](d, "Boolean("+format+")", args...) {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("not in time: %s\n%s", what, d.text())
		}
		select {
		case <-d.ctx.Done():
			d.t.Fatal(d.ctx.Err())
		case <-time.After(30 * time.Millisecond):
		}
	}
}

func quote(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // as JSON.stringify
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(b.String())
}

func pane(user string) string {
	return fmt.Sprintf("document.querySelector('[data-user=%q]')", user)
}

// awaitNumbers waits until a pane shows numbers, given as name, value, ...
func (d *desk) awaitNumbers(user string, pairs ...string) {
	d.t.Helper()
	for i := 0; i+1 < len(pairs); i += 2 {
		d.await(fmt.Sprintf("%s of %s is %s", pairs[i], user, pairs[i+1]),
			`%s?.querySelector('[data-number=%q]')?.textContent === %s`, pane(user), pairs[i], quote(pairs[i+1]))
	}
}

func (d *desk) awaitState(user, state string) {
	d.t.Helper()
	d.await(user+" is "+state, `%s?.querySelector('.badge')?.textContent === %s`, pane(user), quote(state))
}

// awaitSeen waits until a pane shows exactly these messages, each as "seq text".
func (d *desk) awaitSeen(user string, want ...string) {
	d.t.Helper()
	if want == nil {
		want = []string{}
	}
	d.await(fmt.Sprintf("%s sees %q", user, want), `JSON.stringify(%s) === %s`, seenBy(user), quote(quote(want)))
}

func (d *desk) seen(user string) []string {
	d.t.Helper()
	return eval[[]string](d, "%s", seenBy(user))
}

func seenBy(user string) string {
	return `[...` + pane(user) + `.querySelectorAll('.message[data-seq]')].map(m => m.dataset.seq + ' ' +
		(m.querySelector('i')?.textContent ?? [...m.querySelector('.said').childNodes].filter(n => n.nodeType === 3).map(n => n.textContent).join('').trim()))`
}

// awaitLog waits until what happened in a pane has a line with these words.
func (d *desk) awaitLog(user, words string) {
	d.t.Helper()
	d.await(fmt.Sprintf("what happened to %s: %s", user, words), `%s.querySelector('.log')?.textContent.includes(%s)`, pane(user), quote(words))
}

// press clicks a button of a pane by its words.
func (d *desk) press(user, words string) {
	d.t.Helper()
	sel := fmt.Sprintf(`//article[@data-user=%q]//button[normalize-space()=%q and not(@disabled)]`, user, words)
	d.run(chromedp.Click(chromedp.Search(sel), chromedp.NodeVisible))
}

// write types a message into a pane and sends it.
func (d *desk) write(user, words string) {
	d.t.Helper()
	d.run(chromedp.SendKeys(chromedp.CSS(fmt.Sprintf(`[data-user=%q] .compose input:not(:disabled)`, user)), words+kb.Enter))
}

// choose picks what a user sees after joining.
func (d *desk) choose(user, value string) {
	d.t.Helper()
	d.run(chromedp.SetValue(chromedp.CSS(fmt.Sprintf(`[data-user=%q] .join select`, user)), value))
}

// join makes users members through the page, and waits until they are.
func (d *desk) join(users ...string) {
	d.t.Helper()
	for _, u := range users {
		d.awaitState(u, "Live")
		d.press(u, "Join")
		d.awaitLog(u, "Joined")
		d.await(u+" is a member", `[...%s.querySelectorAll('.actions button')].some(b => b.textContent === 'Kick' && !b.hidden)`, pane(u))
	}
}

// theme says what the system prefers.
func theme(name string) step {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
		})
		return chromedp.Void{}, err
	}
}

// picture keeps a picture of the whole page where TIDEMARK_TEST_PICTURES says.
func (d *desk) picture(name string) {
	dir := os.Getenv("TIDEMARK_TEST_PICTURES")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600)
	}
	if err != nil {
		d.t.Errorf("picture: %v", err)
	}
}
