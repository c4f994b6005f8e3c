package topush_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/watermark"
)

// withCrowds makes conversations with more than above members crowds.
func withCrowds(w *world, above int) func(*topush.Config) {
	return func(c *topush.Config) { c.Crowds, c.CrowdAbove, c.CrowdBelow, c.LaneCost = w, above, above/2, 1000 }
}

func users(n int) []watermark.Member {
	out := make([]watermark.Member, n)
	for i := range out {
		out[i] = member(watermark.UserID(fmt.Sprintf("u%06d", i)), 0, 0)
	}
	return out
}

func TestACrowdIsToldOnce(t *testing.T) {
	w := newWorld()
	w.base[group] = append(users(4), member("gone", 1, 3))
	w.standing[group] = 20 * time.Hour
	s := w.stage(t, withCrowds(w, 3))
	n := member("new", 6, 0)
	out, _ := w.base[group][0].Leave("op", 6, 0)
	w.append(t, group, said(5, "u000000", "phone"))
	w.append(t, group, watermark.Revoked{Seq: 2})
	w.append(t, group, watermark.WindowChanged{Member: n, Cause: "join"})
	w.append(t, group, said(6, "u000001", ""))
	w.append(t, group, watermark.WindowChanged{Member: out, Cause: "leave"})
	w.append(t, group, watermark.WindowChanged{Member: n, Cause: "attributes"})
	w.append(t, group, said(7, "stranger", ""))
	w.append(t, group, watermark.ReadAdvanced{User: "new", Read: 6})
	w.append(t, group, watermark.Repaired{Number: 3, From: 2})
	each(t, w, s, 0)
	equal(t, "told", w.told(), []string{
		"message 5 > crowd at 0 max 5 not u000000/phone",
		"revoke 2 > crowd at 0 max 5",
		"revoke 2 > gone max 0",
		"seat new", "change join of new at 3 after 0", "join of new > new max 5",
		"message 6 > crowd at 3 max 6",
		"change leave of u000000 at 5 after 3", "leave of u000000 > u000000 max 6",
		"seat new", "attributes of new > new max 6",
		"seat stranger", "message 7 > crowd at 5 max 7",
		"read of new 6/0 > new max 0",
		"repaired 3 from 2 > crowd at 5 max 7",
		"repaired 3 from 2 > gone,u000000 max 0",
	})
}

// The exact audience of a crowd's delivery, for who wants to know.
func TestWhomACrowdConcernsCanBeAsked(t *testing.T) {
	w := newWorld()
	w.base[group] = append(users(4), member("late", 6, 0), member("gone", 1, 3))
	w.standing[group] = 20 * time.Hour
	w.append(t, group, said(5, "u000000", ""))
	var all []watermark.UserID
	s := w.stage(t, func(c *topush.Config) {
		withCrowds(w, 3)(c)
		c.Deliverer = taking(func(ds []topush.Delivery) error {
			for _, d := range ds {
				all = slices.Collect(d.All)
			}
			return nil
		})
	})
	handle(t, s, w.log)
	equal(t, "all", all, []watermark.UserID{"u000000", "u000001", "u000002", "u000003"})
}

func TestAConversationBecomesACrowdAndCeasesToBeOneWithSomeReserve(t *testing.T) {
	w := newWorld()
	const above = 8 // and ceases below 4
	w.base[group] = users(above)
	s := w.stage(t, withCrowds(w, above))
	seq := watermark.Seq(0)
	talk := func(want string) {
		t.Helper()
		seq++
		w.append(t, group, said(seq, "u000000", ""))
		n := len(w.told())
		handle(t, s, w.log[len(w.log)-1:])
		for _, line := range w.told()[n:] {
			if strings.HasPrefix(line, "message") && strings.Contains(line, "> crowd") != (want == "crowd") {
				t.Fatalf("%s, want it for the %s", line, want)
			}
		}
	}
	move := func(m watermark.Member, cause string) {
		t.Helper()
		w.append(t, group, watermark.WindowChanged{Member: m, Cause: cause})
		handle(t, s, w.log[len(w.log)-1:])
	}
	talk("users")
	move(member("more", 1, 0), "join")
	talk("crowd") // it has become one before this message
	if got := w.told(); !slices.Contains(got, "seat more,u000000,u000001,u000002,u000003,u000004,u000005,u000006,u000007") {
		t.Errorf("nobody is seated: %v", got)
	}
	for i := range 5 { // down to 4
		out, _ := users(above)[i+1].Leave("op", 1, 0)
		move(out, "leave")
		talk("crowd")
	}
	if len(w.lists["u000001"]) > 0 || len(w.lists["u000007"]) != 1 {
		t.Errorf("lists: %v", w.lists)
	}
	// Another worker goes on with what stands.
	s = w.stage(t, withCrowds(w, above))
	talk("crowd")
	out, _ := users(above)[6].Leave("op", 1, 0)
	move(out, "leave")
	talk("users")
	if got := w.told(); !slices.Contains(got, "dissolve") || len(w.standing) > 0 {
		t.Errorf("the crowd stands yet: %v", w.standing)
	}
	for u, list := range w.lists {
		if len(list) > 0 {
			t.Errorf("%s has it on the list yet", u)
		}
	}
	for i := range 4 { // up to 7
		move(member(watermark.UserID(fmt.Sprint("again", i)), seq, 0), "join")
		talk("users")
	}
	s = w.stage(t, withCrowds(w, above))
	talk("users")
}

