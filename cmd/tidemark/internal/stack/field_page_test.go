package stack_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestField_P1_OddRanges(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.c, s.b, 1, 10)
		s.wantEmpty("above", s.a, &tidemarkv1.PullRange{Conversation: s.c, Begin: 11, End: 30, Num: 20, Order: asc}, true)
		s.wantPage("all", s.a, &tidemarkv1.PullRange{Conversation: s.c, Begin: 1, End: 10, Num: 20, Order: desc}, 10, 1, true)
		s.wantEmpty("below", s.a, &tidemarkv1.PullRange{Conversation: s.c, Begin: -5, End: 0, Num: 20, Order: desc}, true)
		s.say(s.g, s.b, 1, 150)
		for _, num := range []int64{0, -1, -1 << 63} {
			p := s.wantPage("default size", s.a, &tidemarkv1.PullRange{Conversation: s.g, Begin: 1, End: 150, Num: num, Order: asc}, 51, 150, false)
			if rest := p.GetRest(); rest.GetBegin() != 1 || rest.GetEnd() != 50 {
				s.t.Errorf("num %d: rest = %v, want 1..50", num, rest)
			}
		}
		res, err := s.svc.Pull(s.ctx(), &tidemarkv1.PullRequest{User: s.a, Ranges: []*tidemarkv1.PullRange{
			{Conversation: s.c, Begin: 5, End: 4},
			{Conversation: s.c, Begin: 1, End: 10},
			{Conversation: "group:nobody-knows", Begin: 1, End: 10},
			{Conversation: "single:X:Y", Begin: 1, End: 10},
			{Conversation: "nonsense", Begin: 1, End: 10},
			{Conversation: s.g, Begin: 1, End: 3},
		}})
		if err != nil {
			s.t.Fatal(err)
		}
		s.between()
		var codes []string
		for i, p := range res.GetPages() {
			codes = append(codes, p.GetError().GetCode())
			if p.GetError() != nil && (len(p.GetMessages()) != 0 || p.GetIsEnd() || p.GetError().GetMessage() == "") {
				s.t.Errorf("entry %d: %v", i, p)
			}
		}
		if want := []string{"invalid_argument", "", "not_found", "not_found", "invalid_argument", ""}; !slices.Equal(codes, want) {
			s.t.Errorf("codes = %q, want %q", codes, want)
		}
		wantSeqs(s.t, res.GetPages()[1].GetMessages(), 1, 10)
		wantSeqs(s.t, res.GetPages()[5].GetMessages(), 1, 3)
	})
}

// walk is a client that follows rest in one of the four combinations.
type walk struct {
	name  string
	ends  bool // it goes in the page's direction, so the last page is the end
	ask   *tidemarkv1.PullRange
	pages int
	seen  map[int64]int
}

// step takes in a page and tells whether the walk goes on.
func (w *walk) step(t *testing.T, page *tidemarkv1.PullPage) bool {
	t.Helper()
	w.pages++
	msgs := page.GetMessages()
	if page.GetError() != nil || len(msgs) != 20 {
		t.Fatalf("%s, page %d: %d messages, %v", w.name, w.pages, len(msgs), page.GetError())
	}
	for i, m := range msgs {
		w.seen[m.GetSeq()]++
		if i > 0 && (m.GetSeq() > msgs[i-1].GetSeq()) != (w.ask.GetOrder() == asc) {
			t.Errorf("%s, page %d: %d after %d", w.name, w.pages, m.GetSeq(), msgs[i-1].GetSeq())
		}
	}
	last := page.GetRest() == nil
	if page.GetIsEnd() != (last && w.ends) {
		t.Errorf("%s, page %d: is_end = %t, rest %v", w.name, w.pages, page.GetIsEnd(), page.GetRest())
	}
	w.ask.Begin, w.ask.End = page.GetRest().GetBegin(), page.GetRest().GetEnd()
	return !last
}

func TestField_P2_FollowingRestReadsEachSeqOnce(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.g, s.b, 1, 1000)
		var walks []*walk // one call takes a step of each
		for _, order := range []tidemarkv1.Order{asc, desc} {
			for _, keep := range []tidemarkv1.Keep{nearBegin, nearEnd} {
				walks = append(walks, &walk{
					name: fmt.Sprint(order, " ", keep), ends: (order == asc) == (keep == nearBegin), seen: make(map[int64]int),
					ask: &tidemarkv1.PullRange{Conversation: s.g, Begin: 1, End: 1 << 62, Num: 20, Order: order, Keep: keep},
				})
			}
		}
		for open := walks; len(open) > 0 && walks[0].pages < 60; {
			req := &tidemarkv1.PullRequest{User: s.a}
			for _, w := range open {
				req.Ranges = append(req.Ranges, w.ask)
			}
			res, err := s.svc.Pull(s.ctx(), req)
			if err != nil {
				s.t.Fatal(err)
			}
			var next []*walk
			for i, w := range open {
				if w.step(s.t, res.GetPages()[i]) {
					next = append(next, w)
				}
			}
			open = next
			if walks[0].pages%5 == 0 {
				s.between()
			}
		}
		for _, w := range walks {
			if w.pages != 50 || len(w.seen) != 1000 {
				s.t.Errorf("%s: %d distinct seqs on %d pages, want 1000 on 50", w.name, len(w.seen), w.pages)
			}
			for seq, n := range w.seen {
				if n != 1 || seq < 1 || seq > 1000 {
					s.t.Errorf("%s: seq %d came %d times", w.name, seq, n)
				}
			}
		}
	})
}

