package topush

import (
	"context"
	"fmt"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// maxHand bounds the recipients that are gathered before they are handed off.
const maxHand = 10_000

// hand gathers deliveries, so that one call of the Deliverer takes many, and
// notes what they amount to once they are taken.
type hand struct {
	stage      *Stage
	deliveries []Delivery
	offers     []Offer
	users      int      // of both
	told       int      // of deliveries
	events     []string // kinds, for the counter
	sent       []int64  // record times of the messages
	progress   []progress
	// reach is the highest seq gathered of each conversation: a record that
	// stands twice in one batch is a replay too.
	reach map[*roster]watermark.Seq
}

func newHand(s *Stage) hand { return hand{stage: s, reach: make(map[*roster]watermark.Seq)} }

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
		h.stage.metrics.skipped.WithLabelValues(skip).Inc()
	}
	for _, e := range rec.Events {
		run, ok := e.(watermark.MessagesSequenced)
		if !ok {
			r.follow(e, rec.Offset)
			if skip == "" {
				if err := h.event(ctx, r, e); err != nil {
					return err
				}
			}
			continue
		}
		for i := range run.Messages {
			one := watermark.MessagesSequenced{Policy: run.Policy, Messages: run.Messages[i : i+1 : i+1]}
			r.follow(one, rec.Offset)
			if err := h.message(ctx, r, one, skip); err != nil {
				return err
			}
		}
	}
	h.progress = append(h.progress, progress{r, 0, rec.Offset + 1})
	return nil
}

// message gathers one message, unless a message of its seq was handed off.
func (h *hand) message(ctx context.Context, r *roster, one watermark.MessagesSequenced, skip string) error {
	m := &one.Messages[0]
	if skip != "replay" && m.Seq <= max(r.mark.Seq, h.reach[r]) {
		if skip == "" {
			h.stage.metrics.skipped.WithLabelValues("replay").Inc()
		}
		return nil
	}
	if skip == "old" {
		h.offer(r, m, r.seeing(m.Seq))
	}
	if skip == "" {
		d := Delivery{Event: one, ExceptDevice: m.Device}
		if m.Device != "" {
			d.ExceptUser = m.Sender
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
		h.events = append(h.events, kindWord(one))
		h.sent = append(h.sent, m.RecordTime)
	}
	h.progress = append(h.progress, progress{r, m.Seq, 0})
	h.reach[r] = m.Seq
	if h.users >= maxHand {
		return h.flush(ctx)
	}
	return nil
}

// event gathers anything but a message.
func (h *hand) event(ctx context.Context, r *roster, e watermark.Event) error {
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
		return h.add(ctx, r, d, []watermark.UserID{e.Member.User})
	case watermark.Revoked:
		return h.both(ctx, r, d, r.seeing(e.Seq))
	case watermark.ReadAdvanced:
		return h.read(ctx, r, e)
	case watermark.PolicyChanged: // of what comes, which former members do not see
		return h.both(ctx, r, d, audience{open: r.everybody().open})
	default:
		return h.both(ctx, r, d, r.everybody())
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
	d = Delivery{Event: watermark.ReadAdvanced{User: e.User, Receipt: e.Receipt}}
	return h.add(ctx, r, d, []watermark.UserID{peer})
}

// both adds d for all of to; the open ones learn the conversation's maximum.
func (h *hand) both(ctx context.Context, r *roster, d Delivery, to audience) error {
	if err := h.add(ctx, r, d, to.closed); err != nil {
		return err
	}
	d.Max = r.state.Max
	return h.add(ctx, r, d, to.open)
}

// add gathers d in pieces of at most MaxUsers.
func (h *hand) add(ctx context.Context, r *roster, d Delivery, users []watermark.UserID) error {
	d.Conversation, d.Repair = r.state.ID, r.state.Repair
	for chunk := range slices.Chunk(users, h.stage.cfg.MaxUsers) {
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
	s := h.stage
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
		s.unraised[m.Conversation] = *m
	}
	*h = newHand(s)
	return nil
}
