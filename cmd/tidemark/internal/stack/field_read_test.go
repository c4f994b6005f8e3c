package stack_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestField_R1_OwnMessagesAreNotUnread(t *testing.T) {
	tell(t, nil, func(s *story) {
		for i := range int64(3) {
			s.send(s.c, s.a, fmt.Sprint("a", i+1))
		}
		s.send(s.c, s.b, "b4")
		s.send(s.c, s.b, "b5")
		s.wantMarks("after five messages", s.a, s.c, 5, 3, 2)
		s.forget(s.c)
		s.wantMarks("with its keys deleted", s.a, s.c, 5, 3, 2)
		s.settle()
		s.forget(s.c)
		s.wantMarks("with its keys deleted once history has all", s.a, s.c, 5, 3, 2)
	})
}

func TestField_R2_WhatWasReadOrClearedStaysSo(t *testing.T) {
	tell(t, nil, func(s *story) {
		for _, conv := range []string{s.c, s.g} {
			s.say(conv, s.b, 1, 20)
			s.wantMarks("before", s.a, conv, 20, 0, 20)
			if res := s.read(s.a, conv, 20); res.GetReadSeq() != 20 || res.GetUnread() != 0 {
				s.t.Errorf("marked 20 in %s: %v", conv, res)
			}
			s.settle()
			s.flush()
			s.wantMarks("after a read and a loss", s.a, conv, 20, 20, 0)

			if res := s.clear(conv, s.a); !res.GetChanged() || res.GetMaxSeq() != 20 || len(res.GetVisible()) != 0 {
				s.t.Errorf("clear of %s: %v", conv, res)
			}
			s.flush()
			if w := s.wantMarks("after a clear and a loss", s.a, conv, 20, 20, 0); w.GetMinSeq() != 21 {
				s.t.Errorf("after a clear: %v", w)
			}
			for _, order := range []tidemarkv1.Order{asc, desc} {
				s.wantEmpty("after a clear", s.a, &tidemarkv1.PullRange{Conversation: conv, Begin: 1, End: 20, Order: order}, true)
			}
			wantSeqs(s.t, s.pullAll(s.b, conv, 1, 20), 1, 20) // B cleared nothing
		}
	})
}

func TestField_R3_AStaleHistoryNeverServesLess(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.c, s.b, 1, 20)
		s.read(s.a, s.c, 5)
		s.settle()
		written := s.written()
		s.rig.stop(stack.ToMongo)
		s.read(s.a, s.c, 20)
		s.forget(s.c)
		s.wantMarks("history has 5", s.a, s.c, 20, 20, 0)
		s.send(s.c, s.b, "m21")
		s.wantMarks("after another message", s.a, s.c, 21, 20, 1)
		s.forget(s.c)
		s.wantMarks("after another loss", s.a, s.c, 21, 20, 1)
		if written {
			s.start(stack.ToMongo)
		}
		s.settle()
		s.wantMarks("history has caught up", s.a, s.c, 21, 20, 1)
		s.forget(s.c)
		s.wantMarks("history has caught up, and Redis is empty", s.a, s.c, 21, 20, 1)
	})
}

