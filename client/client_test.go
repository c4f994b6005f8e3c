package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	wm "github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The drivers' own, which end by themselves within seconds: the wait for an
		// answer on a connection that broke, and a node that tidies up.
		goleak.IgnoreAnyFunction("github.com/centrifugal/centrifuge-go.(*Client).sendAsync.func1"),
		goleak.IgnoreAnyFunction("github.com/centrifugal/centrifuge/internal/dissolve.(*Dissolver).runWorker"),
	)
}

// server is a sync service and a gateway over a list of bodies: seq s of a
// conversation is bodies[s-1].
type server struct {
	mu      sync.Mutex
	bodies  map[string][]string
	visible map[string]wm.Intervals // nil: all
	repair  map[string]wm.Repaired
	read    map[string]int64
	fail    int // calls that fail from now on
	pulls   int
	marks   int

	connected func()
	event     func(*tidemarkv1.PushEvent)
	ready     chan struct{}
}

func newServer() *server {
	return &server{bodies: map[string][]string{}, visible: map[string]wm.Intervals{}, repair: map[string]wm.Repaired{}, read: map[string]int64{}, ready: make(chan struct{})}
}

func (s *server) sees(conv string) wm.Intervals {
	all := wm.Interval{First: 1, Last: wm.Seq(len(s.bodies[conv]))}
	if v := s.visible[conv]; v != nil {
		return v.Clip(all)
	}
	return wm.Intervals{all}.Clip(all)
}

var errDown = errors.New("service is down")

func (s *server) failing() error {
	if s.fail > 0 {
		s.fail--
		return errDown
	}
	return nil
}

func (s *server) Pull(_ context.Context, req *tidemarkv1.PullRequest) (*tidemarkv1.PullResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pulls++
	if err := s.failing(); err != nil {
		return nil, err
	}
	r := req.GetRanges()[0]
	p, err := wm.PlanPage(s.sees(r.GetConversation()), wm.PageRequest{Begin: wm.Seq(r.GetBegin()), End: wm.Seq(r.GetEnd()), Num: r.GetNum(), Keep: wm.NearBegin})
	if err != nil {
		return nil, err
	}
	page := &tidemarkv1.PullPage{Conversation: r.GetConversation(), IsEnd: p.IsEnd}
	for _, span := range p.Spans {
		for q := span.First; q <= span.Last; q++ {
			page.Messages = append(page.Messages, s.message(r.GetConversation(), int64(q)))
		}
	}
	if p.Rest != nil {
		page.Rest = &tidemarkv1.Range{Begin: int64(p.Rest.First), End: int64(p.Rest.Last)}
	}
	return &tidemarkv1.PullResponse{Pages: []*tidemarkv1.PullPage{page}}, nil
}

func (s *server) message(conv string, seq int64) *tidemarkv1.Message {
	return &tidemarkv1.Message{Conversation: conv, Seq: seq, Body: &tidemarkv1.Message_Text{Text: s.bodies[conv][seq-1]}}
}

func (s *server) GetWatermarks(_ context.Context, req *tidemarkv1.GetWatermarksRequest) (*tidemarkv1.GetWatermarksResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks++
	if err := s.failing(); err != nil {
		return nil, err
	}
	res := &tidemarkv1.GetWatermarksResponse{}
	convs := req.GetConversations()
	if len(convs) == 0 {
		for c := range s.bodies {
			convs = append(convs, c)
		}
		slices.Sort(convs)
		// One conversation a page.
		i := slices.Index(convs, req.GetPageToken()) + 1
		if i < len(convs)-1 {
			res.NextPageToken = convs[i]
		}
		convs = convs[min(i, len(convs)):min(i+1, len(convs))]
	}
	for _, c := range convs {
		w := &tidemarkv1.Watermarks{Conversation: c, ReadSeq: s.read[c], RepairNumber: s.repair[c].Number, RepairFrom: int64(s.repair[c].From)}
		if e, ok := s.sees(c).Edges(); ok {
			w.MinSeq, w.MaxSeq = int64(e.First), int64(e.Last)
		}
		res.Watermarks = append(res.Watermarks, w)
	}
	return res, nil
}

func (s *server) SetReadSeq(_ context.Context, req *tidemarkv1.SetReadSeqRequest) (*tidemarkv1.ReadResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read[req.GetConversation()] = max(s.read[req.GetConversation()], req.GetReadSeq())
	return &tidemarkv1.ReadResponse{ReadSeq: s.read[req.GetConversation()]}, nil
}

func (s *server) Stream(ctx context.Context, connected func(), event func(*tidemarkv1.PushEvent)) error {
	s.connected, s.event = connected, event
	connected()
	close(s.ready)
	<-ctx.Done()
	return nil
}

func (s *server) send(conv string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.bodies[conv] = append(s.bodies[conv], fmt.Sprint("m", len(s.bodies[conv])+1))
	}
}

