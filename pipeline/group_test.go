package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

func send(t testing.TB, p *pipeline.Producer, key string, values ...string) {
	t.Helper()
	if err := p.Append(within(t), outs(key, values...)); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsComeInOrderWithTheirPlace(t *testing.T) {
	c, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	want := numbered(100, "m")
	send(t, p, "group:1", want...)
	var got seen
	claims := make(chan pipeline.Claim, 1)
	g := start(t, cfg, pipeline.GroupConfig{NewStage: func(_ context.Context, c pipeline.Claim) (pipeline.Stage, error) {
		claims <- c
		return &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}, nil
	}})
	eventually(t, "all are handled", func() bool { return got.len() == 100 })
	g.stop(t)
	if diff := cmp.Diff(want, got.values()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	id := c.TopicInfo("toRedis").TopicID
	claim := <-claims
	if claim.Committed != -1 || claim.Topic != "toRedis" || claim.TopicID == "" {
		t.Errorf("claim = %+v", claim)
	}
	r := got.records[7]
	if r.Offset != 7 || r.Topic != "toRedis" || string(r.Key) != "group:1" || r.TopicID != claim.TopicID || r.Time.IsZero() {
		t.Errorf("record = %+v", r)
	}
	if len(id) != 16 {
		t.Errorf("topic id = %v", id)
	}
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != 100 {
		t.Errorf("committed = %d, want 100", got)
	}
}

func TestBatchesGrowWhileTheStageIsBusy(t *testing.T) {
	c, cfg := cluster(t, 1)
	fetched := fetchedTo(c)
	p := producer(t, cfg, "toRedis")
	var mu sync.Mutex
	var sizes []int
	begun, release := make(chan struct{}, 1), make(chan struct{})
	var first atomic.Bool
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		if first.CompareAndSwap(false, true) {
			begun <- struct{}{}
			<-release
		}
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, len(b))
		return end(b), nil
	}}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make, MaxBatch: 40})
	send(t, p, "group:1", "first")
	<-begun
	send(t, p, "group:1", numbered(100, "m")...)
	eventually(t, "the driver holds them all", func() bool { return fetched.Load() == 101 })
	close(release)
	eventually(t, "all are handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, s := range sizes {
			n += s
		}
		return n == 101
	})
	g.stop(t)
	if sizes[0] != 1 || sizes[1] != 40 || slices.Max(sizes) != 40 {
		t.Errorf("batch sizes = %v, want 1 when idle, then 40 at most", sizes)
	}
}

// fetchedTo watches how far the driver has asked for records: it asks for the
// next ones when it has passed on all before.
func fetchedTo(c *kfake.Cluster) *atomic.Int64 {
	var at atomic.Int64
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, t := range req.(*kmsg.FetchRequest).Topics {
			for _, p := range t.Partitions {
				at.Store(max(at.Load(), p.FetchOffset))
			}
		}
		return nil, nil, false
	})
	return &at
}

func TestBatchesAreBoundedInBytes(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	big := strings.Repeat("x", 1000)
	send(t, p, "k", numbered(20, big)...)
	var got seen
	var most atomic.Int64
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		size := int64(0)
		for _, r := range b {
			size += int64(len(r.Value))
		}
		most.Store(max(most.Load(), size))
		got.add(b)
		return end(b), nil
	}}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make, MaxBytes: 2500})
	eventually(t, "all are handled", func() bool { return got.len() == 20 })
	g.stop(t)
	if most.Load() > 2500 {
		t.Errorf("a batch had %d bytes", most.Load())
	}
	if diff := cmp.Diff(numbered(20, big), got.values()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestATransientErrorIsRetriedInPlace(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	var mu sync.Mutex
	var attempts []string
	var good seen
	fails := 4
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		mu.Lock()
		defer mu.Unlock()
		attempts = append(attempts, string(b[0].Value))
		if fails > 0 {
			fails--
			return 0, fault.New(fault.Transient, "history_down", errDown)
		}
		good.add(b)
		return end(b), nil
	}}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make, MaxBatch: 1})
	send(t, p, "group:1", "a", "b", "c")
	eventually(t, "all are handled", func() bool { return good.len() == 3 })
	g.stop(t)
	if diff := cmp.Diff([]string{"a", "a", "a", "a", "a", "b", "c"}, attempts); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if got := metric(t, cfg, "tidemark_pipeline_retries_total"); got != 4 {
		t.Errorf("retries = %v, want 4", got)
	}
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != 3 {
		t.Errorf("committed = %d, want 3", got)
	}
}

