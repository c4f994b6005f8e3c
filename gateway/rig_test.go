package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

const patience = 60 * time.Second

// start runs a gateway with its HTTP server for the length of a test.
func start(t testing.TB, change func(*gateway.Config)) (*gateway.Gateway, string) {
	t.Helper()
	n := startNode(t, change)
	return n.Gateway, n.url
}

// node is a gateway with its HTTP server.
type node struct {
	*gateway.Gateway
	url  string // of its WebSocket
	http string
	reg  *prometheus.Registry
	stop func()
}

func startNode(t testing.TB, change func(*gateway.Config)) *node {
	t.Helper()
	w := newWorld()
	reg := prometheus.NewRegistry()
	cfg := gateway.Config{
		Authenticate: gateway.Trusting, Members: w, Crowds: w, Drain: time.Millisecond,
		Logger: slog.New(slog.DiscardHandler), Registry: reg,
	}
	if change != nil {
		change(&cfg)
	}
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	srv := httptest.NewServer(g.Handler())
	n := &node{Gateway: g, url: "ws" + strings.TrimPrefix(srv.URL, "http") + "/connection/websocket", http: srv.URL, reg: reg}
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		srv.Close()
		if err := g.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

// world is what the nodes read: members, lists of crowds, and who is there.
type world struct {
	mu      sync.Mutex
	members map[watermark.ConversationID]map[watermark.UserID]watermark.Member
	lists   map[watermark.UserID][]watermark.ConversationID
	online  map[watermark.Connection]time.Time
	seen    map[watermark.UserID]time.Time
	small   int // conversations with at most that many members are given whole
	reads   int
	onRead  func(conv watermark.ConversationID, users []watermark.UserID) error
}

func newWorld() *world {
	return &world{
		members: make(map[watermark.ConversationID]map[watermark.UserID]watermark.Member),
		lists:   make(map[watermark.UserID][]watermark.ConversationID),
		online:  make(map[watermark.Connection]time.Time),
		seen:    make(map[watermark.UserID]time.Time),
		small:   10,
	}
}

// put makes users members of conv, with conv among their crowds.
func (w *world) put(conv watermark.ConversationID, ms ...watermark.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.members[conv] == nil {
		w.members[conv] = make(map[watermark.UserID]watermark.Member)
	}
	for _, m := range ms {
		if _, had := w.members[conv][m.User]; !had {
			w.lists[m.User] = append(w.lists[m.User], conv)
		}
		w.members[conv][m.User] = m
	}
}

// Members implements gateway.Members.
func (w *world) Members(_ context.Context, conv watermark.ConversationID, users []watermark.UserID) (map[watermark.UserID]watermark.Member, bool, error) {
	w.mu.Lock()
	w.reads++
	all := w.members[conv]
	out := make(map[watermark.UserID]watermark.Member)
	complete := len(all) <= w.small
	for u, m := range all {
		if complete {
			out[u] = m
		}
	}
	for _, u := range users {
		if m, ok := all[u]; ok {
			out[u] = m
		}
	}
	hook := w.onRead
	w.mu.Unlock()
	if hook != nil {
		if err := hook(conv, users); err != nil {
			return nil, false, err
		}
	}
	return out, complete, nil
}

// Crowds implements gateway.Crowds.
func (w *world) Crowds(_ context.Context, users []watermark.UserID) ([][]watermark.ConversationID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([][]watermark.ConversationID, len(users))
	for i, u := range users {
		out[i] = append(out[i], w.lists[u]...)
	}
	return out, nil
}

// Touch implements gateway.Presence.
func (w *world) Touch(_ context.Context, conns []watermark.Connection, now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		w.online[c], w.seen[c.User] = now, now
	}
	return nil
}

// Gone implements gateway.Presence.
func (w *world) Gone(_ context.Context, conns []watermark.Connection, now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		delete(w.online, c)
		w.seen[c.User] = now
	}
	return nil
}

// Presence implements gateway.Presence.
func (w *world) Presence(_ context.Context, users []watermark.UserID, _ time.Time) ([]watermark.Presence, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]watermark.Presence, len(users))
	for i, u := range users {
		out[i].LastSeen = w.seen[u]
		for c := range w.online {
			if c.User == u {
				out[i].Devices = append(out[i].Devices, c.Device)
			}
		}
	}
	return out, nil
}

func member(u watermark.UserID, lower, upper watermark.Seq) watermark.Member {
	return watermark.Member{User: u, Version: 1, LastMembership: 1,
		Memberships: []watermark.Membership{{Number: 1, Lower: lower, Upper: upper}}}
}

// eventually polls until ok, and fails with what it last said.
func eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// metric gives a counter or a gauge, all its series together.
func (n *node) metric(t testing.TB, name string) float64 {
	t.Helper()
	families, err := n.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

var errAway = errors.New("away")

func isSeq(want int64, got int64) error {
	if got != want {
		return fmt.Errorf("got %d, want %d", got, want)
	}
	return nil
}
