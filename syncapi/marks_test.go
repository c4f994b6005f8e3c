package syncapi_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

func read(t *testing.T, c client, user userID, id convID, upTo int64) *v1.ReadResponse {
	t.Helper()
	res, err := c.MarkConversationRead(t.Context(), &v1.MarkConversationReadRequest{User: string(user), Conversation: string(id), ReadSeq: upTo})
	if err != nil {
		t.Fatalf("mark %d of %s in %s: %v", upTo, user, id, err)
	}
	return res
}

func TestMarksAreClampedToWhatIsVisible(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 10)
	w.say(t, group, "B", 560)
	w.settle(group, "A", 0, 399)
	w.with(group, func(t *talk) {
		m := t.members["A"]
		m.Read = 561
		t.members["A"] = m
	})
	for name, c := range clients(t, newService(t, w, nil)) {
		for _, tc := range []struct {
			id           convID
			mark         int64
			read, unread int64
		}{
			{single, 15, 10, 0},
			{single, 2_000_000_000, 10, 0},
			{single, math.MaxInt64, 10, 0},
			{single, math.MinInt64, 10, 0},
			{group, 561, 561, 0},
			{group, 10, 561, 0},
		} {
			got := read(t, c, "A", tc.id, tc.mark)
			if got.ReadSeq != tc.read || got.Unread != tc.unread {
				t.Errorf("%s: mark %d in %s: %v", name, tc.mark, tc.id, got)
			}
		}
	}
}

func TestMarksOfNothingVisibleAreAnsweredWithWhatStands(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 10)
	w.settle(group, "A", 5, 0)
	s := newService(t, w, nil)
	for _, upTo := range []int64{4, 0, -1} {
		got, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "A", Conversation: string(group), ReadSeq: upTo})
		if err != nil || got.ReadSeq != 0 || got.Unread != 6 {
			t.Errorf("mark %d: %v, %v", upTo, got, err)
		}
	}
	if len(w.appends) != 0 {
		t.Errorf("appended %v", w.appends)
	}
}

func TestMarksOutliveRedis(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 20)
	c := clients(t, newService(t, w, nil))["json"]
	read(t, c, "A", group, 20)
	for range 2 {
		res, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(group)}})
		if err != nil || res.Watermarks[0].ReadSeq != 20 || res.Watermarks[0].Unread != 0 {
			t.Fatalf("%v, %v", res, err)
		}
		w.flush()
	}
}

// Whoever follows the log is never told less than what stands.
func TestAMarkBelowWhatStandsIsAppendedAsThat(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 20)
	s := newService(t, w, nil)
	for _, upTo := range []int64{12, 5} {
		res, err := s.MarkConversationRead(t.Context(), &v1.MarkConversationReadRequest{User: "A", Conversation: string(single), ReadSeq: upTo})
		if err != nil || res.ReadSeq != 12 || res.ReceiptSeq != 12 {
			t.Fatalf("mark %d: %v, %v", upTo, res, err)
		}
	}
	if len(w.appends) != 2 {
		t.Fatalf("%d appends, want 2", len(w.appends))
	}
	for i, rec := range w.appends {
		for _, m := range rec {
			if m.Read != 12 || m.Receipt != 12 {
				t.Errorf("append %d says %+v", i, m)
			}
		}
	}
}

// A mark that repeats another is appended all the same: that other one may
// have reached Redis and not the log.
func TestARepeatedMarkIsAppended(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 20)
	w.with(single, func(t *talk) {
		t.marks["A"] = watermark.Member{User: "A", Read: 20, Receipt: 20} // in Redis only
	})
	s := newService(t, w, nil)
	for i := range 3 {
		res, err := s.MarkConversationRead(t.Context(), &v1.MarkConversationReadRequest{User: "A", Conversation: string(single), ReadSeq: 20})
		if err != nil || res.ReadSeq != 20 || res.ReceiptSeq != 20 {
			t.Fatalf("%v, %v", res, err)
		}
		if got := w.count("AppendMarks"); got != i+1 {
			t.Fatalf("after %d marks: %d appends", i+1, got)
		}
	}
	w.flush()
	if got := marks(t, s, "A", single); got.ReadSeq != 20 {
		t.Errorf("read %d after Redis forgot", got.ReadSeq)
	}
}

func TestAMarkIsAnsweredAfterLogAndRedis(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 20)
	s := newService(t, w, nil)
	mark := func() error {
		_, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "A", Conversation: string(single), ReadSeq: 20})
		return err
	}
	w.set(func() { w.logDown = true })
	if err := mark(); err == nil {
		t.Error("answered without an append")
	}
	if w.count("RaiseReads") != 0 {
		t.Error("raised in Redis before it was appended")
	}
	w.set(func() { w.logDown = false })
	if err := mark(); err != nil {
		t.Error(err)
	}
	if got := w.convs[single].marks["A"].Read; got != 20 {
		t.Errorf("Redis has %d", got)
	}
}

