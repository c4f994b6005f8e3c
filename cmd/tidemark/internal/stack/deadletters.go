package stack

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/deadletters"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// replayExtra is how much larger a replayed record may be than a producer's.
// The topics have room for it, since they have for a dead letter.
const replayExtra = 1024

// OpenDeadLetters gives the dead letters of a deployment.
func OpenDeadLetters(ctx context.Context, cfg config.Config, logger *slog.Logger) (*deadletters.Box, func() error, error) {
	k, err := Kafka(cfg, logger)
	if err != nil {
		return nil, nil, err
	}
	offsets, err := pipeline.NewOffsets(pipeline.OffsetsConfig{Config: k})
	if err != nil {
		return nil, nil, err
	}
	roomy := k
	roomy.MaxRecordBytes += replayExtra
	producer, err := pipeline.NewProducer(pipeline.ProducerConfig{Config: roomy})
	if err != nil {
		return nil, nil, errors.Join(err, offsets.Close())
	}
	closing := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(producer.Close(ctx), offsets.Close())
	}
	topics := k.Topics()
	box, err := deadletters.New(deadletters.Config{
		Log: log{offsets, k}, Appender: producer, Topic: topics.DeadLetter, Input: topics.ToRedis, Sequenced: topics.Sequenced, Offline: topics.Offline,
	})
	if err != nil {
		return nil, nil, errors.Join(err, closing())
	}
	return box, closing, nil
}

// log reads topics for tools.
type log struct {
	*pipeline.Offsets
	kafka pipeline.Config
}

func (l log) Scan(ctx context.Context, topic string, from, to map[int32]int64) iter.Seq2[wire.Record, error] {
	return pipeline.ScanBetween(ctx, l.kafka, topic, from, to)
}
