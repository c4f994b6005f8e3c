package pipeline_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// A stage that fails for longer than a member may keep silent stays in its
// claim, shows why, and holds up nobody else.
func TestAStuckPartitionOutlivesTheSessionAndStopsNoOther(t *testing.T) {
	const session = 2 * time.Second
	_, cfg := cluster(t, 2, kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}))
	p := producer(t, cfg, "toRedis")
	put := func(partition int32, value string) {
		t.Helper()
		if err := p.Append(within(t), []wire.Out{{Partition: partition, Value: []byte(value)}}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	claims := make(map[int32]int)
	var healed atomic.Bool
	var got seen
	gc := pipeline.GroupConfig{NewStage: func(_ context.Context, c pipeline.Claim) (pipeline.Stage, error) {
		mu.Lock()
		defer mu.Unlock()
		claims[c.Partition]++
		return &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
			if c.Partition == 0 && !healed.Load() {
				return 0, fault.New(fault.Transient, "history_down", errDown)
			}
			got.add(b)
			return end(b), nil
		}}, nil
	}}
	g := start(t, cfg, gc.WithSession(session))
	put(0, "waits")
	began := time.Now()
	for i := 0; time.Since(began) < 2*session; i++ {
		put(1, "goes on")
		eventually(t, "the other partition goes on", func() bool { return got.len() == i+1 })
	}
	if err := g.Ready(); err == nil || !strings.Contains(err.Error(), "toRedis/0 is stuck at 0: retrying handle: history_down for") ||
		strings.Contains(err.Error(), "toRedis/1") {
		t.Errorf("Ready = %v", err)
	}
	if got, want := stuckSeries(t, cfg), `stage="g" topic="toRedis" partition="0" reason="history_down"`; got[want] < session.Seconds() || len(got) != 1 {
		t.Errorf("stuck = %v, want only %s, for more than %v", got, want, session)
	}
	healed.Store(true)
	eventually(t, "it goes on", func() bool { return g.Ready() == nil })
	if got := stuckSeries(t, cfg); len(got) != 0 {
		t.Errorf("stuck = %v when nothing is", got)
	}
	g.stop(t)
	if claims[0] != 1 || claims[1] != 1 {
		t.Errorf("claims = %v: the session did not last", claims)
	}
	for p := range int32(2) {
		if committedOffset(t, cfg, "g", "toRedis", p) < 1 {
			t.Errorf("partition %d: nothing is committed", p)
		}
	}
}

// stuckSeries gives the stuck partitions, as the metric names them.
func stuckSeries(t testing.TB, cfg pipeline.Config) map[string]float64 {
	t.Helper()
	families, err := cfg.Registerer.(interface {
		Gather() ([]*family, error)
	}).Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		if f.GetName() != "tidemark_pipeline_stuck_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := make(map[string]string)
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			var parts []string
			for _, name := range []string{"stage", "topic", "partition", "reason"} {
				parts = append(parts, name+`="`+labels[name]+`"`)
			}
			out[strings.Join(parts, " ")] = m.GetGauge().GetValue()
		}
	}
	return out
}
