package syncapi_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// bubble runs f with a running service in a synctest bubble.
func bubble(t *testing.T, w *world, change func(*syncapi.Config), f func(t *testing.T, s *syncapi.Service)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, w, change)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Run(ctx) })
		f(t, s)
		cancel()
		wg.Wait()
	})
}

func send(s *syncapi.Service, ctx context.Context, id, text string) (*v1.SendResponse, error) {
	return s.Send(ctx, &v1.SendRequest{WaitForSeq: true, Message: &v1.SendMessage{
		Conversation: string(group), Sender: "A", ClientMessageId: id, Body: &v1.SendMessage_Text{Text: text},
	}})
}

func TestSendTellsWhatBecameOfThisCall(t *testing.T) {
	w := newWorld()
	w.lag = 30 * time.Millisecond
	bubble(t, w, nil, func(t *testing.T, s *syncapi.Service) {
		for _, tc := range []struct {
			id, text  string
			seq       int64
			duplicate bool
			code      connect.Code
		}{
			{"x", "hello", 1, false, 0},
			{"x", "hello", 1, true, 0},
			{"y", "hello", 2, false, 0},
			{"x", "other", 0, false, connect.CodeAlreadyExists},
			{"x", "hello", 1, true, 0},
		} {
			res, err := send(s, t.Context(), tc.id, tc.text)
			if tc.code != 0 {
				if connect.CodeOf(err) != tc.code {
					t.Errorf("%v: %v", tc, err)
				}
				continue
			}
			if err != nil || res.Seq != tc.seq || res.Duplicate != tc.duplicate || res.ClientMessageId != tc.id {
				t.Errorf("%v: %v, %v", tc, res, err)
			}
		}
	})
}

func TestSendWithoutWaitingIsAnsweredAfterTheAppend(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	req := &v1.SendRequest{Message: &v1.SendMessage{Conversation: string(single), Sender: "A", Body: &v1.SendMessage_Text{Text: "x"}}}
	res, err := s.Send(t.Context(), req)
	if err != nil || res.ClientMessageId == "" || res.Seq != 0 {
		t.Fatalf("%v, %v", res, err)
	}
	if req.Message.ClientMessageId != "" {
		t.Error("the caller's message was changed")
	}
	if got := w.convs[single].rows[1].ClientID; got != res.ClientMessageId {
		t.Errorf("appended under %q, answered %q", got, res.ClientMessageId)
	}
	w.set(func() { w.logDown = true })
	if res, err := s.Send(t.Context(), req); err == nil {
		t.Errorf("answered without an append: %v", res)
	}
}

