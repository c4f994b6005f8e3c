package pipeline_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/pipeline"
)

var lagOf = pipeline.GroupTopic{Group: tailGroup, Topic: tailTopic}

// lag gives the lag of a log with one partition.
func (l *tailLog) lag(o *pipeline.Offsets) pipeline.PartitionLag {
	l.tb.Helper()
	got, err := o.Lag(l.tb.Context(), lagOf)
	if err != nil || len(got) != 1 {
		l.tb.Fatalf("%v, %v", got, err)
	}
	return got[0]
}

// TestLagOfAnIdlePartition: nobody reads and nothing comes, and the age grows
// all the same, since it is the waiting record's.
func TestLagOfAnIdlePartition(t *testing.T) {
	l := newTailLog(t, 1)
	hourAgo := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	for _, at := range []time.Time{hourAgo, hourAgo.Add(time.Minute)} {
		if err := l.client.ProduceSync(t.Context(), &kgo.Record{Topic: tailTopic, Timestamp: at, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	o := l.offsets()
	if got := l.lag(o); got.Records != 2 || !got.Oldest.Equal(hourAgo) {
		t.Errorf("a group that never was: %d records, the oldest of %v, want 2 of %v", got.Records, got.Oldest, hourAgo)
	}
	l.commit(0, 1)
	if got := l.lag(o); got.Records != 1 || !got.Oldest.Equal(hourAgo.Add(time.Minute)) {
		t.Errorf("a group without members: %d records, the oldest of %v", got.Records, got.Oldest)
	}
	l.commit(0, 2)
	if got := l.lag(o); got.Records != 0 || !got.Oldest.IsZero() {
		t.Errorf("all is read: %d records, the oldest of %v", got.Records, got.Oldest)
	}
}

// TestLagReadsARecordOnce: a group that stands still for an hour must not cost
// a batch every few seconds.
func TestLagReadsARecordOnce(t *testing.T) {
	l := newTailLog(t, 1)
	l.add(tailConv, tailRun(1))
	l.add(tailConv, tailRun(2))
	l.commit(0, 0)
	var fetches atomic.Int32
	l.cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		l.cluster.KeepControl()
		fetches.Add(1)
		return nil, nil, false
	})
	o := l.offsets()
	for range 5 {
		l.lag(o)
	}
	if n := fetches.Load(); n != 1 {
		t.Errorf("%d fetches for one record", n)
	}
	l.commit(0, 1)
	l.lag(o)
	if n := fetches.Load(); n != 2 {
		t.Errorf("%d fetches for two records", n)
	}
}

// TestMarksOfTransactionsAreNoLag: no consumer ever sees them, so nobody would
// commit past them.
func TestMarksOfTransactionsAreNoLag(t *testing.T) {
	l := newTailLog(t, 1)
	client, err := kgo.NewClient(kgo.SeedBrokers(l.config.Brokers...), kgo.TransactionalID("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 2 {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: tailTopic, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
	}
	o := l.offsets()
	// Record, mark, record, mark.
	l.commit(0, 1)
	if got := l.lag(o); got.End != 4 || got.Records != 2 || got.Oldest.IsZero() {
		t.Errorf("before the second record: %+v", got)
	}
	l.commit(0, 3)
	if got := l.lag(o); got.Records != 0 || !got.Oldest.IsZero() {
		t.Errorf("behind the last record: %+v", got)
	}
}

// TestMembers: those who read now.
func TestMembers(t *testing.T) {
	l := newTailLog(t, 1)
	o := l.offsets()
	members := func(group string) int {
		n, err := o.Members(t.Context(), group)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := members("nobody"); n != 0 {
		t.Errorf("a group that never was has %d members", n)
	}
	s := &stage{}
	g, err := pipeline.NewGroup(pipeline.GroupConfig{Config: l.config, Group: "readers", Topic: tailTopic, NewStage: s.make, DeadLetters: producer(t, l.config, tailTopic)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	tailAwait(t, "one member", func() bool { return members("readers") == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	tailAwait(t, "none is left", func() bool { return members("readers") == 0 })
}

func TestHeadroom(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name string
		lag  pipeline.PartitionLag
		want time.Duration
		ok   bool
	}{
		{"nothing waits", pipeline.PartitionLag{Retention: time.Hour}, time.Hour, true},
		{"half of it", pipeline.PartitionLag{Retention: time.Hour, Oldest: now.Add(-30 * time.Minute)}, 30 * time.Minute, true},
		{"deleted any moment", pipeline.PartitionLag{Retention: time.Hour, Oldest: now.Add(-2 * time.Hour)}, 0, true},
		{"kept for ever", pipeline.PartitionLag{Oldest: now.Add(-2 * time.Hour)}, 0, false},
	} {
		if got, ok := tt.lag.Headroom(now); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %v %v, want %v %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}
