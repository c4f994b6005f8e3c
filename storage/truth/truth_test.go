package truth_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/truth"
	"github.com/tidemark-im/tidemark/watermark"
)

const group = watermark.ConversationID("group:g1")

func message(seq watermark.Seq, sender watermark.UserID, clientID string) watermark.Message {
	m := watermark.Message{
		Seq: seq, Sender: sender, ClientID: clientID, BodyType: watermark.BodyText,
		Body: []byte(clientID), RecordTime: int64(seq),
	}
	m.Hash = m.SumHash()
	return m
}

// run scripts seqs first..last of one sender, 100 to a record.
func (w *world) run(c watermark.ConversationID, first, last watermark.Seq) {
	for from := first; from <= last; from += 100 {
		var e watermark.MessagesSequenced
		for s := from; s < from+100 && s <= last; s++ {
			e.Messages = append(e.Messages, message(s, "ann", fmt.Sprint("id", s)))
		}
		w.script(c, e)
	}
}

func load(t *testing.T, w *world, wants ...watermark.Want) []*watermark.State {
	t.Helper()
	tr, _ := w.truth(t, 0)
	states, err := tr.Load(t.Context(), wants)
	if err != nil {
		t.Fatal(err)
	}
	return states
}

func messages(t *testing.T, w *world, c watermark.ConversationID, in watermark.Interval) []watermark.Message {
	t.Helper()
	tr, _ := w.truth(t, 0)
	rows, err := tr.Messages(t.Context(), c, in)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestUnknownConversation(t *testing.T) {
	w := newWorld()
	states := load(t, w, watermark.Want{Conversation: group, Users: []watermark.UserID{"ann"}, Sent: true})
	want := watermark.NewState(group)
	want.Complete = true
	if d := diff(want, states[0]); d != "" {
		t.Error(d)
	}
	if rows := messages(t, w, group, whole); len(rows) != 0 {
		t.Errorf("rows %v", rows)
	}
}

func TestNothingWanted(t *testing.T) {
	w := newWorld()
	if states := load(t, w); len(states) != 0 || w.pins != 0 {
		t.Errorf("%d states, %d pins", len(states), w.pins)
	}
	if rows := messages(t, w, group, watermark.Interval{First: 5, Last: 4}); len(rows) != 0 || w.pins != 0 {
		t.Errorf("%d rows, %d pins", len(rows), w.pins)
	}
}

// TestRevokeInTheTail has the row in history and its revoke not yet there.
func TestRevokeInTheTail(t *testing.T) {
	w := newWorld()
	w.script(group, watermark.MessagesSequenced{Messages: []watermark.Message{message(1, "ann", "a"), message(2, "ann", "b"), message(3, "ann", "c")}})
	first, second := watermark.Revoked{Seq: 2, By: "ann", Time: 5}, watermark.Revoked{Seq: 2, By: "bob", Time: 6}
	w.script(group, first)
	w.script(group, second, watermark.Revoked{Seq: 3, By: "bob", Time: 7})
	w.appendAll()
	first.At = 2 // of the log's records the second
	want := []watermark.Message{
		message(1, "ann", "a"), message(2, "ann", "b").Tombstone(first),
		message(3, "ann", "c").Tombstone(watermark.Revoked{Seq: 3, By: "bob", Time: 7, At: 3}),
	}
	for projected := range 4 {
		if projected > 0 {
			w.project(t, partitionOf(group), 1, "never")
		}
		if d := diff(want, messages(t, w, group, whole)); d != "" {
			t.Errorf("%d of 3 records in history (-want +got)\n%s", projected, d)
		}
	}
}

// TestFirstInTheLogStands has two messages at one seq, one on each side of
// toMongo's offset, then both in the tail.
func TestFirstInTheLogStands(t *testing.T) {
	w := newWorld()
	w.script(group, watermark.MessagesSequenced{Messages: []watermark.Message{message(1, "ann", "first")}})
	w.script(group, watermark.MessagesSequenced{Messages: []watermark.Message{message(1, "bob", "loser"), message(2, "bob", "next")}})
	w.appendAll()
	want := []watermark.Message{message(1, "ann", "first"), message(2, "bob", "next")}
	for range 3 {
		if d := diff(want, messages(t, w, group, whole)); d != "" {
			t.Errorf("%d in history (-want +got)\n%s", w.logs[partitionOf(group)].committed, d)
		}
		w.project(t, partitionOf(group), 1, "never")
	}
}

// TestPagesAreBounded asks for everything of 1,500 seqs, half of them in
// history.
func TestPagesAreBounded(t *testing.T) {
	w := newWorld()
	w.run(group, 1, 1500)
	w.appendAll()
	w.project(t, partitionOf(group), 7, "never")
	for _, in := range []watermark.Interval{whole, {First: 1, Last: watermark.MaxSeq}, {First: 201, Last: 1400}} {
		rows := messages(t, w, group, in)
		if len(rows) != watermark.MaxPage {
			t.Fatalf("%v: %d rows", in, len(rows))
		}
		for i, m := range rows {
			if want := max(in.First, 1) + watermark.Seq(i); m.Seq != want {
				t.Fatalf("%v: row %d is seq %d, want %d", in, i, m.Seq, want)
			}
		}
	}
}

// TestSentWithinTheHorizon has ids in history and in the tail; one of them
// stands twice.
func TestSentWithinTheHorizon(t *testing.T) {
	const top = watermark.DedupeHorizon + 200
	w := newWorld()
	w.run(group, 1, top-1)
	again := message(top, "ann", "id700")
	again.Body = []byte("the same id, long after")
	again.Hash = again.SumHash()
	w.script(group, watermark.MessagesSequenced{Messages: []watermark.Message{again}})
	w.appendAll()
	for {
		sent := load(t, w, watermark.Want{Conversation: group, Sent: true})[0].Sent
		if len(sent) != watermark.DedupeHorizon-1 {
			t.Errorf("%d in history: %d ids", w.logs[1].committed, len(sent))
		}
		key := func(s watermark.Seq) watermark.SentKey {
			return watermark.SentKey{Sender: "ann", ClientID: fmt.Sprint("id", s)}
		}
		_, old := sent[key(200)]
		_, young := sent[key(201)]
		if old || !young || sent[key(700)] != (watermark.Sent{Seq: top, Hash: again.Hash}) {
			t.Errorf("seq 200 %v, 201 %v, id of 700 %v", old, young, sent[key(700)])
		}
		p := &w.logs[partitionOf(group)]
		if p.committed == p.end {
			return
		}
		w.project(t, partitionOf(group), 4, "never")
	}
}

// TestLargeGroupGivesNoHalfMembers has a kicked member's window in history and
// only a mark of it in the tail.
func TestLargeGroupGivesNoHalfMembers(t *testing.T) {
	w := newWorld()
	for i := range watermark.SmallGroup + 1 {
		m, _, _ := watermark.Member{User: watermark.UserID(fmt.Sprint("u", i))}.Join("join", 0, watermark.HistoryNone, 0)
		if i == 7 {
			m, _ = m.Leave("kick", 0, 0)
		}
		w.script(group, watermark.WindowChanged{Member: m})
	}
	p := partitionOf(group)
	w.appendAll()
	w.project(t, p, 1000, "never")
	w.script(group, watermark.ReadAdvanced{User: "u7", Read: 1}, watermark.ReadAdvanced{User: "u8", Read: 1})
	w.appendAll()

	s := load(t, w, watermark.Want{Conversation: group, Users: []watermark.UserID{"u8"}})[0]
	if _, half := s.Members["u7"]; half || s.Complete {
		t.Errorf("nobody asked for u7: %v, complete %v", s.Members["u7"], s.Complete)
	}
	if m := s.Members["u8"]; m.Read != 1 || !m.Known() {
		t.Errorf("u8 is %+v", m)
	}
	s = load(t, w, watermark.Want{Conversation: group, Roster: true})[0]
	if m := s.Members["u7"]; !s.Complete || m.Open() || m.Read != 1 || len(s.Members) != watermark.SmallGroup+1 {
		t.Errorf("complete %v, %d members, u7 is %+v", s.Complete, len(s.Members), m)
	}
}

// TestQueriesAreBatched counts what 1,200 conversations of both partitions cost.
func TestQueriesAreBatched(t *testing.T) {
	w := newWorld()
	var wants []watermark.Want
	for i := range 1200 {
		c := watermark.GroupOf(fmt.Sprint("c", i))
		wants = append(wants, watermark.Want{Conversation: c})
		w.script(c, watermark.MessagesSequenced{Messages: []watermark.Message{message(1, "ann", "a")}})
	}
	w.appendAll()
	states := load(t, w, wants...)
	if got, want := strings.Join(w.calls, " "), "pin history history history tail"; got != want {
		t.Errorf("calls: %s, want: %s", got, want)
	}
	for i, s := range states {
		if s.ID != wants[i].Conversation || s.Max != 1 {
			t.Fatalf("state %d is %v of %s", i, s.Max, s.ID)
		}
	}
}

// TestLongList pages through more conversations than one page of history, of
// which some are in the tail alone.
func TestLongList(t *testing.T) {
	const n = 2300
	w := newWorld()
	for i := range n {
		c := watermark.GroupOf(fmt.Sprint("c", i))
		m := message(1, "ann", "a")
		m.RecordTime = int64(i / 2)
		w.script(c, watermark.MessagesSequenced{Messages: []watermark.Message{m}})
	}
	w.appendAll()
	w.project(t, 0, n, "never")
	w.project(t, 1, n/2-100, "never")
	tr, _ := w.truth(t, 0)
	list, err := tr.List(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	got := list.Entries
	if len(got) != n || got[0].Conversation.LastTime != (n-1)/2 {
		t.Errorf("%d conversations, the first of time %d", len(got), got[0].Conversation.LastTime)
	}
	if !slices.IsSortedFunc(got, func(a, b watermark.Listed) int { return int(b.Conversation.LastTime - a.Conversation.LastTime) }) {
		t.Error("not sorted")
	}
	if len(w.calls) > 14 {
		t.Errorf("%d calls: %v", len(w.calls), w.calls)
	}
	if got, err := tr.List(t.Context(), "nobody"); err != nil || len(got.Entries) != 0 {
		t.Errorf("of nobody: %v, %v", got, err)
	}
}

// TestErrorsKeepTheirClassAndReleaseThePin fails each step of each call.
func TestErrorsKeepTheirClassAndReleaseThePin(t *testing.T) {
	cause := fault.New(fault.Fatal, "log_lost", errors.New("gone"))
	for _, at := range []string{"pin", "history", "tail"} {
		w := newWorld()
		w.script(group, watermark.MessagesSequenced{Messages: []watermark.Message{message(1, "ann", "a")}})
		w.appendAll()
		w.err[at] = cause
		tr, _ := w.truth(t, 0)
		_, err1 := tr.Load(t.Context(), []watermark.Want{{Conversation: group}})
		_, err2 := tr.Messages(t.Context(), group, whole)
		_, err3 := tr.List(t.Context(), "ann")
		_, err4 := tr.Peek(t.Context(), []watermark.Peek{{Conversation: group, Last: 1}})
		for _, err := range []error{err1, err2, err3, err4} {
			if !errors.Is(err, cause) || fault.ClassOf(err) != fault.Fatal {
				t.Errorf("%s: %v", at, err)
			}
		}
		if w.pins != w.released {
			t.Errorf("%s: %d pins, %d released", at, w.pins, w.released)
		}
	}
}

func TestNewReportsAllFaults(t *testing.T) {
	_, err := truth.New(truth.Config{Chunk: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, word := range []string{"History", "Pin", "PinAll", "Log", "Chunk"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %s", err, word)
		}
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld()
	w.script(group, watermark.MessagesSequenced{Messages: []watermark.Message{message(1, "ann", "a")}})
	w.appendAll()
	reg := prometheus.NewPedanticRegistry()
	tr, err := truth.New(truth.Config{
		History: w, Registerer: reg,
		Pin:    w.pinOf,
		PinAll: w.pinAll, Log: "log",
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Load(t.Context(), []watermark.Want{{Conversation: group}, {Conversation: "group:g3"}}); err != nil {
		t.Fatal(err)
	}
	w.err["pin"] = errors.New("not yet")
	if _, err := tr.Messages(t.Context(), group, whole); err == nil {
		t.Fatal("no error")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, fmt.Sprintf("%s %s: %s", f.GetType(), f.GetName(), f.GetHelp()))
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			got = append(got, fmt.Sprint(labels, " ", m.GetCounter().GetValue(), " ", m.GetHistogram().GetSampleCount()))
		}
	}
	want := []string{
		"COUNTER tidemark_truth_conversations_total: Cold conversations loaded from history and tail.",
		"[] 2 0",
		"COUNTER tidemark_truth_errors_total: Reads of history and tail that failed, by operation and class.",
		"[transient messages] 1 0",
		"HISTOGRAM tidemark_truth_read_seconds: Time of one read of history and tail, by operation.",
		"[load] 0 1",
		"[messages] 0 1",
	}
	if d := diff(want, got); d != "" {
		t.Error(d)
	}
}

// A revoke that only the tail has takes content and mentions of a row that only
// history has.
func TestPeekAppliesTheTailsRevokes(t *testing.T) {
	w := newWorld()
	run := watermark.MessagesSequenced{}
	for s := watermark.Seq(1); s <= 3; s++ {
		m := message(s, "ann", fmt.Sprint(s))
		m.Mentions = []watermark.UserID{"bob"}
		run.Messages = append(run.Messages, m)
	}
	w.script(group, run)
	w.script(group, watermark.Revoked{Seq: 3, By: "ann", Time: 5}, watermark.Revoked{Seq: 1, By: "ann", Time: 6})
	w.appendAll()
	w.project(t, partitionOf(group), 1, "never")
	tr, _ := w.truth(t, 0)
	got, err := tr.Peek(t.Context(), []watermark.Peek{{Conversation: group, User: "bob", Last: 3, Mentions: watermark.Intervals{whole}, RevokedFrom: 1}})
	if err != nil {
		t.Fatal(err)
	}
	gone := run.Messages[2].Tombstone(watermark.Revoked{Seq: 3, By: "ann", Time: 5, At: 2})
	if d := diff([]watermark.Peeked{{Last: &gone, Mentions: []watermark.Seq{2}, Revoked: []watermark.Seq{1, 3}}}, got); d != "" {
		t.Error(d)
	}
}