func TestReadinessTellsWhyAPartitionIsStuck(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	var healed atomic.Bool
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		if !healed.Load() {
			return 0, fault.New(fault.Transient, "redis_down", errDown)
		}
		return end(b), nil
	}}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make})
	eventually(t, "the group is ready", func() bool { return g.Ready() == nil })
	send(t, p, "group:1", "a")
	eventually(t, "it is stuck", func() bool { return g.Ready() != nil })
	if err := g.Ready(); !strings.Contains(err.Error(), "toRedis/0 is stuck at 0: retrying handle: redis_down for") {
		t.Errorf("Ready = %v", err)
	}
	if got := metric(t, cfg, "tidemark_pipeline_stuck_partitions"); got != 1 {
		t.Errorf("stuck = %v, want 1", got)
	}
	healed.Store(true)
	eventually(t, "the group is ready again", func() bool { return g.Ready() == nil })
	if got := metric(t, cfg, "tidemark_pipeline_stuck_partitions"); got != 0 {
		t.Errorf("stuck = %v, want 0", got)
	}
	g.stop(t)
	if g.Ready() == nil {
		t.Error("a stopped group says that it is ready")
	}
}

func TestALongAttemptCountsAsStuck(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	release := make(chan struct{})
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { <-release; return end(b), nil }}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make, StuckAfter: 50 * time.Millisecond})
	send(t, p, "group:1", "a")
	eventually(t, "it is stuck", func() bool {
		err := g.Ready()
		return err != nil && strings.Contains(err.Error(), "handle takes")
	})
	close(release)
	g.stop(t)
}

func TestAPoisonRecordIsFoundAndSetAside(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	send(t, p, "group:1", "a", "b", "\xff\xff", "c", "d", "e", "\xff", "f")
	var good seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		for _, r := range b {
			if r.Value[0] == 0xff {
				return 0, fault.New(fault.Poison, "undecodable", errors.New("not a message"))
			}
		}
		good.add(b)
		return end(b), nil
	}}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make})
	eventually(t, "the rest is handled", func() bool { return good.len() == 6 })
	g.stop(t)
	if diff := cmp.Diff([]string{"a", "b", "c", "d", "e", "f"}, good.values()); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
	letters := stored(t, cfg, "deadLetter", 0, 2)
	if len(letters) != 2 {
		t.Fatalf("%d dead letters, want 2", len(letters))
	}
	d, err := wire.DecodeDeadLetter(letters[0])
	if err != nil {
		t.Fatal(err)
	}
	if d.Record.Topic != "toRedis" || d.Record.Partition != 0 || d.Record.Offset != 2 || d.Reason != "undecodable" ||
		d.Cause != "not a message" || string(d.Record.Value) != "\xff\xff" || string(d.Record.Key) != "group:1" || d.Tries != 1 {
		t.Errorf("dead letter = %+v", d)
	}
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != 8 {
		t.Errorf("committed = %d, want 8", got)
	}
	if got := metric(t, cfg, "tidemark_pipeline_dead_letters_total"); got != 2 {
		t.Errorf("dead letters = %v, want 2", got)
	}
}

func TestADeadLetterIsAwaitedBeforeItsRecordIsMarked(t *testing.T) {
	c, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	send(t, p, "group:1", "\xff", "a")
	failProduce(c, 3, kerr.UnknownServerError)
	var good seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		if b[0].Value[0] == 0xff {
			return 0, fault.New(fault.Poison, "undecodable", errors.New("not a message"))
		}
		if metric(t, cfg, "tidemark_pipeline_dead_letters_total") != 1 {
			t.Error("the next record was handled before the dead letter was acknowledged")
		}
		good.add(b)
		return end(b), nil
	}}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make})
	eventually(t, "the rest is handled", func() bool { return good.len() == 1 })
	g.stop(t)
	if got := stored(t, cfg, "deadLetter", 0, 1); len(got) != 1 {
		t.Errorf("%d dead letters, want 1", len(got))
	}
}

