package pipeline

import (
	"context"
	"fmt"
	"iter"
	"math"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// scanFetch is about how much one fetch of a scan reads.
const scanFetch = 1 << 20

// Scan gives every record that stands in a topic when its partition is begun,
// partition by partition, each in order. It belongs to no group and commits
// nothing. Memory is one fetch. After an error it ends.
func Scan(ctx context.Context, c Config, topic string) iter.Seq2[wire.Record, error] {
	return scan(ctx, c, topic, func(int32) int64 { return math.MaxInt64 })
}

// ScanBelow is Scan up to below the given offset of each partition; one that is
// not named is left out.
func ScanBelow(ctx context.Context, c Config, topic string, below map[int32]int64) iter.Seq2[wire.Record, error] {
	return scan(ctx, c, topic, func(p int32) int64 { return below[p] })
}

func scan(ctx context.Context, c Config, topic string, below func(int32) int64) iter.Seq2[wire.Record, error] {
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
			if !scanPartition(ctx, client, topic, p, below(p), yield) {
				return
			}
		}
	}
}

// scanPartition tells whether the scan goes on.
func scanPartition(ctx context.Context, client sarama.Client, topic string, partition int32, below int64, yield func(wire.Record, error) bool) bool {
	fail := func(err error) bool {
		yield(wire.Record{}, fmt.Errorf("scan %s: partition %d: %w", topic, partition, sortError(err)))
		return false
	}
	end, err := listedOffset(client, topic, partition, sarama.OffsetNewest)
	if err != nil {
		return fail(err)
	}
	end = min(end, below)
	next, err := listedOffset(client, topic, partition, sarama.OffsetOldest)
	if err != nil {
		return fail(err)
	}
	for next < end {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		f, err := fetchRecords(client, topic, partition, next, scanFetch)
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
