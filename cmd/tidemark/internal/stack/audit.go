package stack

import (
	"context"
	"iter"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Settle waits until every worker has committed all that stands in its topic:
// first toRedis, which writes what the others read.
func (s *Stack) Settle(ctx context.Context) error {
	topics := s.kafka.Topics()
	for _, g := range []struct {
		role  Role
		topic string
	}{{ToRedis, topics.ToRedis}, {ToMongo, topics.Sequenced}, {ToPush, topics.Sequenced}} {
		if !s.runs(g.role) {
			continue
		}
		ends, err := s.offsets.Ends(ctx, g.topic)
		if err != nil {
			return err
		}
		if err := s.offsets.AwaitCommitted(ctx, s.group(g.role), g.topic, ends); err != nil {
			return err
		}
	}
	return nil
}

// Audit compares the sequenced log, history and Redis.
func (s *Stack) Audit(ctx context.Context) (*audit.Report, error) {
	refused := 0
	rep, err := audit.Run(ctx, audit.Sources{Log: s.sequenced(ctx, &refused), History: s.history, Hot: s.hot})
	if err != nil {
		return nil, err
	}
	rep.Refused = refused
	return rep, nil
}

// sequenced passes over records that are none and counts them: every role does,
// and toMongo makes dead letters of them.
func (s *Stack) sequenced(ctx context.Context, refused *int) iter.Seq2[watermark.Record, error] {
	return func(yield func(watermark.Record, error) bool) {
		for rec, err := range pipeline.Scan(ctx, s.kafka, s.kafka.Topics().Sequenced) {
			var out watermark.Record
			if err == nil {
				out, err = wire.DecodeRecord(rec)
				if fault.ClassOf(err) == fault.Poison {
					*refused++
					continue
				}
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

// DeadLetters gives what stands in the dead letter topic.
func (s *Stack) DeadLetters(ctx context.Context) iter.Seq2[wire.DeadLetter, error] {
	return func(yield func(wire.DeadLetter, error) bool) {
		for rec, err := range pipeline.Scan(ctx, s.kafka, s.kafka.Topics().DeadLetter) {
			var out wire.DeadLetter
			if err == nil && wire.IsMark(&rec) {
				continue // what was done about one, see package deadletters
			}
			if err == nil {
				out, err = wire.DecodeDeadLetter(rec)
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

// Produce publishes records on the toRedis topic, as an outside producer does.
func (s *Stack) Produce(ctx context.Context, outs []wire.Out) error {
	for i := range outs {
		outs[i].Topic = s.kafka.Topics().ToRedis
	}
	return s.producer.Append(ctx, outs)
}
