package topush

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/watermark"
)

// maxHand bounds the recipients that are gathered before they are handed off.
const maxHand = 10_000

// renewMarks is how often a mark that is raised all the time gets a new life,
// which is a day at least where it is kept.
const renewMarks = time.Hour

// hand gathers deliveries, so that one call of the Deliverer takes many, and
// notes what they amount to once they are taken.
type hand struct {
	worker     *worker
	deliveries []Delivery
	offers     []Offer
	users      int      // of both
	told       int      // of deliveries
	events     []string // kinds, for the counter
	sent       []int64  // record times of the messages
	progress   []progress
	trace      trace.SpanContext // of the message in hand
	// reach is the highest seq gathered of each conversation: a record that
	// stands twice in one batch is a replay too.
	reach map[*roster]watermark.Seq
	// newcomers of crowds are enlisted before their seats are handed off, and
	// leavers delisted after.
	newcomers, leavers []membership
}

type membership struct {
	conv watermark.ConversationID
	user watermark.UserID
}

func newHand(w *worker) hand { return hand{worker: w, reach: make(map[*roster]watermark.Seq)} }

// lot gathers what happened to one conversation.
func (h *hand) lot(ctx context.Context, r *roster, l *lot) error {
	for i := range l.records {
		if err := h.record(ctx, r, &l.records[i]); err != nil {
			return err
		}
	}
	return nil
}

// progress is a mark to be raised when everything gathered so far is taken.
type progress struct {
	roster *roster
	seq    watermark.Seq
	offset int64
}

// record gathers what one record asks for. It is folded whether or not it is
// delivered, one event at a time: who sees a message depends on the windows of
// that moment, not on a change that stands behind it in the same record.
func (h *hand) record(ctx context.Context, r *roster, rec *timed) error {
	skip := ""
	switch {
	case rec.Offset < r.mark.Offset:
		skip = "replay"
	case rec.old:
		skip = "old"
	}
	if skip != "" {
		h.worker.metrics.skipped.WithLabelValues(skip).Inc()
	}
	r.log = rec.log
	for _, e := range rec.Events {
		run, ok := e.(watermark.MessagesSequenced)
		if !ok {
			before := r.changed
			r.follow(e, rec.Offset)
			if w, ok := e.(watermark.WindowChanged); ok && skip != "replay" {
				if err := h.seat(ctx, r, w.Member.User); err != nil {
					return err
				}
			}
			if skip == "" {
				if err := h.event(ctx, r, e, before); err != nil {
					return err
				}
			}
			continue
		}
		for i := range run.Messages {
			one := watermark.MessagesSequenced{Policy: run.Policy, Messages: run.Messages[i : i+1 : i+1]}
			_, known := r.state.Members[one.Messages[0].Sender]
			r.follow(one, rec.Offset)
			if !known && skip != "replay" {
				if err := h.seat(ctx, r, one.Messages[0].Sender); err != nil {
					return err
				}
			}
			h.trace = rec.traces[one.Messages[0].Seq]
			if err := h.message(ctx, r, one, skip); err != nil {
				return err
			}
		}
	}
	h.progress = append(h.progress, progress{r, 0, rec.Offset + 1})
	return nil
}

// seat gathers what gateways are told of a member of a crowd that has come or
// gone.
func (h *hand) seat(ctx context.Context, r *roster, u watermark.UserID) error {
	if !r.crowd {
		return nil
	}
	if m := r.state.Members[u]; !m.Open() {
		h.leavers = append(h.leavers, membership{r.state.ID, u})
		return nil
	}
	h.newcomers = append(h.newcomers, membership{r.state.ID, u})
	return h.add(ctx, r, Delivery{Reach: Seat}, []watermark.UserID{u})
}

