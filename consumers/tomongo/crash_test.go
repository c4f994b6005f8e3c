package tomongo_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/watermark"
)

// scene fills the log with everything that an event can be.
func scene(t tb, w *world) {
	t.Helper()
	joined, _, _ := watermark.Member{User: "C"}.Join("op1", 1, watermark.HistoryNone, 0)
	gone, _ := joined.Leave("op2", 4, 0)
	w.append(t, single, said(message(1, "A", "1")))
	w.append(t, group, said(message(1, "A", "1")), watermark.WindowChanged{Member: joined, Cause: "join"}, said(message(2, "C", "1")))
	w.append(t, group, read("A", 2), read("C", 2))
	w.append(t, single, watermark.ReadAdvanced{User: "B", Read: 1, Receipt: 1})
	w.append(t, group, watermark.MessagesSequenced{Policy: watermark.KeepOnSend, Messages: []watermark.Message{message(3, "A", "2"), message(4, "B", "1")}})
	w.append(t, group, watermark.WindowChanged{Member: gone, Cause: "leave"}, watermark.Revoked{Seq: 3, Time: 9})
	w.append(t, group, watermark.MinSeqRaised{Min: 3})
	w.append(t, single, said(message(2, "B", "1"), message(3, "A", "2")))
	w.append(t, group, watermark.Repaired{Number: 3, From: 2}, read("B", 4))
}

// Whatever call fails, in whatever way: history ends up as the log says.
func TestAnyDeathLeavesHistoryComplete(t *testing.T) {
	runs := 0
	for _, how := range []string{before, partial, after} {
		for _, sameOne := range []bool{false, true} {
			for _, gather := range []time.Duration{0, 3 * time.Second, time.Hour} {
				for failAt := 1; ; failAt++ {
					w := newWorld()
					scene(t, w)
					w.failAt, w.failHow = failAt, how
					failed := playOut(t, w, sameOne, gather)
					if !failed {
						break
					}
					runs++
					w.checkProjection(t)
					if t.Failed() {
						t.Fatalf("call %d fails %s, same worker %v, gathered for %s", failAt, how, sameOne, gather)
					}
				}
			}
		}
	}
	if runs < 80 {
		t.Errorf("only %d runs failed", runs)
	}
}

// playOut hands the log in until all of it is durable. A worker that died is
// replaced by one that starts at the last durable offset; the runner gives the
// one that stays the same records again. A batch comes each second.
func playOut(t *testing.T, w *world, sameOne bool, gather time.Duration) (failed bool) {
	t.Helper()
	clock := time.Now()
	few := func(c *tomongo.Config) {
		c.FlushMarks, c.FlushEvery, c.WriteEvery = 4, time.Hour, gather
		c.Now = func() time.Time { return clock }
	}
	s, at, marked := w.stage(t, few), 0, int64(0)
	for tries := 0; marked < int64(len(w.log)); tries++ {
		if tries > 1000 {
			t.Fatalf("durable stays at %d", marked)
		}
		var d int64
		var err error
		clock = clock.Add(time.Second)
		next := min(at+2, len(w.log))
		if at < len(w.log) {
			d, err = s.Handle(t.Context(), w.log[at:next])
		} else {
			d, err = s.Flush(t.Context())
		}
		switch {
		case err == nil:
			at, marked = next, max(marked, d)
		case failed || !errors.Is(err, errDied):
			t.Fatal(err)
		default:
			failed = true
			if !sameOne {
				marked = max(marked, d)
				s, at = w.stage(t, few), int(marked)
			}
		}
	}
	return failed || w.calls >= w.failAt // an error of Redis ends no step
}

