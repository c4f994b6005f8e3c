package tomongo_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/watermark"
)

// Batches share a write: what comes within WriteEvery, and what comes alone is
// written when the runner flushes.
func TestBatchesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.stage(t, func(c *tomongo.Config) { c.WriteEvery = time.Second })
		for i := range 25 {
			w.append(t, group, said(message(watermark.Seq(i+1), "A", fmt.Sprint(i))))
			if d := handle(t, s, w.log[i:]); d != 0 {
				t.Fatalf("durable = %d", d)
			}
			time.Sleep(100 * time.Millisecond)
		}
		var sizes []int
		for _, c := range w.changes {
			sizes = append(sizes, len(c.Rows))
		}
		equal(t, "rows of each write", sizes, []int{11, 11})
		if d := flush(t, s); d != 25 {
			t.Errorf("durable = %d, want 25", d)
		}
		w.checkProjection(t)
	})
}

// What is gathered is bounded by its rows and by its bytes.
func TestWhatIsGatheredIsBounded(t *testing.T) {
	for _, tc := range []struct {
		name          string
		size, batches int
		most          int // rows of a write
	}{
		{"rows", 10, 50, 20_000},
		{"bytes", 20_000, 2, 500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			s := w.stage(t, func(c *tomongo.Config) { c.WriteEvery = time.Hour })
			const batch = 500
			body := make([]byte, tc.size)
			for b := range tc.batches {
				for i := range batch {
					m := message(watermark.Seq(b*batch+i+1), "A", fmt.Sprint(b*batch+i))
					m.Body = body
					m.Hash = m.SumHash()
					w.append(t, group, said(m))
				}
				handle(t, s, w.log[b*batch:])
			}
			if len(w.changes) == 0 {
				t.Fatal("nothing is written")
			}
			for _, c := range w.changes {
				if len(c.Rows) > tc.most {
					t.Errorf("%d rows in one write, want %d at most", len(c.Rows), tc.most)
				}
			}
		})
	}
}