func TestALoneCallIsAnsweredAtOnce(t *testing.T) {
	bubble(t, newWorld(), nil, func(t *testing.T, s *syncapi.Service) {
		start := time.Now()
		if _, err := send(s, t.Context(), "x", "y"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

func TestWaitingCallsShareRoundTripsAndBackOff(t *testing.T) {
	w := newWorld()
	w.slow = true
	bubble(t, w, func(c *syncapi.Config) { c.AnswerTimeout = time.Second }, func(t *testing.T, s *syncapi.Service) {
		var wg sync.WaitGroup
		start := time.Now()
		for i := range 1000 {
			wg.Go(func() {
				if _, err := send(s, t.Context(), fmt.Sprintf("x%d", i), "y"); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %s", took)
		}
		// 10 polls in the first 20 ms, then ever fewer: 20 ms apart at the end.
		if polls := w.count("Answers"); polls < 40 || polls > 100 {
			t.Errorf("%d round trips in a second", polls)
		}
		w.set(func() { w.slow, w.calls["Answers"] = false, 0 })
		time.Sleep(time.Minute)
		if polls := w.count("Answers"); polls != 0 {
			t.Errorf("%d round trips while nobody waits", polls)
		}
	})
}

func TestATimeoutSaysThatTheCommandStands(t *testing.T) {
	w := newWorld()
	w.slow = true
	bubble(t, w, nil, func(t *testing.T, s *syncapi.Service) {
		start := time.Now()
		_, err := s.Join(t.Context(), &v1.JoinRequest{Conversation: string(group), User: "A", OpId: "op7"})
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("took %s", took)
		}
		if connect.CodeOf(err) != connect.CodeDeadlineExceeded || !strings.Contains(err.Error(), `accepted and will be applied; repeating it with op_id "op7" is safe`) {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err = s.Clear(ctx, &v1.ClearRequest{Conversation: string(group), User: "A"})
		if took := time.Since(start); took != time.Second || connect.CodeOf(err) != connect.CodeDeadlineExceeded || !strings.Contains(err.Error(), "op_id") {
			t.Errorf("after %s: %v", took, err)
		}
		w.set(func() { w.slow = false })
		res, err := s.Join(t.Context(), &v1.JoinRequest{Conversation: string(group), User: "A", OpId: "op7"})
		if err != nil || res.Changed || res.Membership != 1 {
			t.Errorf("repeated: %v, %v", res, err)
		}
	})
}

func TestWaitingCallsOutlastARedisThatFails(t *testing.T) {
	w := newWorld()
	w.hotDown = true
	bubble(t, w, nil, func(t *testing.T, s *syncapi.Service) {
		var wg sync.WaitGroup
		wg.Go(func() {
			if res, err := send(s, t.Context(), "x", "y"); err != nil || res.Seq != 1 {
				t.Errorf("%v, %v", res, err)
			}
		})
		time.Sleep(3 * time.Second)
		if polls := w.count("Answers"); polls < 5 || polls > 20 {
			t.Errorf("%d round trips to a Redis that is down", polls)
		}
		w.set(func() { w.hotDown = false })
		wg.Wait()
	})
}

func TestWaitingCallsAreBounded(t *testing.T) {
	w := newWorld()
	w.slow = true
	bubble(t, w, func(c *syncapi.Config) { c.MaxWaiting = 5 }, func(t *testing.T, s *syncapi.Service) {
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { _, _ = send(s, t.Context(), fmt.Sprintf("x%d", i), "y") })
		}
		synctest.Wait()
		appended := w.count("AppendSend")
		if _, err := send(s, t.Context(), "z", "y"); connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("%v", err)
		}
		if w.count("AppendSend") != appended {
			t.Error("a call that was refused was appended")
		}
		wg.Wait()
		w.set(func() { w.slow = false })
		if _, err := send(s, t.Context(), "z", "y"); err != nil {
			t.Errorf("room is not given back: %v", err)
		}
	})
}

func TestStoppingSendsWaitingCallsAway(t *testing.T) {
	w := newWorld()
	w.slow = true
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, w, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Run(ctx) })
		wg.Go(func() {
			if _, err := send(s, t.Context(), "x", "y"); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "accepted") {
				t.Errorf("%v", err)
			}
		})
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
		if _, err := send(s, t.Context(), "x", "y"); connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("after the stop: %v", err)
		}
		if _, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "A", Conversation: string(group), ReadSeq: 1}); connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("mark after the stop: %v", err)
		}
	})
}

func TestEveryRefusalHasACode(t *testing.T) {
	for reason, want := range map[string]connect.Code{
		watermark.ReasonNotMember:      connect.CodePermissionDenied,
		watermark.ReasonNotParticipant: connect.CodePermissionDenied,
		watermark.ReasonIDReused:       connect.CodeAlreadyExists,
		watermark.ReasonNoSuchSeq:      connect.CodeFailedPrecondition,
		watermark.ReasonWindowFull:     connect.CodeFailedPrecondition,
		watermark.ReasonSeqsExhausted:  connect.CodeFailedPrecondition,
		watermark.ReasonInvalid:        connect.CodeInvalidArgument,
		watermark.ReasonTooLarge:       connect.CodeInvalidArgument,
	} {
		w := newWorld()
		log := refusing{fakeLog{w}, reason}
		bubble(t, w, func(c *syncapi.Config) { c.Log = log }, func(t *testing.T, s *syncapi.Service) {
			_, err := s.Join(t.Context(), &v1.JoinRequest{Conversation: string(group), User: "A"})
			if connect.CodeOf(err) != want || !strings.Contains(err.Error(), reason) {
				t.Errorf("%s: %v", reason, err)
			}
		})
	}
}

// refusing is a log whose owner refuses every command.
type refusing struct {
	fakeLog
	reason string
}

func (r refusing) AppendCommand(_ context.Context, c *v1.Command) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answerLocked(
		watermark.AnswerKey{Conversation: convID(c.Conversation), Caller: c.Caller, OpID: c.OpId},
		watermark.Answer{Verdict: watermark.Refused, Reason: r.reason})
	return nil
}
