package convert_test

import (
	"testing"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

const over = int64(watermark.MaxSeq) + 1

func TestCommandsRefused(t *testing.T) {
	join := func(j *v1.JoinCommand) *v1.Command {
		return &v1.Command{Conversation: "single:a:b", OpId: "o", Kind: &v1.Command_Join{Join: j}}
	}
	raise := func(n int64) *v1.Command {
		return &v1.Command{Conversation: "group:g", OpId: "o", Kind: &v1.Command_RaiseMinSeq{RaiseMinSeq: &v1.RaiseMinSeqCommand{MinSeq: n}}}
	}
	revoke := func(n int64) *v1.Command {
		return &v1.Command{Conversation: "group:g", OpId: "o", Kind: &v1.Command_Revoke{Revoke: &v1.RevokeCommand{Seq: n}}}
	}
	lost := func(r *v1.ResequenceCommand) *v1.Command {
		return &v1.Command{Conversation: "group:g", Kind: &v1.Command_Resequence{Resequence: r}}
	}
	logged := func(seq int64) *v1.LoggedMessage {
		return &v1.LoggedMessage{Seq: seq, Sender: "a", ClientMessageId: "c", Hash: make([]byte, 16)}
	}
	tests := []struct {
		name   string
		cmd    *v1.Command
		reason string
		field  string
	}{
		{"nil", nil, watermark.ReasonInvalid, "conversation:"},
		{"no kind", &v1.Command{Conversation: "group:g", OpId: "o"}, watermark.ReasonInvalid, "kind:"},
		{"no op id", &v1.Command{Conversation: "group:g", Kind: &v1.Command_Clear{Clear: &v1.ClearCommand{User: "a"}}}, watermark.ReasonInvalid, "op_id:"},
		{"nil body", &v1.Command{Conversation: "group:g", OpId: "o", Kind: &v1.Command_Clear{}}, watermark.ReasonInvalid, "clear.user:"},
		{"bad caller", &v1.Command{Conversation: "group:g", OpId: "o", Caller: "\n", Kind: &v1.Command_Warm{}}, watermark.ReasonInvalid, "caller:"},
		{"bad actor", &v1.Command{Conversation: "group:g", OpId: "o", Actor: "a:b", Kind: &v1.Command_Warm{}}, watermark.ReasonInvalid, "actor:"},
		{"warm that is waited for", &v1.Command{Conversation: "group:g", Caller: "c", Kind: &v1.Command_Warm{}}, watermark.ReasonInvalid, "op_id:"},
		{"join of a third", join(&v1.JoinCommand{User: "c"}), watermark.ReasonNotParticipant, "join.user:"},
		{"join of nobody", join(&v1.JoinCommand{}), watermark.ReasonInvalid, "join.user:"},
		{"join with unknown history", join(&v1.JoinCommand{User: "a", History: 9}), watermark.ReasonInvalid, "join.history:"},
		{"join from 0", join(&v1.JoinCommand{User: "a", History: v1.History_HISTORY_FROM}), watermark.ReasonInvalid, "join.from:"},
		{"join from beyond", join(&v1.JoinCommand{User: "a", History: v1.History_HISTORY_FROM, From: over}), watermark.ReasonInvalid, "join.from:"},
		{"join with a stray from", join(&v1.JoinCommand{User: "a", From: 3}), watermark.ReasonInvalid, "join.from:"},
		{"leave of a third", &v1.Command{Conversation: "single:a:b", OpId: "o", Kind: &v1.Command_Leave{Leave: &v1.LeaveCommand{User: "c"}}}, watermark.ReasonNotParticipant, "leave.user:"},
		{"negative membership", &v1.Command{Conversation: "group:g", OpId: "o", Kind: &v1.Command_Leave{Leave: &v1.LeaveCommand{User: "c", Membership: -1}}}, watermark.ReasonInvalid, "leave.membership:"},
		{"clear of a third", &v1.Command{Conversation: "single:a:b", OpId: "o", Kind: &v1.Command_Clear{Clear: &v1.ClearCommand{User: "c"}}}, watermark.ReasonNotParticipant, "clear.user:"},
		{"min 0", raise(0), watermark.ReasonInvalid, "raise_min_seq.min_seq:"},
		{"min beyond", raise(over), watermark.ReasonInvalid, "raise_min_seq.min_seq:"},
		{"revoke of 0", revoke(0), watermark.ReasonInvalid, "revoke.seq:"},
		{"revoke of -1", revoke(-1), watermark.ReasonInvalid, "revoke.seq:"},
		{"revoke beyond", revoke(over), watermark.ReasonInvalid, "revoke.seq:"},
		{"resequence of nothing", lost(&v1.ResequenceCommand{RepairNumber: 1}), watermark.ReasonInvalid, "resequence:"},
		{"resequence of no seq", lost(&v1.ResequenceCommand{RepairNumber: 1, Message: logged(0)}), watermark.ReasonInvalid, "resequence.message.seq:"},
		{"resequence of a broken one", lost(&v1.ResequenceCommand{RepairNumber: 1, Message: &v1.LoggedMessage{Seq: 1}}), watermark.ReasonInvalid, "resequence.message:"},
		{"negative repair", lost(&v1.ResequenceCommand{RepairNumber: -1, Message: logged(1)}), watermark.ReasonInvalid, "resequence.repair_number:"},
		{"repair that no script can count", lost(&v1.ResequenceCommand{RepairNumber: over, Message: logged(1)}), watermark.ReasonInvalid, "resequence.repair_number:"},
		{"version that no owner can count on from", lost(&v1.ResequenceCommand{Member: &v1.MemberState{User: "a", Version: 1<<52 + 1}}), watermark.ReasonInvalid, "resequence.member.version:"},
		{"resequence of a broken member", lost(&v1.ResequenceCommand{Member: &v1.MemberState{}}), watermark.ReasonInvalid, "resequence.member:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := convert.CommandToInput(tt.cmd)
			wantPoison(t, err, tt.reason, tt.field)
		})
	}
}

