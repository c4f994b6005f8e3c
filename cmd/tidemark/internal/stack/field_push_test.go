package stack_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/watermark"
)

// follower is a device that keeps a user's conversations complete.
type follower struct {
	mu    sync.Mutex
	got   map[string][]string // by conversation, "seq id"
	pulls atomic.Int64
	backs atomic.Int64
	tidemarkv1connect.SyncServiceClient
}

// Pull counts.
func (f *follower) Pull(ctx context.Context, req *tidemarkv1.PullRequest) (*tidemarkv1.PullResponse, error) {
	f.pulls.Add(1)
	return f.SyncServiceClient.Pull(ctx, req)
}

func (r *rig) follow(user, name, url string) *follower {
	r.t.Helper()
	f := &follower{got: map[string][]string{}, SyncServiceClient: r.svc}
	dev, err := client.New(client.Config{
		User: watermark.UserID(user), Device: name, Service: f, Logger: slog.New(slog.DiscardHandler),
		Live: &client.WebSocket{URL: url, User: watermark.UserID(user), Device: name, Back: func() { f.backs.Add(1) }},
		OnMessage: func(_ context.Context, u client.Update) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			m := u.Message
			f.got[m.GetConversation()] = append(f.got[m.GetConversation()], fmt.Sprint(m.GetSeq(), " ", m.GetClientMessageId()))
			return nil
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- dev.Run(ctx) }()
	r.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			r.t.Errorf("device of %s: %v", user, err)
		}
	})
	return f
}

func (f *follower) messages(conv string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.got[conv]...)
}

// awaitAll waits until a device has so many messages, and checks that they are
// these, each once and in order.
func (r *rig) awaitAll(who string, f *follower, conv string, want []string) {
	r.t.Helper()
	r.eventually("messages of "+who, func() error {
		if got := f.messages(conv); len(got) < len(want) {
			return fmt.Errorf("%d of %d are there: %v", len(got), len(want), got)
		}
		return nil
	})
	if diff := cmp.Diff(want, f.messages(conv)); diff != "" {
		r.t.Errorf("messages of %s (-want +got):\n%s", who, diff)
	}
}

func names(from, to int) (out []string) {
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprint(i, " m", i))
	}
	return out
}

// A group is pushed to as its windows say, to each member or, when it is large,
// to all at once: never to who was kicked, to who joined late only from there on,
// to every device.
func TestField_PushKeepsToTheWindows(t *testing.T) {
	for name, above := range map[string]int{"EachMember": 256, "Crowd": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startAll(t, func(c *config.Config) { c.ToPush.CrowdAbove, c.ToPush.CrowdBelow = above, 2 })
			url := r.roles[stack.ToPush].stack.GatewayURL()
			const g = "group:w"
			for _, u := range []string{"A", "B", "C", "K"} {
				r.join(g, u, tidemarkv1.History_HISTORY_ALL)
			}
			phone, web := r.follow("A", "phone", url), r.follow("A", "web", url)
			late, kicked := r.follow("L", "", url), r.follow("K", "", url)
			rawLate, rawKicked := r.connect("L", url), r.connect("K", url)
			n := 0
			talk := func(many int) {
				t.Helper()
				lines := make([]string, many)
				for i := range lines {
					n++
					lines[i] = line(g, "B", fmt.Sprint("m", n), "text")
				}
				r.produce(g, lines...)
			}
			talk(20)
			r.awaitAll("a member", kicked, g, names(1, 20))
			r.leave(g, "K")
			talk(20)
			r.join(g, "L", tidemarkv1.History_HISTORY_NONE)
			talk(20)
			r.awaitAll("one device", phone, g, names(1, 60))
			r.awaitAll("the other", web, g, names(1, 60))
			r.awaitAll("who joined late", late, g, names(41, 60))
			r.awaitAll("who was kicked", kicked, g, names(1, 20))
			for who, d := range map[string]struct {
				*device
				from, to int64
			}{"who joined late": {rawLate, 41, 60}, "who was kicked": {rawKicked, 1, 20}} {
				d.mu.Lock()
				for _, e := range d.pushes {
					if m := e.GetMessage(); m != nil && (m.GetSeq() < d.from || m.GetSeq() > d.to) || e.GetMaxSeq() > d.to {
						t.Errorf("%s was pushed %v", who, e)
					}
				}
				d.mu.Unlock()
			}
			crowds, _ := r.sum(stack.ToPush, "tidemark_topush_crowds_total", "change", "risen")
			if (crowds > 0) != (name == "Crowd") {
				t.Errorf("%v crowds have risen", crowds)
			}
		})
	}
}

// balancer passes connections on to one of several servers, as long as that
// lives.
type balancer struct {
	net.Listener
	done sync.WaitGroup
	mu   sync.Mutex
	next int
	to   []string
	open map[net.Conn]string // by the server
}

