package tomongo_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/watermark"
)

// The bounds of one conversation must not wait while thousands of its rows come:
// a cold load reads what stands above the maximum.
func TestRowsAreNotFarAheadOfTheirMaximum(t *testing.T) {
	w := newWorld()
	s := w.stage(t, asItIs)
	const batch, batches = 100, 60
	for b := range batches {
		for i := range batch {
			seq := watermark.Seq(b*batch + i + 1)
			w.append(t, group, said(message(seq, "A", fmt.Sprint(seq))))
		}
		if d := handle(t, s, w.log[b*batch:]); d != 0 {
			t.Fatalf("durable = %d with marks pending", d)
		}
		if ahead := len(w.rows[group]) - int(w.convs[group].Max); ahead > watermark.DedupeHorizon+batch {
			t.Fatalf("%d rows stand above the maximum", ahead)
		}
	}
	written := 0
	for _, c := range w.changes {
		written += len(c.Conversations)
	}
	if most := batch * batches / watermark.DedupeHorizon; written > most {
		t.Errorf("bounds of one conversation are written %d times, want %d at most", written, most)
	}
	flush(t, s)
	w.checkProjection(t)
}

// What is pending is bounded by how many are different, too.
func TestWhatIsPendingIsBounded(t *testing.T) {
	w := newWorld()
	reg := prometheus.NewRegistry()
	s := w.stage(t, func(c *tomongo.Config) { c.FlushMarks, c.FlushEvery, c.Registerer = 1<<30, time.Hour, reg })
	const batch = 500
	for at := 0; at < 60_000; at += batch {
		for i := range batch {
			w.append(t, watermark.ConversationID(fmt.Sprint("group:", at+i)), said(message(1, "A", "1")))
		}
		handle(t, s, w.log[at:])
		if n := pendingEntries(t, reg); n > 50_000+2*batch {
			t.Fatalf("%v entries are pending", n)
		}
	}
	if got := gather(t, reg); !slices.Contains(got, "tidemark_tomongo_flushes_total{reason=size} 2") {
		t.Errorf("flushes: %v", got)
	}
}

func pendingEntries(t *testing.T, reg *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "tidemark_tomongo_pending_conversations", "tidemark_tomongo_pending_members":
			n += f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return n
}

// Ten seconds of a busy partition: 200 conversations that are not all as busy.
// What is written of bounds and marks is a tenth of what moved them at most.
func TestBoundsAndMarksAreCoalescedUnderLoad(t *testing.T) {
	w := newWorld()
	s := w.stage(t, asItIs)
	rnd := rand.New(rand.NewPCG(1, 2))
	often := rand.NewZipf(rnd, 1.3, 3, 199)
	seqs := make(map[watermark.ConversationID]watermark.Seq)
	const batch, batches = 200, 50
	for b := range batches {
		for range batch {
			id := watermark.ConversationID(fmt.Sprintf("single:A:u%d", often.Uint64()))
			seqs[id]++
			from := watermark.UserID("A")
			if rnd.IntN(2) == 0 {
				_, from, _ = id.Users()
			}
			w.append(t, id, said(message(seqs[id], from, fmt.Sprint(seqs[id]))))
		}
		handle(t, s, w.log[b*batch:])
	}
	flush(t, s)
	written := 0
	for _, c := range w.changes {
		written += len(c.Conversations) + len(c.Members)
	}
	if written > batch*batches/10 {
		t.Errorf("%d bounds and marks are written for %d messages", written, batch*batches)
	}
	w.checkProjection(t)
}

// A process that dies leaves rows without their maximum. The next one meets all
// of them again, and comes to the same.
func TestRowsOfAProcessThatDiedComeAgain(t *testing.T) {
	w := newWorld()
	for i := range 300 {
		seq := watermark.Seq(i/3 + 1)
		w.append(t, watermark.ConversationID(fmt.Sprint("group:", i%3)), said(message(seq, "A", fmt.Sprint(seq))))
	}
	handle(t, w.stage(t, asItIs), w.log[:200])
	if len(w.convs) != 0 || len(w.rows["group:0"]) == 0 {
		t.Fatal("the bounds do not wait")
	}
	s := w.stage(t, asItIs)
	handle(t, s, w.log)
	if len(w.owned) != 0 {
		t.Errorf("%d conflicts, the first: %+v", len(w.owned), w.owned[0])
	}
	if d := flush(t, s); d != int64(len(w.log)) {
		t.Errorf("durable = %d, want %d", d, len(w.log))
	}
	w.checkProjection(t)
}
