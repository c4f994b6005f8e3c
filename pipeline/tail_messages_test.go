package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

func tailSpan(first, last watermark.Seq) watermark.Interval {
	return watermark.Interval{First: first, Last: last}
}

// tailBudgets are a cache that holds everything and one that holds nothing.
var tailBudgets = map[string]int64{"bodies kept": 0, "bodies read again": 1}

func TestTailMessages(t *testing.T) {
	other := watermark.GroupOf("other")
	var at int64 // of the revoke
	events := func(l *tailLog) {
		l.add(tailConv, tailRun(1, 2, 3))
		l.add(other, tailRun(1, 2))
		l.add(tailConv, tailRun(4), tailRun(5, 6), watermark.ReadAdvanced{User: "b", Read: 2})
		l.add(tailConv, tailRun(2, 3, 4)) // decided again: the same messages
		l.add(tailConv, watermark.MessagesSequenced{Messages: []watermark.Message{tailMsg(5, "z", "loser"), tailMsg(7, "z", "seven")}})
		at = l.add(tailConv, watermark.Revoked{Seq: 6, By: "a", Time: 77}, tailRun(8)) + 1
		l.add(tailConv, watermark.Revoked{Seq: 6, By: "late", Time: 99}, watermark.Revoked{Seq: 0x7000, By: "b", Time: 78})
		l.add(tailConv, tailRun(1000, 1001))
	}
	text := func(seqs ...watermark.Seq) []watermark.Message {
		var out []watermark.Message
		for _, s := range seqs {
			switch m := tailMsg(s, "a", fmt.Sprintf("m%d", s)); s {
			case 6:
				out = append(out, m.Tombstone(watermark.Revoked{Seq: 6, By: "a", Time: 77, At: at}))
			case 7:
				out = append(out, tailMsg(7, "z", "seven"))
			default:
				out = append(out, m)
			}
		}
		return out
	}
	events(newTailLog(t, 1))
	tests := []struct {
		name  string
		span  watermark.Interval
		limit int
		want  []watermark.Message
	}{
		{"all", tailSpan(1, watermark.MaxSeq), 0, text(1, 2, 3, 4, 5, 6, 7, 8, 1000, 1001)},
		{"any int64", tailSpan(-1<<62, 1<<62), -5, text(1, 2, 3, 4, 5, 6, 7, 8, 1000, 1001)},
		{"some", tailSpan(3, 5), 10, text(3, 4, 5)},
		{"limit keeps the lowest", tailSpan(2, 100), 3, text(2, 3, 4)},
		{"limit across a gap", tailSpan(7, 5000), 3, text(7, 8, 1000)},
		{"first in the log stands", tailSpan(5, 5), 1, text(5)},
		{"none there", tailSpan(9, 999), 0, nil},
		{"empty span", tailSpan(5, 4), 0, nil},
	}
	for name, budget := range tailBudgets {
		t.Run(name, func(t *testing.T) {
			l := newTailLog(t, 1)
			events(l)
			u := l.tail(func(c *pipeline.TailConfig) { c.CacheBytes = budget; c.SegmentRecords = 2 })
			p := u.pin(tailConv)
			for _, tt := range tests {
				got, err := p.Messages(t.Context(), tailConv, tt.span, tt.limit)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tt.name, diff)
				}
			}
			if n := u.metric("tidemark_pipeline_tail_rereads_total"); (n > 0) != (budget == 1) {
				t.Errorf("%v rereads with a budget of %d", n, budget)
			}
			if n := u.metric("tidemark_pipeline_tail_cache_bytes"); (n > 0) != (budget == 0) {
				t.Errorf("%v bytes kept with a budget of %d", n, budget)
			}
		})
	}
}

func TestTailRevokesOfMessagesThatOnlyHistoryHas(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1, 2, 3))
	l.commit(0, 1)
	at := 1 + l.add(tailConv, watermark.Revoked{Seq: 2, By: "a", Time: 5}, watermark.Revoked{Seq: 3, Time: 6})
	l.add(tailConv, watermark.Revoked{Seq: 2, By: "b", Time: 9})
	u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = 1 })
	p := u.pin(tailConv)
	for _, tt := range []struct {
		span watermark.Interval
		want map[watermark.Seq]watermark.Revoked
	}{
		{tailSpan(1, 10), map[watermark.Seq]watermark.Revoked{2: {Seq: 2, By: "a", Time: 5, At: at}, 3: {Seq: 3, Time: 6, At: at}}},
		{tailSpan(3, 3), map[watermark.Seq]watermark.Revoked{3: {Seq: 3, Time: 6, At: at}}},
		{tailSpan(4, 9), nil},
	} {
		got, err := p.Revokes(t.Context(), tailConv, tt.span)
		if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%v: %v\n%s", tt.span, err, diff)
		}
	}
}

// The cache must not grow beyond its budget, whatever is read.
func TestTailCacheIsBounded(t *testing.T) {
	const budget = 4000
	l := newTailLog(t, 1)
	for s := range watermark.Seq(100) {
		l.add(tailConv, tailRun(s+1))
	}
	u := l.tail(func(c *pipeline.TailConfig) { c.CacheBytes = budget })
	p := u.pin(tailConv)
	for _, limit := range []int{100, 7, 100} {
		got, err := p.Messages(t.Context(), tailConv, tailSpan(1, 100), limit)
		if err != nil || len(got) != limit {
			t.Fatalf("%d messages, %v", len(got), err)
		}
		if n := u.metric("tidemark_pipeline_tail_cache_bytes"); n == 0 || n > budget {
			t.Errorf("%v bytes kept, budget %d", n, budget)
		}
	}
}

func TestTailRefusesWhatIsNotPinned(t *testing.T) {
	l := newTailLog(t, 8)
	l.add(tailConv, tailRun(1))
	u := l.tail(nil)
	p := u.pin()
	if _, err := p.States(t.Context(), []watermark.ConversationID{tailConv}); err == nil || fault.ClassOf(err) != fault.Fatal {
		t.Errorf("States of a conversation that is not pinned: %v, want a fatal error", err)
	}
	if got, err := p.States(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("States of nothing: %v, %v", got, err)
	}
}

// A conversation whose tail is long keeps the client ids that can still be
// asked about, and a bounded number of them.
func TestTailKeepsTheDedupeHorizon(t *testing.T) {
	const n = 9000
	l := newTailLog(t, 1)
	var recs []watermark.Record
	for s := watermark.Seq(1); s <= n; s += 20 {
		var seqs []watermark.Seq
		for i := range watermark.Seq(20) {
			seqs = append(seqs, s+i)
		}
		recs = append(recs, watermark.Record{Conversation: tailConv, Events: []watermark.Event{tailRun(seqs...)}})
	}
	l.addAll(recs...)
	u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = 10 })
	p := u.pin(tailConv)
	got := u.state(p, tailConv)
	if got.Max != n || len(got.Sent) > 3*watermark.DedupeHorizon {
		t.Errorf("max %d, %d client ids", got.Max, len(got.Sent))
	}
	for s := watermark.Seq(n - watermark.DedupeHorizon + 1); s <= n; s++ {
		key := watermark.SentKey{Sender: "a", ClientID: fmt.Sprintf("m%d", s)}
		if got.Sent[key].Seq != s {
			t.Fatalf("client id of seq %d stands at %d", s, got.Sent[key].Seq)
		}
	}
}