// No order of deletes, loads and flushes ever serves less: a chain of steps
// drawn at random, after each of which what was answered before still holds.
func TestField_R3_NoOrderOfLossesServesLess(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	const c = "single:A:B"
	var maxSeq, read, told int64
	r.send(c, "B", "m1")
	maxSeq = 1
	var steps []string
	for i := range 60 {
		step := []string{"send", "send", "mark", "mark", "peer", "forget", "flush", "settle", "history"}[rnd.IntN(9)]
		steps = append(steps, step)
		switch step {
		case "send":
			if seq := r.send(c, "B", fmt.Sprint("x", i)); seq != maxSeq+1 {
				t.Fatalf("seq %d after %d", seq, maxSeq)
			}
			maxSeq++
		case "mark":
			read = max(read, min(maxSeq, rnd.Int64N(maxSeq+3)))
			r.read("A", c, read)
		case "peer":
			seq := 1 + rnd.Int64N(maxSeq)
			if _, err := r.svc.MarkMessagesRead(r.ctx(), &tidemarkv1.MarkMessagesReadRequest{User: "A", Conversation: c, Seqs: []int64{seq}}); err != nil {
				t.Fatal(err)
			}
			read, told = max(read, seq), max(told, seq)
		case "forget":
			r.forget(c)
		case "flush":
			r.flush()
		case "settle":
			r.settle()
		case "history":
			if r.roles[stack.ToMongo] != nil {
				r.stop(stack.ToMongo)
			} else {
				r.start(stack.ToMongo)
			}
		}
		w, peer := r.marks("A", c), r.marks("B", c)
		if w.GetMaxSeq() != maxSeq || w.GetReadSeq() != read || w.GetUnread() != maxSeq-read || peer.GetPeerReceiptSeq() != told {
			t.Fatalf("seed %d, after %v: served %v, and receipt %d to the peer; want max %d, read %d, receipt %d",
				seed, steps, w, peer.GetPeerReceiptSeq(), maxSeq, read, told)
		}
	}
}

// The same with everything at once: while messages come, marks rise and Redis
// is emptied again and again, no reader is ever told less than before, nor less
// than what a mark was answered with.
func TestField_R3_NoRaceOfLossesServesLess(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	svc := r.syncClient()
	const c, n = "single:A:B", 150
	r.say(c, "B", 1, n)
	var answered atomic.Int64
	ctx, stop := context.WithCancel(r.ctx())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { // marks, one after the other
		defer stop()
		for seq := int64(1); seq <= n; seq++ {
			res, err := svc.SetReadSeq(r.t.Context(), &tidemarkv1.SetReadSeqRequest{User: "A", Conversation: c, ReadSeq: seq})
			if err != nil {
				return err
			}
			if res.GetReadSeq() != seq {
				return fmt.Errorf("mark of %d answered with %d", seq, res.GetReadSeq())
			}
			answered.Store(seq)
			switch seq % 30 {
			case 10:
				r.forget(c)
			case 20:
				r.flush()
			}
		}
		return nil
	})
	for range 2 { // readers
		g.Go(func() error {
			var last int64
			for ctx.Err() == nil {
				atLeast := max(last, answered.Load())
				res, err := svc.GetWatermarks(r.t.Context(), &tidemarkv1.GetWatermarksRequest{User: "A", Conversations: []string{c}})
				if err != nil {
					return err
				}
				w := res.GetWatermarks()[0]
				if w.GetError() != nil {
					return fmt.Errorf("watermarks: %v", w.GetError())
				}
				if last = w.GetReadSeq(); last < atLeast || w.GetMaxSeq() < n || w.GetUnread() != w.GetMaxSeq()-last {
					return fmt.Errorf("served %v after read %d", w, atLeast)
				}
			}
			return nil
		})
	}
	g.Go(func() error { // messages, so that the conversation is warmed up again
		for i := 0; ctx.Err() == nil; i++ {
			if err := sayOrLoseTheAnswer(r, svc, c, fmt.Sprint("x", i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, then := range []func(){r.flush, r.settle, r.flush} {
		then()
		if w := r.marks("A", c); w.GetReadSeq() != n {
			t.Errorf("in the end read = %d, want %d", w.GetReadSeq(), n)
		}
	}
}

// sayOrLoseTheAnswer sends a message whose answer may be lost with Redis, which
// the message itself is not.
func sayOrLoseTheAnswer(r *rig, svc tidemarkv1connect.SyncServiceClient, conv, id string) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := svc.Send(ctx, &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
		Conversation: conv, Sender: "B", ClientMessageId: id, Body: &tidemarkv1.SendMessage_Text{Text: "x"},
	}})
	if connect.CodeOf(err) == connect.CodeDeadlineExceeded {
		return nil
	}
	return err
}

func TestField_R4_UnreadIsNeverNegative(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.c, s.b, 1, 10)
		if res := s.read(s.a, s.c, 15); res.GetReadSeq() != 10 || res.GetUnread() != 0 {
			s.t.Errorf("mark beyond the end: %v", res)
		}
		s.wantMarks("after a mark beyond the end", s.a, s.c, 10, 10, 0)
		s.send(s.c, s.b, "m11")
		s.wantMarks("the mark did not reach beyond the end", s.a, s.c, 11, 10, 1)
	})
}

