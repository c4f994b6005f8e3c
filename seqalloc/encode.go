package seqalloc

import (
	"strconv"

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

// batchArgs gives the arguments of malloc.lua.
func (a *Allocator) batchArgs(b *watermark.Batch, now int64) []any {
	args := make([]any, 0, 12+9*len(b.Inputs))
	args = append(args, a.space.Incarnation, a.space.ExpirySeconds(), now,
		int64(b.Floor), int(b.Policy), a.hotLog)

	var names []watermark.Partition
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
	args = append(args, len(names))
	for _, p := range names {
		args = append(args, partitionName(p))
	}
	for i := range b.Inputs {
		in := &b.Inputs[i]
		place := []any{index(in.Origin.Partition), in.Origin.Offset}
		args = a.inputArgs(args, b.Conversation, in, place)
	}
	if b.Place.Number <= 0 {
		return append(args, b.Token, "", 0)
	}
	return append(args, b.Token, partitionName(b.Place.Partition), b.Place.Number)
}

func (a *Allocator) inputArgs(args []any, conv watermark.ConversationID, in *watermark.Input, place []any) []any {
	add := func(act string, rest ...any) []any {
		args = append(args, act)
		args = append(args, place...)
		return append(args, rest...)
	}
	if reason := unfit(conv, in); reason != "" {
		return add("x", reason)
	}
	op := keyspace.EscapeOp(in.OpID)
	switch in.Act {
	case watermark.ActSend:
		return append(add("s"), a.messageArgs(in)...)
	case watermark.ActResequence:
		if in.Message != nil {
			return append(append(add("q"), a.messageArgs(in)...), int64(in.Seq), in.Repair)
		}
		return add("v", string(in.Member.User), in.Member.Version, int64(in.Seq), in.Repair)
	case watermark.ActJoin:
		return add("j", string(in.User), op, int(in.History), int64(in.Seq))
	case watermark.ActLeave:
		return add("l", string(in.User), op, int64(in.Membership))
	case watermark.ActClear:
		return add("c", string(in.User), op)
	case watermark.ActSetAttributes:
		kind := "g"
		if conv.Single() {
			kind = "s"
		}
		return add("a", string(in.User), op, keyspace.AttributesText(in.Attributes), kind)
	case watermark.ActSetPolicy:
		return add("p", int(in.Policy))
	case watermark.ActRaiseMin:
		return add("m", int64(in.Seq))
	case watermark.ActRevoke:
		return add("r", string(in.Actor), int64(in.Seq), in.Time)
	default:
		return add("w")
	}
}

func (a *Allocator) messageArgs(in *watermark.Input) []any {
	m := in.Message
	header, body := a.encode(m)
	return []any{string(m.Sender), sentField(m.Sender, m.ClientID), m.Hash[:], m.RecordTime, header, body}
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
