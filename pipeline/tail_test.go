package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	keyFetch       int16 = 1
	keyListOffsets int16 = 2
	keyOffsetFetch int16 = 9
)

func tailKeys(keys ...int16) []kmsg.Key {
	out := make([]kmsg.Key, len(keys))
	for i, k := range keys {
		out[i] = kmsg.Key(k)
	}
	return out
}

const tailConv = watermark.ConversationID("group:g1")

func TestTailConfigReportsEveryFault(t *testing.T) {
	_, err := pipeline.NewTail(pipeline.TailConfig{MaxRecords: -1, Patience: time.Second, Confirm: time.Second})
	for _, want := range []string{"brokers", "group", "max records", "confirm"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %q: %v", want, err)
		}
	}
}

func TestTailGivesWhatHistoryMayLack(t *testing.T) {
	l := newTailLog(t, 1)
	for s := range watermark.Seq(10) {
		l.add(tailConv, tailRun(s+1))
	}
	u := l.tail(nil)

	t.Run("nothing committed", func(t *testing.T) {
		p := u.pin(tailConv)
		l.completes(tailConv, 0, -1, u.state(p, tailConv))
	})
	t.Run("some committed", func(t *testing.T) {
		l.commit(0, 4)
		p := u.pin(tailConv)
		got := u.state(p, tailConv)
		l.completes(tailConv, 4, -1, got)
		if got.Max != 10 {
			t.Errorf("max = %d, want 10", got.Max)
		}
	})
	t.Run("another conversation is absent", func(t *testing.T) {
		p := u.pin("group:other")
		if got := u.state(p, "group:other"); got != nil {
			t.Errorf("state = %+v, want none", got)
		}
	})
}

// The end must be asked after history was read. A record that is appended
// between the pin and the question, or between two questions, is in neither
// when an older end is believed.
func TestTailEndIsAskedAfterTheQuestion(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	l.commit(0, 1)
	u := l.tail(nil)
	p := u.pin(tailConv)
	for s := watermark.Seq(2); s < 20; s++ {
		l.add(tailConv, tailRun(s))
		got := u.state(p, tailConv)
		if got == nil || got.Max != s {
			t.Fatalf("after seq %d was acknowledged the tail says %+v", s, got)
		}
	}
}

func TestTailStatesAreTheCallers(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1, 2, 3), watermark.WindowChanged{Member: watermark.Member{User: "b", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 1}}}})
	u := l.tail(nil)
	p := u.pin(tailConv)
	first := u.state(p, tailConv)
	first.Max = 99
	first.Members["b"].Memberships[0] = watermark.Membership{Number: 7}
	delete(first.Members, "a")
	clear(first.Sent)
	l.completes(tailConv, 0, -1, u.state(p, tailConv))
}

func TestTailTooLong(t *testing.T) {
	l := newTailLog(t, 1)
	u := l.tail(func(c *pipeline.TailConfig) { c.MaxRecords = 10; c.SegmentRecords = 2 })
	for s := range watermark.Seq(11) {
		l.add(tailConv, tailRun(s+1))
	}
	fetches := l.requests(keyFetch)
	p := u.pin(tailConv)
	_, err := p.States(t.Context(), []watermark.ConversationID{tailConv})
	if !errors.Is(err, pipeline.ErrTailTooLong) || fault.ReasonOf(err) != pipeline.ReasonTailTooLong || fault.ClassOf(err) != fault.Transient {
		t.Fatalf("error = %v, want %v", err, pipeline.ErrTailTooLong)
	}
	if n := fetches(); n != 0 {
		t.Errorf("%d fetches for a tail that is known to be too long", n)
	}
	p.Release()
	l.commit(0, 1)
	p = u.pin(tailConv)
	l.completes(tailConv, 1, -1, u.state(p, tailConv))
}