func TestAPoisonRecordDoesNotOvertakeTheWriteBehind(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	send(t, p, "group:1", "a", "\xff", "b")
	var flushing atomic.Bool
	var handled atomic.Int64
	s := &stage{
		handle: func(_ context.Context, b []wire.Record) (int64, error) {
			if b[0].Value[0] == 0xff {
				return 0, fault.New(fault.Poison, "undecodable", errors.New("not a message"))
			}
			handled.Store(end(b))
			return 0, nil // nothing is durable yet
		},
		flush: func(context.Context) (int64, error) {
			if !flushing.Load() {
				return 0, nil
			}
			return handled.Load(), nil
		},
	}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make, MaxBatch: 1, FlushEvery: 10 * time.Millisecond})
	eventually(t, "all are handled", func() bool { return handled.Load() == 3 })
	if got := g.State().Partitions[0]; got.Marked != 0 || got.Next != 3 {
		t.Errorf("state = %+v, want nothing marked", got)
	}
	flushing.Store(true)
	eventually(t, "all are marked", func() bool { return g.State().Partitions[0].Marked == 3 })
	g.stop(t)
}

func TestAFatalErrorStopsTheGroup(t *testing.T) {
	_, cfg := cluster(t, 2)
	p := producer(t, cfg, "toRedis")
	send(t, p, "group:1", "a", "b", "stop", "c")
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		if string(b[0].Value) == "stop" {
			return 0, fault.New(fault.Fatal, "log_lost", errors.New("counter below the floor"))
		}
		return end(b), nil
	}}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make, MaxBatch: 1})
	err := g.wait(t)
	if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != "log_lost" || !strings.Contains(err.Error(), "toRedis partition") {
		t.Errorf("Run = %v", err)
	}
	if got := committedOffset(t, cfg, "g", "toRedis", wire.PartitionOf("group:1", 2)); got != 2 {
		t.Errorf("committed = %d, want 2: what was durable before", got)
	}
	if g.Ready() == nil {
		t.Error("a stopped group says that it is ready")
	}
}

func TestAPanicStopsTheGroupAndMarksNothing(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	send(t, p, "group:1", "a", "b", "c")
	flushed := false
	s := &stage{
		handle: func(context.Context, []wire.Record) (int64, error) { panic("impossible") },
		flush:  func(context.Context) (int64, error) { flushed = true; return 3, nil },
	}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make})
	err := g.wait(t)
	if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != pipeline.ReasonPanic ||
		!strings.Contains(err.Error(), "impossible") || !strings.Contains(err.Error(), "group_test.go") {
		t.Errorf("Run = %v, want the panic with its stack", err)
	}
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != -1 || flushed {
		t.Errorf("committed = %d, flushed = %v, want neither", got, flushed)
	}
}

func TestAStageMustNotClaimWhatItNeverSaw(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	send(t, p, "group:1", "a")
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { return end(b) + 1, nil }}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make})
	if err := g.wait(t); fault.ReasonOf(err) != pipeline.ReasonContract {
		t.Errorf("Run = %v", err)
	}
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != -1 {
		t.Errorf("committed = %d, want none", got)
	}
}

// writeBehind handles into memory and makes it durable at Flush.
type writeBehind struct {
	mu      sync.Mutex
	buffer  []wire.Record
	durable seen
	next    int64
	fail    atomic.Bool
}

func (w *writeBehind) Handle(_ context.Context, b []wire.Record) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buffer = append(w.buffer, b...)
	return w.next, nil
}

func (w *writeBehind) Flush(context.Context) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail.Load() {
		return 0, fault.New(fault.Fatal, "killed", errDown)
	}
	if len(w.buffer) > 0 {
		w.durable.add(w.buffer)
		w.next = end(w.buffer)
		w.buffer = nil
	}
	return w.next, nil
}

func (w *writeBehind) buffered() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.buffer)
}

