package topush_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestWhoIsTold(t *testing.T) {
	left := member("D", 0, 3)
	rejoined, _, _ := left.Join("op", 4, watermark.HistoryNone, 0)
	kicked, _ := rejoined.Leave("op2", 5, 0)
	tests := []struct {
		name   string
		conv   watermark.ConversationID
		base   []watermark.Member
		events []watermark.Event
		want   []string
	}{
		{"members of the moment, not the sending device", group,
			[]watermark.Member{member("A", 0, 0), member("B", 5, 0), member("C", 1, 3), member("E", 6, 0)},
			[]watermark.Event{said(5, "A", "phone")},
			[]string{"message 5 > A,B max 5 not A/phone"}},
		{"without a device all of the sender's are told", group,
			[]watermark.Member{member("A", 0, 0)},
			[]watermark.Event{said(5, "A", "")},
			[]string{"message 5 > A max 5"}},
		{"both users of a single conversation from its first message on", single, nil,
			[]watermark.Event{said(1, "A", "phone")},
			[]string{"message 1 > A,B max 1 not A/phone"}},
		{"a rejoiner between leave and kick", group,
			[]watermark.Member{member("A", 0, 0), left},
			[]watermark.Event{said(4, "A", ""), watermark.WindowChanged{Member: rejoined, Cause: "join"},
				said(5, "A", ""), watermark.WindowChanged{Member: kicked, Cause: "leave"}, said(6, "A", "")},
			[]string{"message 4 > A max 4", "join of D > D max 4", "message 5 > A,D max 5", "leave of D > D max 5", "message 6 > A max 6"}},
		{"a newcomer from the next message on", group,
			[]watermark.Member{member("A", 0, 0)},
			[]watermark.Event{said(1, "A", ""), watermark.WindowChanged{Member: member("N", 2, 0), Cause: "join"}, said(2, "A", "")},
			[]string{"message 1 > A max 1", "join of N > N max 1", "message 2 > A,N max 2"}},
		{"a revoke goes to who could see it, former members learn no maximum", group,
			[]watermark.Member{member("A", 0, 0), member("B", 4, 0), member("C", 1, 3)},
			[]watermark.Event{said(9, "A", ""), watermark.Revoked{Seq: 3}},
			[]string{"message 9 > A,B max 9", "revoke 3 > C max 0", "revoke 3 > A max 9"}},
		{"a policy is for those who see what comes", group,
			[]watermark.Member{member("A", 0, 0), member("C", 1, 3)},
			[]watermark.Event{watermark.PolicyChanged{Version: 1, Choice: watermark.ChooseKeep}},
			[]string{"policy 2 > A max 0"}},
		{"attributes are the member's own", group,
			[]watermark.Member{member("A", 0, 0), member("B", 0, 0)},
			[]watermark.Event{watermark.WindowChanged{Member: member("A", 0, 0), Cause: "attributes"}},
			[]string{"attributes of A > A max 0"}},
		{"a read mark is the member's own", group,
			[]watermark.Member{member("A", 0, 0), member("B", 0, 0)},
			[]watermark.Event{watermark.ReadAdvanced{User: "A", Read: 3, Receipt: 3, Device: "web"}},
			[]string{"read of A 3/3 > A max 0 not A/web"}},
		{"a receipt is the peer's too, without the mark", single, nil,
			[]watermark.Event{watermark.ReadAdvanced{User: "A", Read: 3, Receipt: 2, Device: "web"}},
			[]string{"read of A 3/2 > A max 0 not A/web", "read of A 0/2 > B max 0"}},
		{"who has left learns nothing of what the peer reads", single, []watermark.Member{member("B", 0, 2)},
			[]watermark.Event{watermark.ReadAdvanced{User: "A", Read: 9, Receipt: 9}},
			[]string{"read of A 9/9 > A max 0"}},
		{"marks in any order never fall", single, nil,
			[]watermark.Event{watermark.ReadAdvanced{User: "A", Read: 9, Receipt: 9}, watermark.ReadAdvanced{User: "A", Read: 7, Receipt: 7}},
			[]string{"read of A 9/9 > A max 0", "read of A 0/9 > B max 0", "read of A 9/9 > A max 0", "read of A 0/9 > B max 0"}},
		{"a mark without receipt says nothing to the peer", single, nil,
			[]watermark.Event{watermark.ReadAdvanced{User: "A", Read: 3}},
			[]string{"read of A 3/0 > A max 0"}},
		{"bounds and repairs are everybody's who sees anything", group,
			[]watermark.Member{member("A", 0, 0), member("C", 1, 3), {User: "D", Version: 2, LastMembership: 1}},
			[]watermark.Event{watermark.MinSeqRaised{Min: 2}, watermark.Repaired{Number: 7, From: 2}},
			[]string{"min 2 > C max 0", "min 2 > A max 0", "repaired 7 from 2 > C max 0", "repaired 7 from 2 > A max 0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.base[tt.conv] = tt.base
			for _, e := range tt.events {
				w.append(t, tt.conv, e)
			}
			s := w.stage(t, asItIs)
			each(t, w, s, 0)
			equal(t, "told", w.told(), tt.want)
			equal(t, "loads", w.loads, []watermark.ConversationID{tt.conv})

			// The same in one record, by a worker that starts late: windows are
			// intervals, so nobody is told more for the state being ahead.
			late := newWorld()
			late.base[tt.conv] = tt.base
			late.append(t, tt.conv, tt.events...)
			handle(t, late.stage(t, asItIs), late.log)
			equal(t, "told late", seqsByUser(late.got), seqsByUser(w.got))
			checkMax(t, late.got, tt.conv, late)
		})
	}
}