// A member that is capped at 399 and has read 561 is what other systems leave
// behind, and what a conflict can: it comes by the log, past the owner.
func TestField_R4_AMemberCappedBelowItsReadMark(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.logged(s.g, s.b, 1, 561)
		s.append(
			watermark.Record{Conversation: watermark.ConversationID(s.g), Events: []watermark.Event{watermark.ReadAdvanced{User: watermark.UserID(s.a), Read: 561}}},
			watermark.Record{Conversation: watermark.ConversationID(s.g), Events: []watermark.Event{watermark.WindowChanged{Cause: "leave", Member: watermark.Member{
				User: watermark.UserID(s.a), Version: 1, LastMembership: 1, Ops: []watermark.AppliedOp{{ID: "kick", Edge: 399}},
				Memberships: []watermark.Membership{{Number: 1, Upper: 399}},
			}}}},
		)
		s.wantMarks("cold", s.a, s.g, 399, 561, 0)
		s.send(s.g, s.b, "m562") // makes it warm
		s.wantMarks("warm", s.a, s.g, 399, 561, 0)
		if res := s.read(s.a, s.g, 400); res.GetReadSeq() != 561 || res.GetUnread() != 0 {
			s.t.Errorf("a mark below it: %v", res)
		}
		s.wantMarks("after a mark below it", s.a, s.g, 399, 561, 0)
	})
}

func TestField_R5_HugeNumbersAreHarmless(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.c, s.b, 1, 10)
		for _, seq := range []int64{-1, math.MinInt64, 0} {
			if res := s.read(s.a, s.c, seq); res.GetReadSeq() != 0 || res.GetUnread() != 10 {
				s.t.Errorf("mark at %d: %v", seq, res)
			}
		}
		for _, seq := range []int64{2_000_000_000, 1 << 53, 1 << 62, math.MaxInt64} {
			if res := s.read(s.a, s.c, seq); res.GetReadSeq() != 10 || res.GetUnread() != 0 {
				s.t.Errorf("mark at %d: %v", seq, res)
			}
			s.wantMarks(fmt.Sprint("after a mark at ", seq), s.a, s.c, 10, 10, 0)
		}
		for _, p := range []*tidemarkv1.PullRange{
			{Begin: 1, End: 1 << 62}, {Begin: math.MinInt64, End: math.MaxInt64}, {Begin: 1, End: math.MaxInt64, Num: math.MaxInt64},
		} {
			p.Conversation = s.c
			s.wantPage("a range of any size", s.a, p, 1, 10, true)
		}
		s.wantEmpty("far above", s.a, &tidemarkv1.PullRange{Conversation: s.c, Begin: 1 << 62, End: math.MaxInt64}, true)

		before := len(s.log(s.c))
		seqs := make([]int64, 10_000)
		for i := range seqs {
			seqs[i] = int64(i + 1)
		}
		res, err := s.svc.MarkMessagesRead(s.ctx(), &tidemarkv1.MarkMessagesReadRequest{User: s.a, Conversation: s.c, Seqs: seqs})
		if err != nil || res.GetReadSeq() != 10 || res.GetReceiptSeq() != 10 {
			s.t.Errorf("ten thousand seqs: %v, %v", res, err)
		}
		if n := len(s.log(s.c)) - before; n != 1 {
			s.t.Errorf("ten thousand seqs made %d records, want 1", n)
		}
		s.between()
		for name, seqs := range map[string][]int64{"none": nil, "more than 10,000": append(seqs, 1), "a negative one": {3, -1}} {
			_, err := s.svc.MarkMessagesRead(s.ctx(), &tidemarkv1.MarkMessagesReadRequest{User: s.a, Conversation: s.c, Seqs: seqs})
			if connect.CodeOf(err) != connect.CodeInvalidArgument {
				s.t.Errorf("%s: %v", name, err)
			}
		}
		if w := s.marks(s.b, s.c); w.GetPeerReceiptSeq() != 10 {
			s.t.Errorf("the peer was told %d, want 10", w.GetPeerReceiptSeq())
		}
	})
}

