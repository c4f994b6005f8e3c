package convert_test

import (
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/watermark"
)

var (
	users = rapid.SampledFrom([]watermark.UserID{"a", "B", "c.d", "x~y@z-_9"})
	keys  = rapid.StringMatching(`[a-zA-Z0-9 :{}/é]{1,32}`)
	seqs  = rapid.Map(rapid.Int64Range(1, int64(watermark.MaxSeq)), func(n int64) watermark.Seq { return watermark.Seq(n) })
	convs = rapid.SampledFrom([]watermark.ConversationID{"single:a:b", "single:B:a", "group:g1"})
	edges = rapid.Map(rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, int64(watermark.MaxSeq))), func(n int64) watermark.Seq { return watermark.Seq(n) })
)

// members are reached by the operations that the owner applies, at any edges.
var members = rapid.Custom(func(t *rapid.T) watermark.Member {
	m := watermark.Member{User: users.Draw(t, "user")}
	for range rapid.IntRange(0, 20).Draw(t, "ops") {
		op, edge := keys.Draw(t, "op"), edges.Draw(t, "edge")
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 4:
			m, _, _ = m.SetAttributes(op, edge, map[string]string{
				rapid.StringMatching(`[a-c._-]{1,2}`).Draw(t, "name"): rapid.SampledFrom([]string{"", "1", "é|;,"}).Draw(t, "value"),
			})
		case 0:
			m, _, _ = m.Join(op, edge, watermark.History(rapid.IntRange(0, 2).Draw(t, "history")), edges.Draw(t, "from"))
		case 1:
			m, _ = m.Leave(op, edge, 0)
		case 2:
			m, _ = m.Clear(op, edge)
		case 3:
			m.RaiseRead(edge)
		}
	}
	m.Receipt = edges.Draw(t, "receipt")
	return m
})

var messages = rapid.Custom(func(t *rapid.T) watermark.Message {
	m := watermark.Message{
		Seq:        seqs.Draw(t, "seq"),
		Sender:     users.Draw(t, "sender"),
		ClientID:   keys.Draw(t, "client id"),
		Kind:       rapid.SampledFrom([]string{"", "text", "x.y-z_1"}).Draw(t, "kind"),
		SendTime:   rapid.Int64Range(0, 1<<42).Draw(t, "send time"),
		RecordTime: rapid.Int64Range(0, 1<<42).Draw(t, "record time"),
		Device:     rapid.SampledFrom([]string{"", "phone", "Tablet ü"}).Draw(t, "device"),
		BodyType:   watermark.BodyType(rapid.IntRange(0, 3).Draw(t, "body type")),
	}
	if us := rapid.SliceOfN(users, 0, 3).Draw(t, "mentions"); len(us) > 0 {
		m.Mentions = us
	}
	if a := rapid.MapOfN(keys, rapid.String(), 0, 3).Draw(t, "attributes"); len(a) > 0 {
		m.Attributes = a
	}
	if b := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "body"); len(b) > 0 && m.BodyType != watermark.BodyNone {
		m.Body = b
	}
	m.Hash = m.SumHash()
	return m
})

var events = rapid.Custom(func(t *rapid.T) watermark.Event {
	switch rapid.IntRange(0, 6).Draw(t, "event") {
	case 5:
		return watermark.PolicyChanged{
			Version: rapid.Int64Range(1, watermark.MaxPolicyVersion).Draw(t, "version"),
			Choice:  watermark.PolicyChoice(rapid.IntRange(0, 2).Draw(t, "choice")),
		}
	case 0:
		run := watermark.MessagesSequenced{Policy: watermark.UnreadPolicy(rapid.IntRange(0, 1).Draw(t, "policy"))}
		first := rapid.Int64Range(1, 1000).Draw(t, "first")
		for i, m := range rapid.SliceOfN(messages, 1, 4).Draw(t, "messages") {
			m.Seq = watermark.Seq(first + int64(i))
			run.Messages = append(run.Messages, m)
		}
		return run
	case 1:
		return watermark.WindowChanged{Member: members.Draw(t, "member"), Cause: "leave", Actor: users.Draw(t, "actor")}
	case 2:
		return watermark.MinSeqRaised{Min: seqs.Draw(t, "min")}
	case 3:
		return watermark.Revoked{Seq: seqs.Draw(t, "seq"), By: users.Draw(t, "by"), Time: rapid.Int64Range(0, 1<<42).Draw(t, "time")}
	case 4:
		return watermark.ReadAdvanced{User: users.Draw(t, "user"), Read: edges.Draw(t, "read"), Receipt: edges.Draw(t, "receipt"), Device: "phone"}
	default:
		return watermark.Repaired{Number: rapid.Int64Range(1, 1<<53-1).Draw(t, "number"), From: seqs.Draw(t, "from")}
	}
})

var commands = rapid.Custom(func(t *rapid.T) watermark.Input {
	conv := convs.Draw(t, "conversation")
	user, _, single := conv.Users()
	if !single {
		user = users.Draw(t, "user")
	}
	in := watermark.Input{Conversation: conv, OpID: keys.Draw(t, "op"), Caller: rapid.SampledFrom([]string{"", "sync-1"}).Draw(t, "caller"), Actor: users.Draw(t, "actor")}
	in.Act = watermark.Act(rapid.IntRange(int(watermark.ActJoin), int(watermark.ActSetPolicy)).Draw(t, "act"))
	switch in.Act {
	case watermark.ActJoin:
		in.User, in.History = user, watermark.History(rapid.IntRange(0, 2).Draw(t, "history"))
		if in.History == watermark.HistoryFrom {
			in.Seq = seqs.Draw(t, "from")
		}
	case watermark.ActLeave:
		in.User, in.Membership = user, rapid.Int32Range(0, 1<<31-1).Draw(t, "membership")
	case watermark.ActClear:
		in.User = user
	case watermark.ActSetAttributes:
		in.User, in.Attributes = user, map[string]string{"pinned": rapid.SampledFrom([]string{"", "1"}).Draw(t, "pinned"), "x.y-z_1": "é"}
	case watermark.ActSetPolicy:
		in.Policy = watermark.PolicyChoice(rapid.IntRange(0, 2).Draw(t, "policy"))
	case watermark.ActRaiseMin, watermark.ActRevoke:
		in.Seq = seqs.Draw(t, "seq")
	case watermark.ActResequence:
		in.Repair = rapid.Int64Range(0, 1<<53-1).Draw(t, "repair")
		if rapid.Bool().Draw(t, "of a message") {
			m := messages.Draw(t, "message")
			in.Seq, m.Seq = m.Seq, 0
			in.Message = &m
		} else {
			m := members.Draw(t, "member")
			in.Member = &m
		}
	}
	return in
})
