package bench

import (
	"context"
	"fmt"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Prepare gives the batches of a partition, those of its warm-up first, and how
// many those are.
func Prepare(cfg StageConfig, partition int32) (batches [][]wire.Record, warm int, err error) {
	if err := cfg.fill(); err != nil {
		return nil, 0, err
	}
	batches, err = newFeeder(&cfg, partition).take(cfg.Batches + cfg.warm())
	return batches, cfg.warm(), err
}

// Throughput is what a report tells of its points, between so many messages.
var Throughput = throughput

// MemoryText is the line of a report about memory over time.
var MemoryText = memoryText

// Chunks gives the records of a partition's first batches as they are made in
// pieces of so many batches, and how many of them are made at once.
func Chunks(cfg StageConfig, pieces ...int) (all [][]wire.Record, atOnce int, err error) {
	if err := cfg.fill(); err != nil {
		return nil, 0, err
	}
	f := newFeeder(&cfg, 0)
	for _, n := range pieces {
		batches, err := f.take(n)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, batches...)
	}
	return all, cfg.chunk(), nil
}

// ReadHistory does each kind of read of a history once.
func ReadHistory(ctx context.Context, cfg StageConfig) error {
	for _, r := range cfg.readsOf() {
		if err := r.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}
