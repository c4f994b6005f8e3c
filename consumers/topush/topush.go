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
//     itself. Within a batch small conversations go before large ones, and what
//     costs more than LaneCost leaves the way of the others altogether: a large
//     or busy group delays nobody but itself and its like.
//   - A conversation with many members is a crowd: its messages are handed off
//     once, whatever their number. It becomes one above CrowdAbove and ceases to
//     be one below CrowdBelow; in between it stays what it is, over restarts.
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
//   - What waits is bounded. A conversation that is busier than it can be handed
//     off loses live pushes, not messages: its members are told to pull.
//
// An error ends Handle, and the runner hands the same records in again; what
// was handed off by then is not handed off again by the same stage. A record
// that cannot be decoded is passed over here: the projection to history sends
// it to the dead letters.
//
// A Pusher is safe for concurrent use. A Stage is one claim of one partition,
// for one goroutine; it has one more of its own, which Close ends. DESIGN.md
// has the reasons.
package topush

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"go.opentelemetry.io/otel/trace"

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
	w := &worker{cfg: &p.cfg, metrics: p.metrics, unraised: make(map[watermark.ConversationID]Mark)}
	return &Stage{worker: w, rosters: r, lane: newLane(&p.cfg, p.metrics)}, nil
}

// worker hands off and notes it. A stage has two: its own, and its lane's.
type worker struct {
	cfg     *Config
	metrics *metrics
	// unraised are marks of what was handed off that Marks has not taken.
	unraised map[watermark.ConversationID]Mark
}

// Stage is one claim of one partition.
type Stage struct {
	*worker
	rosters *rosters
	lane    *lane
	gauged  int // what this stage adds to the gauge of cached members
	next    int64
}

// lot is the part of a batch that is one conversation's.
type lot struct {
	id      watermark.ConversationID
	records []timed
}

type timed struct {
	watermark.Record
	old  bool
	log  string
	size int // bytes
	// traces are those of its messages, where there are any.
	traces map[watermark.Seq]trace.SpanContext
}

// Handle hands off one batch of records, ascending by offset, save what goes to
// the lane, and gives the offset below which everything is handed off and noted.
// After an error the same records must be handed in again.
func (s *Stage) Handle(ctx context.Context, records []wire.Record) (durable int64, err error) {
	if len(records) == 0 {
		return s.durable()
	}
	lots, err := s.sort(ctx, records)
	if err != nil {
		return s.done(err)
	}
	defer s.gauge()
	for chunk := range slices.Chunk(lots, maxLoads) {
		if err := s.handOff(ctx, chunk); err != nil {
			return s.done(err)
		}
	}
	if err := s.raise(ctx); err != nil {
		return s.done(err)
	}
	s.next = records[len(records)-1].Offset + 1
	return s.durable()
}

func (s *Stage) done(err error) (int64, error) {
	durable, _ := s.durable()
	return durable, err
}

// durable gives the offset below which nothing waits.
func (s *Stage) durable() (int64, error) {
	lowest, err := s.lane.lowest()
	return min(s.next, lowest), err
}

// Flush tells how far the lane has come. It does not wait for it: what a lane
// has not handed off when the claim ends is read again by the next owner.
func (s *Stage) Flush(context.Context) (durable int64, err error) { return s.durable() }

// Close ends the lane, and takes the cache out of the gauge.
func (s *Stage) Close() error {
	s.lane.close()
	s.rosters.lru.Purge()
	s.rosters.members = 0
	s.gauge()
	return nil
}

// lotRoom is how many lots are made together.
const lotRoom = 32

