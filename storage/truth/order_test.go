package truth_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

func (w *world) ActivityOf(ctx context.Context, u watermark.UserID, after watermark.ConversationID, limit int) ([]watermark.Activity, error) {
	if err := w.step("history"); err != nil {
		return nil, err
	}
	return w.Memory.ActivityOf(ctx, u, after, limit)
}

// TestOrderIsTheLogs asks for the order while everything moves, and once more
// with what it was told: Same only if nothing was appended in between.
func TestOrderIsTheLogs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, t)
		tr, last := w.truth(t, rapid.IntRange(1, 3).Draw(rt, "chunk"))
		u := rapid.SampledFrom(users).Draw(rt, "whose")
		var known watermark.ListOrder
		for range 3 {
			before := w.ends()
			order, err := tr.Order(t.Context(), u, known)
			if err != nil {
				rt.Fatal(err)
			}
			for n, end := range order.Ends {
				if end < int64(before[n]) || order.Same && end != known.Ends[n] {
					rt.Errorf("partition %d: covered up to %d, %d before the call, same %v as %v", n, end, before[n], order.Same, known.Ends)
				}
			}
			if order.Same {
				if len(order.Entries) > 0 {
					rt.Errorf("the same, with %d entries", len(order.Entries))
				}
				continue
			}
			if slices.Equal(known.Ends, order.Ends) {
				rt.Errorf("%v is not the same as %v", order.Ends, known.Ends)
			}
			had := make(map[watermark.ConversationID]bool)
			for _, e := range order.Entries {
				full := w.fold(e.Conversation, 0, last().seen[partitionOf(e.Conversation)])
				if _, ok := full.Members[u]; !ok || e.LastTime != full.LastTime || had[e.Conversation] {
					rt.Errorf("%+v, a member: %v, want %d, seen %v", e, ok, full.LastTime, had[e.Conversation])
				}
				had[e.Conversation] = true
			}
			for _, c := range convs {
				if _, ok := w.fold(c, 0, int(order.Ends[partitionOf(c)])).Members[u]; ok && !had[c] {
					rt.Errorf("%s is missing", c)
				}
			}
			known = order
		}
	})
}

// TestOrderOfALongList counts what 2,300 conversations cost, some of them in the
// tail alone, and that nothing is read again where nothing was appended.
func TestOrderOfALongList(t *testing.T) {
	const n = 2300
	w := newWorld()
	for i := range n {
		m := message(1, "ann", "a")
		m.RecordTime = int64(i + 1)
		w.script(watermark.GroupOf(fmt.Sprint("c", i)), watermark.MessagesSequenced{Messages: []watermark.Message{m}})
	}
	w.appendAll()
	w.project(t, 0, n, "never")
	w.project(t, 1, n/2-100, "never")
	tr, _ := w.truth(t, 0)
	order, err := tr.Order(t.Context(), "ann", watermark.ListOrder{})
	if err != nil {
		t.Fatal(err)
	}
	times := make(map[int64]bool)
	for _, e := range order.Entries {
		times[e.LastTime] = true
	}
	if len(order.Entries) != n || len(times) != n || times[0] {
		t.Errorf("%d conversations of %d times", len(order.Entries), len(times))
	}
	if got, want := strings.Join(w.calls, " "), "pin tail history history history tail history tail"; got != want {
		t.Errorf("calls: %s, want: %s", got, want)
	}
	w.calls = nil
	again, err := tr.Order(t.Context(), "ann", order)
	if err != nil || !again.Same {
		t.Errorf("again: %+v, %v", again, err)
	}
	if got, want := strings.Join(w.calls, " "), "pin tail"; got != want {
		t.Errorf("calls when nothing was appended: %s, want: %s", got, want)
	}
	order.Log = "another"
	if again, err = tr.Order(t.Context(), "ann", order); err != nil || again.Same {
		t.Errorf("of another log: same %v, %v", again.Same, err)
	}
}

func TestOrderKeepsErrorsAndReleasesThePin(t *testing.T) {
	cause := fault.New(fault.Fatal, "log_lost", errors.New("gone"))
	for _, at := range []string{"pin", "history", "tail"} {
		w := newWorld()
		w.err[at] = cause
		tr, _ := w.truth(t, 0)
		if _, err := tr.Order(t.Context(), "ann", watermark.ListOrder{}); !errors.Is(err, cause) || fault.ClassOf(err) != fault.Fatal {
			t.Errorf("%s: %v", at, err)
		}
		if w.pins != w.released {
			t.Errorf("%s: %d pins, %d released", at, w.pins, w.released)
		}
	}
}
