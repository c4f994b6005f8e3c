package syncapi_test

import (
	"math"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// leave and join with op ids.
func leave(t *testing.T, c client, user userID, op string, membership int32) *v1.CommandResponse {
	t.Helper()
	res, err := c.Leave(t.Context(), &v1.LeaveRequest{Conversation: string(group), User: string(user), OpId: op, Membership: membership})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func join(t *testing.T, c client, user userID, op string, h v1.History) *v1.CommandResponse {
	t.Helper()
	res, err := c.Join(t.Context(), &v1.JoinRequest{Conversation: string(group), User: string(user), OpId: op, History: h})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestClearedHistoryStaysCleared(t *testing.T) {
	for _, name := range []string{"json", "grpc"} {
		w := newWorld()
		w.say(t, group, "B", 60)
		c := clients(t, newService(t, w, nil))[name]
		res, err := c.Clear(t.Context(), &v1.ClearRequest{Conversation: string(group), User: "A", OpId: "clear"})
		if err != nil {
			t.Fatal(err)
		}
		want := &v1.CommandResponse{MaxSeq: 60, MinSeq: 1, Membership: 1, Changed: true, OpId: "clear"}
		if diff := cmp.Diff(want, res, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		w.say(t, group, "B", 41)
		for range 2 {
			p := pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 60, Order: desc})
			if diff := cmp.Diff(page{Min: 61, Max: 101, IsEnd: true}, pageOf(p)); diff != "" {
				t.Error(diff)
			}
			p = pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 61, End: 101})
			if diff := cmp.Diff(page{Seqs: run(61, 101), Min: 61, Max: 101, IsEnd: true}, pageOf(p)); diff != "" {
				t.Error(diff)
			}
			w.flush()
		}
	}
}

func TestAClearAtTheEndLeavesNothing(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 20)
	c := clients(t, newService(t, w, nil))["json"]
	if _, err := c.Clear(t.Context(), &v1.ClearRequest{Conversation: string(group), User: "A"}); err != nil {
		t.Fatal(err)
	}
	w.flush()
	for _, order := range []v1.Order{asc, desc} {
		p := pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 20, Order: order})
		if diff := cmp.Diff(page{Min: 21, Max: 20, IsEnd: true}, pageOf(p)); diff != "" {
			t.Error(diff)
		}
	}
	res, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(group)}})
	if err != nil || res.Watermarks[0].Unread != 0 || res.Watermarks[0].ReadSeq != 20 {
		t.Errorf("%v, %v", res, err)
	}
}

func TestARejoinerSeesBothPieces(t *testing.T) {
	for _, name := range []string{"json", "grpc"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c := clients(t, newService(t, w, nil))[name]
			if res := join(t, c, "A", "j1", v1.History_HISTORY_NONE); res.Membership != 1 || !res.Changed {
				t.Fatalf("first join: %v", res)
			}
			w.say(t, group, "B", 399)
			if res := leave(t, c, "A", "l1", 0); res.MaxSeq != 399 || !res.Changed {
				t.Fatalf("leave: %v", res)
			}
			_, err := c.Send(t.Context(), &v1.SendRequest{WaitForSeq: true, Message: &v1.SendMessage{
				Conversation: string(group), Sender: "A", Body: &v1.SendMessage_Text{Text: "still here?"},
			}})
			if connect.CodeOf(err) != connect.CodePermissionDenied || detail(t, err).GetMessage() != "not_member" {
				t.Errorf("send of a former member: %v", err)
			}
			w.say(t, group, "B", 161)
			p := pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 390, End: 1000})
			if diff := cmp.Diff(page{Seqs: run(390, 399), Min: 1, Max: 399, IsEnd: true}, pageOf(p)); diff != "" {
				t.Error(diff)
			}
			if res := join(t, c, "A", "j2", v1.History_HISTORY_NONE); res.Membership != 2 || res.MaxSeq != 560 {
				t.Fatalf("second join: %v", res)
			}
			sent, err := c.Send(t.Context(), &v1.SendRequest{WaitForSeq: true, Message: &v1.SendMessage{
				Conversation: string(group), Sender: "A", Body: &v1.SendMessage_Text{Text: "back"},
			}})
			if err != nil || sent.Seq != 561 || sent.ClientMessageId == "" {
				t.Fatalf("send: %v, %v", sent, err)
			}
			checkBothPieces(t, w, c)
			if res := leave(t, c, "A", "late", 1); res.Changed {
				t.Errorf("a late kick of the first membership: %v", res)
			}
			if res := leave(t, c, "A", "l1", 0); res.Changed || res.MaxSeq != 399 {
				t.Errorf("a repeated leave: %v", res)
			}
			checkBothPieces(t, w, c)
			revoked, err := c.Revoke(t.Context(), &v1.RevokeRequest{Conversation: string(group), Seq: 561, Actor: "A"})
			if err != nil || !revoked.Changed || revoked.OpId == "" {
				t.Errorf("revoke: %v, %v", revoked, err)
			}
			p = pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 561, End: 561})
			if len(p.Messages) != 1 || !p.Messages[0].Revoked {
				t.Errorf("after the revoke: %v", p)
			}
		})
	}
}

