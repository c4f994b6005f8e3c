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

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	wm "github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) {
	if asNode() {
		return
	}
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
	lists   int                                          // calls
	open    map[string]bool                              // groups that are not in the list
	gone    map[string][]int64                           // what was revoked, in that order
	many    bool                                         // revokes are told as more than can be named
	log     string                                       // versions of another one are worth nothing
	past    []map[string]string                          // by version, what each conversation was like
	pastOf  []map[string]int                             // by version, how many were revoked
	sends   int                                          // calls
	unheard int                                          // sends that are taken and not answered from now on
	lost    int                                          // sends that are not taken from now on
	burst   int                                          // messages of others that follow one that is not answered
	refuse  error                                        // for every send
	own     map[string]map[int64]*tidemarkv1.SendMessage // what was sent, by conversation and seq

	connected func()
	event     func(*tidemarkv1.PushEvent)
	ready     chan struct{}
}

func newServer() *server {
	return &server{bodies: map[string][]string{}, visible: map[string]wm.Intervals{}, repair: map[string]wm.Repaired{}, read: map[string]int64{}, ready: make(chan struct{}), open: map[string]bool{}, gone: map[string][]int64{}, log: "log", own: map[string]map[int64]*tidemarkv1.SendMessage{}}
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
	res := &tidemarkv1.PullResponse{}
	for _, r := range req.GetRanges() {
		page, err := s.page(r)
		if err != nil {
			return nil, err
		}
		res.Pages = append(res.Pages, page)
	}
	return res, nil
}

func (s *server) page(r *tidemarkv1.PullRange) (*tidemarkv1.PullPage, error) {
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
	return page, nil
}

func (s *server) message(conv string, seq int64) *tidemarkv1.Message {
	m := s.own[conv][seq]
	if slices.Contains(s.gone[conv], seq) {
		return &tidemarkv1.Message{Conversation: conv, Seq: seq, Sender: m.GetSender(), ClientMessageId: m.GetClientMessageId(), Revoked: true}
	}
	return &tidemarkv1.Message{Conversation: conv, Seq: seq, Sender: m.GetSender(), ClientMessageId: m.GetClientMessageId(), Body: &tidemarkv1.Message_Text{Text: s.bodies[conv][seq-1]}}
}

func (s *server) GetWatermarks(_ context.Context, req *tidemarkv1.GetWatermarksRequest) (*tidemarkv1.GetWatermarksResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failing(); err != nil {
		return nil, err
	}
	res := &tidemarkv1.GetWatermarksResponse{}
	for _, c := range req.GetConversations() {
		res.Watermarks = append(res.Watermarks, s.marksOf(c))
	}
	return res, nil
}

func (s *server) marksOf(c string) *tidemarkv1.Watermarks {
	w := &tidemarkv1.Watermarks{Conversation: c, ReadSeq: s.read[c], RepairNumber: s.repair[c].Number, RepairFrom: int64(s.repair[c].From)}
	if e, ok := s.sees(c).Edges(); ok {
		w.MinSeq, w.MaxSeq = int64(e.First), int64(e.Last)
	}
	return w
}

// SyncConversations has one conversation a page.
func (s *server) SyncConversations(_ context.Context, req *tidemarkv1.SyncConversationsRequest) (*tidemarkv1.SyncConversationsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if err := s.failing(); err != nil {
		return nil, err
	}
	var base, pin int
	var after string
	if token := req.GetPageToken(); token != "" {
		if _, err := fmt.Sscanf(token, s.log+"/%d/%d/%s", &base, &pin, &after); err != nil {
			return nil, errors.New("no such token")
		}
	} else {
		if _, err := fmt.Sscanf(req.GetVersion(), s.log+"/%d", &base); err != nil {
			base = 0
		}
		now, gone := map[string]string{}, map[string]int{}
		for c := range s.bodies {
			now[c] = fmt.Sprint(len(s.bodies[c]), s.visible[c], s.repair[c], s.read[c], s.gone[c])
			gone[c] = len(s.gone[c])
		}
		s.past, s.pastOf = append(s.past, now), append(s.pastOf, gone)
		pin = len(s.past)
	}
	var known map[string]string
	var knownGone map[string]int
	if base > 0 {
		known, knownGone = s.past[base-1], s.pastOf[base-1]
	}
	var convs []string
	for c, like := range s.past[pin-1] {
		if known[c] != like && c > after && !s.open[c] {
			convs = append(convs, c)
		}
	}
	slices.Sort(convs)
	res := &tidemarkv1.SyncConversationsResponse{FullResync: base == 0}
	for c := range s.past[pin-1] {
		if !s.open[c] {
			res.TotalConversations++
		}
	}
	if len(convs) > 0 {
		e := &tidemarkv1.ConversationEntry{Watermarks: s.marksOf(convs[0])}
		if e.Revoked = slices.Clone(s.gone[convs[0]][knownGone[convs[0]]:]); s.many && len(e.Revoked) > 0 {
			e.Revoked, e.MoreRevoked = e.Revoked[:1], true
		}
		slices.Sort(e.Revoked)
		res.Changed = []*tidemarkv1.ConversationEntry{e}
	}
	if len(convs) > 1 {
		res.NextPageToken = fmt.Sprintf("%s/%d/%d/%s", s.log, base, pin, convs[0])
	} else {
		res.Version = fmt.Sprintf("%s/%d", s.log, pin)
	}
	return res, nil
}