func TestQuietCommandsNeedNoOpID(t *testing.T) {
	in, err := convert.CommandToInput(&v1.Command{Conversation: "group:g", Kind: &v1.Command_Warm{}})
	if err != nil || in.Act != watermark.ActWarm {
		t.Errorf("warm = %+v, %v", in, err)
	}
	if convert.InputToCommand(watermark.Input{Act: watermark.ActSend}) != nil {
		t.Error("a send is a command")
	}
}

func TestMembersRefused(t *testing.T) {
	state := func(last int32, list ...*v1.Membership) *v1.MemberState {
		return &v1.MemberState{User: "a", Version: 1, LastMembership: last, Memberships: list}
	}
	var crowd []*v1.Membership
	for i := range watermark.MaxMemberships + 1 {
		crowd = append(crowd, &v1.Membership{Number: int32(i + 1), Lower: int64(2*i + 1), Upper: int64(2*i + 1)})
	}
	var ops []*v1.AppliedOp
	for range watermark.KeptOps + 1 {
		ops = append(ops, &v1.AppliedOp{OpId: "o"})
	}
	tests := []struct {
		name  string
		state *v1.MemberState
		field string
	}{
		{"nil", nil, "user:"},
		{"negative version", &v1.MemberState{User: "a", Version: -1}, "version:"},
		{"version beyond", &v1.MemberState{User: "a", Version: over}, "version:"},
		{"negative last membership", &v1.MemberState{User: "a", LastMembership: -1}, "last_membership:"},
		{"read beyond", &v1.MemberState{User: "a", ReadSeq: over}, "read_seq:"},
		{"negative read", &v1.MemberState{User: "a", ReadSeq: -1}, "read_seq:"},
		{"receipt beyond", &v1.MemberState{User: "a", ReceiptSeq: over}, "receipt_seq:"},
		{"too many ops", &v1.MemberState{User: "a", Ops: ops}, "ops:"},
		{"op without id", &v1.MemberState{User: "a", Ops: []*v1.AppliedOp{{}}}, "ops.op_id:"},
		{"op with a wild edge", &v1.MemberState{User: "a", Ops: []*v1.AppliedOp{{OpId: "o", Edge: over}}}, "ops.edge:"},
		{"too many memberships", state(1000, crowd...), "memberships:"},
		{"number 0", state(1, &v1.Membership{}), "memberships.number:"},
		{"number above the last", state(1, &v1.Membership{Number: 2}), "memberships.number:"},
		{"same number twice", state(2, &v1.Membership{Number: 2, Upper: 3}, &v1.Membership{Number: 2, Lower: 9}), "memberships.number:"},
		{"overlap", state(2, &v1.Membership{Number: 1, Upper: 5}, &v1.Membership{Number: 2, Lower: 5}), "memberships.lower:"},
		{"open in the middle", state(2, &v1.Membership{Number: 1}, &v1.Membership{Number: 2, Lower: 5}), "memberships.upper:"},
		{"upside down", state(1, &v1.Membership{Number: 1, Lower: 5, Upper: 4}), "memberships.upper:"},
		{"lower beyond", state(1, &v1.Membership{Number: 1, Lower: over + 1}), "memberships.lower:"},
		{"upper beyond", state(1, &v1.Membership{Number: 1, Upper: over}), "memberships.upper:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := convert.MemberFromAPI(tt.state)
			wantPoison(t, err, watermark.ReasonInvalid, tt.field)
		})
	}
}

