package toredis_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/fault"
)

// A partition pauses while history is too far behind, and does not flutter
// about the bound.
func TestATailThatIsTooLongPausesThePartition(t *testing.T) {
	const limit = 1000
	reg := prometheus.NewRegistry()
	w := newWorld(1)
	tail, known := int64(0), true
	seq := w.sequencer(t, func(c *toredis.Config) {
		c.Registerer, c.MaxTail = reg, limit
		c.Tail = func(partition int32) (int64, bool) {
			if partition != 0 {
				t.Errorf("asked for partition %d", partition)
			}
			return tail, known
		}
	})
	s, err := seq.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w.send(t, -1, group, "A", "1", "a", "")
	for _, step := range []struct {
		tail   int64
		known  bool
		paused bool
	}{
		{limit, true, false},
		{limit + 1, true, true},
		{limit, true, true},
		{751, true, true},
		{0, false, true}, // nobody can tell: it stays as it was
		{750, true, false},
		{0, false, false},
		{limit, true, false},
		{1 << 40, true, true},
		{0, true, false},
	} {
		tail, known = step.tail, step.known
		w.now = w.now.Add(time.Second)
		w.journal = nil
		_, err := s.Handle(t.Context(), w.input(0))
		if paused := fault.ReasonOf(err) == "tail_too_long" && fault.ClassOf(err) == fault.Transient; paused != step.paused || (err == nil) == paused {
			t.Fatalf("tail %d, known %v: %v, want it paused: %v", step.tail, step.known, err, step.paused)
		}
		if step.paused && len(w.journal) > 0 {
			t.Errorf("tail %d: did %v while it is paused", step.tail, w.journal)
		}
		if d := flush(t, s); step.paused && (d > 1 || len(w.journal) > 0) {
			t.Errorf("tail %d: Flush gives %d and did %v", step.tail, d, w.journal)
		}
		ready := seq.Ready()
		if (ready != nil) != step.paused || (step.paused && !strings.Contains(ready.Error(), "partition 0: tail_too_long: paused for")) {
			t.Errorf("tail %d: ready: %v", step.tail, ready)
		}
		want := "tidemark_toredis_waiting_partitions{reason=tail_too_long} 0"
		if step.paused {
			want = "tidemark_toredis_waiting_partitions{reason=tail_too_long} 1"
		}
		if got := gather(t, reg); !slices.Contains(got, want) {
			t.Errorf("tail %d: no %q among the metrics", step.tail, want)
		}
	}
	if got := gather(t, reg); !slices.Contains(got, "tidemark_toredis_pauses_total{} 2") {
		t.Errorf("not two pauses: %v", got)
	}
}

// An append that Kafka does not acknowledge never fails; it shows all the same.
func TestAnAppendThatTakesLongShows(t *testing.T) {
	w := newWorld(1)
	seq := w.sequencer(t, func(*toredis.Config) {})
	s, err := seq.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	w.send(t, -1, group, "A", "1", "a", "")
	w.onCall = func(op string) error {
		if op != "append sequenced" {
			return nil
		}
		if err := seq.Ready(); err != nil {
			t.Errorf("ready: %v", err)
		}
		w.now = w.now.Add(7 * time.Second)
		if err := seq.Ready(); err == nil || !strings.Contains(err.Error(), "partition 0: append: append to sequenced takes 7s") {
			t.Errorf("ready: %v", err)
		}
		return nil
	}
	handle(t, s, w.input(0))
	if err := seq.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}

	// What a claim waited for goes with it.
	w.onCall = nil
	w.down.Store(true)
	w.send(t, -1, "group:other", "A", "1", "a", "")
	handle(t, s, w.input(0)[1:])
	if err := seq.Ready(); err == nil || !strings.Contains(err.Error(), "cold_load: 1 records of 1 conversations are parked") {
		t.Errorf("ready: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := seq.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// What is parked adds to the tail as well.
func TestAPausedPartitionLeavesWhatIsParked(t *testing.T) {
	w := newWorld(1)
	tail := int64(0)
	s, err := w.sequencer(t, func(c *toredis.Config) {
		c.MaxTail = 10
		c.Tail = func(int32) (int64, bool) { return tail, true }
	}).Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	back := w.away()
	w.send(t, -1, group, "A", "1", "a", "")
	handle(t, s, w.input(0))
	back()
	tail, w.journal = 11, nil
	for range 3 {
		w.tick()
		if d := flush(t, s); d != 0 || len(w.journal) > 0 {
			t.Errorf("Flush gives %d and did %v while it is paused", d, w.journal)
		}
	}
	tail = 0
	w.caughtUp(t, s, 1)
}