// 1,000 members mark 100 messages each. 2,000 of the 100,000 marks are calls;
// the other 98,000 are put on the log in records of 200, as the query service
// writes marks that come at once, since the calls themselves would take most of
// a minute on a busy machine. History then catches up with all of them: what it
// writes is bounded by the members, not by the marks.
func TestField_R6_ReceiptsOfALargeGroupAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis)
	const g, members, messages, called = "group:g1", 1000, 100, 2
	r.say(g, "B", 1, messages)
	before := len(r.log(g))
	svc := r.syncClient()
	calls, ctx := errgroup.WithContext(r.ctx())
	calls.SetLimit(32)
	var recs []watermark.Record
	var marks []watermark.Event
	for seq := int64(1); seq <= messages; seq++ {
		for m := range members {
			user := fmt.Sprintf("u%04d", m)
			if seq%(messages/called) != 0 {
				if marks = append(marks, watermark.ReadAdvanced{User: watermark.UserID(user), Read: watermark.Seq(seq)}); len(marks) == 200 {
					recs = append(recs, watermark.Record{Conversation: watermark.GroupOf("g1"), Events: marks})
					marks = nil
				}
				continue
			}
			calls.Go(func() error {
				res, err := svc.SetReadSeq(ctx, &tidemarkv1.SetReadSeqRequest{User: user, Conversation: g, ReadSeq: seq})
				if err == nil && res.GetReadSeq() < seq {
					err = fmt.Errorf("mark of %d by %s answered with %v", seq, user, res)
				}
				return err
			})
		}
	}
	if err := calls.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.log(g)) - before; n >= members*called {
		t.Errorf("%d marks made %d records; those that come at once share one", members*called, n)
	}
	r.append(recs...)
	r.start(stack.ToMongo)
	r.settle()

	const advances = members*messages + messages // the sender's own too
	if n := r.metric(stack.ToMongo, "tidemark_tomongo_advances_total"); n != advances {
		t.Errorf("%v advances, want %d", n, advances)
	}
	if n := r.metric(stack.ToMongo, "tidemark_tomongo_flushed_members_total"); n > advances/10 {
		t.Errorf("%v watermarks written for %d advances, want at most a tenth", n, advances)
	}
	if n := r.metric(stack.ToMongo, "tidemark_tomongo_flushes_total", "reason", "count"); n > advances/100 {
		t.Errorf("%v writes for %d advances, want at most one in a hundred", n, advances)
	}
	if n := r.metric(stack.ToMongo, "tidemark_tomongo_rows_total"); n != messages {
		t.Errorf("%v rows of messages, want %d", n, messages)
	}
	history := r.history()
	var after watermark.UserID
	readers, rows := 0, 0
	for {
		page, err := history.Roster(t.Context(), watermark.GroupOf("g1"), after, 300)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, m := range page {
			rows++
			if m.Read >= messages && m.User != "B" {
				readers++
			}
			after = m.User
		}
	}
	if readers != members || rows != members+1 {
		t.Errorf("%d rows, %d members have read %d; want %d, %d", rows, readers, messages, members+1, members)
	}
	for _, then := range []func(){func() {}, r.flush} {
		then()
		if w := r.marks("u0500", g); w.GetReadSeq() != messages || w.GetUnread() != 0 {
			t.Errorf("a member is told %v", w)
		}
	}
}