func checkBothPieces(t *testing.T, w *world, c client) {
	t.Helper()
	p := pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: math.MaxInt64, Num: 1000})
	want := page{Seqs: append(run(1, 399), 561), Min: 1, Max: 561, IsEnd: true}
	if diff := cmp.Diff(want, pageOf(p)); diff != "" {
		t.Error(diff)
	}
	res, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(group)}})
	if err != nil {
		t.Fatal(err)
	}
	mark := &v1.Watermarks{
		Conversation: string(group), MinSeq: 1, MaxSeq: 561, ReadSeq: 561, Membership: 2, Member: true, LastTimeMs: 561,
		Visible: []*v1.Range{{Begin: 1, End: 399}, {Begin: 561, End: 561}},
	}
	if diff := cmp.Diff(mark, res.Watermarks[0], protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestRetentionHidesTheOld(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 150)
	c := clients(t, newService(t, w, nil))["json"]
	res, err := c.RaiseMinSeq(t.Context(), &v1.RaiseMinSeqRequest{Conversation: string(group), MinSeq: 101})
	if err != nil || res.MinSeq != 101 || res.MaxSeq != 150 || !res.Changed {
		t.Fatalf("%v, %v", res, err)
	}
	w.with(group, func(t *talk) {
		for s := seq(1); s <= 100; s++ {
			delete(t.rows, s)
		}
	})
	w.say(t, group, "B", 5)
	p := pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 100, Order: desc})
	if diff := cmp.Diff(page{Min: 101, Max: 155, IsEnd: true}, pageOf(p)); diff != "" {
		t.Error(diff)
	}
	marked, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(group)}})
	if err != nil || marked.Watermarks[0].Unread != 55 {
		t.Errorf("%v, %v", marked, err)
	}
	if _, err := c.RaiseMinSeq(t.Context(), &v1.RaiseMinSeqRequest{Conversation: string(group), MinSeq: 900}); connect.CodeOf(err) != connect.CodeFailedPrecondition || detail(t, err).GetMessage() != "no_such_seq" {
		t.Errorf("a minimum beyond the maximum: %v", err)
	}
}

func TestAKickedMemberLearnsNothingOfWhatFollows(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 10)
	c := clients(t, newService(t, w, nil))["json"]
	leave(t, c, "A", "kick", 0)
	w.say(t, group, "B", 90)
	for range 2 {
		res, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(group)}})
		if err != nil || res.Watermarks[0].MaxSeq != 10 || res.Watermarks[0].Unread != 10 || res.Watermarks[0].Member {
			t.Errorf("%v, %v", res, err)
		}
		w.with(group, func(t *talk) { t.hotFrom = 50 })
	}
	// Nothing of what the member saw is left.
	w.with(group, func(t *talk) { t.Min = 50 })
	p := pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 100})
	if diff := cmp.Diff(page{Min: 11, Max: 10, IsEnd: true}, pageOf(p)); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyTheSenderRevokes(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 5)
	w.say(t, group, "A", 1)
	w.settle(group, "C", 4, 0)
	for _, name := range []string{"json", "grpc"} {
		c := clients(t, newService(t, w, nil))[name]
		for _, tc := range []struct {
			id    convID
			actor string
			seq   int64
			want  connect.Code
		}{
			{group, "A", 1, connect.CodePermissionDenied},
			{group, "C", 1, connect.CodePermissionDenied},
			{group, "C", 5, connect.CodePermissionDenied},
			{group, "B", 99, connect.CodePermissionDenied},
			{group, "B", 0, connect.CodeInvalidArgument},
			{group, "B", -7, connect.CodeInvalidArgument},
			{group, "B", math.MaxInt64, connect.CodeInvalidArgument},
			{"group:other", "B", 1, connect.CodeNotFound},
			{group, "", 99, connect.CodeFailedPrecondition},
		} {
			_, err := c.Revoke(t.Context(), &v1.RevokeRequest{Conversation: string(tc.id), Seq: tc.seq, Actor: tc.actor})
			if connect.CodeOf(err) != tc.want {
				t.Errorf("%s revokes %d of %s: %v", tc.actor, tc.seq, tc.id, err)
			}
		}
		if slices.ContainsFunc(pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 9}).Messages, (*v1.Message).GetRevoked) {
			t.Fatal("a message is gone")
		}
	}
	c := clients(t, newService(t, w, nil))["grpc"]
	for _, actor := range []string{"B", "B", ""} {
		res, err := c.Revoke(t.Context(), &v1.RevokeRequest{Conversation: string(group), Seq: 2, Actor: actor, OpId: "r" + actor})
		if err != nil {
			t.Errorf("%q revokes: %v, %v", actor, res, err)
		}
	}
}

func TestCommandsNameTheFieldThatIsWrong(t *testing.T) {
	w := newWorld()
	w.say(t, single, "A", 1)
	c := clients(t, newService(t, w, nil))["json"]
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"no conversation": func() error { _, err := c.Join(ctx, &v1.JoinRequest{User: "A"}); return err },
		"bad user": func() error {
			_, err := c.Join(ctx, &v1.JoinRequest{Conversation: string(group), User: "a b"})
			return err
		},
		"bad op": func() error {
			_, err := c.Clear(ctx, &v1.ClearRequest{Conversation: string(group), User: "A", OpId: "\x00"})
			return err
		},
		"bad membership": func() error {
			_, err := c.Leave(ctx, &v1.LeaveRequest{Conversation: string(group), User: "A", Membership: -1})
			return err
		},
		"bad history": func() error {
			_, err := c.Join(ctx, &v1.JoinRequest{Conversation: string(group), User: "A", History: 9})
			return err
		},
		"no message": func() error { _, err := c.Send(ctx, &v1.SendRequest{}); return err },
		"min 0": func() error {
			_, err := c.RaiseMinSeq(ctx, &v1.RaiseMinSeqRequest{Conversation: string(group)})
			return err
		},
	} {
		if err := call(); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := c.Clear(ctx, &v1.ClearRequest{Conversation: string(single), User: "C"})
	if connect.CodeOf(err) != connect.CodePermissionDenied || detail(t, err).GetMessage() != "not_participant" {
		t.Errorf("a stranger clears: %v", err)
	}
	if n := w.count("AppendCommand") + w.count("AppendSend"); n != 0 {
		t.Errorf("%d records were appended", n)
	}
}