// sort decodes records and groups them by conversation.
func (s *Stage) sort(ctx context.Context, records []wire.Record) ([]*lot, error) {
	var lots []*lot
	at := make(map[watermark.ConversationID]*lot)
	now := s.cfg.Now()
	var decoder wire.Decoder
	var room []lot
	for _, r := range records {
		rec, err := decoder.Record(r)
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
			if len(room) == 0 {
				room = make([]lot, lotRoom)
			}
			l, room = &room[0], room[1:]
			l.id = rec.Conversation
			at[rec.Conversation] = l
			lots = append(lots, l)
		}
		l.records = append(l.records, timed{rec, now.Sub(r.Time) > s.cfg.MaxAge, r.TopicID, len(r.Value), wire.TracesByMessage(&r)})
	}
	return lots, nil
}

// handOff delivers lots of at most maxLoads conversations, small ones first, or
// gives them to the lane.
func (s *Stage) handOff(ctx context.Context, lots []*lot) error {
	defer s.rosters.trim()
	back, lots, waiting := s.lane.sort(lots)
	for _, r := range back {
		s.rosters.add(r.state.ID, r)
	}
	var missing []watermark.ConversationID
	for _, l := range lots {
		if _, ok := s.rosters.lru.Get(l.id); !ok {
			missing = append(missing, l.id)
		}
	}
	if err := s.load(ctx, missing); err != nil {
		return err
	}
	at := make(map[*lot]*roster, len(lots))
	rs := make([]*roster, len(lots))
	for i, l := range lots {
		r, _ := s.rosters.lru.Peek(l.id)
		at[l], rs[i] = r, r
	}
	if err := s.standing(ctx, rs...); err != nil {
		return err
	}
	slices.SortStableFunc(lots, func(a, b *lot) int { return cmp.Compare(at[a].weight, at[b].weight) })
	h := newHand(s.worker)
	var heavy []*lot
	for _, l := range lots {
		r := at[l]
		if s.unsettled(r) || l.cost(r) > s.cfg.LaneCost {
			heavy = append(heavy, l)
			continue
		}
		if err := h.lot(ctx, r, l); err != nil {
			return err
		}
		s.rosters.weigh(r)
	}
	if err := h.flush(ctx); err != nil {
		return err
	}
	heavy, rest := s.lane.admit(heavy, at)
	for _, l := range heavy {
		s.rosters.take(at[l])
	}
	s.lane.take(ctx, heavy, at, waiting)
	if len(rest) > 0 {
		return fault.New(fault.Transient, "backlog", fmt.Errorf("topush: the lane has no room for %d conversations whose pushes cost much", len(rest)))
	}
	return nil
}

// cost is about how many publications it takes to hand l off, without what was: of
// a batch that comes again because the lane had no room, what has been there must
// not take that of the rest.
func (l *lot) cost(r *roster) int {
	n := 0
	for i := range l.records {
		if l.records[i].Offset < r.mark.Offset {
			continue
		}
		for _, e := range l.records[i].Events {
			switch e := e.(type) {
			case watermark.MessagesSequenced:
				n += len(e.Messages) * r.spread()
			case watermark.WindowChanged, watermark.ReadAdvanced:
				n++
			default:
				n += len(r.state.Members)
			}
		}
	}
	return n
}

// raise notes what was handed off.
func (s *worker) raise(ctx context.Context) error {
	if len(s.unraised) == 0 {
		return nil
	}
	marks := make([]Mark, 0, len(s.unraised))
	for _, m := range s.unraised {
		marks = append(marks, m)
	}
	slices.SortFunc(marks, func(a, b Mark) int { return cmp.Compare(a.Conversation, b.Conversation) })
	if err := s.cfg.Marks.RaisePushed(ctx, marks); err != nil {
		// Some may have been raised and not been given a life.
		for i := range marks {
			marks[i].Renew = true
			s.unraised[marks[i].Conversation] = marks[i]
		}
		return fmt.Errorf("topush: raise marks of %d conversations: %w", len(marks), err)
	}
	clear(s.unraised)
	return nil
}

func (s *Stage) gauge() {
	s.metrics.cached.Add(float64(s.rosters.members - s.gauged))
	s.gauged = s.rosters.members
}
