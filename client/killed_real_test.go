//go:build real

package client_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// spawnNode starts a node in a process of its own and gives its address.
func spawnNode(t *testing.T, n nodeOf) (cmd *exec.Cmd, address string) {
	t.Helper()
	text, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), nodeEnv+"="+string(text))
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // an error tells that it was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the node does not say its address: %v", err)
	}
	return cmd, strings.TrimSpace(line)
}

// watcher is a device that notes what comes.
type watcher struct {
	mu   sync.Mutex
	seqs []int64
	lost atomic.Bool
	back atomic.Int64 // when, in nanoseconds of a clock
}

func (w *watcher) has() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seqs
}

// TestReal_AGatewayKilledUnderTraffic has two nodes in processes of their own on
// one Redis, and 1,000 devices behind a balancer. One node is killed with
// SIGKILL while messages come: its devices go to the other, and every device has
// every message once and in order.
func TestReal_AGatewayKilledUnderTraffic(t *testing.T) {
	redis := os.Getenv("TIDEMARK_TEST_REDIS")
	if redis == "" {
		t.Fatal(`TIDEMARK_TEST_REDIS is not set; eval "$(deploy/local/up --redis)"`)
	}
	const devices, before, after = 1000, 20, 40
	shared := nodeOf{redis, "t" + strings.ToLower(rand.Text())}
	doomed, first := spawnNode(t, shared)
	_, second := spawnNode(t, shared)

	var turn, dead atomic.Int64
	balancer := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		to := second
		if turn.Add(1)%2 == 0 && dead.Load() == 0 {
			to = first
		}
		r.SetURL(&url.URL{Scheme: "http", Host: to})
	}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	front := httptest.NewServer(balancer)
	t.Cleanup(front.Close)

	s := newServer()
	pusher, err := gateway.New(shared.config()) // it only delivers, as a worker does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pusher.Close(); err != nil {
			t.Error(err)
		}
	})
	say := func() {
		t.Helper()
		s.send(tea, 1)
		s.mu.Lock()
		seq := int64(len(s.bodies[tea]))
		m := s.message(tea, seq)
		s.mu.Unlock()
		e := &tidemarkv1.PushEvent{Conversation: tea, MaxSeq: seq, Kind: &tidemarkv1.PushEvent_Message{Message: m}}
		if err := pusher.Deliver(t.Context(), []gateway.Delivery{{Reach: gateway.ToCrowd, Event: e, Place: gateway.Place{Log: "log"}}}); err != nil {
			t.Fatal(err)
		}
	}
	say()

	watchers := make([]*watcher, devices)
	life, end := context.WithCancel(t.Context())
	var running errgroup.Group
	t.Cleanup(func() {
		end()
		if err := running.Wait(); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	for i := range watchers {
		w := &watcher{}
		watchers[i] = w
		user := watermark.UserID(fmt.Sprint("u", i))
		c, err := client.New(client.Config{
			User: user, Service: s, Logger: slog.New(slog.DiscardHandler),
			Live: &client.WebSocket{
				URL: "ws" + strings.TrimPrefix(front.URL, "http") + "/connection/websocket", User: user,
				Lost: func(string) { w.lost.Store(true) },
				Back: func() { w.back.Store(int64(time.Since(began))) },
			},
			OnMessage: func(_ context.Context, u client.Update) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.seqs = append(w.seqs, u.Message.GetSeq())
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() error { return c.Run(life) })
	}
	allHave := func(n int64) {
		t.Helper()
		for i, w := range watchers {
			eventually(t, fmt.Sprintf("device %d has %d messages", i, n), func() bool { return int64(len(w.has())) >= n })
		}
	}
	allHave(1)
	for range before {
		say()
	}
	allHave(1 + before)
	t.Logf("%d devices after %v", devices, time.Since(began).Round(time.Millisecond))

	say()
	killed := time.Since(began)
	if err := doomed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	say()
	dead.Store(1) // the balancer finds out
	for range after - 1 {
		say()
	}
	all := int64(1 + before + 1 + after)
	allHave(all)
	moved := 0
	var last time.Duration
	for _, w := range watchers {
		if !w.lost.Load() {
			continue
		}
		eventually(t, "who was cut off is back", func() bool { return w.back.Load() > int64(killed) })
		moved++
		last = max(last, time.Duration(w.back.Load()))
	}
	if moved < devices/4 {
		t.Errorf("%d devices were cut off, want about half", moved)
	}
	t.Logf("%d devices were cut off, the last one was back %v after the kill", moved, (last - killed).Round(time.Millisecond))
	for i, w := range watchers {
		for k, seq := range w.has() {
			if seq != int64(k+1) {
				t.Fatalf("device %d has %v", i, w.has())
			}
		}
	}
	say()
	allHave(all + 1)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