// message gathers one message, unless a message of its seq was handed off.
func (h *hand) message(ctx context.Context, r *roster, one watermark.MessagesSequenced, skip string) error {
	m := &one.Messages[0]
	if skip != "replay" && m.Seq <= max(r.mark.Seq, h.reach[r]) {
		if skip == "" {
			h.worker.metrics.skipped.WithLabelValues("replay").Inc()
		}
		return nil
	}
	if skip == "old" {
		h.offerCrowd(r, m)
	}
	if skip == "" {
		d := Delivery{Event: one, ExceptDevice: m.Device, Trace: h.trace}
		if m.Device != "" {
			d.ExceptUser = m.Sender
		}
		if r.crowd {
			h.crowd(r, d, func(o *watermark.Member) bool { return sees(o, m.Seq) })
			h.offerCrowd(r, m)
			h.finish(r, one)
			if h.users >= maxHand {
				return h.flush(ctx)
			}
			return nil
		}
		to := r.seeing(m.Seq)
		d.Max = m.Seq // to those who have left, this seq is all there is
		if err := h.add(ctx, r, d, to.closed); err != nil {
			return err
		}
		d.Max = r.state.Max
		if err := h.add(ctx, r, d, to.open); err != nil {
			return err
		}
		h.offer(r, m, to)
		h.finish(r, one)
	} else {
		h.reached(r, m.Seq)
	}
	if h.users >= maxHand {
		return h.flush(ctx)
	}
	return nil
}

// finish notes that a message is gathered.
func (h *hand) finish(r *roster, one watermark.MessagesSequenced) {
	h.events = append(h.events, kindWord(one))
	h.sent = append(h.sent, one.Messages[0].RecordTime)
	h.reached(r, one.Messages[0].Seq)
}

func (h *hand) reached(r *roster, seq watermark.Seq) {
	h.progress = append(h.progress, progress{r, seq, 0})
	h.reach[r] = seq
}

// crowd gathers d for those members of a crowd who are connected; who is it,
// connected or not, whom it concerns.
func (h *hand) crowd(r *roster, d Delivery, who func(*watermark.Member) bool) {
	d.Conversation, d.Repair, d.Max = r.state.ID, r.state.Repair, r.state.Max
	d.Reach, d.Place = ToCrowd, Place{Log: r.log, Changed: r.changed}
	d.All = func(yield func(watermark.UserID) bool) {
		for _, u := range r.those(func(m *watermark.Member) bool { return m.Open() && who(m) }).open {
			if !yield(u) {
				return
			}
		}
	}
	h.deliveries = append(h.deliveries, d)
	h.users++
	h.told++
}

// event gathers anything but a message; before is where the windows of r stood
// before it.
func (h *hand) event(ctx context.Context, r *roster, e watermark.Event, before int64) error {
	h.events = append(h.events, kindWord(e))
	d := Delivery{Event: e}
	switch e := e.(type) {
	case watermark.WindowChanged:
		m := r.state.Members[e.Member.User]
		if m.Open() {
			d.Max = r.state.Max
		} else if edges, ok := m.Visible(r.state.Min, r.state.Max).Edges(); ok {
			d.Max = edges.Last
		}
		if r.crowd && r.changed > before {
			change := Delivery{Event: e, Reach: Change, Conversation: r.state.ID, Place: Place{Log: r.log, Changed: r.changed, Before: before}}
			h.deliveries = append(h.deliveries, change)
		}
		return h.add(ctx, r, d, []watermark.UserID{e.Member.User})
	case watermark.Revoked:
		return h.both(ctx, r, d, func(m *watermark.Member) bool { return sees(m, e.Seq) })
	case watermark.ReadAdvanced:
		return h.read(ctx, r, e)
	case watermark.PolicyChanged: // of what comes, which former members do not see
		return h.both(ctx, r, d, (*watermark.Member).Open)
	default:
		return h.both(ctx, r, d, seesAny)
	}
}

