package pipeline

import (
	"bytes"
	"fmt"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// sparseFacts is how many messages and other events a part keeps as they are.
// A state costs about 2 KiB however little it says, since the maps in it are
// made for eight entries each; most conversations occur in a segment once or
// twice.
const sparseFacts = 8

// tailLine is one conversation's parts in log order.
type tailLine struct {
	parts  []*tailPart
	pruned int // parts whose client ids are beyond the dedupe horizon
}

// tailPart is what one segment says of one conversation. Message bodies are not
// in it, only where they stand.
type tailPart struct {
	// notes are the records without their bodies, as long as they are few;
	// state is their fold from then on.
	notes []tailNote
	facts int
	state *watermark.State

	bytes int64 // as they are reckoned
	sent  int64 // of these, client ids

	max     watermark.Seq // of the messages
	refs    []tailRef
	span    watermark.Interval // of refs; empty when there are none
	revokes map[watermark.Seq]watermark.Revoked
	// mentions are, by user, the seqs that mention it, ascending.
	mentions map[watermark.UserID][]watermark.Seq
}

// tailNote is a record in the encoding of the log, without bodies.
type tailNote struct {
	offset int64
	value  []byte
}

// tailRef says that the record at offset holds messages of the span. Its ends
// are seqs of messages, what lies between may have holes.
type tailRef struct {
	offset int64
	span   watermark.Interval
}

// What a part is reckoned to take in memory, in bytes: with its places in the
// maps that lead to it, for a note, for a state's maps of eight entries each, for
// a client id and a member in these, for a place where messages stand, a revoke,
// and a user who is mentioned.
const (
	partBytes    = 400
	noteBytes    = 48
	stateBytes   = 2048
	sentBytes    = 160
	memberBytes  = 400
	refBytes     = 40
	revokeBytes  = 200
	mentionBytes = 100
)

// reckon gives what folding rec can add at most, in bytes as they are reckoned: a
// part of its own, or a share of what turns a part's notes into a state.
func reckon(rec *watermark.Record) int64 {
	if rec == nil {
		return 0
	}
	id := int64(len(rec.Conversation))
	n := partBytes + noteBytes + refBytes + id
	for _, e := range rec.Events {
		run, ok := e.(watermark.MessagesSequenced)
		if !ok {
			n += stateBytes/sparseFacts + 2*memberBytes + revokeBytes
			continue
		}
		for i := range run.Messages {
			m := &run.Messages[i]
			n += stateBytes/sparseFacts + sentBytes + id + memberBytes + int64(len(m.Sender)+len(m.ClientID)+len(m.Kind))
			for _, u := range m.Mentions {
				n += mentionBytes + 8 + int64(len(u))
			}
		}
	}
	return n
}

func (p *tailPart) fold(rec *watermark.Record) {
	p.learn(rec)
	span := watermark.Interval{First: watermark.MaxSeq}
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.MessagesSequenced:
			p.mention(e.Messages)
			for i := range e.Messages {
				span.First = min(span.First, e.Messages[i].Seq)
				span.Last = max(span.Last, e.Messages[i].Seq)
			}
		case watermark.Revoked:
			if p.revokes == nil {
				p.revokes = make(map[watermark.Seq]watermark.Revoked)
			}
			if _, ok := p.revokes[e.Seq]; !ok { // the first one stands, as in history
				e.At = rec.Offset + 1
				p.revokes[e.Seq] = e
				p.bytes += revokeBytes
			}
		}
	}
	if span.Empty() {
		return
	}
	p.max = max(p.max, span.Last)
	if len(p.refs) == 0 {
		p.span = span
	}
	p.span.First, p.span.Last = min(p.span.First, span.First), max(p.span.Last, span.Last)
	p.refs = append(p.refs, tailRef{rec.Offset, span})
	p.bytes += refBytes
}