// In any order of batches, flushes and deaths history is the fold of the log,
// as far as its position and the offsets that were marked, and nothing of it is
// ever taken back.
func TestHistoryIsTheFoldOfTheLog(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld()
		drawLog(rt, w)
		flushMarks := rapid.IntRange(1, 30).Draw(rt, "flush marks")
		gather := time.Duration(rapid.IntRange(0, 4).Draw(rt, "gather")) * time.Second
		clock := time.Now()
		change := func(c *tomongo.Config) {
			c.FlushMarks, c.FlushEvery, c.WriteEvery = flushMarks, time.Hour, gather
			c.Now = func() time.Time { return clock }
		}
		s, at, marked, last := w.stage(rt, change), 0, int64(0), int64(0)
		note := func(d int64) {
			if d < last || d > int64(at) {
				rt.Fatalf("durable went from %d to %d, handled are %d", last, d, at)
			}
			if known := w.position(); d > 0 && known < d {
				rt.Fatalf("durable is %d, history says that it has the log up to %d", d, known)
			}
			last, marked = d, max(marked, d)
		}
		for steps := 0; steps < 60 && marked < int64(len(w.log)); steps++ {
			clock = clock.Add(time.Second)
			switch rapid.SampledFrom([]string{"handle", "handle", "handle", "flush", "die"}).Draw(rt, "step") {
			case "handle":
				next := min(at+rapid.IntRange(1, 5).Draw(rt, "batch"), len(w.log))
				if batch := w.log[at:next]; len(batch) > 0 {
					at = next
					note(handle(rt, s, batch))
				}
			case "flush":
				if at > int(marked) {
					note(flush(rt, s))
				}
			case "die":
				// Restored from a backup of this moment, history is read on at its own
				// position: nothing below that may be missing.
				marked = max(w.position(), 0)
				s, at, last = w.stage(rt, change), int(marked), 0
			}
		}
		// What is marked never comes again: the end decides.
		s = w.stage(rt, change)
		if marked < int64(len(w.log)) {
			handle(rt, s, w.log[marked:])
			flush(rt, s)
		}
		w.checkProjection(rt)
	})
}

// drawLog makes a log as owners and the query service would write it.
func drawLog(rt *rapid.T, w *world) {
	users := []watermark.UserID{"A", "B"}
	maxes := make(map[watermark.ConversationID]watermark.Seq)
	members := make(map[string]watermark.Member)
	for i := range rapid.IntRange(1, 40).Draw(rt, "records") {
		id := rapid.SampledFrom([]watermark.ConversationID{group, single}).Draw(rt, "conversation")
		u := rapid.SampledFrom(users).Draw(rt, "user")
		top := maxes[id]
		switch rapid.SampledFrom([]string{"say", "say", "keep", "read", "window", "revoke", "min", "again"}).Draw(rt, "event") {
		case "say":
			w.append(rt, id, said(message(top+1, u, fmt.Sprint(i)), message(top+2, u, fmt.Sprint(i, "b"))))
			maxes[id] += 2
		case "keep":
			w.append(rt, id, watermark.MessagesSequenced{Policy: watermark.KeepOnSend, Messages: []watermark.Message{message(top+1, u, fmt.Sprint(i))}})
			maxes[id]++
		case "read":
			if top > 0 {
				seq := watermark.Seq(rapid.Int64Range(1, int64(top)).Draw(rt, "seq"))
				w.append(rt, id, watermark.ReadAdvanced{User: u, Read: seq, Receipt: seq})
			}
		case "window":
			k := string(id) + string(u)
			m := members[k]
			m.User = u
			m, _ = m.Clear(fmt.Sprint("op", i), top)
			members[k] = m
			w.append(rt, id, watermark.WindowChanged{Member: m, Cause: "clear"})
		case "revoke":
			if top > 0 {
				w.append(rt, id, watermark.Revoked{Seq: watermark.Seq(rapid.Int64Range(1, int64(top)).Draw(rt, "revoked")), Time: 1})
			}
		case "min":
			if top > 0 {
				w.append(rt, id, watermark.MinSeqRaised{Min: watermark.Seq(rapid.Int64Range(1, int64(top)).Draw(rt, "minimum"))})
			}
		case "again": // a zombie's late append
			if n := len(w.log); n > 0 {
				w.raw(w.log[rapid.IntRange(0, n-1).Draw(rt, "which")].Value)
			}
		}
	}
}
