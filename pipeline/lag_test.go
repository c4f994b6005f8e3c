package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

func (l *tailLog) offsets() *pipeline.Offsets {
	l.tb.Helper()
	o, err := pipeline.NewOffsets(pipeline.OffsetsConfig{Config: l.config, Poll: 5 * time.Millisecond})
	if err != nil {
		l.tb.Fatal(err)
	}
	l.tb.Cleanup(func() {
		if err := o.Close(); err != nil {
			l.tb.Error(err)
		}
	})
	return o
}

func TestLag(t *testing.T) {
	l := newTailLog(t, 3)
	before := time.Now().Add(-time.Second)
	byPartition := make(map[int32]watermark.ConversationID)
	for _, id := range []watermark.ConversationID{"group:a", "group:b", "group:c", "group:d", "group:e", "group:f", "group:g"} {
		byPartition[l.partition(id)] = id
	}
	if len(byPartition) != 3 {
		t.Fatal("the ids do not reach all partitions")
	}
	for range 5 {
		l.add(byPartition[0], tailRun(1))
		l.add(byPartition[1], tailRun(1))
	}
	l.commit(0, 2)
	l.commit(1, 1)
	if err := l.cluster.DeleteRecords(tailTopic, 1, 3); err != nil {
		t.Fatal(err)
	}
	l.retain("3600000")
	o := l.offsets()
	groups := pipeline.GroupTopic{Group: tailGroup, Topic: tailTopic}
	got, err := o.Lag(t.Context(), groups)
	if err != nil {
		t.Fatal(err)
	}
	want := []pipeline.PartitionLag{
		{Group: tailGroup, Topic: tailTopic, Partition: 0, Committed: 2, Start: 0, End: 5, Records: 3, Retention: time.Hour},
		{Group: tailGroup, Topic: tailTopic, Partition: 1, Committed: 1, Start: 3, End: 5, Records: 2, Lost: 2, Retention: time.Hour},
		{Group: tailGroup, Topic: tailTopic, Partition: 2, Committed: -1, Start: 0, End: 0, Retention: time.Hour},
	}
	for i := range got {
		if old := got[i].Oldest; got[i].Records > 0 && (old.Before(before) || old.After(time.Now())) {
			t.Errorf("partition %d: oldest record is of %s", i, old)
		} else if got[i].Records == 0 && !old.IsZero() {
			t.Errorf("partition %d: a record of %s where there is none", i, old)
		}
		if age := got[i].Age(time.Now()); age < 0 || age > time.Minute {
			t.Errorf("partition %d: age %s", i, age)
		}
		got[i].Oldest = time.Time{}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lag (-want +got):\n%s", diff)
	}

	t.Run("a group that never was", func(t *testing.T) {
		got, err := o.Committed(t.Context(), "nobody", tailTopic)
		if diff := cmp.Diff(map[int32]int64{0: -1, 1: -1, 2: -1}, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
	t.Run("a topic that is not there", func(t *testing.T) {
		if _, err := o.Ends(t.Context(), "nothing"); err == nil {
			t.Error("no error")
		}
	})
}

// retain sets the topic's retention.ms.
func (l *tailLog) retain(ms string) {
	l.tb.Helper()
	err := pipeline.AdminForTest(l.config, func(a sarama.ClusterAdmin) error {
		return a.AlterConfig(sarama.TopicResource, tailTopic, map[string]*string{"retention.ms": &ms}, false)
	})
	if err != nil {
		l.tb.Fatal(err)
	}
}

func TestRetentionUsed(t *testing.T) {
	now := time.Now()
	tests := []struct {
		name string
		lag  pipeline.PartitionLag
		want float64
	}{
		{"nothing waits", pipeline.PartitionLag{Retention: time.Hour}, 0},
		{"half of it", pipeline.PartitionLag{Retention: time.Hour, Oldest: now.Add(-30 * time.Minute)}, 0.5},
		{"deleted any moment", pipeline.PartitionLag{Retention: time.Hour, Oldest: now.Add(-2 * time.Hour)}, 2},
		{"kept for ever", pipeline.PartitionLag{Oldest: now.Add(-2 * time.Hour)}, 0},
	}
	for _, tt := range tests {
		if got := tt.lag.RetentionUsed(now); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestATopicThatIsKeptForEver(t *testing.T) {
	l := newTailLog(t, 1)
	l.retain("-1")
	got, err := l.offsets().Lag(t.Context(), pipeline.GroupTopic{Group: tailGroup, Topic: tailTopic})
	if err != nil || got[0].Retention != 0 {
		t.Errorf("retention %v, %v", got, err)
	}
}

func TestAwaitCommitted(t *testing.T) {
	l := newTailLog(t, 2)
	id := watermark.ConversationID("group:a")
	l.add(id, tailRun(1))
	l.add(id, tailRun(2))
	o := l.offsets()
	ends, err := o.Ends(t.Context(), tailTopic)
	if err != nil || ends[l.partition(id)] != 2 {
		t.Fatalf("ends %v, %v", ends, err)
	}
	l.commit(l.partition(id), 1)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = o.AwaitCommitted(short, tailGroup, tailTopic, ends)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("error = %v, want the deadline and what is missing", err)
	}
	done := make(chan error, 1)
	go func() { done <- o.AwaitCommitted(t.Context(), tailGroup, tailTopic, ends) }()
	l.commit(l.partition(id), 2)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestOffsetsAfterClose(t *testing.T) {
	l := newTailLog(t, 1)
	o := l.offsets()
	if _, err := o.Ends(t.Context(), tailTopic); err != nil {
		t.Fatal(err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Ends(t.Context(), tailTopic); err == nil {
		t.Error("no error after Close")
	}
}

func TestLagMonitor(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	l.add(tailConv, tailRun(2))
	l.commit(0, 1)
	l.retain("120000")
	reg := prometheus.NewRegistry()
	conf := l.config
	conf.Registerer = reg
	m, err := pipeline.NewLagMonitor(pipeline.LagMonitorConfig{
		Config: conf, Every: 5 * time.Millisecond,
		Groups: []pipeline.GroupTopic{{Group: tailGroup, Topic: tailTopic}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	u := &tailUnder{tb: t, reg: reg}
	has := func(name string) bool {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == name {
				return true
			}
		}
		return false
	}
	tailAwait(t, "one record of lag", func() bool { return u.metric("tidemark_pipeline_lag_records") == 1 })
	if age := u.metric("tidemark_pipeline_lag_seconds"); age < 0 || age > 60 {
		t.Errorf("age %v", age)
	}
	if used := u.metric("tidemark_pipeline_lag_retention_ratio"); used <= 0 || used > 1 {
		t.Errorf("%v of the retention is used", used)
	}
	if left := u.metric("tidemark_pipeline_lag_headroom_seconds"); left <= 60 || left > 120 {
		t.Errorf("%v s of 120 until it is deleted", left)
	}
	if err := m.Ready(); err != nil {
		t.Errorf("not ready after a look: %v", err)
	}
	l.commit(0, 2)
	tailAwait(t, "no lag", func() bool {
		return u.metric("tidemark_pipeline_lag_records") == 0 && u.metric("tidemark_pipeline_lag_seconds") == 0
	})

	// A stale value would say that all is well.
	h := l.cluster.Fault(kfake.Fault{Keys: tailKeys(keyListOffsets), Err: kerr.NotLeaderForPartition, Count: -1})
	tailAwait(t, "the values are gone", func() bool { return !has("tidemark_pipeline_lag_records") })
	tailAwait(t, "a failure is counted", func() bool { return u.metric("tidemark_pipeline_lag_failures_total") > 0 })
	if err := m.Ready(); err == nil {
		t.Error("ready although it cannot look")
	}
	h.Remove()
	tailAwait(t, "the values are back", func() bool { return has("tidemark_pipeline_lag_records") })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLagMonitorConfig(t *testing.T) {
	_, err := pipeline.NewLagMonitor(pipeline.LagMonitorConfig{Groups: []pipeline.GroupTopic{{Group: "g"}}, Every: -1})
	for _, want := range []string{"brokers", "neither may be empty", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not tell %q: %v", want, err)
		}
	}
	if fault.ClassOf(err) == fault.Poison {
		t.Error("a wrong configuration is no record's fault")
	}
}