func TestTailLostRecords(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*testing.T, *tailLog)
		fatal bool
	}{
		{"retention was faster than history", func(t *testing.T, l *tailLog) {
			l.commit(0, 5)
			if err := l.cluster.DeleteRecords(tailTopic, 0, 10); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"retention below the committed offset", func(t *testing.T, l *tailLog) {
			l.commit(0, 12)
			if err := l.cluster.DeleteRecords(tailTopic, 0, 10); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"topic made anew", func(t *testing.T, l *tailLog) {
			// Kafka drops a deleted topic's offsets; a restored backup brings such.
			if err := errors.Join(l.cluster.DeleteTopic(tailTopic), l.cluster.CreateTopic(tailTopic, 1, nil)); err != nil {
				t.Fatal(err)
			}
			l.commit(0, 20)
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newTailLog(t, 1)
			for s := range watermark.Seq(20) {
				l.add(tailConv, tailRun(s+1))
			}
			tt.spoil(t, l)
			u := l.tail(nil)
			p := u.pin(tailConv)
			got, err := p.States(t.Context(), []watermark.ConversationID{tailConv})
			if !tt.fatal {
				if err != nil || got[tailConv].Max != 20 {
					t.Errorf("state %+v, error %v", got[tailConv], err)
				}
				return
			}
			if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != pipeline.ReasonLogLost {
				t.Errorf("error = %v (%s), want a fatal one, reason %s", err, fault.ReasonOf(err), pipeline.ReasonLogLost)
			}
		})
	}
}

func TestTailPassesOverUndecodableRecords(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	l.addRaw(0, []byte{0xff, 0xff})
	l.addRaw(0, nil)
	l.add(tailConv, tailRun(2))
	u := l.tail(nil)
	p := u.pin(tailConv)
	l.completes(tailConv, 0, -1, u.state(p, tailConv))
	if n := u.metric("tidemark_pipeline_tail_undecodable_records_total"); n != 2 {
		t.Errorf("%v undecodable records counted, want 2", n)
	}
	l.addRaw(0, []byte{0xff})
	if got := u.state(p, tailConv); got.Max != 2 { // a bad last record holds nobody up
		t.Errorf("max = %d", got.Max)
	}
}

func TestTailRidesOutTransientFaults(t *testing.T) {
	tests := []struct {
		name string
		key  int16
		err  *kerr.Error
	}{
		{"coordinator moved", keyOffsetFetch, kerr.NotCoordinator},
		{"leader cannot vouch for its end", keyListOffsets, kerr.OffsetNotAvailable},
		{"leader moved, end", keyListOffsets, kerr.NotLeaderForPartition},
		{"leader moved, fetch", keyFetch, kerr.NotLeaderForPartition},
		{"disk", keyFetch, kerr.KafkaStorageError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newTailLog(t, 1)
			l.add(tailConv, tailRun(1, 2, 3))
			l.commit(0, 0)
			u := l.tail(nil)
			l.cluster.Fault(kfake.Fault{Keys: tailKeys(tt.key), Err: tt.err, Count: 2})
			p := u.pin(tailConv)
			l.completes(tailConv, 0, -1, u.state(p, tailConv))
		})
	}
}

func TestTailStaysBehind(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(func(c *pipeline.TailConfig) { c.Patience = 500 * time.Millisecond; c.Confirm = 100 * time.Millisecond })
	h := l.cluster.Fault(kfake.Fault{Keys: tailKeys(keyFetch), Err: kerr.KafkaStorageError, Count: -1})
	p := u.pin(tailConv)
	_, err := p.States(t.Context(), []watermark.ConversationID{tailConv})
	if fault.ReasonOf(err) != pipeline.ReasonTailBehind || fault.ClassOf(err) != fault.Transient {
		t.Fatalf("error = %v, want reason %s", err, pipeline.ReasonTailBehind)
	}
	h.Remove()
	l.completes(tailConv, 0, -1, u.state(p, tailConv))
}

func TestTailCallersContextEnds(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(nil)
	p := u.pin(tailConv)
	release, arrived := l.holdBack(keyListOffsets)
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := p.States(ctx, []watermark.ConversationID{tailConv}); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want canceled", err)
	}
}

func TestTailEnds(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(nil)
	p := u.pin(tailConv)
	u.stop()
	if _, err := p.States(t.Context(), []watermark.ConversationID{tailConv}); fault.ReasonOf(err) != pipeline.ReasonTailClosed {
		t.Errorf("States after Run: %v", err)
	}
	if _, err := u.Pin(t.Context(), []watermark.ConversationID{tailConv}); fault.ReasonOf(err) != pipeline.ReasonTailClosed {
		t.Errorf("Pin after Run: %v", err)
	}
	p.Release()
	p.Release()
	if n := u.metric("tidemark_pipeline_tail_records"); n != 0 {
		t.Errorf("%v records held after Run", n)
	}
}

func TestTailDropsIdlePartitions(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(func(c *pipeline.TailConfig) { c.Idle = 40 * time.Millisecond })
	p := u.pin(tailConv)
	u.state(p, tailConv)
	p.Release()
	tailAwait(t, "the view is dropped", func() bool { return u.metric("tidemark_pipeline_tail_partitions") == 0 })
	p = u.pin(tailConv)
	l.completes(tailConv, 0, -1, u.state(p, tailConv))
}

// tailAwait polls until ok, for at most ten seconds.
func tailAwait(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			tb.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

// Dashboards and alerts go by these names.
func TestTailMetricNames(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	u := l.tail(nil)
	p := u.pin(tailConv)
	u.state(p, tailConv)
	u.stop()
	if _, err := p.States(t.Context(), []watermark.ConversationID{tailConv}); err == nil {
		t.Error("no error after Run")
	}
	families, err := u.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, f.GetName())
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
	}
	want := []string{
		"tidemark_pipeline_tail_bytes",
		"tidemark_pipeline_tail_cache_bytes",
		"tidemark_pipeline_tail_catch_up_seconds",
		"tidemark_pipeline_tail_failures_total",
		"tidemark_pipeline_tail_folded_records_total",
		"tidemark_pipeline_tail_partitions",
		"tidemark_pipeline_tail_records",
		"tidemark_pipeline_tail_rereads_total",
		"tidemark_pipeline_tail_segments",
		"tidemark_pipeline_tail_undecodable_records_total",
		"tidemark_pipeline_tail_voided_pins_total",
		"tidemark_pipeline_tail_waiting_partitions",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
