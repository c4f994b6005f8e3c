package tomongo

import (
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// piece is a stretch of a batch that is written as one change.
type piece struct {
	change  watermark.Change
	records []watermark.Record
	poison  []poison
	end     int64 // offset after its last record

	// topic and partition are where the records stand.
	topic     string
	partition watermark.Partition

	states map[watermark.ConversationID]*watermark.State
	order  []watermark.ConversationID
	rows   map[place]int // index into change.Rows
	// rowAt and memberAt are the log offsets of change.Rows and Members.
	rowAt, memberAt []int64
	// born are the conversations whose first message is in the piece.
	born map[watermark.ConversationID]bool
}

type poison struct {
	record wire.Record
	err    error
}

type place struct {
	conv watermark.ConversationID
	seq  watermark.Seq
}

// gather takes records from the front of a batch, all of them unless two hold
// different messages for one place. Which of the two stands is for history to
// say, one after the other: a store may insert the rows of one change in any
// order.
func gather(records []wire.Record) (p *piece, taken int, err error) {
	p = &piece{
		states: make(map[watermark.ConversationID]*watermark.State),
		rows:   make(map[place]int),
		born:   make(map[watermark.ConversationID]bool),
	}
	var decoder wire.Decoder
	for _, r := range records {
		rec, err := decoder.Record(r)
		switch {
		case err != nil && fault.ClassOf(err) == fault.Poison:
			p.poison = append(p.poison, poison{r, err})
		case err != nil:
			return nil, 0, err
		case p.collides(rec):
			return p.done(), taken, nil
		default:
			p.add(rec)
		}
		p.topic, p.partition = r.Topic, watermark.Partition{TopicID: r.TopicID, Number: r.Partition}
		p.end = r.Offset + 1
		taken++
	}
	return p.done(), taken, nil
}

func (p *piece) collides(rec watermark.Record) bool {
	for m := range messages(rec) {
		if i, ok := p.rows[place{rec.Conversation, m.Seq}]; ok && !p.change.Rows[i].Message.SameAs(m) {
			return true
		}
	}
	return false
}

// add folds rec. Windows are written as they stand, one row for each change,
// so that history sees every version and can tell a conflict; everything else
// goes through the one fold that Redis and the tail use too.
func (p *piece) add(rec watermark.Record) {
	var peers []watermark.UserID // of those whose windows change
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.WindowChanged:
			m := e.Member
			if peer, ok := rec.Conversation.Peer(m.User); ok {
				peers = append(peers, peer)
			}
			m.ChangedAt = rec.Offset + 1
			p.change.Members = append(p.change.Members, watermark.MemberRow{Conversation: rec.Conversation, Member: m})
			p.memberAt = append(p.memberAt, rec.Offset)
		case watermark.Revoked:
			e.At = rec.Offset + 1
			p.change.Revokes = append(p.change.Revokes, watermark.RevokedRow{Conversation: rec.Conversation, Revoked: e})
		}
	}
	for m := range messages(rec) {
		at := place{rec.Conversation, m.Seq}
		if m.Seq == 1 {
			p.born[rec.Conversation] = true
		}
		if i, ok := p.rows[at]; !ok {
			p.rows[at] = len(p.change.Rows)
		} else if p.change.Rows[i].Message.SameAs(m) {
			continue
		}
		p.change.Rows = append(p.change.Rows, watermark.Row{Conversation: rec.Conversation, Message: *m})
		p.rowAt = append(p.rowAt, rec.Offset)
	}
	st := p.states[rec.Conversation]
	if st == nil {
		st = watermark.NewState(rec.Conversation)
		p.states[rec.Conversation] = st
		p.order = append(p.order, rec.Conversation)
	}
	st.Apply(marksOnly(rec, nil))
	for _, peer := range peers {
		st.MergeMember(watermark.Member{User: peer, ChangedAt: rec.Offset + 1}) // as the fold has it
	}
	p.records = append(p.records, rec)
}

// done adds what the conversations came to. One of which there are only read
// marks has nothing to write.
func (p *piece) done() *piece {
	for _, id := range p.order {
		c := p.states[id].Conversation
		if c.Exists() || c.ChangedAt > 0 {
			p.change.Conversations = append(p.change.Conversations, c)
		}
	}
	return p
}

// marked tells whether m has something to be flushed. A single conversation
// exists for its peer from the first message on; later ones have nothing new to
// say of a member without marks.
func (p *piece) marked(id watermark.ConversationID, m *watermark.Member) bool {
	return m.Read != 0 || m.Receipt != 0 || len(m.Own) != 0 || m.ChangedAt != 0 || p.born[id]
}

// marks tells whether the piece leaves anything to be flushed.
func (p *piece) marks() bool {
	for _, id := range p.order {
		for _, m := range p.states[id].Members {
			if p.marked(id, &m) {
				return true
			}
		}
	}
	return false
}

// disown folds a conversation's marks anew without the messages that lost
// their place: their senders have not sent, and so not read, what stands there.
func (p *piece) disown(id watermark.ConversationID, lost map[place]bool) {
	st := watermark.NewState(id)
	for _, rec := range p.records {
		if rec.Conversation == id {
			st.Apply(marksOnly(rec, lost))
		}
	}
	p.states[id] = st
}

// marksOnly gives rec without its window changes, and without the messages
// that lost their place.
func marksOnly(rec watermark.Record, lost map[place]bool) watermark.Record {
	events := make([]watermark.Event, 0, len(rec.Events))
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.WindowChanged:
		case watermark.MessagesSequenced:
			if len(lost) > 0 {
				e.Messages = standing(rec.Conversation, e.Messages, lost)
			}
			events = append(events, e)
		default:
			events = append(events, e)
		}
	}
	rec.Events = events
	return rec
}

func standing(id watermark.ConversationID, ms []watermark.Message, lost map[place]bool) []watermark.Message {
	var out []watermark.Message
	for _, m := range ms {
		if !lost[place{id, m.Seq}] {
			out = append(out, m)
		}
	}
	return out
}

func messages(rec watermark.Record) func(func(*watermark.Message) bool) {
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
