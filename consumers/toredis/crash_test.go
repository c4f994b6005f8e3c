package toredis_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// scene fills toRedis with everything that an input can be.
func scene(t testing.TB, w *world) {
	t.Helper()
	w.send(t, -1, "group:a", "A", "1", "a1", "caller")
	w.send(t, -1, "group:b", "A", "1", "b1", "")
	w.put(wire.Out{Topic: wire.TopicToRedis, Key: "group:a", Value: []byte{0xff, 0xff}})
	w.send(t, -1, "group:a", "B", "1", "a2", "")
	w.command(t, leave("group:a", "B", "op1", "caller"))
	w.send(t, -1, "group:a", "B", "2", "too late", "waiting")
	w.send(t, -1, "group:a", "A", "1", "a1", "")     // resent
	w.send(t, -1, "group:a", "A", "1", "other", "")  // id reused
	w.send(t, -1, "group:a", "A", "", "no id", "")   // derived id
	w.command(t, join("group:a", "B", "op2", ""))    // back again
	w.send(t, -1, "group:a", "B", "3", "a4", "")     //
	w.command(t, revoke("group:b", 50, "op3", ""))   // refused, nobody waits
	w.send(t, -1, "group:b", "C", "1", "b2", "")     //
	w.command(t, leave("group:a", "B", "op2", ""))   // an op id that is known
	w.send(t, -1, "single:A:B", "A", "1", "s1", "c") //
}

// run lets workers die and be replaced until everything is durable.
type run struct {
	failAt   int
	failHow  string
	sameOne  bool // the worker is not replaced: the runner tries again
	flushAll bool // Redis loses everything at that moment
	large    bool // too many members to load them all: each when it is needed
}

func (r run) String() string {
	return fmt.Sprintf("call %d %s, same worker %v, redis lost %v, large %v", r.failAt, r.failHow, r.sameOne, r.flushAll, r.large)
}

// play gives the world after the run, and whether the failure was reached.
func (r run) play(t *testing.T) (*world, bool) {
	t.Helper()
	w := newWorld(1)
	scene(t, w)
	w.roster = !r.large
	w.failAt, w.failHow = r.failAt, r.failHow
	s, size := w.stage(t, 0), 4
	next, durable, end := int64(0), int64(0), int64(len(w.input(0)))
	replaced := r.failAt == 0
	for durable < end {
		var at int64
		var err error
		if next < end {
			batch := w.input(0)[next:min(next+int64(size), end)]
			if at, err = s.Handle(t.Context(), batch); err == nil {
				next += int64(len(batch))
			}
		} else {
			w.now = w.now.Add(time.Minute)
			at, err = s.Flush(t.Context())
		}
		durable = max(durable, at)
		if err != nil && (!errors.Is(err, errDied) || replaced) {
			t.Fatalf("%v: %v", r, err)
		}
		if replaced || !w.failed {
			continue
		}
		replaced = true
		if r.flushAll {
			w.redis.FlushAll()
		}
		if !r.sameOne {
			s, size, next = w.stage(t, 0), 3, durable
		}
	}
	return w, w.failed
}

// outcome is what must be the same however often a worker died.
type outcome struct {
	Order   map[string]string // conversation and seq -> message
	Members map[string]watermark.Member
	Letters []string
	Answers map[string]string
}

func outcomeOf(t testing.TB, w *world) outcome {
	t.Helper()
	return outcomeOfPartition(t, w, 0)
}

func outcomeOfPartition(t testing.TB, w *world, p int32) outcome {
	t.Helper()
	o := outcome{Order: map[string]string{}, Members: map[string]watermark.Member{}, Answers: map[string]string{}}
	states := map[watermark.ConversationID]*watermark.State{}
	for _, rec := range w.sequenced(t, p) {
		st := states[rec.Conversation]
		if st == nil {
			st = watermark.NewState(rec.Conversation)
			states[rec.Conversation] = st
		}
		st.Apply(rec)
		for _, e := range rec.Events {
			run, ok := e.(watermark.MessagesSequenced)
			if !ok {
				continue
			}
			for _, m := range run.Messages {
				place := fmt.Sprintf("%s %d", rec.Conversation, m.Seq)
				what := fmt.Sprintf("%s/%s %s", m.Sender, m.ClientID, m.Body)
				if old, ok := o.Order[place]; ok && old != what {
					t.Errorf("%s is both %q and %q", place, old, what)
				}
				o.Order[place] = what
			}
		}
	}
	for id, st := range states {
		for seq := watermark.Seq(1); seq <= st.Max; seq++ {
			if _, ok := o.Order[fmt.Sprintf("%s %d", id, seq)]; !ok {
				t.Errorf("%s has a hole at %d", id, seq)
			}
		}
		for _, m := range st.Members {
			m.ChangedAt = 0
			o.Members[fmt.Sprintf("%s %s", id, m.User)] = m
		}
	}
	letters := map[string]bool{}
	for _, l := range w.letters(t) {
		letters[l] = true
	}
	o.Letters = slices.Sorted(maps.Keys(letters))
	for k, a := range w.answers {
		// Decided now or again is the same to the caller.
		word := "yes"
		if a.Verdict == watermark.Refused {
			word = "no: " + a.Reason
		}
		o.Answers[k.Caller+" "+k.OpID] = fmt.Sprintf("%s %d", word, a.Seq)
	}
	return o
}

// Whatever call fails, in whatever way, with or without Redis: the same
// messages get the same seqs, nothing is lost, nobody stays unanswered.
func TestAnyDeathLeadsToTheSameLog(t *testing.T) {
	calm, _ := run{}.play(t)
	want := outcomeOf(t, calm)
	equal(t, "letters", want.Letters, []string{
		"0@11 no_such_seq", "0@2 undecodable", "0@5 not_member", "0@7 id_reused",
	})
	if len(want.Order) != 7 || len(want.Answers) != 4 {
		t.Fatalf("the calm run gives %d messages and %d answers: %+v", len(want.Order), len(want.Answers), want)
	}
	runs := 0
	for _, how := range []string{before, partial, after} {
		for kind := range 8 {
			sameOne, flushAll, large := kind&1 != 0, kind&2 != 0, kind&4 != 0
			for failAt := 1; ; failAt++ {
				r := run{failAt, how, sameOne, flushAll, large}
				w, reached := r.play(t)
				if !reached {
					break
				}
				runs++
				got, want := outcomeOf(t, w), want
				if flushAll {
					// Of a refused message only the dead letter is sure to
					// outlive Redis; its caller's wait may end by itself.
					want.Answers = without(want.Answers, "waiting B/2")
					got.Answers = without(got.Answers, "waiting B/2")
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%v (-want +got):\n%s", r, d)
				}
			}
		}
	}
	if runs < 200 {
		t.Errorf("only %d runs failed", runs)
	}
}

func without(answers map[string]string, key string) map[string]string {
	out := maps.Clone(answers)
	delete(out, key)
	return out
}
