package stack_test

import (
	"testing"

	"connectrpc.com/connect"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

func TestField_W1_ClearedHistoryStaysCleared(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.g, s.b, 1, 60)
		if res := s.clear(s.g, s.a); !res.GetChanged() || res.GetMaxSeq() != 60 {
			s.t.Errorf("clear: %v", res)
		}
		s.say(s.g, s.b, 61, 101)
		s.flush()
		w := s.wantMarks("after the loss", s.a, s.g, 101, 60, 41)
		if w.GetMinSeq() != 61 {
			s.t.Errorf("after the loss min = %d, want 61", w.GetMinSeq())
		}
		cleared := &tidemarkv1.PullRange{Conversation: s.g, Begin: 1, End: 60, Order: desc}
		s.wantEmpty("cleared", s.a, cleared, true)
		cleared.Order = asc
		s.wantEmpty("cleared", s.a, cleared, false)
		s.wantPage("after the clear", s.a, &tidemarkv1.PullRange{Conversation: s.g, Begin: 61, End: 101, Num: 100}, 61, 101, true)
		s.wantPage("over the edge", s.a, &tidemarkv1.PullRange{Conversation: s.g, Begin: 1, End: 101, Num: 100}, 61, 101, true)
		wantSeqs(s.t, s.pullAll(s.b, s.g, 1, 101), 1, 101) // nobody else's is cleared
	})
}

func TestField_W2_WhoComesBackSeesBothPieces(t *testing.T) {
	tell(t, nil, func(s *story) { whoComesBack(s, 399, 561) })
}

func TestField_W2_WhoComesBackSeesBothPiecesWithoutSendingAsReading(t *testing.T) {
	tell(t, keepOnSend, func(s *story) { whoComesBack(s, 9, 16) })
}

// whoComesBack is the story of A, who leaves at a seq and comes back before
// another one, which it says.
func whoComesBack(s *story, gone, back int64) {
	first := s.join(s.g, s.a, tidemarkv1.History_HISTORY_ALL)
	if !first.GetChanged() || first.GetMembership() != 1 {
		s.t.Errorf("first join: %v", first)
	}
	s.say(s.g, s.b, 1, gone)
	s.read(s.a, s.g, gone)
	left := s.leave(s.g, s.a)
	if !left.GetChanged() || left.GetMaxSeq() != gone {
		s.t.Errorf("leave: %v", left)
	}
	s.say(s.g, s.b, gone+1, back-1)
	if _, err := s.svc.Send(s.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
		Conversation: s.g, Sender: s.a, ClientMessageId: "outside", Body: &tidemarkv1.SendMessage_Text{Text: "x"},
	}}); connect.CodeOf(err) != connect.CodePermissionDenied {
		s.t.Errorf("a send from outside: %v", err)
	}
	s.between()
	s.wantMarks("outside", s.a, s.g, gone, gone, 0)
	again := s.join(s.g, s.a, tidemarkv1.History_HISTORY_NONE)
	if !again.GetChanged() || again.GetMembership() != 2 || again.GetMaxSeq() != back-1 {
		s.t.Errorf("second join: %v", again)
	}
	if seq := s.send(s.g, s.a, "back"); seq != back {
		s.t.Errorf("seq after the return = %d, want %d", seq, back)
	}
	seesBoth := func(when string) {
		s.t.Helper()
		msgs := s.pullAll(s.a, s.g, 1, 1000)
		if int64(len(msgs)) != gone+1 || msgs[gone].GetSeq() != back {
			s.t.Fatalf("%s: sees %d messages, the last is %v", when, len(msgs), msgs[max(0, len(msgs)-1)].GetSeq())
		}
		wantSeqs(s.t, msgs[:gone], 1, gone)
		s.wantEmpty(when+", between the pieces", s.a, &tidemarkv1.PullRange{Conversation: s.g, Begin: gone + 1, End: back - 1}, false)
		w := s.marks(s.a, s.g)
		if v := w.GetVisible(); len(v) != 2 || v[0].GetBegin() != 1 || v[0].GetEnd() != gone || v[1].GetBegin() != back || v[1].GetEnd() != back {
			s.t.Errorf("%s: visible = %v", when, v)
		}
		if w.GetUnread() != 0 || !w.GetMember() || w.GetMembership() != 2 || w.GetMaxSeq() != back {
			s.t.Errorf("%s: %v", when, w)
		}
	}
	late, err := s.svc.Leave(s.ctx(), &tidemarkv1.LeaveRequest{Conversation: s.g, User: s.a, Membership: 1, OpId: "late-kick", Actor: "admin"})
	if err != nil || late.GetChanged() || late.GetMembership() != 2 {
		s.t.Errorf("a late kick of the first membership: %v, %v", late, err)
	}
	s.between()
	seesBoth("after a late kick")
	for i, repeat := range []func() (*tidemarkv1.CommandResponse, error){
		func() (*tidemarkv1.CommandResponse, error) {
			return s.svc.Leave(s.ctx(), &tidemarkv1.LeaveRequest{Conversation: s.g, User: s.a, OpId: left.GetOpId()})
		},
		func() (*tidemarkv1.CommandResponse, error) {
			return s.svc.Join(s.ctx(), &tidemarkv1.JoinRequest{Conversation: s.g, User: s.a, OpId: again.GetOpId(), History: tidemarkv1.History_HISTORY_NONE})
		},
	} {
		res, err := repeat()
		if err != nil || res.GetChanged() || res.GetMembership() != 2 {
			s.t.Errorf("repeated op %d: %v, %v", i, res, err)
		}
		s.between()
	}
	seesBoth("after repeated ops")

	for _, seq := range []int64{1, back - 1} {
		if _, err := s.svc.Revoke(s.ctx(), &tidemarkv1.RevokeRequest{Conversation: s.g, Seq: seq, Actor: s.a}); connect.CodeOf(err) != connect.CodePermissionDenied {
			s.t.Errorf("A revokes %d, which is not its own: %v", seq, err)
		}
		s.between()
	}
	if _, err := s.svc.Revoke(s.ctx(), &tidemarkv1.RevokeRequest{Conversation: s.g, Seq: back, Actor: s.a}); err != nil {
		s.t.Errorf("A revokes %d: %v", back, err)
	}
	s.between()
	for _, user := range []string{s.a, s.b} {
		page := s.wantPage("revoked", user, &tidemarkv1.PullRange{Conversation: s.g, Begin: back, End: back}, back, back, true)
		if m := page.GetMessages()[0]; !m.GetRevoked() || m.GetRevokedBy() != s.a || m.GetText() != "" || m.GetSender() != s.a {
			s.t.Errorf("%s sees of a revoked message %v", user, m)
		}
	}

	// The kick that means the second membership closes it.
	kick, err := s.svc.Leave(s.ctx(), &tidemarkv1.LeaveRequest{Conversation: s.g, User: s.a, Membership: 2, Actor: "admin"})
	if err != nil || !kick.GetChanged() {
		s.t.Errorf("a kick of the second membership: %v, %v", kick, err)
	}
	s.between()
	s.say(s.g, s.b, back+1, back+9)
	if w := s.marks(s.a, s.g); w.GetMaxSeq() != back || w.GetUnread() != 0 || w.GetMember() {
		s.t.Errorf("after the kick: %v", w)
	}
	s.wantEmpty("after the kick", s.a, &tidemarkv1.PullRange{Conversation: s.g, Begin: back + 1, End: 1000}, true)
}