// seqsByUser gives which messages each user was told of.
func seqsByUser(ds []topush.Delivery) map[watermark.UserID][]watermark.Seq {
	out := make(map[watermark.UserID][]watermark.Seq)
	for _, d := range ds {
		if e, ok := d.Event.(watermark.MessagesSequenced); ok {
			for _, u := range d.Users {
				out[u] = append(out[u], e.Messages[0].Seq)
			}
		}
	}
	return out
}

// checkMax: nobody is told a maximum beyond what the end state lets it see.
func checkMax(t *testing.T, ds []topush.Delivery, id watermark.ConversationID, w *world) {
	t.Helper()
	states, err := w.Load(t.Context(), []watermark.Want{{Conversation: id, Roster: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		for _, u := range d.Users {
			m := states[0].Members[u]
			m.User = u
			if edges, ok := m.Window().Edges(); ok && d.Max > edges.Last {
				t.Errorf("%s sees up to %d and was told %d", u, edges.Last, d.Max)
			}
		}
	}
}

func TestRestartReplaysNothing(t *testing.T) {
	w := newWorld()
	for i := range 10 {
		w.append(t, group, said(watermark.Seq(i+1), "A", ""))
	}
	if d := handle(t, w.stage(t, asItIs), w.log); d != 10 {
		t.Errorf("durable = %d, want 10", d)
	}
	n := len(w.got)
	if d := handle(t, w.stage(t, asItIs), w.log); d != 10 {
		t.Errorf("durable = %d, want 10", d)
	}
	if len(w.got) != n || n != 10 {
		t.Errorf("%d deliveries, then %d; want 10 and no more", n, len(w.got))
	}
	equal(t, "mark", w.marks[group], topush.Mark{Conversation: group, Seq: 10, Offset: 10})
	if got := w.journal[:4]; !slices.Equal(got, []string{"pushed", "load", "deliver", "raise"}) {
		t.Errorf("calls = %v", got)
	}
}

func TestSeqThatWasPushedIsNotPushedAgain(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(1, "A", ""))
	w.append(t, group, said(1, "A", "")) // a zombie's late append
	w.append(t, group, said(2, "A", ""))
	handle(t, w.stage(t, asItIs), w.log)
	w.append(t, group, said(2, "A", ""))
	handle(t, w.stage(t, asItIs), w.log[3:])
	equal(t, "told", w.told(), []string{"message 1 > A max 2", "message 2 > A max 2"})
}

func TestOldRecordsAreNotPushedLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		m, _ := member("B", 0, 0).Leave("op", 1, 0)
		w.base[group] = []watermark.Member{member("A", 0, 0), member("B", 0, 0)}
		w.append(t, group, said(1, "A", ""), watermark.WindowChanged{Member: m, Cause: "leave"})
		time.Sleep(5*time.Minute + time.Second)
		w.append(t, group, said(2, "A", ""))
		if d := handle(t, w.stage(t, asItIs), w.log); d != 2 {
			t.Errorf("durable = %d, want 2", d)
		}
		equal(t, "told", w.told(), []string{"message 2 > A max 2"})
	})
}

func TestLargeGroupsAreCutAndWaitForSmallOnes(t *testing.T) {
	w := newWorld()
	for i := range 25_000 {
		w.base[group] = append(w.base[group], member(watermark.UserID(fmt.Sprintf("u%05d", i)), 0, 0))
	}
	w.append(t, group, said(1, "u00000", ""))
	w.append(t, group, said(2, "u00000", ""))
	w.append(t, single, said(1, "A", ""))
	handle(t, w.stage(t, asItIs), w.log)
	if w.got[0].Conversation != single {
		t.Error("the single chat waited for the group")
	}
	seen := make(map[watermark.UserID]watermark.Seq)
	for _, d := range w.got[1:] {
		if len(d.Users) > 1000 {
			t.Fatalf("%d users in one delivery", len(d.Users))
		}
		for _, u := range d.Users {
			seq := d.Event.(watermark.MessagesSequenced).Messages[0].Seq
			if seq != seen[u]+1 {
				t.Fatalf("%s got %d after %d", u, seq, seen[u])
			}
			seen[u] = seq
		}
	}
	if len(seen) != 25_000 {
		t.Errorf("%d users were told, want 25,000", len(seen))
	}
	if n := count(w.journal, "deliver"); n < 5 {
		t.Errorf("50,000 recipients in %d calls: they are gathered without bound", n)
	}
}