func (s *server) push(conv string, seq int64) {
	s.mu.Lock()
	e := &tidemarkv1.PushEvent{Conversation: conv, RepairNumber: s.repair[conv].Number, Kind: &tidemarkv1.PushEvent_Message{Message: s.message(conv, seq)}}
	s.mu.Unlock()
	s.event(e)
}

// device is a client with what it was given.
type device struct {
	got   map[string][]string // "seq:body", "again" in front where it was
	order map[string][]int64
	store store
	die   int // deliveries until the callback fails
}

type store map[string]client.Numbers

func (s store) Load(context.Context) (map[string]client.Numbers, error) { return s, nil }

func (s store) Save(_ context.Context, c string, n client.Numbers) error { s[c] = n; return nil }

var errDied = errors.New("device died")

func newDevice() *device {
	return &device{got: map[string][]string{}, order: map[string][]int64{}, store: store{}, die: -1}
}

func (d *device) client(t interface{ Fatal(...any) }, s *server, live bool, change func(*client.Config)) *client.Client {
	cfg := client.Config{User: "A", Service: s, Store: d.store, PageSize: 7, Logger: slog.New(slog.DiscardHandler),
		OnMessage: func(_ context.Context, u client.Update) error {
			if d.die == 0 {
				return errDied
			}
			d.die--
			conv, body := u.Message.GetConversation(), fmt.Sprintf("%d:%s", u.Message.GetSeq(), u.Message.GetText())
			if u.Again {
				body = "again " + body
			} else {
				d.order[conv] = append(d.order[conv], u.Message.GetSeq())
			}
			d.got[conv] = append(d.got[conv], body)
			return nil
		}}
	if live {
		cfg.Live = s
	}
	if change != nil {
		change(&cfg)
	}
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func seqs(from, to int64) []int64 {
	var out []int64
	for s := from; s <= to; s++ {
		out = append(out, s)
	}
	return out
}

func TestCatchingUpWithoutAStream(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 30)
	s.send("group:b", 1)
	s.visible["group:c"] = wm.Intervals{{First: 3, Last: 5}, {First: 9, Last: 9}}
	s.send("group:c", 12)
	s.fail = 3
	synctest.Test(t, func(t *testing.T) {
		if err := d.client(t, s, false, nil).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	for conv, want := range map[string][]int64{"group:a": seqs(1, 30), "group:b": {1}, "group:c": {3, 4, 5, 9}} {
		if !slices.Equal(d.order[conv], want) {
			t.Errorf("%s: delivered %v, want %v", conv, d.order[conv], want)
		}
	}
	pulls := s.pulls
	if err := d.client(t, s, false, nil).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.pulls != pulls {
		t.Errorf("a device that misses nothing pulled %d times", s.pulls-pulls)
	}
}

func TestNewestBoundsWhatAFreshDeviceGets(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 30)
	if err := d.client(t, s, false, func(c *client.Config) { c.Newest = 5 }).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.order["group:a"], seqs(26, 30)) {
		t.Errorf("delivered %v, want 26..30", d.order["group:a"])
	}
}

// live runs act beside a connected client and gives what was delivered once
// everything has settled.
func live(t *testing.T, s *server, d *device, change func(*client.Config), act func(settle func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := d.client(t, s, true, change)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		<-s.ready
		synctest.Wait()
		act(synctest.Wait)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func TestPushesInAnyOrderAndNumber(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 3)
	live(t, s, d, nil, func(settle func()) {
		s.send("group:a", 5)
		for _, seq := range []int64{2, 4, 4, 3, 7, 5, 8, 8, 6, 1} {
			s.push("group:a", seq)
		}
		settle()
		s.send("group:new", 1)
		s.push("group:new", 1)
	})
	if !slices.Equal(d.order["group:a"], seqs(1, 8)) {
		t.Errorf("delivered %v, want 1..8", d.order["group:a"])
	}
	if !slices.Equal(d.order["group:new"], []int64{1}) {
		t.Errorf("new conversation: delivered %v", d.order["group:new"])
	}
}

func TestPushesThatFollowOneAnotherNeedNoPull(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 3)
	var pulls int
	live(t, s, d, nil, func(settle func()) {
		pulls = s.pulls
		for range 20 {
			s.send("group:a", 1)
			s.push("group:a", int64(len(s.bodies["group:a"])))
		}
	})
	if s.pulls != pulls {
		t.Errorf("%d pulls for pushes without a gap", s.pulls-pulls)
	}
	if !slices.Equal(d.order["group:a"], seqs(1, 23)) {
		t.Errorf("delivered %v", d.order["group:a"])
	}
}

func TestABurstThatDoesNotFitIsPulled(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 1)
	var gate chan struct{}
	live(t, s, d, func(c *client.Config) {
		gate = make(chan struct{}) // of the test's bubble
		deliver := c.OnMessage
		c.OnMessage = func(ctx context.Context, u client.Update) error {
			if u.Message.GetSeq() == 2 {
				<-gate
			}
			return deliver(ctx, u)
		}
	}, func(settle func()) {
		s.send("group:a", 999)
		for seq := range int64(999) {
			s.push("group:a", seq+2)
		}
		settle()
		close(gate)
	})
	if !slices.Equal(d.order["group:a"], seqs(1, 1000)) {
		t.Errorf("delivered %d messages, want 1..1000", len(d.order["group:a"]))
	}
}