// learn adds rec to the notes, or to the state once there are too many of them.
func (p *tailPart) learn(rec *watermark.Record) {
	if p.state == nil {
		slim, facts := withoutBodies(rec)
		if p.facts += facts; p.facts <= sparseFacts {
			if value, err := wire.EncodeRecord(slim); err == nil {
				p.notes = append(p.notes, tailNote{rec.Offset, value})
				p.bytes += noteBytes + int64(len(value))
				return
			}
		}
		p.state = watermark.NewState(rec.Conversation)
		p.unfold(p.state)
		for _, n := range p.notes {
			p.bytes -= noteBytes + int64(len(n.value))
		}
		p.notes = nil
		p.bytes += stateBytes + p.learned(0, 0, len(rec.Conversation))
	}
	members, sent := len(p.state.Members), len(p.state.Sent)
	p.state.Apply(*rec)
	p.bytes += p.learned(members, sent, len(rec.Conversation))
}

// learned gives the bytes of what the state has above so many members and client
// ids, whose names have about the length of an id.
func (p *tailPart) learned(members, sent, id int) int64 {
	ids := int64(len(p.state.Sent)-sent) * int64(sentBytes+id)
	p.sent += ids
	return ids + int64(len(p.state.Members)-members)*memberBytes
}

// withoutBodies gives what a state takes from rec, and how many facts that is.
func withoutBodies(rec *watermark.Record) (slim watermark.Record, facts int) {
	slim = watermark.Record{Conversation: rec.Conversation, Inputs: rec.Inputs, Events: make([]watermark.Event, len(rec.Events))}
	for i, e := range rec.Events {
		run, ok := e.(watermark.MessagesSequenced)
		if !ok {
			slim.Events[i] = e
			facts++
			continue
		}
		facts += len(run.Messages)
		if facts > sparseFacts {
			return slim, facts
		}
		messages := make([]watermark.Message, len(run.Messages))
		for j := range run.Messages {
			m := &run.Messages[j]
			messages[j] = watermark.Message{Seq: m.Seq, Sender: m.Sender, ClientID: m.ClientID, Hash: m.Hash, Kind: m.Kind, RecordTime: m.RecordTime}
		}
		slim.Events[i] = watermark.MessagesSequenced{Policy: run.Policy, Messages: messages}
	}
	return slim, facts
}

// into merges what the part says into s.
func (p *tailPart) into(s *watermark.State) {
	if p.state != nil {
		s.Merge(p.state)
		return
	}
	p.unfold(s)
}

// unfold applies the notes to s.
func (p *tailPart) unfold(s *watermark.State) {
	for _, n := range p.notes {
		rec, err := wire.DecodeRecord(wire.Record{Offset: n.offset, Value: n.value})
		if err != nil {
			// What the encoder gives the decoder takes; both are this process.
			panic(fmt.Sprintf("a note of the tail at offset %d cannot be read back: %v", n.offset, err))
		}
		s.Apply(rec)
	}
}

// knows tells whether the part says anything of u.
func (p *tailPart) knows(id watermark.ConversationID, u watermark.UserID) bool {
	if p.state != nil {
		_, ok := p.state.Members[u]
		return ok
	}
	for _, n := range p.notes {
		// Few notes name a user, and those that do have the id in them as it is.
		if !bytes.Contains(n.value, []byte(u)) {
			continue
		}
		s := watermark.NewState(id)
		p.unfold(s)
		_, ok := s.Members[u]
		return ok
	}
	return false
}

// prune forgets client ids that a later part has put beyond the dedupe horizon,
// so that a busy conversation holds a bounded number of them however long its
// tail is. The part just begun is still empty, so its predecessors tell. Where
// a part is still notes there are few, and they stay.
// It gives the bytes that are free now.
func (l *tailLine) prune() (freed int64) {
	var top watermark.Seq
	for _, p := range l.parts[l.pruned:] {
		top = max(top, p.max)
	}
	for l.pruned < len(l.parts)-1 && l.parts[l.pruned].max <= top-watermark.DedupeHorizon {
		if p := l.parts[l.pruned]; p.state != nil {
			p.state.Sent = nil
			freed += p.sent
			p.bytes -= p.sent
			p.sent = 0
		}
		l.pruned++
	}
	return freed
}
