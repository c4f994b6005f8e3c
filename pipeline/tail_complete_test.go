package pipeline_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestTailMembersOf(t *testing.T) {
	l := newTailLog(t, 4)
	single := watermark.SingleOf("a", "b")
	l.add(single, watermark.MessagesSequenced{Messages: []watermark.Message{tailMsg(1, "b", "x")}})
	l.add(tailConv, watermark.WindowChanged{Member: watermark.Member{User: "a", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}}}, Cause: "join"})
	l.add("group:g2", watermark.ReadAdvanced{User: "a", Read: 1})
	l.add("group:g3", watermark.MessagesSequenced{Messages: []watermark.Message{tailMsg(1, "a", "y")}})
	l.add("group:g4", watermark.MessagesSequenced{Messages: []watermark.Message{tailMsg(1, "c", "z")}})
	u := l.tail(nil)
	p, err := u.PinAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	for user, want := range map[watermark.UserID][]watermark.ConversationID{
		"a": {tailConv, "group:g2", "group:g3", single},
		"b": {single},
		"d": nil,
	} {
		got, err := p.MembersOf(t.Context(), user)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("conversations of %s: %v\n%s", user, err, diff)
		}
	}
	if n := u.metric("tidemark_pipeline_tail_partitions"); n != 4 {
		t.Errorf("%v partitions, want 4", n)
	}
	got, err := p.States(t.Context(), []watermark.ConversationID{tailConv, "group:g2", single, "group:nobody"})
	if err != nil || len(got) != 3 {
		t.Errorf("%d states, %v; want 3", len(got), err)
	}
}

// Whatever happens in whatever order: history below the committed offset, and
// what a pin says that was taken at or after that commit, make the whole log.
func TestTailCompletesHistory(t *testing.T) {
	l := newTailLog(t, 2)
	u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = 3; c.CacheBytes = 2000; c.FetchBytes = 600 })
	type held struct {
		pin *pipeline.Pin
		h   map[int32]int64
	}
	committed := make(map[int32]int64)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		var pins []held
		defer func() {
			for _, p := range pins {
				p.pin.Release()
			}
		}()
		round++
		var ids []watermark.ConversationID
		for n := range 4 {
			ids = append(ids, watermark.GroupOf(fmt.Sprintf("p%d-%d", round, n)))
		}
		ids[3] = watermark.SingleOf("a", watermark.UserID(fmt.Sprintf("p%d", round)))
		next := make(map[watermark.ConversationID]watermark.Seq)
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				var seqs []watermark.Seq
				for range rapid.IntRange(1, 3).Draw(rt, "n") {
					next[id]++
					seqs = append(seqs, next[id])
				}
				l.add(id, tailRun(seqs...))
			},
			"mark": func(rt *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				l.add(id, watermark.ReadAdvanced{User: "a", Read: watermark.Seq(rapid.Int64Range(1, 50).Draw(rt, "read"))})
			},
			"commit": func(rt *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				p := l.partition(id)
				h := max(0, l.end(p)-rapid.Int64Range(0, 30).Draw(rt, "behind"))
				l.commit(p, h)
				committed[p] = h
			},
			"pin": func(rt *rapid.T) {
				if len(pins) >= 4 {
					rt.Skip()
				}
				p, err := u.Pin(t.Context(), ids)
				if err != nil {
					rt.Fatal(err)
				}
				h := make(map[int32]int64)
				maps.Copy(h, committed)
				pins = append(pins, held{p, h})
			},
			"release": func(rt *rapid.T) {
				if len(pins) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(pins)-1).Draw(rt, "pin")
				pins[i].pin.Release()
				pins = slices.Delete(pins, i, i+1)
			},
			"ask": func(rt *rapid.T) {
				if len(pins) == 0 {
					rt.Skip()
				}
				p := rapid.SampledFrom(pins).Draw(rt, "pin")
				got, err := p.pin.States(t.Context(), ids)
				if err != nil {
					rt.Fatal(err)
				}
				for _, id := range ids {
					l.completes(id, p.h[l.partition(id)], -1, got[id])
				}
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				l.messagesComplete(p.pin, id, p.h[l.partition(id)])
				if t.Failed() {
					rt.FailNow()
				}
			},
		})
	})
}

// messagesComplete checks that a pin has every message at or above offset h.
func (l *tailLog) messagesComplete(p *pipeline.Pin, id watermark.ConversationID, h int64) {
	l.tb.Helper()
	want := make(map[watermark.Seq]bool)
	low := watermark.MaxSeq
	for _, r := range l.at(id) {
		for _, e := range r.Events {
			if e, ok := e.(watermark.MessagesSequenced); ok && r.Offset >= h {
				for _, m := range e.Messages {
					want[m.Seq] = true
					low = min(low, m.Seq)
				}
			}
		}
	}
	got, err := p.Messages(l.tb.Context(), id, watermark.Interval{First: low, Last: watermark.MaxSeq}, 0)
	if err != nil {
		l.tb.Error(err)
		return
	}
	last := watermark.Seq(0)
	for _, m := range got {
		if m.Seq <= last || string(m.Body) != fmt.Sprintf("body of m%d", m.Seq) {
			l.tb.Errorf("message %d after %d has body %q", m.Seq, last, m.Body)
		}
		last = m.Seq
		delete(want, m.Seq)
	}
	if len(want) > 0 && len(got) < watermark.MaxPage {
		l.tb.Errorf("%d messages of %s are missing", len(want), id)
	}
}