func TestReconnectFindsWhatWasMissed(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 3)
	live(t, s, d, nil, func(settle func()) {
		s.send("group:a", 20)
		s.connected()
		settle()
		marks, pulls := s.marks, s.pulls
		s.connected()
		settle()
		if s.pulls != pulls || s.marks != marks+1 {
			t.Errorf("a reconnect without traffic made %d pulls, %d watermark calls", s.pulls-pulls, s.marks-marks)
		}
	})
	if !slices.Equal(d.order["group:a"], seqs(1, 23)) {
		t.Errorf("delivered %v", d.order["group:a"])
	}
}

func TestRepairIsPulledAgain(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 10)
	live(t, s, d, nil, func(settle func()) {
		s.mu.Lock()
		s.bodies["group:a"][9] = "old"
		s.repair["group:a"] = wm.Repaired{Number: 77, From: 10}
		s.mu.Unlock()
		s.send("group:a", 1)
		s.push("group:a", 11)
		settle()
		s.push("group:a", 11)
	})
	want := []string{"10:m10", "again 10:old", "11:m11"}
	if got := d.got["group:a"]; !slices.Equal(got[len(got)-3:], want) {
		t.Errorf("ended with %v, want %v", got[max(0, len(got)-4):], want)
	}
	if d.store["group:a"].Repair != 77 {
		t.Errorf("repair number %d is kept, want 77", d.store["group:a"].Repair)
	}
}

func TestMarkReadOnOneDeviceReachesTheOther(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 10)
	var seen int
	live(t, s, d, func(c *client.Config) {
		c.OnEvent = func(context.Context, *tidemarkv1.PushEvent) error { seen++; return nil }
	}, func(settle func()) {
		s.event(&tidemarkv1.PushEvent{Conversation: "group:a", Kind: &tidemarkv1.PushEvent_Read{Read: &tidemarkv1.ReadAdvanced{User: "A", ReadSeq: 6}}})
		s.event(&tidemarkv1.PushEvent{Conversation: "group:a", Kind: &tidemarkv1.PushEvent_Read{Read: &tidemarkv1.ReadAdvanced{User: "A", ReadSeq: 4}}})
	})
	if d.store["group:a"].Read != 6 || seen != 2 {
		t.Errorf("read %d, %d events, want 6 and 2", d.store["group:a"].Read, seen)
	}
}

func TestAFailingCallbackEndsRun(t *testing.T) {
	s, d := newServer(), newDevice()
	s.send("group:a", 3)
	d.die = 1
	if err := d.client(t, s, false, nil).Run(t.Context()); !errors.Is(err, errDied) {
		t.Fatalf("run: %v, want the callback's error", err)
	}
	d.die = -1
	if err := d.client(t, s, false, nil).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.order["group:a"], seqs(1, 3)) {
		t.Errorf("delivered %v, want 1..3 once", d.order["group:a"])
	}
}

// However a device dies, reconnects and is pushed to, it ends with every
// message once and in order.
func TestAnyHistoryEndsComplete(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, d := newServer(), newDevice()
		conv := "group:a"
		s.send(conv, rapid.IntRange(0, 20).Draw(rt, "before"))
		for range rapid.IntRange(1, 3).Draw(rt, "lives") {
			d.die = rapid.IntRange(-1, 10).Draw(rt, "die after")
			s.ready = make(chan struct{})
			synctest.Test(t, func(t *testing.T) {
				c := d.client(t, s, true, nil)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx) }()
				<-s.ready
				for range rapid.IntRange(0, 12).Draw(rt, "steps") {
					switch rapid.IntRange(0, 3).Draw(rt, "step") {
					case 0:
						s.send(conv, rapid.IntRange(1, 9).Draw(rt, "n"))
					case 1:
						if n := len(s.bodies[conv]); n > 0 {
							s.push(conv, int64(rapid.IntRange(1, n).Draw(rt, "seq")))
						}
					case 2:
						s.connected()
					case 3:
						synctest.Wait()
					}
				}
				synctest.Wait()
				cancel()
				if err := <-done; err != nil && !errors.Is(err, errDied) {
					rt.Fatalf("run: %v", err)
				}
			})
		}
		d.die = -1
		if err := d.client(rt, s, false, nil).Run(context.Background()); err != nil {
			rt.Fatal(err)
		}
		if want := seqs(1, int64(len(s.bodies[conv]))); !slices.Equal(d.order[conv], want) {
			rt.Fatalf("delivered %v, want 1..%d", d.order[conv], len(want))
		}
	})
}

func TestNewReportsAllFaults(t *testing.T) {
	_, err := client.New(client.Config{User: "a:b", Newest: -1})
	for _, want := range []string{"User", "Service", "OnMessage", "Logger", "Newest"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}