func TestACrowdThatWasLostWithRedisRisesAgain(t *testing.T) {
	w := newWorld()
	w.base[group] = users(9)
	w.standing[group] = 20 * time.Hour
	s := w.stage(t, withCrowds(w, 8))
	w.append(t, group, said(1, "u000000", ""))
	handle(t, s, w.log)
	if len(w.lists) > 0 {
		t.Fatal("members were enlisted though the crowd stood")
	}
	clear(w.standing)
	w.append(t, group, said(2, "u000000", ""))
	handle(t, s, w.log[1:])
	if len(w.lists) != 9 || w.standing[group] == 0 {
		t.Errorf("%d members are enlisted, standing %v", len(w.lists), w.standing)
	}
	w.standing[group] = time.Hour // it is renewed in time
	clear(w.lists)
	w.append(t, group, said(3, "u000000", ""))
	handle(t, s, w.log[2:])
	if len(w.lists) != 9 {
		t.Error("a crowd whose time is nearly over is not renewed")
	}
	if got := w.told(); got[len(got)-1] != "message 3 > crowd at 0 max 3" {
		t.Errorf("told %v", got)
	}
}

// Whatever call fails while a conversation becomes a crowd and its members come
// and go, everybody is told everything in order and is on its list.
func TestAnyFailureLeavesTheCrowdWhole(t *testing.T) {
	runs := 0
	for _, how := range []string{"before", "partial", "after"} {
		for failAt := 1; ; failAt++ {
			w := newWorld()
			w.base[group] = users(8)
			for i := range 4 {
				seq := watermark.Seq(i + 1)
				w.append(t, group, said(seq, "u000000", ""), watermark.WindowChanged{Member: member(watermark.UserID(fmt.Sprint("n", i)), seq+1, 0), Cause: "join"})
			}
			w.failAt, w.failHow = failAt, how
			s, at, failed := w.stage(t, withCrowds(w, 8)), int64(0), false
			log := w.log
			for until := time.Now().Add(time.Minute); at < 4; {
				w.mu.Lock()
				w.log = log[:at+1] // nobody reads what comes
				w.mu.Unlock()
				d, err := s.Handle(t.Context(), log[at:at+1])
				for err == nil && d <= at && time.Now().Before(until) {
					d, err = s.Flush(t.Context())
				}
				if err != nil && (failed || !errors.Is(err, errDied)) {
					t.Fatal(err)
				}
				failed = failed || err != nil
				at = max(at, d)
			}
			w.mu.Lock()
			calls := w.calls
			w.mu.Unlock()
			if calls < failAt {
				break
			}
			runs++
			last := watermark.Seq(0)
			for _, d := range w.got {
				if e, ok := d.Event.(watermark.MessagesSequenced); ok {
					if seq := e.Messages[0].Seq; seq > last+1 {
						t.Errorf("%d after %d", seq, last)
					} else {
						last = max(last, seq)
					}
				}
			}
			if last != 4 || len(w.lists) != 12 {
				t.Errorf("call %d fails %s: told up to %d, %d lists", failAt, how, last, len(w.lists))
			}
		}
	}
	if runs < 30 {
		t.Errorf("only %d runs failed", runs)
	}
}

// taking is a Deliverer.
type taking func([]topush.Delivery) error

func (f taking) Deliver(_ context.Context, ds []topush.Delivery) error { return f(ds) }

// gate is a Deliverer that holds deliveries of one conversation back.
type gate struct {
	conv watermark.ConversationID
	open chan struct{}
	mu   sync.Mutex
	got  map[watermark.ConversationID][]topush.Delivery
}

func (g *gate) Deliver(ctx context.Context, ds []topush.Delivery) error {
	for _, d := range ds {
		if d.Conversation == g.conv {
			select {
			case <-g.open:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		g.mu.Lock()
		g.got[d.Conversation] = append(g.got[d.Conversation], d)
		g.mu.Unlock()
	}
	return nil
}

func (g *gate) count(c watermark.ConversationID) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.got[c])
}

func newGate(conv watermark.ConversationID) *gate {
	return &gate{conv: conv, open: make(chan struct{}), got: make(map[watermark.ConversationID][]topush.Delivery)}
}

