package pipeline

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/IBM/sarama"
	"github.com/cenkalti/backoff/v5"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

const (
	// scanFetch is about how much one fetch of a scan reads.
	scanFetch = 1 << 20
	// scanPatience is how long one request may fail. A scan may take hours, and a
	// broker that is restarted in between is no end of it.
	scanPatience = 30 * time.Second
)

// Scan gives every record that stands in a topic when its partition is begun,
// partition by partition, each in order. It belongs to no group and commits
// nothing. Memory is one fetch. What fails and may heal is tried again for 30 s; after
// an error it ends.
func Scan(ctx context.Context, c Config, topic string) iter.Seq2[wire.Record, error] {
	return ScanBetween(ctx, c, topic, nil, nil)
}

// ErrLogStart is wrapped where the log does not hold any more what a scan is to
// begin with.
var ErrLogStart = errors.New("the log has given up records from there")

// ScanBetween is Scan of a stretch: from the offsets of from, and below those
// of to. Where from does not name a partition it is read from its start, where
// to does not, up to its end.
func ScanBetween(ctx context.Context, c Config, topic string, from, to map[int32]int64) iter.Seq2[wire.Record, error] {
	return func(yield func(wire.Record, error) bool) {
		cfg, err := c.consumerConfig()
		if err != nil {
			yield(wire.Record{}, err)
			return
		}
		client, err := sarama.NewClient(c.Brokers, cfg)
		if err != nil {
			yield(wire.Record{}, fmt.Errorf("scan %s: connect: %w", topic, sortError(err)))
			return
		}
		defer client.Close()
		partitions, err := client.Partitions(topic)
		if err != nil {
			yield(wire.Record{}, fmt.Errorf("scan %s: %w", topic, sortError(err)))
			return
		}
		for _, p := range partitions {
			first, given := from[p]
			last, bounded := to[p]
			if !given {
				first = -1
			}
			if !bounded {
				last = math.MaxInt64
			}
			if !scanPartition(ctx, client, topic, p, first, last, yield) {
				return
			}
		}
	}
}

// scanPartition reads from first, or the start if that is negative, up to below
// last. It tells whether the scan goes on.
func scanPartition(ctx context.Context, client sarama.Client, topic string, partition int32, first, last int64, yield func(wire.Record, error) bool) bool {
	fail := func(err error) bool {
		yield(wire.Record{}, fmt.Errorf("scan %s: partition %d: %w", topic, partition, sortError(err)))
		return false
	}
	end, err := patiently(ctx, func() (int64, error) { return listedOffset(client, topic, partition, sarama.OffsetNewest) })
	if err != nil {
		return fail(err)
	}
	end = min(end, last)
	next, err := patiently(ctx, func() (int64, error) { return listedOffset(client, topic, partition, sarama.OffsetOldest) })
	if err != nil {
		return fail(err)
	}
	if first >= 0 {
		if first < next {
			return fail(fmt.Errorf("offset %d, it begins at %d: %w", first, next, ErrLogStart))
		}
		next = first
	}
	for next < end {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		f, err := patiently(ctx, func() (fetched, error) { return fetchRecords(client, topic, partition, next, scanFetch) })
		if err != nil {
			return fail(err)
		}
		if f.next <= next {
			return fail(errNoRecords)
		}
		for _, r := range f.records {
			if r.Offset >= end {
				break
			}
			if !yield(r, nil) {
				return false
			}
		}
		next = f.next
	}
	return true
}

// patiently asks again while what fails may heal, for scanPatience.
func patiently[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	return backoff.Retry(ctx, func() (T, error) {
		v, err := ask()
		if err != nil && fault.ClassOf(sortError(err)) != fault.Transient {
			return v, backoff.Permanent(err)
		}
		return v, err
	}, backoff.WithBackOff(waits(50*time.Millisecond, 2*time.Second)), backoff.WithMaxElapsedTime(scanPatience))
}