func TestCacheIsBoundedByMembers(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld()
	ids := []watermark.ConversationID{"group:0", "group:1", "group:2"}
	for _, id := range ids {
		for i := range 9 {
			w.base[id] = append(w.base[id], member(watermark.UserID(fmt.Sprint("u", i)), 0, 0))
		}
	}
	s := w.stage(t, func(c *topush.Config) { c.CacheMembers = 20; c.Registerer = reg })
	seq := watermark.Seq(0)
	use := func(is ...int) {
		for _, i := range is {
			seq++
			w.append(t, ids[i], said(seq, "u1", ""))
			handle(t, s, w.log[len(w.log)-1:])
		}
	}
	use(0, 1, 0, 2, 0, 1)
	equal(t, "loads", w.loads, []watermark.ConversationID{ids[0], ids[1], ids[2], ids[1]})
	if got := gather(t, reg)[1]; got != "tidemark_topush_cached_members{} 20" {
		t.Error(got)
	}
	for i := range 30 {
		w.base["group:big"] = append(w.base["group:big"], member(watermark.UserID(fmt.Sprint("u", i)), 0, 0))
	}
	ids = append(ids, "group:big")
	w.loads = nil
	use(3, 3, 3)
	equal(t, "one that is larger than the cache is loaded once", w.loads, []watermark.ConversationID{"group:big"})
}

func TestManyConversationsInOneBatch(t *testing.T) {
	w := newWorld()
	for i := range 200 {
		w.append(t, watermark.ConversationID(fmt.Sprint("group:", i)), said(1, "A", ""))
	}
	s := w.stage(t, func(c *topush.Config) { c.CacheMembers = 10 })
	w.onCall = func(op string) error {
		if op == "raise" {
			return errDied
		}
		return nil
	}
	if _, err := s.Handle(t.Context(), w.log); err == nil {
		t.Fatal("want an error")
	}
	w.onCall, w.journal = nil, nil
	// Nearly all of them have left the cache; what was handed off is still known.
	if d := handle(t, s, w.log); d != 200 {
		t.Errorf("durable = %d, want 200", d)
	}
	if len(w.got) != 200 || len(w.marks) != 200 {
		t.Errorf("%d deliveries and %d marks, want 200 of each", len(w.got), len(w.marks))
	}
	if n := count(w.journal, "load"); n != 4 {
		t.Errorf("%d loads for 200 conversations, want 4", n)
	}
}

func TestUndecodableRecordIsPassedOver(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(1, "A", ""))
	w.raw([]byte{0xff})
	w.append(t, group, said(2, "A", ""))
	if d := handle(t, w.stage(t, asItIs), w.log); d != 3 {
		t.Errorf("durable = %d, want 3", d)
	}
	equal(t, "told", w.told(), []string{"message 1 > A max 2", "message 2 > A max 2"})
}

// Whatever call fails, in whatever way: everybody is told everything in order;
// twice only what was handed off and not yet noted, and never by a worker that
// lives on, save for the call that failed.
func TestAnyDeathLosesNoPush(t *testing.T) {
	runs := 0
	for _, how := range []string{"before", "partial", "after"} {
		for _, sameOne := range []bool{false, true} {
			for failAt := 1; ; failAt++ {
				w := newWorld()
				w.base[group] = []watermark.Member{member("A", 0, 0), member("B", 0, 0)}
				for i := range 6 {
					w.append(t, group, said(watermark.Seq(2*i+1), "A", ""), said(watermark.Seq(2*i+2), "B", ""))
					w.append(t, single, said(watermark.Seq(i+1), "A", ""))
				}
				w.failAt, w.failHow = failAt, how
				if !playOut(t, w, sameOne) {
					break
				}
				runs++
				for id, last := range map[watermark.ConversationID]watermark.Seq{group: 12, single: 6} {
					checkPushes(t, w, id, last, how)
				}
				if t.Failed() {
					t.Fatalf("call %d fails %s, same worker %v", failAt, how, sameOne)
				}
			}
		}
	}
	if runs < 30 {
		t.Errorf("only %d runs failed", runs)
	}
}