func TestField_R7_MarkMessagesReadIsForSingleChats(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.g, s.b, 1, 3)
		s.join(s.g, s.a, tidemarkv1.History_HISTORY_ALL)
		before := len(s.log(s.g))
		_, err := s.svc.MarkMessagesRead(s.ctx(), &tidemarkv1.MarkMessagesReadRequest{User: s.a, Conversation: s.g, Seqs: []int64{1, 2, 3}})
		if connect.CodeOf(err) != connect.CodeFailedPrecondition {
			s.t.Errorf("MarkMessagesRead on a group: %v", err)
		}
		s.between()
		if n := len(s.log(s.g)); n != before {
			s.t.Errorf("the refused mark made %d records", n-before)
		}
		s.wantMarks("after the refused mark", s.a, s.g, 3, 0, 3)

		// The way that a group has tells nobody either.
		res, err := s.svc.MarkConversationRead(s.ctx(), &tidemarkv1.MarkConversationReadRequest{User: s.a, Conversation: s.g, ReadSeq: 3})
		if err != nil || res.GetReadSeq() != 3 || res.GetReceiptSeq() != 0 {
			s.t.Errorf("MarkConversationRead on a group: %v, %v", res, err)
		}
		s.between()
		for _, rec := range s.log(s.g) {
			for _, e := range rec.Events {
				if e, ok := e.(watermark.ReadAdvanced); ok && (e.Receipt != 0 || e.User != watermark.UserID(s.a)) {
					s.t.Errorf("a receipt in a group: %+v", e)
				}
			}
		}
		s.wantMarks("after the mark", s.a, s.g, 3, 3, 0)
	})
}

func TestField_R8_UnreadPolicies(t *testing.T) {
	for _, tc := range []struct {
		policy                string
		change                func(*config.Config)
		readAfter6, readAfter int64
		after6, after7        int64
	}{
		{"keep_on_send", keepOnSend, 0, 0, 5, 6},
		{"advance_on_send", nil, 6, 6, 0, 1},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			tell(t, tc.change, func(s *story) {
				for _, conv := range []string{s.c, s.g} {
					s.say(conv, s.b, 1, 5)
					s.send(conv, s.a, "m6")
					s.wantMarks("A sent 6", s.a, conv, 6, tc.readAfter6, tc.after6)
					s.send(conv, s.b, "m7")
					s.wantMarks("B sent 7", s.a, conv, 7, tc.readAfter, tc.after7)
					if res := s.read(s.a, conv, 7); res.GetReadSeq() != 7 || res.GetUnread() != 0 {
						s.t.Errorf("A marked 7: %v", res)
					}
					s.wantMarks("A marked 7", s.a, conv, 7, 7, 0)
				}
			})
		})
	}
}

// Own messages beyond the thousandth raise the sender's mark, in the log too.
func TestField_R8_OwnMessagesAreListedUpToABound(t *testing.T) {
	t.Parallel()
	r := newRig(t, keepOnSend)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const c = "single:A:B"
	check := func(when string, maxSeq, unread int64, read ...int64) {
		t.Helper()
		for _, loss := range []func(){func() {}, r.flush} {
			loss()
			if w := r.marks("A", c); w.GetMaxSeq() != maxSeq || w.GetUnread() != unread || !slices.Contains(read, w.GetReadSeq()) {
				t.Errorf("%s: %v; want max %d, unread %d, read one of %d", when, w, maxSeq, unread, read)
			}
		}
	}
	r.send(c, "B", "first")
	r.say(c, "A", 2, 1001)
	check("a thousand own", 1001, 1, 0)
	r.say(c, "A", 1002, 1005)
	// All of another's is read with the first own one that falls off the list.
	check("more than a thousand own", 1005, 0, 2, 3, 4, 5)
	r.send(c, "B", "last")
	check("B answered", 1006, 1, 2, 3, 4, 5)
	r.settle()
	check("history has all", 1006, 1, 2, 3, 4, 5)
}