func TestWriteBehindIsCoveredByUncommittedOffsets(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	want := numbered(50, "m")
	send(t, p, "group:1", want...)

	// Killed: what was buffered comes again.
	killed := &writeBehind{}
	killed.fail.Store(true)
	g := start(t, cfg, pipeline.GroupConfig{FlushEvery: time.Hour, NewStage: func(context.Context, pipeline.Claim) (pipeline.Stage, error) { return killed, nil }})
	eventually(t, "all are buffered", func() bool { return killed.buffered() == 50 })
	g.cancel()
	if err := g.wait(t); fault.ReasonOf(err) != "killed" {
		t.Errorf("Run = %v, want what the last flush said", err)
	}
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != -1 {
		t.Fatalf("committed = %d after a kill, want none", got)
	}

	// Stopped: the last flush is committed.
	stopped := &writeBehind{}
	g = start(t, cfg, pipeline.GroupConfig{FlushEvery: time.Hour, NewStage: func(context.Context, pipeline.Claim) (pipeline.Stage, error) { return stopped, nil }})
	eventually(t, "all are buffered", func() bool { return stopped.buffered() == 50 })
	g.stop(t)
	if diff := cmp.Diff(want, stopped.durable.values()); diff != "" {
		t.Errorf("durable (-want +got):\n%s", diff)
	}
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != 50 {
		t.Errorf("committed = %d after a stop, want 50", got)
	}
}

func TestFlushComesWhileDurableLags(t *testing.T) {
	for name, with := range map[string]pipeline.GroupConfig{
		"after FlushEvery": {FlushEvery: 20 * time.Millisecond},
		"after FlushIdle":  {FlushEvery: time.Hour, FlushIdle: 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := cluster(t, 1)
			p := producer(t, cfg, "toRedis")
			with.NewStage = func(context.Context, pipeline.Claim) (pipeline.Stage, error) { return &writeBehind{}, nil }
			g := start(t, cfg, with)
			for i := range 3 {
				send(t, p, "group:1", fmt.Sprint(i))
				eventually(t, "it is marked without more traffic", func() bool {
					s := g.State()
					return len(s.Partitions) == 1 && s.Partitions[0].Marked == int64(i+1)
				})
			}
			g.stop(t)
		})
	}
}

func TestTheLastFlushHasTimeOfItsOwn(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	send(t, p, "group:1", "a")
	var handled, tries atomic.Int64
	s := &stage{
		handle: func(context.Context, []wire.Record) (int64, error) { handled.Add(1); return 0, nil },
		flush: func(ctx context.Context) (int64, error) {
			if err := ctx.Err(); err != nil {
				t.Errorf("flush is called with a dead context: %v", err)
			}
			if tries.Add(1) < 3 {
				return 0, fault.New(fault.Transient, "slow", errDown)
			}
			return 1, nil
		},
	}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make, FlushEvery: time.Hour})
	eventually(t, "it is handled", func() bool { return handled.Load() == 1 })
	g.stop(t)
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != 1 {
		t.Errorf("committed = %d, want 1", got)
	}
}

func TestDrainIsBounded(t *testing.T) {
	_, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	send(t, p, "group:1", "a")
	begun := make(chan struct{})
	s := &stage{
		handle: func(ctx context.Context, _ []wire.Record) (int64, error) {
			close(begun)
			<-ctx.Done()
			return 0, fault.New(fault.Transient, "slow", ctx.Err())
		},
		flush: func(ctx context.Context) (int64, error) { return 0, ctx.Err() },
	}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make, DrainTimeout: 100 * time.Millisecond})
	<-begun
	g.stop(t)
	if got := committedOffset(t, cfg, "g", "toRedis", 0); got != -1 {
		t.Errorf("committed = %d, want none", got)
	}
}

type closer struct {
	stage
	closed atomic.Int32
}

func (c *closer) Close() error { c.closed.Add(1); return nil }

func TestAStageIsClosedWithItsClaim(t *testing.T) {
	_, cfg := cluster(t, 1)
	s := &closer{stage: stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { return end(b), nil }}}
	fails := 2
	g := start(t, cfg, pipeline.GroupConfig{NewStage: func(context.Context, pipeline.Claim) (pipeline.Stage, error) {
		if fails > 0 {
			fails--
			return nil, errDown // retried too
		}
		return s, nil
	}})
	eventually(t, "it is ready", func() bool {
		st := g.State()
		return len(st.Partitions) == 1 && st.Partitions[0].Stuck == "" && metric(t, cfg, "tidemark_pipeline_retries_total") == 2
	})
	g.stop(t)
	if s.closed.Load() != 1 {
		t.Errorf("closed %d times", s.closed.Load())
	}
}
