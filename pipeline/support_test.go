package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// deadline bounds everything that a test waits for.
const deadline = 30 * time.Second

func cluster(t testing.TB, partitions int32, opts ...kfake.Opt) (*kfake.Cluster, pipeline.Config) {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1),
		kfake.SeedTopics(partitions, "toRedis", "sequenced"),
		kfake.SeedTopics(1, "deadLetter"),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, pipeline.Config{Brokers: c.ListenAddrs(), Registerer: prometheus.NewRegistry(), Logger: logger(t)}
}

func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func producer(t testing.TB, cfg pipeline.Config, topic string) *pipeline.Producer {
	t.Helper()
	p, err := pipeline.NewProducer(pipeline.ProducerConfig{Config: cfg, Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("close producer: %v", err)
		}
	})
	return p
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	stop := time.After(deadline)
	for !ok() {
		select {
		case <-tick.C:
		case <-stop:
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

func outs(key string, values ...string) []wire.Out {
	var out []wire.Out
	for _, v := range values {
		out = append(out, wire.Out{Partition: -1, Key: key, Value: []byte(v)})
	}
	return out
}

func numbered(n int, prefix string) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%s%d", prefix, i))
	}
	return out
}

var readers atomic.Int64

// stored reads a partition back, as it stands in the fake's log.
func stored(t testing.TB, cfg pipeline.Config, topic string, partition int32, n int) []wire.Record {
	t.Helper()
	var mu sync.Mutex
	var got []wire.Record
	s := &stage{handle: func(_ context.Context, batch []wire.Record) (int64, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range batch {
			if r.Partition == partition {
				got = append(got, r)
			}
		}
		return batch[len(batch)-1].Offset + 1, nil
	}}
	name := fmt.Sprint("reader-", readers.Add(1))
	g := start(t, cfg, pipeline.GroupConfig{Group: name, Topic: topic, NewStage: s.make})
	eventually(t, fmt.Sprintf("%d records stand in %s/%d", n, topic, partition), func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) >= n
	})
	g.stop(t)
	return got
}

func values(records []wire.Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, string(r.Value))
	}
	return out
}

// stage is a pipeline.Stage made of functions.
type stage struct {
	handle func(context.Context, []wire.Record) (int64, error)
	flush  func(context.Context) (int64, error)
}

func (s *stage) make(context.Context, pipeline.Claim) (pipeline.Stage, error) { return s, nil }

func (s *stage) Handle(ctx context.Context, batch []wire.Record) (int64, error) {
	return s.handle(ctx, batch)
}

func (s *stage) Flush(ctx context.Context) (int64, error) {
	if s.flush == nil {
		return 0, nil
	}
	return s.flush(ctx)
}

// running is a group whose Run is under way.
type running struct {
	*pipeline.Group
	cancel context.CancelFunc
	done   chan error
}

func start(t testing.TB, cfg pipeline.Config, gc pipeline.GroupConfig) *running {
	t.Helper()
	gc.Config = cfg
	if gc.Topic == "" {
		gc.Topic = "toRedis"
	}
	if gc.Group == "" {
		gc.Group = "g"
	}
	if gc.DeadLetters == nil {
		gc.DeadLetters = producer(t, cfg, "")
	}
	g, err := pipeline.NewGroup(gc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Group: g, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			r.done <- err
			if t.Failed() {
				t.Logf("Run = %v", err)
			}
		case <-time.After(deadline):
			t.Error("Run does not end")
		}
	})
	return r
}

// stop ends the group and expects a clean drain.
func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Fatalf("Run = %v, want a clean drain", err)
	}
}

func (r *running) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(deadline):
		t.Fatal("Run does not end")
		return nil
	}
}

// committedOffset tells what a group committed.
func committedOffset(t testing.TB, cfg pipeline.Config, group, topic string, partition int32) int64 {
	t.Helper()
	offset, err := pipeline.CommittedForTest(cfg, group, topic, partition)
	if err != nil {
		t.Fatal(err)
	}
	return offset
}

var errDown = errors.New("down")

// seen collects records, with no order between partitions.
type seen struct {
	mu      sync.Mutex
	records []wire.Record
}

func (s *seen) add(batch []wire.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, batch...)
}

func (s *seen) values() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return values(s.records)
}

func (s *seen) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records)
}

func end(batch []wire.Record) int64 { return batch[len(batch)-1].Offset + 1 }
