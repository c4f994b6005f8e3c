package seqalloc

import (
	"slices"
	"strconv"
	"sync"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// partitionName names an input partition in the fields of meta and ref.
func partitionName(p watermark.Partition) string { return keyspace.PlaceName(p) }

// sentField names a client message id in the fields of ids0 and ids1. A user
// id holds no '/', so no two ids share a name.
func sentField(sender watermark.UserID, clientID string) string {
	return string(sender) + "/" + clientID
}

// sentValue gives what stands there: the hash's bytes, then the seq.
func sentValue(s watermark.Sent) []byte {
	return strconv.AppendInt(append(make([]byte, 0, 32), s.Hash[:]...), int64(s.Seq), 10)
}

// arguments collects the words of many calls of malloc.lua and plain.lua. What they are made
// of stands in a few long slices: a word that is made by itself, and one that is
// handed over by value, would each cost an allocation.
type arguments struct {
	words []any
	texts []string
	ints  []int64
	made  []byte // texts that are put together here, all of them in one string at last
	parts []part
	last  map[watermark.UserID]int // of senders, used again

	of     watermark.Partition // the last one that was named, and its name
	called string
}

// part is a word that stands in made.
type part struct{ word, from, to int }

// spareArguments are used again: what they take is a tenth of all that a message
// allocates.
var spareArguments = sync.Pool{New: func() any { return new(arguments) }}

// maxSpare bounds what is kept for the next batches, in words.
const maxSpare = 1 << 17

// newArguments has room for those of the batches that all names. It is to be spared
// when nobody has its words any more.
func newArguments(batches []watermark.Batch, all []int) *arguments {
	inputs, size := 0, 0
	for _, i := range all {
		inputs += len(batches[i].Inputs)
		for k := range batches[i].Inputs {
			if m := batches[i].Inputs[k].Message; m != nil {
				size += len(m.Body) + 2*len(m.Sender) + 2*len(m.ClientID) + 128
			}
		}
	}
	a := spareArguments.Get().(*arguments)
	a.words = slices.Grow(a.words, 13*len(all)+12*inputs)
	a.texts = slices.Grow(a.texts, 3*len(all)+6*inputs)
	a.ints = slices.Grow(a.ints, 4*len(all)+4*inputs)
	a.made = slices.Grow(a.made, size)
	a.parts = slices.Grow(a.parts, 4*inputs)
	return a
}

// spare hands a over to others.
func (a *arguments) spare() {
	if cap(a.words) > maxSpare {
		return
	}
	clear(a.words)
	clear(a.texts)
	a.words, a.texts, a.ints, a.made, a.parts = a.words[:0], a.texts[:0], a.ints[:0], a.made[:0], a.parts[:0]
	spareArguments.Put(a)
}

func (a *arguments) text(s string) {
	a.texts = append(a.texts, s)
	a.words = append(a.words, &a.texts[len(a.texts)-1])
}

func (a *arguments) int(n int64) {
	a.ints = append(a.ints, n)
	a.words = append(a.words, &a.ints[len(a.ints)-1])
}

// make makes what was appended to made since from the next word.
func (a *arguments) make(from int) {
	a.parts = append(a.parts, part{len(a.words), from, len(a.made)})
	a.words = append(a.words, nil)
}

// done fills in the words that were made.
func (a *arguments) done() {
	all := string(a.made)
	for _, p := range a.parts {
		a.texts = append(a.texts, all[p.from:p.to])
		a.words[p.word] = &a.texts[len(a.texts)-1]
	}
}

func (a *arguments) name(p watermark.Partition) string {
	if a.called == "" || a.of != p {
		a.of, a.called = p, partitionName(p)
	}
	return a.called
}

// batch adds the arguments of one call.
func (a *arguments) batch(l *Allocator, b *watermark.Batch, now int64) {
	a.text(l.space.Incarnation)
	a.int(l.space.ExpirySeconds())
	a.int(now)
	a.int(int64(b.Floor))
	a.words = append(a.words, int(b.Policy))
	a.int(int64(l.hotLog))

	var few [4]watermark.Partition
	names := few[:0]
	index := func(p watermark.Partition) int {
		for i, n := range names {
			if n == p {
				return i + 1
			}
		}
		names = append(names, p)
		return len(names)
	}
	for i := range b.Inputs {
		index(b.Inputs[i].Origin.Partition)
	}
	a.words = append(a.words, len(names))
	for _, p := range names {
		a.text(a.name(p))
	}
	for i := range b.Inputs {
		in := &b.Inputs[i]
		a.input(l, b.Conversation, in, index(in.Origin.Partition))
	}
	a.text(b.Token)
	if b.Place.Number <= 0 {
		a.words = append(a.words, "", 0)
	} else {
		a.text(a.name(b.Place.Partition))
		a.int(b.Place.Number)
	}
}

// plain adds the arguments of one call of plain.lua for the batches named by
// group, which share partition and place.
func (a *arguments) plain(l *Allocator, batches []watermark.Batch, group []int, now int64) {
	one := &batches[group[0]]
	a.text(l.space.Incarnation)
	a.int(now)
	a.text("in:" + a.name(one.Inputs[0].Origin.Partition))
	if one.Place.Number <= 0 {
		a.words = append(a.words, "")
	} else {
		a.text(a.name(one.Place.Partition) + "|" + strconv.FormatInt(one.Place.Number, 10))
	}
	for _, i := range group {
		b := &batches[i]
		a.int(int64(b.Floor))
		a.int(b.Inputs[0].Origin.Offset)
		a.int(b.Inputs[len(b.Inputs)-1].Origin.Offset)
		a.words = append(a.words, len(b.Inputs))
		a.int(newest(b.Inputs))
		if len(b.Inputs) == 1 {
			a.text(string(b.Inputs[0].Message.Sender))
		} else {
			a.senders(b.Inputs)
		}
		for k := range b.Inputs {
			m := b.Inputs[k].Message
			a.idAndHash(m)
			a.content(l, m)
		}
	}
}

// newest gives the highest time of messages.
func newest(inputs []watermark.Input) int64 {
	t := inputs[0].Message.RecordTime
	for i := range inputs {
		t = max(t, inputs[i].Message.RecordTime)
	}
	return t
}

// senders adds who sent the inputs, which are messages: how many users, and each
// with the place of its last one, from 1 on.
func (a *arguments) senders(inputs []watermark.Input) {
	if a.last == nil {
		a.last = make(map[watermark.UserID]int)
	}
	clear(a.last)
	for i := range inputs {
		a.last[inputs[i].Message.Sender] = i + 1
	}
	a.words = append(a.words, len(a.last))
	for i := range inputs {
		if u := inputs[i].Message.Sender; a.last[u] == i+1 {
			a.text(string(u))
			a.int(int64(i + 1))
		}
	}
}

func (a *arguments) input(l *Allocator, conv watermark.ConversationID, in *watermark.Input, partition int) {
	add := func(act string, rest ...any) {
		a.words = append(a.words, act, partition)
		a.int(in.Origin.Offset)
		a.words = append(a.words, rest...)
	}
	if reason := unfit(conv, in); reason != "" {
		add("x", reason)
		return
	}
	op := keyspace.EscapeOp(in.OpID)
	switch in.Act {
	case watermark.ActSend:
		add("s")
		a.message(l, in)
	case watermark.ActResequence:
		if in.Message == nil {
			add("v", string(in.Member.User), in.Member.Version, int64(in.Seq), in.Repair)
			return
		}
		add("q")
		a.message(l, in)
		a.int(int64(in.Seq))
		a.int(in.Repair)
	case watermark.ActJoin:
		add("j", string(in.User), op, int(in.History), int64(in.Seq))
	case watermark.ActLeave:
		add("l", string(in.User), op, int64(in.Membership))
	case watermark.ActClear:
		add("c", string(in.User), op)
	case watermark.ActSetAttributes:
		kind := "g"
		if conv.Single() {
			kind = "s"
		}
		add("a", string(in.User), op, keyspace.AttributesText(in.Attributes), kind)
	case watermark.ActSetPolicy:
		add("p", int(in.Policy))
	case watermark.ActRaiseMin:
		add("m", int64(in.Seq))
	case watermark.ActRevoke:
		add("r", string(in.Actor), int64(in.Seq), in.Time)
	default:
		add("w")
	}
}

func (a *arguments) message(l *Allocator, in *watermark.Input) {
	m := in.Message
	a.text(string(m.Sender))
	a.idAndHash(m)
	a.int(m.RecordTime)
	a.content(l, m)
}

// idAndHash adds what ids0 and ids1 have of a message, but for its seq.
func (a *arguments) idAndHash(m *watermark.Message) {
	from := len(a.made)
	a.made = append(a.made, m.Sender...)
	a.made = append(a.made, '/')
	a.made = append(a.made, m.ClientID...)
	a.make(from)
	from = len(a.made)
	a.made = append(a.made, m.Hash[:]...)
	a.make(from)
}

// content adds header and body, as the log has them.
func (a *arguments) content(l *Allocator, m *watermark.Message) {
	from := len(a.made)
	var header int
	a.made, header = l.encode(a.made, m)
	a.parts = append(a.parts, part{len(a.words), from, from + header}, part{len(a.words) + 1, from + header, len(a.made)})
	a.words = append(a.words, nil, nil)
}

// unfit gives the reason for which an input cannot be accepted whatever the
// conversation's state is. Such an input goes to the script all the same, so
// that it is decided in its turn.
func unfit(conv watermark.ConversationID, in *watermark.Input) string {
	var user watermark.UserID
	reason := watermark.ReasonNotParticipant
	switch in.Act {
	case watermark.ActSend:
		if in.Message == nil {
			return watermark.ReasonInvalid
		}
		user = in.Message.Sender
	case watermark.ActResequence:
		switch {
		case in.Message != nil:
			user = in.Message.Sender
		case in.Member != nil:
			user = in.Member.User
		default:
			return watermark.ReasonInvalid
		}
	case watermark.ActJoin, watermark.ActLeave, watermark.ActClear, watermark.ActSetAttributes:
		user = in.User
	case watermark.ActSetPolicy:
		if in.Policy < watermark.ChooseDefault || in.Policy > watermark.ChooseKeep {
			return watermark.ReasonInvalid
		}
		return ""
	case watermark.ActRevoke:
		if in.Actor == "" {
			return ""
		}
		// Who is not of the conversation learns as little as who cannot see.
		user, reason = in.Actor, watermark.ReasonNoSuchSeq
	case watermark.ActWarm, watermark.ActRaiseMin:
		return ""
	default:
		return watermark.ReasonInvalid
	}
	if !conv.Admits(user) {
		return reason
	}
	return ""
}