// read tells a member's other devices, and the peer of what it may know. Marks
// that were made at once may stand in the log in any order, so what is told is
// what stands after the mark: a device never sees a watermark fall.
func (h *hand) read(ctx context.Context, r *roster, e watermark.ReadAdvanced) error {
	m := r.state.Members[e.User]
	if e.Read > 0 {
		e.Read = max(e.Read, m.Read)
	}
	if e.Receipt > 0 {
		e.Receipt = max(e.Receipt, m.Receipt)
	}
	d := Delivery{Event: e, ExceptDevice: e.Device}
	if e.Device != "" {
		d.ExceptUser = e.User
	}
	if err := h.add(ctx, r, d, []watermark.UserID{e.User}); err != nil {
		return err
	}
	peer, ok := r.state.ID.Peer(e.User)
	if !ok || e.Receipt == 0 {
		return nil
	}
	if p := r.state.Members[peer]; !p.Open() { // it does not learn that others go on
		return nil
	}
	d = Delivery{Event: watermark.ReadAdvanced{User: e.User, Receipt: e.Receipt}}
	return h.add(ctx, r, d, []watermark.UserID{peer})
}

// both adds d for all members who are such; those who are present learn the
// conversation's maximum. Of a crowd they are one delivery, and those who have
// left and still see something of it are told one by one.
func (h *hand) both(ctx context.Context, r *roster, d Delivery, who func(*watermark.Member) bool) error {
	if r.crowd {
		h.crowd(r, d, who)
		return h.add(ctx, r, d, r.those(func(m *watermark.Member) bool { return !m.Open() && who(m) }).closed)
	}
	to := r.those(who)
	if err := h.add(ctx, r, d, to.closed); err != nil {
		return err
	}
	d.Max = r.state.Max
	return h.add(ctx, r, d, to.open)
}

// add gathers d in pieces of at most MaxUsers.
func (h *hand) add(ctx context.Context, r *roster, d Delivery, users []watermark.UserID) error {
	d.Conversation, d.Repair = r.state.ID, r.state.Repair
	for chunk := range slices.Chunk(users, h.worker.cfg.MaxUsers) {
		d.Users = chunk
		h.deliveries = append(h.deliveries, d)
		h.told += len(chunk)
		if h.users += len(chunk); h.users >= maxHand {
			if err := h.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush hands off what is gathered.
func (h *hand) flush(ctx context.Context) error {
	s := h.worker
	for _, n := range h.newcomers {
		if err := s.cfg.Crowds.Enlist(ctx, n.conv, []watermark.UserID{n.user}, crowdTTL); err != nil {
			return fmt.Errorf("topush: enlist a member of %s: %w", n.conv, err)
		}
	}
	if len(h.deliveries) > 0 {
		if err := s.cfg.Deliverer.Deliver(ctx, h.deliveries); err != nil {
			return fmt.Errorf("topush: deliver %d events: %w", len(h.deliveries), err)
		}
	}
	if len(h.offers) > 0 {
		if err := s.cfg.Offline.Offer(ctx, h.offers); err != nil {
			return fmt.Errorf("topush: offer %d messages: %w", len(h.offers), err)
		}
	}
	s.metrics.recipients.Add(float64(h.told))
	for _, kind := range h.events {
		s.metrics.events.WithLabelValues(kind).Inc()
	}
	now := s.cfg.Now()
	for _, sent := range h.sent {
		s.metrics.pushed.Reached(sent, now)
	}
	for _, p := range h.progress {
		m := &p.roster.mark
		if p.seq <= m.Seq && p.offset <= m.Offset {
			continue
		}
		m.Seq, m.Offset = max(m.Seq, p.seq), max(m.Offset, p.offset)
		raise := *m
		raise.Renew = s.unraised[m.Conversation].Renew
		if now.Sub(p.roster.renewed) >= renewMarks {
			raise.Renew, p.roster.renewed = true, now
		}
		s.unraised[m.Conversation] = raise
	}
	for _, l := range h.leavers {
		if err := s.cfg.Crowds.Delist(ctx, l.conv, []watermark.UserID{l.user}); err != nil {
			return fmt.Errorf("topush: delist a member of %s: %w", l.conv, err)
		}
	}
	current := h.trace // more of the message may follow
	*h = newHand(s)
	h.trace = current
	return nil
}
