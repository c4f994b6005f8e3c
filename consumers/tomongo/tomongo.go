// Package tomongo is the logic that keeps history a projection of the
// sequenced log: it takes the records of one partition of that log and writes
// what they say to the history store.
//
// It promises:
//   - Messages, revokes and windows are gathered for WriteEvery and written in the
//     order of the log.
//   - Bounds of conversations (maximum, inputs, times, and what else there is one
//     of), read marks, the marks of senders and their lists of own messages are
//     coalesced in memory, one entry for each conversation and member, and
//     written together after FlushMarks advances, after FlushEvery, and on Flush.
//     An offset is reported durable only when nothing at or below it is
//     unwritten: the buffer is covered by the log, so losing the process loses
//     nothing. A conversation's maximum is never written before its rows; they
//     stand above it until the flush.
//   - History knows how far it has each partition: before an offset is reported
//     durable, it stands in history as the partition's position, which never
//     stands without what is below it. A history that was restored from a backup
//     so shows that it is older than what the group has committed.
//   - Nothing is ever overwritten. A message or a window whose place is taken
//     by another one is a conflict: it is counted, logged as an error, and
//     handed back to the owner of its conversation by a resequence command that
//     is acknowledged before the offset is durable. Nothing else of it is done.
//   - Messages below a raised minimum are deleted in bounded steps before the
//     offset is durable.
//   - A record that cannot be decoded goes to the dead letters. No other record
//     is ever skipped: an error that will never heal is fatal.
//
// Every step is idempotent, so after an error, or in another process, the same
// records may be handed in again, cut into batches in any way.
//
// Flushed read marks of the log are then merged into Redis; those that follow
// from messages stand there since the messages have their seqs. That is the one error that does
// not end a step: Redis is a projection that may be lost at any moment, and
// history is what it is rebuilt from, so history must not wait for Redis. Marks
// that could not be merged are counted, kept up to a bound, and merged after a
// later flush; what is beyond the bound is healed by the conversation's next
// cold load.
//
// A Projector is safe for concurrent use. A Stage is one claim of one
// partition, for one goroutine.
package tomongo

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Projector makes stages; it holds what they share.
type Projector struct {
	cfg     Config
	metrics *metrics
}

// New checks cfg. All its faults are reported together.
func New(cfg Config) (*Projector, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Projector{cfg: cfg, metrics: newMetrics(cfg.Registerer, cfg.Now)}, nil
}

// Stage gives the stage of a fresh claim of a partition of the sequenced log.
func (p *Projector) Stage(partition int32) (*Stage, error) {
	if partition < 0 {
		return nil, fault.New(fault.Fatal, "partitions", fmt.Errorf("tomongo: partition %d", partition))
	}
	return &Stage{cfg: &p.cfg, metrics: p.metrics, partition: partition, piece: newPiece(), pending: newPending(), unraised: make(unraised), at: newPositions()}, nil
}

// Stage is one claim of one partition.
type Stage struct {
	cfg       *Config
	metrics   *metrics
	partition int32

	decoder wire.Decoder
	piece   *piece // what is gathered
	taken   int64  // offset up to which the piece has, or had, everything
	pending *pending
	handled int64 // offset up to which everything is written, gathered or pending
	durable int64
	at      *positions

	unraised  unraised
	hotPaused time.Time // Redis is left alone until then
}

// Handle takes one batch of records, ascending by offset, and gives the offset
// below which everything is durable, which lags behind while anything waits to be
// written. After an error the same records must be handed in again.
func (s *Stage) Handle(ctx context.Context, records []wire.Record) (durable int64, err error) {
	if err := s.gather(ctx, records); err != nil {
		return s.durable, err
	}
	if s.full() {
		if err := s.write(ctx); err != nil {
			return s.durable, unskippable(err)
		}
	}
	end := s.handled
	if len(records) > 0 {
		end = max(end, records[len(records)-1].Offset+1)
	}
	if reason := s.due(); reason != "" {
		if err := s.flush(ctx, reason, end); err != nil {
			return s.durable, unskippable(err)
		}
	}
	// Only now: of a batch that failed Flush must not call anything durable.
	s.handled = end
	s.showPending()
	return s.settle(), nil
}

// gather takes records into the piece. What is there already was handed in with
// a batch that failed.
func (s *Stage) gather(ctx context.Context, records []wire.Record) error {
	now := s.cfg.Now()
	for i := 0; i < len(records); {
		if records[i].Offset < s.taken {
			i++
			continue
		}
		taken, err := s.piece.take(&s.decoder, &records[i], now)
		if err != nil {
			return fmt.Errorf("tomongo: decode: %w", err)
		}
		if taken {
			s.taken = records[i].Offset + 1
			continue
		}
		if err := s.write(ctx); err != nil {
			return unskippable(err)
		}
	}
	return nil
}

// full tells whether what was gathered is to be written.
func (s *Stage) full() bool {
	p := s.piece
	return !p.empty() && (s.cfg.Now().Sub(p.since) >= s.cfg.WriteEvery || len(p.change.Rows) >= maxRows || p.bytes >= maxBytes)
}

// Flush writes what waits; afterwards everything handled is durable.
func (s *Stage) Flush(ctx context.Context) (durable int64, err error) {
	if err := s.flush(ctx, reasonIdle, s.handled); err != nil {
		return s.durable, unskippable(err)
	}
	return s.settle(), nil
}

// unskippable gives a poison error the class that it has here: the runner would
// set the record aside, and history would miss what the log says.
func unskippable(err error) error {
	if fault.ClassOf(err) == fault.Poison {
		return fault.New(fault.Fatal, fault.ReasonOf(err), err)
	}
	return err
}

