package topush_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/watermark"
)

// A mark is given a new life with its first raise, once an hour, and after an
// error, which may have left one without; not with each raise.
func TestMarksAreRenewedOnceAnHour(t *testing.T) {
	w := newWorld()
	w.base[group] = []watermark.Member{member("A", 0, 0)}
	now := time.Now()
	s := w.stage(t, func(c *topush.Config) { c.Now = func() time.Time { return now } })
	say := func(seq watermark.Seq, failing bool) {
		t.Helper()
		w.append(t, group, said(seq, "A", ""))
		last := w.log[len(w.log)-1:]
		last[0].Time = now
		if failing {
			w.onCall = func(op string) error {
				if op == "raise" {
					return errDied
				}
				return nil
			}
			if _, err := s.Handle(t.Context(), last); err == nil {
				t.Error("a mark that was not raised is settled")
			}
			w.onCall = nil
		}
		if _, err := s.Handle(t.Context(), last); err != nil {
			t.Fatal(err)
		}
	}
	say(1, false)
	say(2, false)
	now = now.Add(time.Hour - time.Second)
	say(3, false)
	now = now.Add(time.Second)
	say(4, false)
	say(5, false)
	say(6, true)
	say(7, false)
	if d := cmp.Diff([]watermark.Seq{1, 4, 6}, w.renewed); d != "" {
		t.Errorf("renewed with (-want +got):\n%s", d)
	}
}
