// Package topush is the logic that tells connected and absent users what
// happened: it takes the records of one partition of the sequenced log, works
// out whom each event concerns, and hands both to a Deliverer.
//
// Who is told:
//   - A message: the members whose window contains its seq, the sender's other
//     devices too; not the device that sent it.
//   - A change of a window or of a member's attributes: the member alone. Others see a member list of the
//     application's, if it has one.
//   - A revoke: those whose window contains the seq.
//   - A read mark: the member's other devices. A receipt in a single
//     conversation: the peer too, without the mark itself.
//   - A raised minimum and a repair: everybody who can see anything.
//   - A changed unread policy: everybody who sees what comes.
//
// It promises:
//   - What happened to one conversation is handed off in order, each message by
//     itself. Within a batch small conversations go before large ones, so that
//     a large group delays nobody.
//   - A replay is dropped: how far a conversation was handed off is noted
//     after the hand-off and before the offset is durable, in memory and by
//     Marks. What was handed off and not yet noted when a process died is
//     handed off again; clients pass over a seq that they know.
//   - A record older than MaxAge is not handed off; pulling covers it.
//   - Members are loaded from the truth at first use and follow the log from
//     there, so no kick is missed: windows are intervals of seqs, and a state
//     that is ahead of the record in hand answers the same for its messages.
//   - A closed member is never told a seq beyond its window, not even as the
//     conversation's maximum.
//
// An error ends Handle, and the runner hands the same records in again; what
// was handed off by then is not handed off again by the same stage. A record
// that cannot be decoded is passed over here: the projection to history sends
// it to the dead letters.
//
// A Pusher is safe for concurrent use. A Stage is one claim of one partition,
// for one goroutine.
package topush

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Pusher makes stages; it holds what they share.
type Pusher struct {
	cfg     Config
	metrics *metrics
}

// New checks cfg. All its faults are reported together.
func New(cfg Config) (*Pusher, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Pusher{cfg: cfg, metrics: newMetrics(cfg.Registerer)}, nil
}

// Stage gives the stage of a fresh claim of a partition of the sequenced log.
func (p *Pusher) Stage(partition int32) (*Stage, error) {
	if partition < 0 {
		return nil, fault.New(fault.Fatal, "partitions", fmt.Errorf("topush: partition %d", partition))
	}
	r, err := newRosters(p.cfg.CacheMembers)
	if err != nil {
		return nil, fmt.Errorf("topush: cache: %w", err)
	}
	return &Stage{
		cfg: &p.cfg, metrics: p.metrics, rosters: r,
		unraised: make(map[watermark.ConversationID]Mark),
	}, nil
}

// Stage is one claim of one partition.
type Stage struct {
	cfg     *Config
	metrics *metrics
	rosters *rosters
	gauged  int // what this stage adds to the gauge of cached members

	// unraised are marks of what was handed off that Marks has not taken.
	unraised map[watermark.ConversationID]Mark
	durable  int64
}

// lot is the part of a batch that is one conversation's.
type lot struct {
	id      watermark.ConversationID
	records []timed
}

type timed struct {
	watermark.Record
	old bool
}

// Handle hands off one batch of records, ascending by offset, and gives the
// offset below which everything is handed off and noted. After an error the
// same records must be handed in again.
func (s *Stage) Handle(ctx context.Context, records []wire.Record) (durable int64, err error) {
	if len(records) == 0 {
		return s.durable, nil
	}
	lots, err := s.sort(ctx, records)
	if err != nil {
		return s.durable, err
	}
	defer s.gauge()
	for chunk := range slices.Chunk(lots, maxLoads) {
		if err := s.handOff(ctx, chunk); err != nil {
			return s.durable, err
		}
	}
	if err := s.raise(ctx); err != nil {
		return s.durable, err
	}
	s.durable = records[len(records)-1].Offset + 1
	return s.durable, nil
}

// Flush has nothing to do: Handle leaves nothing behind.
func (s *Stage) Flush(context.Context) (durable int64, err error) { return s.durable, nil }

// Close takes the cache out of the gauge.
func (s *Stage) Close() error {
	s.rosters.lru.Purge()
	s.rosters.members = 0
	s.gauge()
	return nil
}

// sort decodes records and groups them by conversation.
func (s *Stage) sort(ctx context.Context, records []wire.Record) ([]*lot, error) {
	var lots []*lot
	at := make(map[watermark.ConversationID]*lot)
	now := s.cfg.Now()
	for _, r := range records {
		rec, err := wire.DecodeRecord(r)
		switch {
		case err != nil && fault.ClassOf(err) == fault.Poison:
			s.metrics.skipped.WithLabelValues("undecodable").Inc()
			s.cfg.Logger.LogAttrs(ctx, slog.LevelError, "record of the sequenced log not pushed", slog.Any("error", err))
			continue
		case err != nil:
			return nil, fmt.Errorf("topush: decode: %w", err)
		}
		l := at[rec.Conversation]
		if l == nil {
			l = &lot{id: rec.Conversation}
			at[rec.Conversation] = l
			lots = append(lots, l)
		}
		l.records = append(l.records, timed{rec, now.Sub(r.Time) > s.cfg.MaxAge})
	}
	return lots, nil
}

// handOff delivers lots of at most maxLoads conversations, small ones first.
func (s *Stage) handOff(ctx context.Context, lots []*lot) error {
	defer s.rosters.trim()
	var missing []watermark.ConversationID
	for _, l := range lots {
		if _, ok := s.rosters.lru.Get(l.id); !ok {
			missing = append(missing, l.id)
		}
	}
	if err := s.load(ctx, missing); err != nil {
		return err
	}
	size := func(l *lot) int {
		r, _ := s.rosters.lru.Peek(l.id)
		return r.weight
	}
	slices.SortStableFunc(lots, func(a, b *lot) int { return cmp.Compare(size(a), size(b)) })
	h := newHand(s)
	for _, l := range lots {
		r, _ := s.rosters.lru.Peek(l.id)
		for i := range l.records {
			if err := h.record(ctx, r, &l.records[i]); err != nil {
				return err
			}
		}
		s.rosters.weigh(r)
	}
	return h.flush(ctx)
}

// raise notes what was handed off.
func (s *Stage) raise(ctx context.Context) error {
	if len(s.unraised) == 0 {
		return nil
	}
	marks := make([]Mark, 0, len(s.unraised))
	for _, m := range s.unraised {
		marks = append(marks, m)
	}
	slices.SortFunc(marks, func(a, b Mark) int { return cmp.Compare(a.Conversation, b.Conversation) })
	if err := s.cfg.Marks.RaisePushed(ctx, marks); err != nil {
		return fmt.Errorf("topush: raise marks of %d conversations: %w", len(marks), err)
	}
	clear(s.unraised)
	return nil
}

func (s *Stage) gauge() {
	s.metrics.cached.Add(float64(s.rosters.members - s.gauged))
	s.gauged = s.rosters.members
}
