package hot

import (
	"fmt"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// What is said of a conversation. Where it is cold viewSaid.why tells why.
const (
	statusCold    = "cold"
	statusPartial = "partial"
	statusWarm    = "warm"
)

// viewSaid is a view as it stands in Redis, whichever way it was read: an empty
// text stands for what is not there.
type viewSaid struct {
	status, why string

	token, min, max, repair, from, time, policy, place string

	member, read, receipt string
	peer, peerReceipt     string
	own                   []watermark.Seq
}

// view makes the view. outcome is "warm", "partial" or why the conversation is
// cold; p is the last batch that it was in.
func (s *viewSaid) view(a *Ask, v *watermark.View) (p place, outcome string, err error) {
	*v = watermark.View{}
	v.ID, v.Member.User = a.Conversation, a.User
	switch s.status {
	case statusCold:
		v.Temperature = watermark.Cold
		return p, coldWord(s.why), nil
	case statusPartial:
		v.Temperature = watermark.Partial
	case statusWarm:
	default:
		return p, s.status, fmt.Errorf("%w: status %.20q", errReply, s.status)
	}
	var f fields
	v.Token = s.token
	v.Min, v.Max = f.seq("min", s.min), f.seq("max", s.max)
	v.Repair = watermark.Repaired{Number: f.number("repair", s.repair), From: f.seq("repaired from", s.from)}
	v.LastTime = f.number("last time", s.time)
	v.Policy = watermark.UnreadPolicy(f.number("policy", s.policy))
	v.Member = f.member(a.User, s.member)
	v.Member.Read, v.Member.Receipt = f.seq("read", s.read), f.seq("receipt", s.receipt)
	peer, single := a.Conversation.Peer(a.User)
	other := f.member(peer, s.peer)
	v.PeerReceipt = f.seq("peer's receipt", s.peerReceipt)
	v.Member.Own = s.own
	if single {
		v.PeerWindow = other.Window()
	}
	if f.err != nil {
		return p, s.status, f.err
	}
	p, err = parsePlace(s.place)
	return p, s.status, err
}

// coldWord keeps the metric's label within a set.
func coldWord(why string) string {
	switch why {
	case stateAbsent, stateIncarnation, keyspace.StateWarming:
		return why
	}
	return "other"
}

// Why a conversation is cold, beside its states: see tm_state.
const (
	stateAbsent      = "absent"
	stateIncarnation = "incarnation"
)

// fields reads texts as numbers and members and keeps the first fault.
type fields struct{ err error }

func (f *fields) number(name, text string) int64 {
	n, err := parseNumber(text)
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("%w: %s: %w", errReply, name, err)
	}
	return n
}

func (f *fields) seq(name, text string) watermark.Seq { return watermark.Seq(f.number(name, text)) }

// member reads a member's text; "" is a user of whom nothing stands there.
func (f *fields) member(u watermark.UserID, text string) watermark.Member {
	if text == "" {
		return watermark.Member{User: u}
	}
	m, err := keyspace.ParseMember(u, text)
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("%w: member %s: %w", errReply, u, err)
	}
	return m
}