func TestOnlyMarkCallsTellThePeer(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 9)
	w.say(t, group, "B", 9)
	s := newService(t, w, nil)
	ctx := t.Context()
	for _, tc := range []struct {
		name    string
		call    func() (*v1.ReadResponse, error)
		receipt int64
	}{
		{"SetReadSeq", func() (*v1.ReadResponse, error) {
			return s.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: "A", Conversation: string(single), ReadSeq: 3, Device: "d"})
		}, 0},
		{"MarkMessagesRead", func() (*v1.ReadResponse, error) {
			return s.MarkMessagesRead(ctx, &v1.MarkMessagesReadRequest{User: "A", Conversation: string(single), Seqs: []int64{2, 5, 1}})
		}, 5},
		{"MarkConversationRead", func() (*v1.ReadResponse, error) {
			return s.MarkConversationRead(ctx, &v1.MarkConversationReadRequest{User: "A", Conversation: string(single), ReadSeq: 7})
		}, 7},
		{"SetReadSeq after", func() (*v1.ReadResponse, error) {
			return s.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: "A", Conversation: string(single), ReadSeq: 8})
		}, 7},
		{"MarkConversationRead of a group", func() (*v1.ReadResponse, error) {
			return s.MarkConversationRead(ctx, &v1.MarkConversationReadRequest{User: "A", Conversation: string(group), ReadSeq: 7})
		}, 0},
	} {
		res, err := tc.call()
		if err != nil || res.ReceiptSeq != tc.receipt {
			t.Errorf("%s: %v, %v", tc.name, res, err)
		}
	}
	if got := marks(t, s, "B", single).PeerReceiptSeq; got != 7 {
		t.Errorf("the peer is told %d", got)
	}
	want := [][]watermark.ReadAdvanced{
		{{User: "A", Read: 3, Device: "d"}},
		{{User: "A", Read: 5, Receipt: 5}},
		{{User: "A", Read: 7, Receipt: 7}},
		{{User: "A", Read: 8}},
		{{User: "A", Read: 7}},
	}
	if diff := cmp.Diff(want, w.appends); diff != "" {
		t.Error(diff)
	}
}

func TestMarkMessagesReadRefuses(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 9)
	w.say(t, group, "B", 9)
	many := make([]int64, 10_001)
	for i := range many {
		many[i] = int64(i + 1)
	}
	for name, c := range clients(t, newService(t, w, nil)) {
		for _, tc := range []struct {
			id   convID
			user userID
			seqs []int64
			want connect.Code
		}{
			{group, "A", []int64{1}, connect.CodeFailedPrecondition},
			{single, "A", nil, connect.CodeInvalidArgument},
			{single, "A", []int64{0}, connect.CodeInvalidArgument},
			{single, "A", []int64{5, -1}, connect.CodeInvalidArgument},
			{single, "A", many, connect.CodeInvalidArgument},
			{single, "C", []int64{1}, connect.CodeNotFound},
			{"single:A:Q", "A", []int64{1}, connect.CodeNotFound},
			{"single:A", "A", []int64{1}, connect.CodeInvalidArgument},
		} {
			_, err := c.MarkMessagesRead(t.Context(), &v1.MarkMessagesReadRequest{User: string(tc.user), Conversation: string(tc.id), Seqs: tc.seqs})
			if connect.CodeOf(err) != tc.want {
				t.Errorf("%s: %s in %s, %d seqs: %v", name, tc.user, tc.id, len(tc.seqs), err)
			}
		}
		if len(w.appends) != 0 {
			t.Errorf("%s: something was broadcast: %v", name, w.appends)
		}
	}
	c := clients(t, newService(t, w, nil))["grpc"]
	res, err := c.MarkMessagesRead(t.Context(), &v1.MarkMessagesReadRequest{User: "A", Conversation: string(single), Seqs: many[:10_000]})
	if err != nil || res.ReadSeq != 9 {
		t.Errorf("10,000 seqs: %v, %v", res, err)
	}
}

func TestUnreadFollowsThePolicy(t *testing.T) {
	for policy, want := range map[watermark.UnreadPolicy][3]int64{
		watermark.KeepOnSend:    {5, 6, 0},
		watermark.AdvanceOnSend: {0, 1, 0},
	} {
		w := newWorld()
		w.policy = policy
		s := newService(t, w, nil)
		var got [3]int64
		w.say(t, single, "B", 5)
		w.say(t, single, "A", 1)
		got[0] = marks(t, s, "A", single).Unread
		w.say(t, single, "B", 1)
		got[1] = marks(t, s, "A", single).Unread
		res, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "A", Conversation: string(single), ReadSeq: 7})
		if err != nil {
			t.Fatal(err)
		}
		got[2] = marks(t, s, "A", single).Unread
		if got != want || res.Unread != want[2] {
			t.Errorf("policy %v: unread %v, want %v; answered %v", policy, got, want, res)
		}
	}
}

func TestMarksOfAConversationShareRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.say(t, group, "B", 9)
		w.say(t, single, "B", 9)
		s := newService(t, w, func(c *syncapi.Config) { c.MarkWindow = 3 * time.Millisecond })
		var wg sync.WaitGroup
		mark := func(user string, id convID, upTo int64) {
			wg.Go(func() {
				res, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: user, Conversation: string(id), ReadSeq: upTo})
				if err != nil || res.ReadSeq != upTo {
					t.Errorf("%s: %v, %v", user, res, err)
				}
			})
		}
		start := time.Now()
		for i := range 500 {
			mark(fmt.Sprintf("u%d", i), group, int64(i%9+1))
		}
		for i := range int64(9) {
			mark("A", single, i+1)
		}
		wg.Wait()
		if took := time.Since(start); took != 3*time.Millisecond {
			t.Errorf("took %s", took)
		}
		of := map[int]int{}
		seen := map[userID]seq{}
		for _, record := range w.appends {
			of[len(record)]++
			for _, m := range record {
				seen[m.User] = max(seen[m.User], m.Read)
			}
		}
		if diff := cmp.Diff(map[int]int{200: 2, 100: 1, 1: 1}, of); diff != "" {
			t.Errorf("records by size: %s", diff)
		}
		if len(seen) != 501 || seen["A"] != 9 {
			t.Errorf("%d users marked, A at %d", len(seen), seen["A"])
		}
		if got := w.count("RaiseReads"); got != 4 {
			t.Errorf("%d raises", got)
		}
	})
}

func TestMarksUnderWayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.say(t, group, "B", 9)
		s := newService(t, w, func(c *syncapi.Config) { c.MaxWaiting = 3 })
		var wg sync.WaitGroup
		var mu sync.Mutex
		codes := map[connect.Code]int{}
		for i := range 10 {
			wg.Go(func() {
				_, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: fmt.Sprintf("u%d", i), Conversation: string(group), ReadSeq: 1})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					codes[0]++
				} else {
					codes[connect.CodeOf(err)]++
				}
			})
		}
		wg.Wait()
		if diff := cmp.Diff(map[connect.Code]int{0: 3, connect.CodeResourceExhausted: 7}, codes); diff != "" {
			t.Error(diff)
		}
		res, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "A", Conversation: string(group), ReadSeq: 1})
		if err != nil {
			t.Errorf("room is not given back: %v, %v", res, err)
		}
	})
}

// One caller that goes away must not take the marks of others with it.
func TestAMarkOutlivesTheCallThatOpenedItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.say(t, group, "B", 9)
		s := newService(t, w, nil)
		ctx, cancel := contextWithCancel(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := s.SetReadSeq(ctx, &v1.SetReadSeqRequest{User: "A", Conversation: string(group), ReadSeq: 4})
			if err == nil {
				t.Error("answered after the caller was gone")
			}
		})
		synctest.Wait()
		wg.Go(func() {
			res, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "C", Conversation: string(group), ReadSeq: 5})
			if diff := cmp.Diff(&v1.ReadResponse{ReadSeq: 5, Unread: 4}, res, protocmp.Transform()); diff != "" || err != nil {
				t.Errorf("%s, %v", diff, err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		if len(w.appends) != 1 || len(w.appends[0]) != 2 {
			t.Errorf("appended %v", w.appends)
		}
	})
}

func TestRunWaitsForTheMarksUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.say(t, group, "B", 9)
		s := newService(t, w, func(c *syncapi.Config) { c.MarkWindow = time.Second })
		call, hangUp := contextWithCancel(t)
		ctx, stop := contextWithCancel(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = s.SetReadSeq(call, &v1.SetReadSeqRequest{User: "A", Conversation: string(group), ReadSeq: 4})
		})
		synctest.Wait()
		hangUp()
		stop()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if got := w.count("RaiseReads"); got != 1 {
			t.Errorf("%d marks stand when Run is over", got)
		}
		wg.Wait()
	})
}

// A mark that the log has and Redis has not, because the conversation is being
// warmed up from before it, must not be served and then fall.
func TestAMarkThatWasServedFromTheTruthDoesNotFallInRedis(t *testing.T) {
	for _, temperature := range []string{"cold", "partial"} {
		t.Run(temperature, func(t *testing.T) {
			w := newWorld()
			w.say(t, single, "B", 9)
			w.with(single, func(c *talk) {
				if temperature == "cold" {
					c.warm = false
				} else {
					c.unknown["A"] = true
				}
			})
			w.beforeLoad = func() {
				w.with(single, func(c *talk) {
					a, b := c.memberLocked("A"), c.memberLocked("B")
					a.RaiseRead(7)
					b.Receipt = 5
					c.members["A"], c.members["B"] = a, b // appended
					c.warm = true                         // installed
					c.warmUps++
				})
			}
			s := newService(t, w, nil)
			if got := marks(t, s, "A", single); got.ReadSeq != 7 || got.PeerReceiptSeq != 5 {
				t.Fatalf("served %v", got)
			}
			w.with(single, func(c *talk) {
				if c.marks["A"].Read != 7 || c.marks["B"].Receipt != 5 {
					t.Errorf("Redis was told %+v", c.marks)
				}
			})
			w.flush()
			w.set(func() { w.beforeLoad = func() { w.set(func() { w.hotDown = true }) } })
			res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(single)}})
			if err != nil || res.Watermarks[0].Error.GetCode() != "unavailable" {
				t.Errorf("a mark that may fall is served: %v, %v", res, err)
			}
		})
	}
}