func (s *server) SetReadSeq(_ context.Context, req *tidemarkv1.SetReadSeqRequest) (*tidemarkv1.ReadResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read[req.GetConversation()] = max(s.read[req.GetConversation()], req.GetReadSeq())
	return &tidemarkv1.ReadResponse{ReadSeq: s.read[req.GetConversation()]}, nil
}

func (s *server) MarkConversationRead(ctx context.Context, req *tidemarkv1.MarkConversationReadRequest) (*tidemarkv1.ReadResponse, error) {
	return s.SetReadSeq(ctx, &tidemarkv1.SetReadSeqRequest{Conversation: req.GetConversation(), ReadSeq: req.GetReadSeq()})
}

// Send knows an id again within the last 10 messages.
func (s *server) Send(_ context.Context, req *tidemarkv1.SendRequest) (*tidemarkv1.SendResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sends++
	if s.refuse != nil {
		return nil, s.refuse
	}
	if err := s.failing(); err != nil {
		return nil, err
	}
	if s.lost > 0 {
		s.lost--
		return nil, errDown
	}
	m := req.GetMessage()
	conv := m.GetConversation()
	res := &tidemarkv1.SendResponse{ClientMessageId: m.GetClientMessageId()}
	for seq, had := range s.own[conv] {
		if had.GetClientMessageId() == m.GetClientMessageId() && seq > int64(len(s.bodies[conv]))-10 {
			res.Seq, res.Duplicate = seq, true
		}
	}
	if res.Seq == 0 {
		s.bodies[conv] = append(s.bodies[conv], m.GetText())
		res.Seq = int64(len(s.bodies[conv]))
		if s.own[conv] == nil {
			s.own[conv] = map[int64]*tidemarkv1.SendMessage{}
		}
		s.own[conv][res.Seq] = m
	}
	if s.unheard > 0 {
		s.unheard--
		for range s.burst {
			s.bodies[conv] = append(s.bodies[conv], "of another")
		}
		return nil, errDown
	}
	return res, nil
}

func (s *server) Stream(ctx context.Context, connected func(), event func(*tidemarkv1.PushEvent)) error {
	s.connected, s.event = connected, event
	connected()
	close(s.ready)
	<-ctx.Done()
	return nil
}

// asked tells how often the list was asked for.
func (s *server) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

func (s *server) send(conv string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.bodies[conv] = append(s.bodies[conv], fmt.Sprint("m", len(s.bodies[conv])+1))
	}
}

func (s *server) revoke(conv string, seqs ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[conv] = append(s.gone[conv], seqs...)
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
	list  version
	die   int // deliveries until the callback fails
}

type store map[string]client.Numbers

func (s store) Load(context.Context) (map[string]client.Numbers, error) { return s, nil }

func (s store) Save(_ context.Context, c string, n client.Numbers) error { s[c] = n; return nil }

// version is a store of the list's version.
type version struct{ kept string }

func (v *version) LoadVersion(context.Context) (string, error) { return v.kept, nil }

func (v *version) SaveVersion(_ context.Context, s string) error { v.kept = s; return nil }

var errDied = errors.New("device died")

func newDevice() *device {
	return &device{got: map[string][]string{}, order: map[string][]int64{}, store: store{}, die: -1}
}

func (d *device) client(t interface{ Fatal(...any) }, s *server, live bool, change func(*client.Config)) *client.Client {
	cfg := client.Config{User: "A", Service: s, Store: d.store, List: &d.list, PageSize: 7, Logger: slog.New(slog.DiscardHandler),
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
		lists, pulls := s.lists, s.pulls
		s.connected()
		settle()
		if s.pulls != pulls || s.lists != lists+1 {
			t.Errorf("a reconnect without traffic made %d pulls, %d calls for the list", s.pulls-pulls, s.lists-lists)
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

func TestNewReportsAllFaults(t *testing.T) {
	_, err := client.New(client.Config{User: "a:b", Newest: -1})
	for _, want := range []string{"User", "Service", "OnMessage", "Logger", "Newest"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}
