package pipeline_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// TestMembersShareWithoutLoss lets members come and go under load. Every offset
// must be handled, by whoever had it, and no mark may be above what its stage
// had made durable.
func TestMembersShareWithoutLoss(t *testing.T) {
	const partitions, total = 4, 2000
	_, cfg := cluster(t, partitions)
	p := producer(t, cfg, "toRedis")
	var mu sync.Mutex
	handled := make(map[string]int) // value -> times that it became durable
	newStage := func(_ context.Context, c pipeline.Claim) (pipeline.Stage, error) {
		next := max(c.Committed, 0)
		var buffer []wire.Record
		return &stage{
			handle: func(_ context.Context, b []wire.Record) (int64, error) {
				if len(buffer) == 0 && b[0].Offset > next || len(buffer) > 0 && b[0].Offset != end(buffer) {
					t.Errorf("partition %d: %d comes after %d", c.Partition, b[0].Offset, next)
				}
				buffer = append(buffer, b...)
				return next, nil
			},
			flush: func(context.Context) (int64, error) {
				mu.Lock()
				defer mu.Unlock()
				for _, r := range buffer {
					handled[string(r.Value)]++
					next = r.Offset + 1
				}
				buffer = nil
				return next, nil
			},
		}, nil
	}
	member := func() *running {
		return start(t, cfg, pipeline.GroupConfig{NewStage: newStage, FlushEvery: 20 * time.Millisecond, MaxBatch: 20})
	}
	claimed := func(r *running, n int) func() bool { return func() bool { return len(r.State().Partitions) == n } }
	first := member()
	eventually(t, "the first member has everything", claimed(first, partitions))

	var wg sync.WaitGroup
	for k := range 20 {
		wg.Go(func() {
			for i := range total / 20 {
				if err := p.Append(within(t), outs(fmt.Sprint("group:", k), fmt.Sprint(k, "-", i))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	second := member()
	eventually(t, "two members share", func() bool { return claimed(first, 2)() && claimed(second, 2)() })
	first.stop(t)
	eventually(t, "the second takes over", claimed(second, partitions))
	wg.Wait()
	eventually(t, "everything is durable", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handled) == total
	})
	second.stop(t)
	var sum int64
	for n := range int32(partitions) {
		sum += max(committedOffset(t, cfg, "g", "toRedis", n), 0)
	}
	if sum != total {
		t.Errorf("committed %d of %d", sum, total)
	}
	twice := 0
	for _, n := range handled {
		if n > 1 {
			twice++
		}
	}
	// Both members left cleanly, so nothing is read again.
	if twice > 0 {
		t.Errorf("%d records were handled again after a clean hand-over", twice)
	}
}

// TestAStuckPartitionIsGivenUp: a member that retries without end, with a full
// channel behind it, must let go when another member takes the partition.
func TestAStuckPartitionIsGivenUp(t *testing.T) {
	_, cfg := cluster(t, 2)
	p := producer(t, cfg, "toRedis")
	for k := range 20 {
		send(t, p, fmt.Sprint("group:", k), numbered(50, "m")...)
	}
	stuck := &stage{handle: func(context.Context, []wire.Record) (int64, error) {
		return 0, fault.New(fault.Transient, "down", errDown)
	}}
	first := start(t, cfg, pipeline.GroupConfig{NewStage: stuck.make, MaxBatch: 5})
	eventually(t, "both partitions are stuck", func() bool { return metric(t, cfg, "tidemark_pipeline_stuck_partitions") == 2 })
	var got seen
	good := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
	second := start(t, cfg, pipeline.GroupConfig{NewStage: good.make})
	began := time.Now()
	eventually(t, "the second member works", func() bool { return got.len() > 0 })
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the partition was held for %v", took)
	}
	eventually(t, "the first keeps one", func() bool { return len(first.State().Partitions) == 1 })
	second.stop(t)
	first.stop(t)
}

func TestTheGroupComesBackAfterABrokerWasAway(t *testing.T) {
	proxy := newProxy(t)
	_, cfg := cluster(t, 1, kfake.ListenFn(proxy.listen))
	p := producer(t, cfg, "toRedis")
	proxy.down()
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make})
	eventually(t, "it says why it is not ready", func() bool {
		return g.Ready() != nil && metric(t, cfg, "tidemark_pipeline_consumer_errors_total") > 0
	})
	proxy.up()
	eventually(t, "it joins", func() bool { return g.Ready() == nil })
	send(t, p, "group:1", "a")
	eventually(t, "it works", func() bool { return got.len() == 1 })
	proxy.down()
	eventually(t, "it notices", func() bool { return g.Ready() != nil })
	proxy.up()
	send(t, p, "group:1", "b")
	eventually(t, "it works again", func() bool { return slices.Contains(got.values(), "b") })
	eventually(t, "it is ready", func() bool { return g.Ready() == nil })
	g.stop(t)
}

func TestACoordinatorThatIsNotThereIsWaitedFor(t *testing.T) {
	c, cfg := cluster(t, 1)
	var calls atomic.Int32
	c.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if calls.Add(1) > 3 {
			return nil, nil, false
		}
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.ErrorCode = kerr.CoordinatorLoadInProgress.Code
		return resp, nil, true
	})
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { return end(b), nil }}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make})
	eventually(t, "it joins", func() bool { return g.Ready() == nil })
	g.stop(t)
}

func TestAGroupThatMayNotReadStops(t *testing.T) {
	c, cfg := cluster(t, 1)
	c.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp, nil, true
	})
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { return end(b), nil }}
	g := start(t, cfg, pipeline.GroupConfig{NewStage: s.make})
	if err := g.wait(t); fault.ReasonOf(err) != pipeline.ReasonNotAuthorized || fault.ClassOf(err) != fault.Fatal {
		t.Errorf("Run = %v", err)
	}
}
