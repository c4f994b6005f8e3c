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

// Troubles is what stands behind the error of a trial that stands still, of
// processes that have such an admin address and said so much.
func Troubles(ctx context.Context, said string, admins ...string) (string, error) {
	s := &system{}
	for i, a := range admins {
		p := &process{name: fmt.Sprint("role ", i), said: &tail{}, where: map[string]string{"admin": a}}
		if _, err := p.said.Write([]byte(said)); err != nil {
			return "", err
		}
		s.procs = append(s.procs, p)
	}
	return s.troubles(ctx), nil
}