func playOut(t *testing.T, w *world, sameOne bool) (failed bool) {
	t.Helper()
	s, at := w.stage(t, asItIs), int64(0)
	for at < int64(len(w.log)) {
		d, err := s.Handle(t.Context(), w.log[at:min(at+4, int64(len(w.log)))])
		switch {
		case err == nil:
			at = d
		case failed || !errors.Is(err, errDied):
			t.Fatal(err)
		default:
			failed = true
			if !sameOne {
				at = max(at, d)
				s = w.stage(t, asItIs)
			}
		}
	}
	return failed
}

func checkPushes(t *testing.T, w *world, id watermark.ConversationID, last watermark.Seq, how string) {
	t.Helper()
	known := watermark.Seq(0)
	twice := 0
	for _, d := range w.got {
		if d.Conversation != id {
			continue
		}
		seq := d.Event.(watermark.MessagesSequenced).Messages[0].Seq
		switch {
		case seq == known+1:
			known = seq
		case seq > known:
			t.Errorf("%s: %d after %d", id, seq, known)
		default:
			twice++
		}
	}
	if known != last {
		t.Errorf("%s: told up to %d, want %d", id, known, last)
	}
	if twice > 0 && how == "before" && count(w.journal, "raise") == 3 {
		t.Errorf("%s: %d told twice though nothing died between hand-off and mark", id, twice)
	}
}

func TestWorkerThatLivesOnRepeatsNothing(t *testing.T) {
	w := newWorld()
	w.append(t, group, said(1, "A", ""))
	w.onCall = func(op string) error {
		if op == "raise" {
			return errDied
		}
		return nil
	}
	s := w.stage(t, asItIs)
	for range 3 {
		if d, err := s.Handle(t.Context(), w.log); err == nil || d != 0 {
			t.Fatalf("Handle = %d, %v: durable before the mark", d, err)
		}
	}
	w.onCall = nil
	handle(t, s, w.log)
	equal(t, "told", w.told(), []string{"message 1 > A max 1"})
	equal(t, "mark", w.marks[group], topush.Mark{Conversation: group, Seq: 1, Offset: 1})
}

func TestNewReportsAllFaults(t *testing.T) {
	_, err := topush.New(topush.Config{CacheMembers: -1, MaxAge: -1, MaxUsers: -1, CrowdAbove: -1, LaneCost: -1, QueueBytes: -1})
	if err == nil {
		t.Fatal("want an error")
	}
	for _, want := range []string{"Truth", "Marks", "Deliverer", "CacheMembers", "MaxAge", "MaxUsers", "CrowdAbove", "LaneCost", "QueueBytes"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld()
	w.base[group] = []watermark.Member{member("A", 0, 0), member("B", 0, 0)}
	w.append(t, group, said(1, "A", ""), watermark.Repaired{Number: 1, From: 1})
	w.raw([]byte{0xff})
	s := w.stage(t, func(c *topush.Config) { c.Registerer = reg })
	handle(t, s, w.log)
	handle(t, s, w.log)
	equal(t, "metrics", gather(t, reg), []string{
		"# tidemark_topush_cached_members: Members in memory.",
		"tidemark_topush_cached_members{} 3",
		"# tidemark_topush_events_total: Events handed off, by kind.",
		"tidemark_topush_events_total{kind=message} 1",
		"tidemark_topush_events_total{kind=repaired} 1",
		"# tidemark_topush_lane_conversations: Conversations whose pushes cost so much that they wait out of the way of the others.",
		"tidemark_topush_lane_conversations{} 0",
		"# tidemark_topush_lane_failures_total: Attempts to hand off what waits there that failed and are repeated.",
		"tidemark_topush_lane_failures_total{} 0",
		"# tidemark_topush_pushed_seconds: Time from a message's record, as its producer gave it, until the message is handed off for delivery.",
		"tidemark_topush_pushed_seconds{} 0",
		"# tidemark_topush_recipients_total: Users, and crowds of users, to whom events were handed off.",
		"tidemark_topush_recipients_total{} 4",
		"# tidemark_topush_roster_loads_total: Conversations whose members were loaded.",
		"tidemark_topush_roster_loads_total{} 1",
		"# tidemark_topush_skipped_events_total: Records and messages that were not handed off, by reason (replay, old, undecodable, overrun: the conversation is busier than it can be handed off, and its members are told to pull).",
		"tidemark_topush_skipped_events_total{reason=replay} 1",
		"tidemark_topush_skipped_events_total{reason=undecodable} 2",
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := gather(t, reg); !slices.Contains(got, "tidemark_topush_cached_members{} 0") {
		t.Errorf("a closed stage leaves members in the gauge: %v", got)
	}
}
