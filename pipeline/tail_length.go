package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// TailLengthConfig says whose tail to measure.
type TailLengthConfig struct {
	Config
	// Topic is the sequenced log. Empty: Config.Topics().Sequenced.
	Topic string
	// Group is the consumer group that writes history. Needed.
	Group string
	// Every is how often Kafka is asked. 0: 1 s.
	Every time.Duration
	// Stale is how long an answer counts when no newer one comes. 0: 30 s.
	Stale time.Duration
}

// TailLength knows how many records of each partition of the sequenced log
// history may not have yet. It asks in the background, so that whoever has to
// know never waits for Kafka: an answer is at most Stale old, and between two
// looks the tail grows by what is appended in Every.
type TailLength struct {
	conf     TailLengthConfig
	log      *slog.Logger
	offsets  *Offsets
	failures *prometheus.CounterVec
	records  *prometheus.GaugeVec

	mu     sync.Mutex
	last   map[int32]int64
	lastAt time.Time
}

// NewTailLength checks conf and starts nothing.
func NewTailLength(conf TailLengthConfig) (*TailLength, error) {
	var errs []error
	if conf.Group == "" {
		errs = append(errs, errors.New("tail length group: the consumer group that writes history must be named"))
	}
	if conf.Every < 0 || conf.Stale < 0 {
		errs = append(errs, fmt.Errorf("tail length every %s, stale %s: neither may be negative", conf.Every, conf.Stale))
	}
	offsets, err := NewOffsets(OffsetsConfig{Config: conf.Config})
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	conf.Topic = cmp.Or(conf.Topic, conf.Config.Topics().Sequenced)
	conf.Every = cmp.Or(conf.Every, time.Second)
	conf.Stale = cmp.Or(conf.Stale, 30*time.Second)
	return &TailLength{
		conf: conf, log: conf.logger(), offsets: offsets,
		failures: counters(conf.Registerer, "tidemark_pipeline_tail_length_failures_total", "Looks at the length of the tail that failed, by reason.", "reason"),
		records:  gauges(conf.Registerer, "tidemark_pipeline_tail_length_records", "Records of the sequenced log that history may not have yet, by partition.", "partition"),
	}, nil
}

// Run looks at the lengths until ctx is done. It returns an error only when
// that does not heal.
func (t *TailLength) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, t.offsets.Close()) }()
	for failing := false; ; {
		err := t.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case fault.ClassOf(err) == fault.Fatal:
			return fmt.Errorf("length of the tail: %w", err)
		case err != nil:
			t.failures.WithLabelValues(fault.ReasonOf(err)).Inc()
			if !failing {
				t.log.Warn("the length of the tail cannot be told", "group", t.conf.Group, "topic", t.conf.Topic, "error", err)
			}
		}
		failing = err != nil
		if !tailSleep(ctx, t.conf.Every) {
			return nil
		}
	}
}

func (t *TailLength) look(ctx context.Context) error {
	lengths, err := t.offsets.behind(ctx, t.conf.Group, t.conf.Topic)
	if err != nil {
		return err
	}
	for p, n := range lengths {
		t.records.WithLabelValues(strconv.Itoa(int(p))).Set(float64(n))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.lastAt = lengths, time.Now()
	return nil
}

// Records gives the length of a partition's tail as it was lately; known is
// false before the first look, and when the looks have failed for too long. It
// never waits.
func (t *TailLength) Records(partition int32) (records int64, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.lastAt) > t.conf.Stale {
		return 0, false
	}
	records, known = t.last[partition]
	return records, known
}

// behind gives how many records of each partition group has not taken. Unlike
// Lag it reads no record.
func (o *Offsets) behind(ctx context.Context, group, topic string) (map[int32]int64, error) {
	client, partitions, err := o.partitions(topic)
	if err != nil {
		return nil, err
	}
	// Committed offsets first: ends that are asked for later are not below them.
	from, err := o.Committed(ctx, group, topic)
	if err != nil {
		return nil, err
	}
	var fresh []int32
	for p, at := range from {
		if at == noOffset {
			fresh = append(fresh, p)
		}
	}
	starts, err := o.listed(ctx, client, topic, fresh, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	ends, err := o.listed(ctx, client, topic, partitions, sarama.OffsetNewest)
	if err != nil {
		return nil, err
	}
	out := make(map[int32]int64, len(partitions))
	for _, p := range partitions {
		at, never := starts[p]
		if !never {
			at = from[p]
		}
		out[p] = max(ends[p]-at, 0)
	}
	return out, nil
}