func TestAHeavyConversationDelaysNobody(t *testing.T) {
	w := newWorld()
	w.base[group] = users(1001) // one message costs more than a lane lets pass
	g := newGate(group)
	s := w.stage(t, func(c *topush.Config) { c.Deliverer, c.LaneCost = g, 1000 })
	for i := range 5 {
		seq := watermark.Seq(i + 1)
		w.append(t, group, said(seq, "u000000", ""))
		w.append(t, single, said(seq, "A", ""))
		d, err := s.Handle(t.Context(), w.log[2*i:2*i+2])
		if err != nil {
			t.Fatal(err)
		}
		if d != 0 {
			t.Fatalf("durable = %d while the first record waits", d)
		}
		if n := g.count(single); n != i+1 {
			t.Fatalf("%d messages of the single chat are handed off, want %d", n, i+1)
		}
	}
	// The same records, as after an error: nothing is queued twice.
	if _, err := s.Handle(t.Context(), w.log[8:]); err != nil {
		t.Fatal(err)
	}
	close(g.open)
	handle(t, s, w.log[8:])
	var seqs []watermark.Seq
	for _, d := range g.got[group] {
		if d.Users[0] == "u000000" {
			seqs = append(seqs, d.Event.(watermark.MessagesSequenced).Messages[0].Seq)
		}
	}
	equal(t, "the group", seqs, []watermark.Seq{1, 2, 3, 4, 5})
	equal(t, "single chat", g.count(single), 5)
	equal(t, "mark", w.marks[group], topush.Mark{Conversation: group, Seq: 5, Offset: 9})
	// It is back among the others.
	w.append(t, group, watermark.ReadAdvanced{User: "u000001", Read: 1})
	handle(t, s, w.log[10:])
	equal(t, "loads", w.loads, []watermark.ConversationID{group, single})
}

func TestAConversationThatIsTooBusyTellsToPull(t *testing.T) {
	w := newWorld()
	w.base[group] = users(1001)
	g := newGate(group)
	s := w.stage(t, func(c *topush.Config) { c.Deliverer, c.LaneCost, c.QueueBytes = g, 1000, 400 })
	const all = 50
	for i := range all {
		m := said(watermark.Seq(i+1), "u000000", "")
		if i%7 == 4 { // what follows it would fit again
			m.Messages[0].Body, m.Messages[0].BodyType = make([]byte, 350), watermark.BodyData
			m.Messages[0].Hash = m.Messages[0].SumHash()
		}
		w.append(t, group, m)
		if _, err := s.Handle(t.Context(), w.log[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	close(g.open)
	if d := handle(t, s, w.log[all-1:]); d != all {
		t.Fatalf("durable = %d, want %d", d, all)
	}
	last, hints := watermark.Seq(0), 0
	for _, d := range g.got[group] {
		if d.Users[0] != "u000000" {
			continue
		}
		if d.Event == nil {
			hints++
			equal(t, "the hint's maximum", d.Max, watermark.Seq(all))
			continue
		}
		seq := d.Event.(watermark.MessagesSequenced).Messages[0].Seq
		if seq != last+1 {
			t.Fatalf("%d after %d", seq, last)
		}
		last = seq
	}
	if hints != 1 || last < 1 || last >= all {
		t.Errorf("%d hints, and messages up to %d of %d", hints, last, all)
	}
	w.append(t, group, said(all+1, "u000000", ""))
	handle(t, s, w.log[all:])
	if d := g.got[group][len(g.got[group])-1]; d.Event == nil {
		t.Error("what comes afterwards is not handed off")
	}
	equal(t, "mark", w.marks[group], topush.Mark{Conversation: group, Seq: all + 1, Offset: all + 1})
}

// Of what a conversation that is too busy leaves out, absent members are offered
// the last message, and the latest ones that mention somebody.
func TestWhatOverrunsIsOfferedToTheAbsent(t *testing.T) {
	for _, members := range []int{0, 2} { // all are notified; mentions only
		w, d := newWorld(), new(desk)
		w.base[group] = users(1001)
		g := newGate(group)
		s := w.stage(t, func(c *topush.Config) {
			c.Deliverer, c.LaneCost, c.QueueBytes = g, 1000, 400
			c.Offline, c.OfflineMembers = d, members
			if members == 0 {
				c.OfflineMembers = 2000
			}
		})
		const all = 50
		for i := range all {
			m := said(watermark.Seq(i+1), "u000000", "")
			if i >= 20 && i < 40 {
				m.Messages[0].Mentions = []watermark.UserID{"u000007"}
				m.Messages[0].Hash = m.Messages[0].SumHash()
			}
			w.append(t, group, m)
			if _, err := s.Handle(t.Context(), w.log[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
		close(g.open)
		if d := handle(t, s, w.log[all-1:]); d != all {
			t.Fatalf("durable = %d, want %d", d, all)
		}
		var got []string
		for _, o := range d.got {
			var seq, users = 0, strings.Count(o, "u0")
			if _, err := fmt.Sscanf(o, "group:g %d >", &seq); err != nil {
				t.Fatal(err)
			}
			if seq > 20 {
				got = append(got, fmt.Sprint(seq, " ", users))
			}
		}
		var want []string
		for seq := 26; seq <= 40; seq++ { // 15 mentions and the last one
			if members == 0 {
				want = append(want, fmt.Sprint(seq, " 1000"))
			} else {
				want = append(want, fmt.Sprint(seq, " 1"))
			}
		}
		if members == 0 {
			want = append(want, "50 1000")
		}
		equal(t, fmt.Sprintf("offered to %d", members), got, want)
	}
}
