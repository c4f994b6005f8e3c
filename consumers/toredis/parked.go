package toredis

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const reasonParkingFull = "parking_full"

// entry is a record with what it says.
type entry struct {
	record wire.Record
	input  watermark.Input
}

// parked are the records of conversations that cannot be decided now, because
// their truth cannot be had, and all later ones of the same conversations. They
// are not marked: an owner that dies, or gives the partition up, leaves them to
// the next one.
type parked struct {
	pens    map[watermark.ConversationID]*pen
	offsets map[int64]struct{}
	bytes   int
}

// pen holds one conversation's records, in the order of their offsets.
type pen struct {
	entries []entry
	unlearned
}

func newParked() parked {
	return parked{pens: make(map[watermark.ConversationID]*pen), offsets: make(map[int64]struct{})}
}

func (p *parked) records() int { return len(p.offsets) }

func (p *parked) has(offset int64) bool {
	_, ok := p.offsets[offset]
	return ok
}

func (p *parked) holds(id watermark.ConversationID) bool { return p.pens[id] != nil }

// lowest gives the lowest offset that is parked, or other where nothing is.
func (p *parked) lowest(other int64) int64 {
	for _, pen := range p.pens {
		other = min(other, pen.entries[0].record.Offset)
	}
	return other
}

// add takes e behind what there is of its conversation; false: there is no
// room.
func (p *parked) add(e entry) bool {
	size := recordBytes(e.record)
	if n := p.records(); n > 0 && (n >= MaxParkedRecords || p.bytes+size > MaxParkedBytes) {
		return false
	}
	x := p.pens[e.input.Conversation]
	if x == nil {
		x = &pen{}
		p.pens[e.input.Conversation] = x
	}
	x.entries = append(x.entries, e)
	p.offsets[e.record.Offset] = struct{}{}
	p.bytes += size
	return true
}

// remove lets go of a conversation.
func (p *parked) remove(id watermark.ConversationID) {
	for _, e := range p.pens[id].entries {
		delete(p.offsets, e.record.Offset)
		p.bytes -= recordBytes(e.record)
	}
	delete(p.pens, id)
}

func (p *parked) loaded(a ask) {
	if x := p.pens[a.want.Conversation]; x != nil {
		x.unlearned.by(a)
	}
}

func recordBytes(r wire.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// parkedLots gives what is parked as lots, the conversation that has waited
// longest first.
func (s *Stage) parkedLots() []*lot {
	ids := slices.SortedFunc(maps.Keys(s.parked.pens), func(a, b watermark.ConversationID) int {
		return cmp.Compare(s.parked.pens[a].entries[0].record.Offset, s.parked.pens[b].entries[0].record.Offset)
	})
	b := &batch{byConv: make(map[watermark.ConversationID]*lot)}
	for _, id := range ids {
		x := s.parked.pens[id]
		for _, e := range x.entries {
			s.admit(b, e)
		}
		b.byConv[id].unlearned = x.unlearned
	}
	return b.lots
}

// unpark decides what is parked, as far as that can be done now: before any
// newer record of the same conversations, which are parked as well until then.
func (s *Stage) unpark(ctx context.Context) error {
	if s.loads.finished() {
		// What it brought is for parked conversations, or for some that found
		// no room and come again.
		if _, err := s.collect(ctx); err != nil {
			return err
		}
	}
	if s.parked.records() == 0 || !s.loads.may(s.cfg.Now()) {
		return nil
	}
	lots := s.parkedLots()
	stuck, err := s.sequence(ctx, nil, lots, s.next)
	if err != nil {
		return err
	}
	waits := make(map[watermark.ConversationID]bool, len(stuck))
	for _, l := range stuck {
		waits[l.batch.Conversation] = true
	}
	for _, l := range lots {
		if !waits[l.batch.Conversation] {
			s.parked.remove(l.batch.Conversation)
		}
	}
	s.settle()
	return nil
}

// park keeps what of b cannot be decided now, in the order of the log. Where it
// does not fit the batch has to come again: what is parked by then, and what is
// done, is passed over then.
func (s *Stage) park(ctx context.Context, b *batch, stuck []*lot) error {
	entries := b.late
	for _, l := range stuck {
		for i := range l.records {
			entries = append(entries, entry{l.records[i], l.batch.Inputs[i]})
		}
	}
	slices.SortFunc(entries, func(x, y entry) int { return cmp.Compare(x.record.Offset, y.record.Offset) })
	for i, e := range entries {
		switch {
		case e.input.Act == watermark.ActWarm:
			// It asks for what cannot be had, and changes nothing else.
			s.done[e.record.Offset] = struct{}{}
			s.metrics.warmsDropped.Inc()
		case s.parked.add(e):
			s.metrics.parkedTotal.Inc()
		default:
			s.condition.full(true, s.cfg.Now())
			s.loads.await(ctx, s.cfg.Patience)
			return fault.New(fault.Transient, reasonParkingFull, fmt.Errorf(
				"toredis: %d records of %d conversations are parked, and %d more must wait for a truth that cannot be loaded (%s)",
				s.parked.records(), len(s.parked.pens), len(entries)-i, s.condition.why()))
		}
	}
	return nil
}