func balance(t testing.TB, to ...string) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: l, to: to, open: map[net.Conn]string{}}
	b.done.Go(b.accept)
	t.Cleanup(func() {
		l.Close()
		for _, server := range to {
			b.kill(server)
		}
		b.done.Wait()
	})
	return b
}

func (b *balancer) url() string { return "ws://" + b.Addr().String() + "/connection/websocket" }

func (b *balancer) accept() {
	for {
		from, err := b.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		server := ""
		if len(b.to) > 0 {
			server = b.to[b.next%len(b.to)]
			b.next++
		}
		b.mu.Unlock()
		to, err := net.Dial("tcp", server)
		if err != nil {
			from.Close()
			continue
		}
		b.mu.Lock()
		b.open[from], b.open[to] = server, server
		b.mu.Unlock()
		for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
			b.done.Go(func() {
				_, _ = io.Copy(way[0], way[1]) // it ends when either side is closed
				from.Close()
				to.Close()
			})
		}
	}
}

// kill breaks all connections to a server and makes no more, and gives how many
// there were: to clients it is as dead as can be.
func (b *balancer) kill(server string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var left []string
	for _, s := range b.to {
		if s != server {
			left = append(left, s)
		}
	}
	b.to = left
	for c, s := range b.open {
		if s == server {
			c.Close()
			delete(b.open, c)
			n++
		}
	}
	return n / 2
}

// A gateway dies under traffic with half of the devices: all of them come back
// to the other one, and each ends up with every message once and in order. It
// would not do for a device to pull without a reason: when there was no traffic,
// coming back pulls nothing.
func TestField_GatewayKilledUnderTraffic(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		c.Gateway.Redis = true
		c.ToPush.CrowdAbove, c.ToPush.CrowdBelow = 20, 10
		c.Limits.InFlight = 10_000
	})
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	// All devices have one transport, which keeps more than two connections.
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	r.svc = tidemarkv1connect.NewSyncServiceClient(&http.Client{Transport: transport}, r.roles[stack.Sync].stack.SyncURL())
	const first, second = stack.Role("gateway 1"), stack.Role("gateway 2")
	r.open(first, stack.Gateway)
	r.open(second, stack.Gateway)
	t.Cleanup(func() { r.stop(first, second) })
	r.open(stack.ToPush, stack.ToPush)
	addr := func(role stack.Role) string { return strings.Split(r.roles[role].stack.GatewayURL(), "/")[2] }
	lb := balance(t, addr(first), addr(second))

	const g = "group:all"
	user := func(i int) string { return fmt.Sprint("u", i) }
	var joins errgroup.Group
	joins.SetLimit(32)
	for i := range gatewayClients {
		joins.Go(func() error {
			_, err := r.svc.Join(t.Context(), &tidemarkv1.JoinRequest{Conversation: g, User: user(i), History: tidemarkv1.History_HISTORY_ALL, OpId: fmt.Sprint("j", i)})
			return err
		})
	}
	if err := joins.Wait(); err != nil {
		t.Fatal(err)
	}
	followers := make([]*follower, gatewayClients)
	for i := range followers {
		followers[i] = r.follow(user(i), "d", lb.url())
	}
	n := 0
	talk := func(many int) {
		t.Helper()
		lines := make([]string, many)
		for i := range lines {
			n++
			lines[i] = line(g, "u0", fmt.Sprint("m", n), "text")
		}
		r.produce(g, lines...)
	}
	everybodyHas := func(want []string) {
		t.Helper()
		for i, f := range followers {
			r.awaitAll(user(i), f, g, want)
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	talk(10)
	everybodyHas(names(1, 10))
	for range 5 {
		talk(5)
	}
	if lost := lb.kill(addr(first)); lost < gatewayClients/4 {
		t.Fatalf("the gateway that was killed had %d of %d connections", lost, gatewayClients)
	}
	for range 10 {
		talk(5)
	}
	everybodyHas(names(1, n))
	r.eventually("all are at the other node", func() error {
		if got := r.metric(second, "tidemark_gateway_connections"); got < gatewayClients {
			return fmt.Errorf("%v of %d", got, gatewayClients)
		}
		return nil
	})

	// Once more, without traffic: they only ask what is new.
	r.settle()
	backs, pulls := make([]int64, len(followers)), make([]int64, len(followers))
	for i, f := range followers {
		backs[i], pulls[i] = f.backs.Load(), f.pulls.Load()
	}
	lb.mu.Lock()
	for c := range lb.open {
		c.Close()
	}
	clear(lb.open)
	lb.mu.Unlock()
	r.eventually("all are back", func() error {
		for i, f := range followers {
			if f.backs.Load() == backs[i] {
				return fmt.Errorf("%s is not", user(i))
			}
		}
		return nil
	})
	talk(1)
	everybodyHas(names(1, n))
	for i, f := range followers {
		if got := f.pulls.Load() - pulls[i]; got > 1 {
			t.Errorf("%s pulled %d times for one message", user(i), got)
		}
	}
}
