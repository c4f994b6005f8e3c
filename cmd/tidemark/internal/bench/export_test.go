package bench

import "github.com/tidemark-im/tidemark/pipeline/wire"

// Prepare gives the batches of a partition, those of its warm-up first, and how
// many those are.
func Prepare(cfg StageConfig, partition int32) (batches [][]wire.Record, warm int, err error) {
	if err := cfg.fill(); err != nil {
		return nil, 0, err
	}
	batches, err = prepare(&cfg, partition, cfg.Batches+cfg.warm())
	return batches, cfg.warm(), err
}

// MemoryText is the line of a report about memory over time.
var MemoryText = memoryText
