package wire

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// MaxRecordMessages is the most messages of one sequenced record.
	MaxRecordMessages = 200
	// MaxRecordBytes is the largest sequenced record, unless it holds a single
	// event that is larger by itself.
	MaxRecordBytes = 512 << 10

	// What a record, an event and an input take at most, beside their content.
	recordOverhead = 2 + len("single::") + 2*watermark.MaxIDLen
	eventOverhead  = 16
	inputSize      = 2 + 2 + maxTopicID + 6 + 11
)

// Packer cuts what happened to one conversation, in order, into records of the
// sequenced log. It belongs to one goroutine.
//
// The events of one input stay together where a record can hold them, and an
// input counts as accounted for only in the record that holds its last event:
// whoever rebuilds a conversation from a log that ends between two records must
// not take an input for decided whose effects are not all there.
type Packer struct {
	conv    watermark.ConversationID
	records []watermark.Record
	cur     watermark.Record
	run     []watermark.Message // the last event of cur, not in it yet
	policy  watermark.UnreadPolicy
	inputs  []watermark.Origin // the highest of each partition
	shared  bool               // a record has them
	size    int                // of the events in cur, an upper bound
	count   int                // messages in cur
	more    int                // messages that are still to come, for sure or not
}

// NewPacker gives a packer for one conversation. messages is about how many will
// come; it only saves work.
func NewPacker(conv watermark.ConversationID, messages int) *Packer {
	return &Packer{conv: conv, more: messages}
}

// Into has the records stand in room as long as it has any.
func (p *Packer) Into(room []watermark.Record) *Packer {
	p.records = room[:0]
	return p
}

// AddMessage appends the message that one input has become, as Add does with the
// event of it.
func (p *Packer) AddMessage(origin watermark.Origin, policy watermark.UnreadPolicy, m watermark.Message) {
	size := eventOverhead + messageSize(&m)
	if !p.fits(1, size) {
		p.cut()
	}
	p.appendMessage(&m, policy, size)
	p.account(origin)
}

// Add appends the events of one input, none for an input that has none but was
// decided. A zero origin stands for events that come from no input.
func (p *Packer) Add(origin watermark.Origin, events ...watermark.Event) {
	units := split(events)
	// An input without events needs no room: it belongs to the record at hand,
	// also where that is over its bound already.
	if n, size := total(units); len(units) > 0 && n <= MaxRecordMessages && size+p.base() <= MaxRecordBytes && !p.fits(n, size) {
		p.cut()
	}
	for _, u := range units {
		if !p.fits(u.messages(), u.size) {
			p.cut()
		}
		p.append(u)
	}
	p.account(origin)
}

// Records gives what was packed and empties the packer. Inputs without events
// are accounted for by the record before them; where there is none, they are
// not. The inputs already accounted for are remembered.
func (p *Packer) Records() []watermark.Record {
	p.cut()
	out := p.records
	p.records = nil
	return out
}

// base is what a record takes beside its events: those inputs that are known,
// and the one that is being added.
func (p *Packer) base() int { return recordOverhead + inputSize*(len(p.inputs)+1) }

func (p *Packer) fits(messages, size int) bool {
	return (len(p.cur.Events) == 0 && len(p.run) == 0) || (p.count+messages <= MaxRecordMessages && p.base()+p.size+size <= MaxRecordBytes)
}

// cut ends the current record.
func (p *Packer) cut() {
	p.endRun()
	if len(p.cur.Events) > 0 {
		p.cur.Conversation = p.conv
		p.cur.Inputs = p.accounted()
		p.records = append(p.records, p.cur)
	}
	p.cur, p.count, p.size = watermark.Record{}, 0, 0
}

// account notes that all that came of an input is packed.
func (p *Packer) account(o watermark.Origin) {
	if o.Partition.TopicID == "" {
		return
	}
	if p.shared {
		p.inputs, p.shared = slices.Clone(p.inputs), false
	}
	for i := range p.inputs {
		if p.inputs[i].Partition == o.Partition {
			p.inputs[i].Offset = max(p.inputs[i].Offset, o.Offset)
			return
		}
	}
	p.inputs = append(p.inputs, o)
}

func (p *Packer) accounted() []watermark.Origin {
	if len(p.inputs) == 0 {
		return nil
	}
	if !p.shared {
		slices.SortFunc(p.inputs, func(a, b watermark.Origin) int {
			return cmp.Or(cmp.Compare(a.Partition.TopicID, b.Partition.TopicID), cmp.Compare(a.Partition.Number, b.Partition.Number))
		})
		p.shared = true
	}
	return p.inputs[:len(p.inputs):len(p.inputs)]
}

// append adds one unit to the current record, a message to the run before it
// where that can take it.
func (p *Packer) append(u unit) {
	if u.message != nil {
		p.appendMessage(u.message, u.policy, u.size)
		return
	}
	p.size += u.size
	p.endRun()
	p.cur.Events = append(p.cur.Events, u.event)
}

func (p *Packer) appendMessage(m *watermark.Message, policy watermark.UnreadPolicy, size int) {
	p.size += size
	p.count++
	if n := len(p.run); n > 0 && (p.policy != policy || p.run[n-1].Seq >= m.Seq) {
		p.endRun()
	}
	if p.run == nil {
		p.policy = policy
		p.run = make([]watermark.Message, 0, min(max(p.more, 1), MaxRecordMessages))
	}
	p.run = append(p.run, *m)
	p.more--
}

// endRun makes the run at hand an event.
func (p *Packer) endRun() {
	if len(p.run) == 0 {
		return
	}
	if p.cur.Events == nil {
		p.cur.Events = make([]watermark.Event, 0, 1)
	}
	p.cur.Events = append(p.cur.Events, watermark.MessagesSequenced{Policy: p.policy, Messages: p.run})
	p.run = nil
}

// unit is what is never cut: a message or another event.
type unit struct {
	event   watermark.Event
	message *watermark.Message
	policy  watermark.UnreadPolicy
	size    int // in a record, an upper bound
}

func (u unit) messages() int {
	if u.message != nil {
		return 1
	}
	return 0
}

func split(events []watermark.Event) []unit {
	out := make([]unit, 0, len(events))
	for _, e := range events {
		run, ok := e.(watermark.MessagesSequenced)
		if !ok {
			n := eventOverhead
			if api := convert.EventToAPI(e); api != nil {
				n = tagSize + protowire.SizeBytes(proto.Size(api))
			}
			out = append(out, unit{event: e, size: n})
			continue
		}
		for i := range run.Messages {
			m := &run.Messages[i]
			out = append(out, unit{message: m, policy: run.Policy, size: eventOverhead + messageSize(m)})
		}
	}
	return out
}

func total(units []unit) (messages, size int) {
	for _, u := range units {
		messages += u.messages()
		size += u.size
	}
	return messages, size
}