// Close takes what is pending out of the gauge. Nothing is written: it is above
// the durable offset and comes again.
func (s *Stage) Close() error {
	s.piece = newPiece()
	s.pending.clear()
	s.showPending()
	return nil
}

// showPending tells the gauges what is pending.
func (s *Stage) showPending() {
	convs, members := s.pending.grown()
	s.metrics.pendingConvs.Add(float64(convs))
	s.metrics.pending.Add(float64(members))
	since := s.pending.since
	if since.IsZero() {
		since = s.piece.since // what was gathered later than something pending is younger
	}
	s.metrics.oldest.set(s, since)
}

func (s *Stage) settle() int64 {
	if s.piece.empty() && s.pending.empty() {
		s.durable = max(s.durable, min(s.handled, s.at.next))
	}
	return s.durable
}

// write does everything about what is gathered save for its bounds and marks,
// which it makes pending. They are folded when it is known which messages stand.
func (s *Stage) write(ctx context.Context) error {
	p := s.piece
	if err := s.bury(ctx, p.poison); err != nil {
		return fmt.Errorf("tomongo: dead letters: %w", err)
	}
	s.at.saw(p, s.cfg.Inputs)
	p.change.Conversations = s.pending.boundsOf(s.pending.ripe)
	// What is pending keeps the position where it is: it moves in their flush.
	if s.pending.empty() && len(p.records) == 0 {
		p.change.Positions = s.at.upTo(p.end)
	}
	var lost map[place]bool
	if !p.change.Empty() {
		written, err := s.cfg.History.Write(ctx, p.change)
		if err != nil {
			return fmt.Errorf("tomongo: write %d rows, %d members: %w", len(p.change.Rows), len(p.change.Members), err)
		}
		s.at.written(p.change.Positions)
		s.told(p.change.Conversations)
		s.pending.ripe = nil
		if lost, err = s.handBack(ctx, p, written); err != nil {
			return fmt.Errorf("tomongo: hand conflicts back: %w", err)
		}
		s.metrics.written(p.change.Rows, written.Rows, s.cfg.Now())
	}
	s.fold(p, lost)
	if err := s.retire(ctx, p.raised); err != nil {
		return err
	}
	s.piece = p.next()
	return nil
}

// fold makes pending what the records of p say beside rows and windows.
func (s *Stage) fold(p *piece, lost map[place]bool) {
	now, before := s.cfg.Now(), s.pending.advances
	for i := range p.records {
		s.pending.add(&p.records[i], lost, now)
	}
	s.metrics.advances.Add(float64(s.pending.advances - before))
	s.showPending()
}

// told takes note of bounds that history has before the others.
func (s *Stage) told(cs []watermark.Conversation) {
	s.pending.dropped(cs)
	s.metrics.flushedConvs.Add(float64(len(cs)))
}

// retire deletes what raised minimums have put below them. History must know the
// minimum before, or it would insert those rows again, and the maximum, which
// says how far behind the dedupe horizon is.
func (s *Stage) retire(ctx context.Context, raised []place) error {
	if len(raised) == 0 {
		return nil
	}
	var ids []watermark.ConversationID
	lows := make(map[watermark.ConversationID]watermark.Seq)
	for _, r := range raised {
		if lows[r.conv] == 0 {
			ids = append(ids, r.conv)
		}
		lows[r.conv] = max(lows[r.conv], r.seq)
	}
	c := watermark.Change{Conversations: s.pending.boundsOf(ids)}
	if _, err := s.cfg.History.Write(ctx, c); err != nil {
		return fmt.Errorf("tomongo: write bounds of %d conversations: %w", len(ids), err)
	}
	s.told(c.Conversations)
	s.showPending()
	for _, id := range ids {
		if err := s.deleteBelow(ctx, id, lows[id]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) deleteBelow(ctx context.Context, id watermark.ConversationID, low watermark.Seq) error {
	for low > 1 {
		n, err := s.cfg.History.DeleteBelow(ctx, id, low, s.cfg.DeleteStep)
		if err != nil {
			return fmt.Errorf("tomongo: delete %s below %d: %w", id, low, err)
		}
		s.metrics.deleted.Add(float64(n))
		if n == 0 {
			break
		}
	}
	return nil
}

// bury sends records that are none to the dead letters.
func (s *Stage) bury(ctx context.Context, ps []poison) error {
	for _, p := range ps {
		now := s.cfg.Now()
		letter := wire.DeadLetter{Record: p.record, Reason: fault.ReasonOf(p.err), Cause: p.err.Error(), First: now, Last: now, Tries: 1}
		err := s.send(ctx, letter)
		if fault.ClassOf(err) == fault.Poison {
			err = s.send(ctx, letter.WithoutContent(err))
		}
		if err != nil {
			return err
		}
		s.metrics.poison.Inc()
		s.cfg.Logger.LogAttrs(ctx, slog.LevelError, "record of the sequenced log dead-lettered",
			slog.String("topic", p.record.Topic), slog.Int("partition", int(p.record.Partition)),
			slog.Int64("offset", p.record.Offset), slog.Any("error", p.err))
	}
	return nil
}

func (s *Stage) send(ctx context.Context, letter wire.DeadLetter) error {
	out, err := wire.EncodeDeadLetter(letter)
	if err != nil {
		return err
	}
	out.Topic = s.cfg.DeadLetter
	return s.cfg.Log.Append(ctx, []wire.Out{out})
}
