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
//     hop is a dead letter. That a record was forwarded is believed when the
//     place that it names holds the same record.
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
// While the truth of a conversation cannot be had, its records are parked, all
// of them and in order, within a bound, and the partition goes on with the
// others; the durable offset stays below what is parked. Where the bound is
// reached, and where history is too far behind the sequenced log, the partition
// waits; Ready and a metric say why.
//
// A Sequencer is safe for concurrent use. A Stage is one claim of one
// partition, for one goroutine, and must be closed at its end; a new claim needs
// a new Stage, because what the last owner saw acknowledged is no floor once
// another owner may have been there.
package toredis

import (
	"context"
	"fmt"
	"slices"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Sequencer makes stages; it holds what they share.
type Sequencer struct {
	cfg        Config
	metrics    *metrics
	conditions *conditions
}

// New checks cfg. All its faults are reported together.
func New(cfg Config) (*Sequencer, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Sequencer{cfg: cfg, metrics: newMetrics(cfg.Registerer), conditions: newConditions(cfg.Now)}
	s.conditions.register(cfg.Registerer)
	return s, nil
}

// Ready returns nil, or an error that names each partition which holds records
// back, and why.
func (s *Sequencer) Ready() error { return s.conditions.ready() }

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
	c := s.conditions.add(partition)
	return &Stage{
		cfg: &s.cfg, metrics: s.metrics, partition: partition, floors: floors,
		settled: make(map[int64]struct{}), done: make(map[int64]struct{}),
		parked: newParked(), condition: c, drop: func() { s.conditions.drop(c) },
	}, nil
}

// Stage is one claim of one partition.
type Stage struct {
	cfg       *Config
	metrics   *metrics
	partition int32

	floors  *lru.Cache[watermark.ConversationID, watermark.Seq]
	next    int64 // all batches below it were taken
	durable int64 // below next: something is parked
	// settled are the offsets whose dead letter or forward is acknowledged, so
	// that it is not repeated; done are those with which nothing is left to do.
	// Of both only those that may still come again: they are of the batch under
	// way, or parked.
	settled, done map[int64]struct{}

	parked parked
	loads  loads
	paused bool

	// place is of the last batch that is settled. Its partition has no topic id
	// until the first batch has told it.
	place watermark.Place

	condition *condition
	drop      func()
}

// Handle does one batch of records, ascending by offset, and gives the offset
// below which everything is durable: not above the lowest that is parked. After
// an error the same records must be handed in again, and none above them before.
func (s *Stage) Handle(ctx context.Context, records []wire.Record) (durable int64, err error) {
	if len(records) == 0 {
		return s.durable, nil
	}
	if err := s.pause(ctx); err != nil {
		return s.durable, err
	}
	if err := s.openPlace(ctx, records[0].TopicID); err != nil {
		return s.durable, err
	}
	if err := s.unpark(ctx); err != nil {
		return s.durable, unskippable(err)
	}
	b, err := s.sort(ctx, records)
	if err != nil {
		return s.durable, err
	}
	if err := s.forward(ctx, b); err != nil {
		return s.durable, fmt.Errorf("toredis: forward: %w", err)
	}
	stuck, err := s.sequence(ctx, b.letters, b.lots, records[len(records)-1].Offset+1)
	if err == nil {
		err = s.park(ctx, b, stuck)
	}
	if err != nil {
		s.settle()
		return s.durable, unskippable(err)
	}
	s.condition.full(false, s.cfg.Now())
	s.next = records[len(records)-1].Offset + 1
	s.settle()
	s.countBatch(b)
	s.tellForged(ctx, b.forged)
	return s.durable, nil
}

// settle takes stock: of what is durable, and of what need not be remembered.
func (s *Stage) settle() {
	s.durable = max(s.durable, s.parked.lowest(s.next))
	for offset := range s.settled {
		if offset < s.next && !s.parked.has(offset) {
			delete(s.settled, offset)
		}
	}
	for offset := range s.done {
		if offset < s.next {
			delete(s.done, offset)
		}
	}
	s.condition.holds(&s.parked, s.cfg.Now())
}

// sequence does what is to be done with lots, and with the letters of records
// that are in none. next is above all offsets of the batch. It gives the lots of
// which nothing can be decided now.
func (s *Stage) sequence(ctx context.Context, letters []letter, lots []*lot, next int64) (stuck []*lot, err error) {
	place := s.nextPlace(next)
	for _, l := range lots {
		l.batch.Place = place
	}
	settled, stuck, err := s.decide(ctx, lots)
	if err != nil {
		return nil, err
	}
	refused := refusals(settled)
	if err := s.bury(ctx, slices.Concat(letters, refused)); err != nil {
		return nil, fmt.Errorf("toredis: dead letters: %w", err)
	}
	if err := s.append(ctx, settled); err != nil {
		return nil, fmt.Errorf("toredis: append to %s: %w", s.cfg.Sequenced, err)
	}
	if len(settled) > 0 {
		// Before the answers: who is answered will look.
		if err := s.settlePlace(ctx, place); err != nil {
			return nil, fmt.Errorf("toredis: %w", err)
		}
	}
	if err := s.answer(ctx, settled); err != nil {
		return nil, fmt.Errorf("toredis: answers: %w", err)
	}
	for _, l := range settled {
		for _, r := range l.records {
			s.done[r.Offset] = struct{}{}
		}
	}
	s.countLots(settled, refused)
	return stuck, nil
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

// Flush tries again what is parked, when it is time to. What still has to wait
// is no error, and whatever may heal is none either: the partition may be about
// to be given up, and who takes it over begins with what is parked.
func (s *Stage) Flush(ctx context.Context) (durable int64, err error) {
	if s.pause(ctx) != nil {
		return s.durable, nil
	}
	if err := unskippable(s.unpark(ctx)); fault.ClassOf(err) != fault.Transient {
		return s.durable, err
	}
	return s.durable, nil
}

// Close ends the read of the truth that may be under way. What is parked stays
// unmarked.
func (s *Stage) Close() error {
	s.loads.close()
	s.drop()
	return nil
}