func TestField_W3_RetentionTakesTheOldestForEverybody(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.g, s.b, 1, 150)
		deleted := 0.0
		if s.written() {
			s.settle()
			deleted = s.metric(stack.ToMongo, "tidemark_tomongo_deleted_rows_total")
		}
		res, err := s.svc.RaiseMinSeq(s.ctx(), &tidemarkv1.RaiseMinSeqRequest{Conversation: s.g, MinSeq: 101})
		if err != nil || !res.GetChanged() || res.GetMinSeq() != 101 || res.GetMaxSeq() != 150 {
			s.t.Errorf("raise: %v, %v", res, err)
		}
		s.between()
		s.settle()
		if s.written() {
			if n := s.metric(stack.ToMongo, "tidemark_tomongo_deleted_rows_total") - deleted; n != 100 {
				s.t.Errorf("%v messages were deleted from history, want 100", n)
			}
		}
		s.say(s.g, s.b, 151, 160) // new traffic
		for _, user := range []string{s.a, s.b} {
			for _, keep := range []tidemarkv1.Keep{nearEnd, nearBegin} {
				p := &tidemarkv1.PullRange{Conversation: s.g, Begin: 1, End: 100, Keep: keep, Order: desc}
				s.wantEmpty("deleted", user, p, true)
				p.Order = asc
				s.wantEmpty("deleted", user, p, false)
			}
			s.wantPage("what is left", user, &tidemarkv1.PullRange{Conversation: s.g, Begin: 1, End: 1000, Keep: nearBegin}, 101, 160, true)
		}
		if w := s.wantMarks("after retention", s.a, s.g, 160, 0, 60); w.GetMinSeq() != 101 {
			s.t.Errorf("after retention: min = %d, want 101", w.GetMinSeq())
		}
		s.read(s.a, s.g, 50) // what is gone cannot be read
		s.wantMarks("after a mark below the minimum", s.a, s.g, 160, 0, 60)
		s.read(s.a, s.g, 110)
		s.wantMarks("after a mark", s.a, s.g, 160, 110, 50)

		// It never falls again, and never passes what was said.
		for minSeq, changed := range map[int64]bool{50: false, 101: false} {
			res, err := s.svc.RaiseMinSeq(s.ctx(), &tidemarkv1.RaiseMinSeqRequest{Conversation: s.g, MinSeq: minSeq})
			if err != nil || res.GetChanged() != changed || res.GetMinSeq() != 101 {
				s.t.Errorf("raise to %d: %v, %v", minSeq, res, err)
			}
			s.between()
		}
		if _, err := s.svc.RaiseMinSeq(s.ctx(), &tidemarkv1.RaiseMinSeqRequest{Conversation: s.g, MinSeq: 1 << 52}); connect.CodeOf(err) != connect.CodeFailedPrecondition {
			s.t.Errorf("raise beyond the end: %v", err)
		}
		s.between()
		// Everything may go; the counter stays.
		if res, err := s.svc.RaiseMinSeq(s.ctx(), &tidemarkv1.RaiseMinSeqRequest{Conversation: s.g, MinSeq: 161}); err != nil || res.GetMinSeq() != 161 {
			s.t.Errorf("raise to the end: %v, %v", res, err)
		}
		s.settle()
		s.flush()
		s.wantMarks("nothing is left", s.a, s.g, 160, 110, 0)
		if seq := s.send(s.g, s.b, "m161"); seq != 161 {
			s.t.Errorf("the seq after everything was deleted = %d, want 161", seq)
		}
		s.wantMarks("one is left", s.a, s.g, 161, 110, 1)
	})
}
