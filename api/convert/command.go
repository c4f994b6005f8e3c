package convert

import (
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// CommandToInput checks a command and gives it as an input without origin and
// time, which are the record's that brought it.
//
// A user who is not one of the two of a single conversation is refused with
// watermark.ReasonNotParticipant. Warm and resequence commands need an op id
// only when somebody waits for the answer.
func CommandToInput(c *v1.Command) (watermark.Input, error) {
	var f faults
	in := watermark.Input{
		Conversation: f.conversation(c.GetConversation()),
		OpID:         c.GetOpId(),
		Caller:       f.keyOrNone("caller", c.GetCaller()),
		Actor:        f.userOrNone("actor", c.GetActor()),
	}
	anonymous := false
	switch k := c.GetKind().(type) {
	case *v1.Command_Join:
		f.join(&in, k.Join)
	case *v1.Command_Leave:
		in.Act = watermark.ActLeave
		in.User = f.party("leave.user", k.Leave.GetUser(), in.Conversation)
		in.Membership = k.Leave.GetMembership()
		if in.Membership < 0 {
			f.addf("leave.membership", "%d is negative", in.Membership)
		}
	case *v1.Command_Clear:
		in.Act = watermark.ActClear
		in.User = f.party("clear.user", k.Clear.GetUser(), in.Conversation)
	case *v1.Command_RaiseMinSeq:
		in.Act, in.Seq = watermark.ActRaiseMin, f.seq("raise_min_seq.min_seq", k.RaiseMinSeq.GetMinSeq())
	case *v1.Command_Revoke:
		in.Act, in.Seq = watermark.ActRevoke, f.seq("revoke.seq", k.Revoke.GetSeq())
	case *v1.Command_Resequence:
		anonymous = in.Caller == ""
		f.resequence(&in, k.Resequence)
	case *v1.Command_Warm:
		anonymous = in.Caller == ""
		in.Act = watermark.ActWarm
	case *v1.Command_SetAttributes:
		in.Act = watermark.ActSetAttributes
		in.User = f.party("set_attributes.user", k.SetAttributes.GetUser(), in.Conversation)
		in.Attributes = f.memberAttributes("set_attributes.attributes", k.SetAttributes.GetAttributes(), 0)
		if len(k.SetAttributes.GetAttributes()) == 0 {
			f.addf("set_attributes.attributes", "none is named")
		}
	case *v1.Command_SetPolicy:
		choice, err := ChoiceFromAPI(k.SetPolicy.GetPolicy())
		f.nest("set_policy", err)
		in.Act, in.Policy = watermark.ActSetPolicy, choice
	default:
		f.addf("kind", "it is missing or not known")
	}
	if in.OpID != "" || !anonymous {
		f.key("op_id", in.OpID)
	}
	if err := f.err("command"); err != nil {
		return watermark.Input{}, err
	}
	return in, nil
}

func (f *faults) join(in *watermark.Input, j *v1.JoinCommand) {
	in.Act = watermark.ActJoin
	in.User = f.party("join.user", j.GetUser(), in.Conversation)
	h, err := HistoryFromAPI(j.GetHistory())
	in.History = h
	switch {
	case err != nil:
		f.addf("join.history", "the value %d is not known", j.GetHistory())
	case h == watermark.HistoryFrom:
		in.Seq = f.seq("join.from", j.GetFrom())
	case j.GetFrom() != 0:
		f.addf("join.from", "%d is given without HISTORY_FROM", j.GetFrom())
	}
}

func (f *faults) resequence(in *watermark.Input, r *v1.ResequenceCommand) {
	in.Act = watermark.ActResequence
	in.Repair = r.GetRepairNumber()
	f.within("resequence.repair_number", in.Repair, 0, maxCount)
	if r.GetMessage() == nil && r.GetMember() == nil {
		f.addf("resequence", "neither a message nor a member")
	}
	if l := r.GetMessage(); l != nil {
		m, err := MessageFromLogged(l)
		f.nest("resequence.message", err)
		in.Seq = f.seq("resequence.message.seq", l.GetSeq())
		m.Seq = 0 // it lost its place
		in.Message = &m
	}
	if s := r.GetMember(); s != nil {
		m, err := MemberFromAPI(s)
		f.nest("resequence.member", err)
		// The owner counts on from here; half of the range is left for that.
		f.within("resequence.member.version", s.GetVersion(), 0, maxCount/2)
		in.Member = &m
	}
}

// InputToCommand gives an input as the command that asks for it; nil for
// ActSend, which is no command. Origin and time are not part of it.
func InputToCommand(in watermark.Input) *v1.Command {
	c := &v1.Command{Conversation: string(in.Conversation), OpId: in.OpID, Caller: in.Caller, Actor: string(in.Actor)}
	switch in.Act {
	case watermark.ActJoin:
		j := &v1.JoinCommand{User: string(in.User), History: HistoryToAPI(in.History)}
		if in.History == watermark.HistoryFrom {
			j.From = int64(in.Seq)
		}
		c.Kind = &v1.Command_Join{Join: j}
	case watermark.ActLeave:
		c.Kind = &v1.Command_Leave{Leave: &v1.LeaveCommand{User: string(in.User), Membership: in.Membership}}
	case watermark.ActClear:
		c.Kind = &v1.Command_Clear{Clear: &v1.ClearCommand{User: string(in.User)}}
	case watermark.ActRaiseMin:
		c.Kind = &v1.Command_RaiseMinSeq{RaiseMinSeq: &v1.RaiseMinSeqCommand{MinSeq: int64(in.Seq)}}
	case watermark.ActRevoke:
		c.Kind = &v1.Command_Revoke{Revoke: &v1.RevokeCommand{Seq: int64(in.Seq)}}
	case watermark.ActResequence:
		r := &v1.ResequenceCommand{RepairNumber: in.Repair}
		if in.Message != nil {
			r.Message = LoggedFromMessage(in.Message)
			r.Message.Seq = int64(in.Seq)
		}
		if in.Member != nil {
			r.Member = MemberToAPI(in.Member)
		}
		c.Kind = &v1.Command_Resequence{Resequence: r}
	case watermark.ActWarm:
		c.Kind = &v1.Command_Warm{Warm: &v1.WarmCommand{}}
	case watermark.ActSetAttributes:
		c.Kind = &v1.Command_SetAttributes{SetAttributes: &v1.SetAttributesCommand{User: string(in.User), Attributes: in.Attributes}}
	case watermark.ActSetPolicy:
		c.Kind = &v1.Command_SetPolicy{SetPolicy: &v1.SetPolicyCommand{Policy: ChoiceToAPI(in.Policy)}}
	default:
		return nil
	}
	return c
}
