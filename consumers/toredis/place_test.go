package toredis_test

import (
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

// Readers are told of a batch when its place is settled, so each batch stands
// above all that is settled already: also one of records that were parked, which
// ends at no new offset, and the first one of a new owner, which may begin below
// what the owner before had handled.
func TestEachBatchStandsAboveWhatIsSettled(t *testing.T) {
	w := newWorld(1)
	s := w.warmed(t, warm)
	settled := func() int64 {
		p := watermark.Place{Partition: watermark.Partition{TopicID: w.input(0)[0].TopicID, Number: 0}}
		n, err := w.redis.Settle(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// above checks the batches from the n-th on, and gives how many there are.
	above := func(what string, n int, than int64) int {
		t.Helper()
		if len(w.mallocs) == n {
			t.Fatalf("%s: nothing was decided", what)
		}
		for _, b := range w.mallocs[n:] {
			if b.Place.Number <= than {
				t.Errorf("%s: a batch of %s at %d, %d is settled", what, b.Conversation, b.Place.Number, than)
			}
		}
		return len(w.mallocs)
	}
	n, before := len(w.mallocs), settled()
	back := w.away()
	w.send(t, -1, cold, "A", "1", "c1", "")
	w.send(t, -1, warm, "A", "2", "w2", "")
	handle(t, s, w.input(0)[1:])
	n = above("warm, while the other is parked", n, before)
	before = settled()
	back()
	w.caughtUp(t, s, 3)
	n = above("what was parked", n, before)
	before = settled()

	w.send(t, -1, warm, "A", "3", "w3", "")
	handle(t, w.stage(t, 0), w.input(0)[2:])
	above("a new owner, from an offset below", n, before)
	if settled() <= before {
		t.Error("its batch is not settled")
	}
}