func TestField_P3_RevokedMessagesAreTombstones(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.say(s.c, s.b, 1, 52)
		for seq := int64(3); seq <= 51; seq++ {
			actor := s.b
			if seq%2 == 0 {
				actor = "" // the deployment itself
			}
			res, err := s.svc.Revoke(s.ctx(), &tidemarkv1.RevokeRequest{Conversation: s.c, Seq: seq, Actor: actor})
			if err != nil || !res.GetChanged() {
				s.t.Fatalf("revoke %d: %v, %v", seq, res, err)
			}
			if seq%16 == 0 {
				s.between()
			}
		}
		s.between()
		for _, when := range []string{"now", "later"} {
			page := s.wantPage(when, s.a, &tidemarkv1.PullRange{Conversation: s.c, Begin: 1, End: 100}, 1, 52, true)
			for _, m := range page.GetMessages() {
				gone := m.GetSeq() >= 3 && m.GetSeq() <= 51
				if m.GetRevoked() != gone || (m.GetBody() == nil) != gone || m.GetSender() != s.b || m.GetClientMessageId() != fmt.Sprint("m", m.GetSeq()) {
					s.t.Errorf("%s: %v", when, m)
				}
				if wantBy := map[bool]string{true: "", false: s.b}[m.GetSeq()%2 == 0]; gone && (m.GetRevokedBy() != wantBy || m.GetRevokedTimeMs() == 0) {
					s.t.Errorf("%s: revoked by %q at %d, want %q", when, m.GetRevokedBy(), m.GetRevokedTimeMs(), wantBy)
				}
			}
			s.settle()
		}
		s.wantMarks("a tombstone counts", s.a, s.c, 52, 0, 52)
	})
}

// The first sync of a user with 1,000 conversations, of which 940 are idle.
// (The field had 10,000; what is counted here does not depend on it.)
func TestField_P4_FirstSyncOfManyConversations(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const all, active, user = 1000, 60, "me"
	conv := func(i int) string { return fmt.Sprintf("single:%s:peer%04d", user, i) }
	var past []watermark.Record
	for i := range all {
		past = append(past, watermark.Record{Conversation: watermark.ConversationID(conv(i)), Events: []watermark.Event{
			watermark.MessagesSequenced{Policy: watermark.AdvanceOnSend, Messages: []watermark.Message{{
				Seq: 1, Sender: watermark.UserID(fmt.Sprintf("peer%04d", i)), ClientID: "m1", Kind: "text",
				SendTime: 1, RecordTime: int64(i + 1), BodyType: watermark.BodyText, Body: []byte("hello"),
			}}},
		}})
	}
	r.append(past...)
	var outs []wire.Out
	latest := make(map[string]bool)
	for i := range active {
		c := conv(i * 7)
		latest[c] = true
		outs = append(outs, wire.Out{Topic: r.topic(wire.TopicToRedis), Partition: -1, Key: c, Value: []byte(line(c, user, "m2", "answer"))})
	}
	if err := r.producer.Append(r.ctx(), outs); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.flush()

	seen := make(map[string]bool)
	pages, token := 0, ""
	for {
		res, err := r.svc.GetWatermarks(r.ctx(), &tidemarkv1.GetWatermarksRequest{User: user, PageSize: 250, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		pages++
		if n := proto.Size(res); n > 4<<20 {
			t.Errorf("page %d has %d bytes", pages, n)
		}
		for i, w := range res.GetWatermarks() {
			if w.GetError() != nil || seen[w.GetConversation()] {
				t.Fatalf("page %d: %v comes again or failed", pages, w)
			}
			seen[w.GetConversation()] = true
			if pages > 1 || i >= active {
				if w.GetMaxSeq() != 1 || w.GetUnread() != 1 {
					t.Errorf("idle: %v", w)
				}
				continue
			}
			if w.GetMaxSeq() != 2 || w.GetReadSeq() != 2 || w.GetUnread() != 0 {
				t.Errorf("active: %v", w)
			}
			if !latest[w.GetConversation()] {
				t.Errorf("%s is among the first %d and is idle", w.GetConversation(), active)
			}
		}
		if token = res.GetNextPageToken(); token == "" || pages > 10 {
			break
		}
	}
	if pages != 4 || len(seen) != all {
		t.Errorf("%d conversations on %d pages, want %d on 4", len(seen), pages, all)
	}
	if n := r.metric(stack.Sync, "tidemark_embedded_queries_total"); n > float64(pages*20) {
		t.Errorf("%v history queries for %d pages", n, pages)
	}
}