func TestEventsRefused(t *testing.T) {
	run := func(policy v1.UnreadPolicy, seqs ...int64) *v1.Event {
		r := &v1.MessagesSequenced{Policy: policy}
		for _, s := range seqs {
			r.Messages = append(r.Messages, &v1.LoggedMessage{Seq: s, Sender: "a", ClientMessageId: "c", Hash: make([]byte, 16)})
		}
		return &v1.Event{Kind: &v1.Event_Messages{Messages: r}}
	}
	message := func(l *v1.LoggedMessage) *v1.Event {
		return &v1.Event{Kind: &v1.Event_Messages{Messages: &v1.MessagesSequenced{Messages: []*v1.LoggedMessage{l}}}}
	}
	hash := make([]byte, 16)
	tests := []struct {
		name  string
		event *v1.Event
		field string
	}{
		{"nil", nil, "kind:"},
		{"no kind", &v1.Event{}, "kind:"},
		{"unknown policy", run(9, 1), "policy:"},
		{"seq 0", run(1, 0), "seq:"},
		{"negative seq", run(1, -1), "seq:"},
		{"seq beyond", run(1, over), "seq:"},
		{"same seq twice", run(1, 4, 4), "seq:"},
		{"falling seqs", run(1, 4, 3), "seq:"},
		{"short hash", message(&v1.LoggedMessage{Seq: 1, Sender: "a", ClientMessageId: "c", Hash: hash[:15]}), "hash:"},
		{"no sender", message(&v1.LoggedMessage{Seq: 1, ClientMessageId: "c", Hash: hash}), "sender:"},
		{"no client id", message(&v1.LoggedMessage{Seq: 1, Sender: "a", Hash: hash}), "client_message_id:"},
		{"wild time", message(&v1.LoggedMessage{Seq: 1, Sender: "a", ClientMessageId: "c", Hash: hash, RecordTimeMs: -1}), "record_time_ms:"},
		{"bad mention", message(&v1.LoggedMessage{Seq: 1, Sender: "a", ClientMessageId: "c", Hash: hash, Mentions: []string{":"}}), "mentions:"},
		{"unknown body type", message(&v1.LoggedMessage{Seq: 1, Sender: "a", ClientMessageId: "c", Hash: hash, BodyType: 7}), "body_type:"},
		{"body without type", message(&v1.LoggedMessage{Seq: 1, Sender: "a", ClientMessageId: "c", Hash: hash, Body: hash}), "body:"},
		{"window of nobody", &v1.Event{Kind: &v1.Event_Window{}}, "member:"},
		{"negative min", &v1.Event{Kind: &v1.Event_MinSeq{MinSeq: &v1.MinSeqRaised{MinSeq: -1}}}, "min_seq:"},
		{"min beyond", &v1.Event{Kind: &v1.Event_MinSeq{MinSeq: &v1.MinSeqRaised{MinSeq: over}}}, "min_seq:"},
		{"revoke of 0", &v1.Event{Kind: &v1.Event_Revoked{Revoked: &v1.Revoked{}}}, "seq:"},
		{"revoke at a wild time", &v1.Event{Kind: &v1.Event_Revoked{Revoked: &v1.Revoked{Seq: 1, TimeMs: -1}}}, "time_ms:"},
		{"read of nobody", &v1.Event{Kind: &v1.Event_Read{Read: &v1.ReadAdvanced{ReadSeq: 1}}}, "user:"},
		{"read beyond", &v1.Event{Kind: &v1.Event_Read{Read: &v1.ReadAdvanced{User: "a", ReadSeq: 1 << 62}}}, "read_seq:"},
		{"receipt beyond", &v1.Event{Kind: &v1.Event_Read{Read: &v1.ReadAdvanced{User: "a", ReceiptSeq: 1 << 62}}}, "receipt_seq:"},
		{"negative repair", &v1.Event{Kind: &v1.Event_Repaired{Repaired: &v1.Repaired{Number: -1, From: 1}}}, "number:"},
		{"repair beyond", &v1.Event{Kind: &v1.Event_Repaired{Repaired: &v1.Repaired{Number: over, From: 1}}}, "number:"},
		{"repair from beyond", &v1.Event{Kind: &v1.Event_Repaired{Repaired: &v1.Repaired{Number: 1, From: over}}}, "from:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := convert.EventFromAPI(tt.event)
			wantPoison(t, err, watermark.ReasonInvalid, tt.field)
		})
	}
}

func TestFaultsKeepTheirClass(t *testing.T) {
	if err := convert.CheckRun([]watermark.Message{{Seq: 2}, {Seq: 1}}); fault.ClassOf(err) != fault.Poison {
		t.Errorf("class of %v", err)
	}
}
