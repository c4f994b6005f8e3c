// Package toredis is the logic of the owner of a conversation: it takes the
// records of one partition of the toRedis topic, has Redis decide them, and
// appends what was decided to the sequenced log.
//
// It promises, for each batch that Handle is given:
//   - The order of effects is script, dead letters, sequenced records, answers,
//     floors, durable offset; each step begins after everything of the one
//     before is acknowledged. So an offset is only reported durable when all
//     that follows from it stands, and an input that a cold owner finds below
//     the conversation's input mark without knowing it has been dead-lettered.
//   - A conversation's next record is appended only after its last one is
//     acknowledged; records of different conversations go together. A record
//     holds at most 200 inputs' events and 512 KiB, unless a single message is
//     larger; the events of one input are never torn apart.
//   - A message that the sequenced log could not take is refused before it gets
//     a seq, since a seq that was given and cannot be appended is a hole.
//   - Redis is only believed where it says so itself. A cold conversation is
//     begun, loaded from the truth and installed; a load that ends below what
//     this owner saw acknowledged stops the process, for the log lost records.
//   - A record that stands on another partition than its conversation's is
//     forwarded once, with its first place along; one that would need a second
//     hop is a dead letter.
//   - Nothing is passed over: what cannot be accepted goes to the dead letter
//     topic with its cause, or to the caller who waits for the answer.
//
// The only record that it gives back as poison is one that cannot be forwarded;
// whatever else will never heal is fatal, since skipping a record that has a seq
// would leave a hole.
//
// It does not retry, back off, or mark offsets: an error ends Handle, and the
// runner hands the same records in again. Whatever was done by then is decided
// again to the same end ("again"), and dead letters and forwards that were
// acknowledged are not repeated by the same stage.
//
// If the truth of one conversation cannot be reached, Handle fails, and with it
// the whole batch waits, warm conversations too.
//
// A Sequencer is safe for concurrent use. A Stage is one claim of one
// partition, for one goroutine; a new claim needs a new Stage, because what the
// last owner saw acknowledged is no floor once another owner may have been
// there.
package toredis

import (
	"context"
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Sequencer makes stages; it holds what they share.
type Sequencer struct {
	cfg     Config
	metrics *metrics
}

// New checks cfg. All its faults are reported together.
func New(cfg Config) (*Sequencer, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Sequencer{cfg: cfg, metrics: newMetrics(cfg.Registerer)}, nil
}

// Stage gives the stage of a fresh claim of a partition of toRedis.
func (s *Sequencer) Stage(partition int32) (*Stage, error) {
	if partition < 0 || partition >= s.cfg.Partitions {
		return nil, fault.New(fault.Fatal, "partitions",
			fmt.Errorf("toredis: partition %d of a topic that should have %d", partition, s.cfg.Partitions))
	}
	floors, err := lru.New[watermark.ConversationID, watermark.Seq](s.cfg.FloorEntries)
	if err != nil {
		return nil, fmt.Errorf("toredis: floors: %w", err)
	}
	return &Stage{
		cfg: &s.cfg, metrics: s.metrics, partition: partition,
		floors: floors, settled: make(map[int64]struct{}),
	}, nil
}

// Stage is one claim of one partition.
type Stage struct {
	cfg       *Config
	metrics   *metrics
	partition int32

	floors  *lru.Cache[watermark.ConversationID, watermark.Seq]
	durable int64
	// settled are the offsets at or above durable whose dead letter or forward
	// is acknowledged, so that a retry of the batch does not repeat it.
	settled map[int64]struct{}
}

// Handle does one batch of records, ascending by offset, and gives the offset
// below which everything is durable. After an error the same records must be
// handed in again, and none above them before.
func (s *Stage) Handle(ctx context.Context, records []wire.Record) (durable int64, err error) {
	if len(records) == 0 {
		return s.durable, nil
	}
	b, err := s.sort(records)
	if err != nil {
		return s.durable, err
	}
	if err := s.forward(ctx, b); err != nil {
		return s.durable, fmt.Errorf("toredis: forward: %w", err)
	}
	if err := s.sequence(ctx, b); err != nil {
		return s.durable, unskippable(err)
	}
	s.durable = records[len(records)-1].Offset + 1
	clear(s.settled)
	s.count(b)
	return s.durable, nil
}

// sequence does what is left of a batch once its strays are gone.
func (s *Stage) sequence(ctx context.Context, b *batch) error {
	if err := s.decide(ctx, b.lots); err != nil {
		return err
	}
	s.refuse(b)
	if err := s.bury(ctx, b); err != nil {
		return fmt.Errorf("toredis: dead letters: %w", err)
	}
	if err := s.append(ctx, b); err != nil {
		return fmt.Errorf("toredis: append to %s: %w", s.cfg.Sequenced, err)
	}
	if err := s.answer(ctx, b); err != nil {
		return fmt.Errorf("toredis: answers: %w", err)
	}
	return nil
}

// unskippable gives a poison error the class that it has here. It would have
// the runner set a record aside whose message may have a seq: a hole, if the
// log refuses it, and a lie, if only its answer cannot be given. What a record
// itself is to blame for was found before the script.
func unskippable(err error) error {
	if fault.ClassOf(err) == fault.Poison {
		return fault.New(fault.Fatal, fault.ReasonOf(err), err)
	}
	return err
}

// Flush has nothing to do: Handle leaves nothing behind.
func (s *Stage) Flush(context.Context) (durable int64, err error) { return s.durable, nil }
