package tomongo

import (
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// maxRows and maxBytes bound the records that are gathered: then they are
	// written, however short they have waited.
	maxRows  = 20_000
	maxBytes = 8 << 20
)

// piece is a stretch of the log that is written as one change.
type piece struct {
	change  watermark.Change
	records []watermark.Record
	poison  []poison
	end     int64     // offset after its last record
	since   time.Time // when its first record came
	bytes   int       // of its records

	// topic and partition are where the records stand.
	topic     string
	partition watermark.Partition

	rows map[place]int // index into change.Rows
	// rowAt and memberAt are the log offsets of change.Rows and Members.
	rowAt, memberAt []int64
	// raised are the conversations whose minimum the piece raises, and to what.
	raised []place
}

type poison struct {
	record wire.Record
	err    error
}

type place struct {
	conv watermark.ConversationID
	seq  watermark.Seq
}

func newPiece() *piece { return &piece{rows: make(map[place]int)} }

func (p *piece) empty() bool { return len(p.records)+len(p.poison) == 0 }

// next gives an empty piece that is made for about as much as p had.
func (p *piece) next() *piece {
	clear(p.rows)
	n := &piece{rows: p.rows, records: make([]watermark.Record, 0, len(p.records))}
	n.change.Rows = make([]watermark.Row, 0, len(p.change.Rows))
	n.rowAt = make([]int64, 0, len(p.rowAt))
	return n
}

// take adds a record as it stands in the log. It takes none that names a place
// for which the piece has another message, and says so: which of the two stands
// is for history to say, one after the other, as a store may insert the rows of
// one change in any order.
func (p *piece) take(d *wire.Decoder, r *wire.Record, now time.Time) (taken bool, err error) {
	rec, err := d.Record(*r)
	switch {
	case err != nil && fault.ClassOf(err) == fault.Poison:
		p.poison = append(p.poison, poison{*r, err})
	case err != nil:
		return false, err
	case p.collides(&rec):
		return false, nil
	default:
		p.add(rec)
	}
	if p.since.IsZero() {
		p.since = now
	}
	p.topic, p.partition = r.Topic, watermark.Partition{TopicID: r.TopicID, Number: r.Partition}
	p.end = r.Offset + 1
	p.bytes += len(r.Value)
	return true, nil
}

func (p *piece) collides(rec *watermark.Record) bool {
	for m := range messages(rec) {
		if i, ok := p.rows[place{rec.Conversation, m.Seq}]; ok && !p.change.Rows[i].Message.SameAs(m) {
			return true
		}
	}
	return false
}

// add takes what of rec is written with the piece. Windows are written as they
// stand, one row for each change, so that history sees every version and can
// tell a conflict. Everything else is folded later, when it is known which
// messages stand.
func (p *piece) add(rec watermark.Record) {
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.WindowChanged:
			m := e.Member
			m.ChangedAt = rec.Offset + 1
			p.change.Members = append(p.change.Members, watermark.MemberRow{Conversation: rec.Conversation, Member: m})
			p.memberAt = append(p.memberAt, rec.Offset)
		case watermark.Revoked:
			e.At = rec.Offset + 1
			p.change.Revokes = append(p.change.Revokes, watermark.RevokedRow{Conversation: rec.Conversation, Revoked: e})
		case watermark.MinSeqRaised:
			p.raised = append(p.raised, place{rec.Conversation, e.Min})
		}
	}
	for m := range messages(&rec) {
		at := place{rec.Conversation, m.Seq}
		if _, ok := p.rows[at]; ok {
			continue // the same one, or it would collide
		}
		p.rows[at] = len(p.change.Rows)
		p.change.Rows = append(p.change.Rows, watermark.Row{Conversation: rec.Conversation, Message: *m})
		p.rowAt = append(p.rowAt, rec.Offset)
	}
	p.records = append(p.records, rec)
}

func messages(rec *watermark.Record) func(func(*watermark.Message) bool) {
	return func(yield func(*watermark.Message) bool) {
		for _, e := range rec.Events {
			ms, ok := e.(watermark.MessagesSequenced)
			if !ok {
				continue
			}
			for i := range ms.Messages {
				if !yield(&ms.Messages[i]) {
					return
				}
			}
		}
	}
}
