package syncapi_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// page is what matters of an answer.
type page struct {
	Seqs     []int64
	Rest     [2]int64
	Min, Max int64
	IsEnd    bool
	Error    string
}

func pageOf(p *v1.PullPage) page {
	out := page{
		Seqs: seqsOf(p), Min: p.MinSeq, Max: p.MaxSeq, IsEnd: p.IsEnd, Error: p.GetError().GetCode(),
	}
	if len(out.Seqs) == 0 {
		out.Seqs = nil
	}
	if p.Rest != nil {
		out.Rest = [2]int64{p.Rest.Begin, p.Rest.End}
	}
	return out
}

func TestPullSaysWhatTheRulesSay(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 200)
	w.with(group, func(t *talk) { t.Min = 100 })
	w.say(t, single, "A", 10)
	for name, c := range clients(t, newService(t, w, nil)) {
		for _, tc := range []struct {
			conv convID
			r    *v1.PullRange
			want page
		}{
			{group, &v1.PullRange{Begin: 1, End: 50, Order: asc}, page{}},
			{group, &v1.PullRange{Begin: 1, End: 50, Order: desc}, page{IsEnd: true}},
			{group, &v1.PullRange{Begin: 1, End: 1000, Num: 20, Order: desc}, page{Seqs: run(200, 181), Rest: [2]int64{100, 180}}},
			{group, &v1.PullRange{Begin: 1, End: 1000, Num: 20, Order: asc}, page{Seqs: run(181, 200), Rest: [2]int64{100, 180}}},
			{group, &v1.PullRange{Begin: 1, End: 1000, Num: 20, Order: asc, Keep: nearBegin}, page{Seqs: run(100, 119), Rest: [2]int64{120, 200}}},
			{group, &v1.PullRange{Begin: 120, End: 200, Num: 100, Order: asc}, page{Seqs: run(120, 200), IsEnd: true}},
			{group, &v1.PullRange{Begin: 201, End: 300, Order: asc}, page{IsEnd: true}},
			{single, &v1.PullRange{Begin: 11, End: 30, Num: 20, Order: asc}, page{IsEnd: true}},
			{single, &v1.PullRange{Begin: 1, End: 10, Num: 20, Order: desc}, page{Seqs: run(10, 1), IsEnd: true}},
			{single, &v1.PullRange{Begin: -5, End: 0, Num: 20, Order: desc}, page{IsEnd: true}},
			{single, &v1.PullRange{Begin: math.MinInt64, End: math.MaxInt64, Num: math.MaxInt64}, page{Seqs: run(1, 10), IsEnd: true}},
			{single, &v1.PullRange{Begin: 1, End: 1 << 62, Num: math.MinInt64}, page{Seqs: run(1, 10), IsEnd: true}},
			{group, &v1.PullRange{Begin: 1, End: 200}, page{Seqs: run(101, 200), Rest: [2]int64{100, 100}}},
			{group, &v1.PullRange{Begin: 1, End: 200, Num: -1}, page{Seqs: run(101, 200), Rest: [2]int64{100, 100}}},
		} {
			t.Run(fmt.Sprintf("%s/%v", name, tc.r), func(t *testing.T) {
				r := &v1.PullRange{Conversation: string(tc.conv), Begin: tc.r.Begin, End: tc.r.End, Num: tc.r.Num, Order: tc.r.Order, Keep: tc.r.Keep}
				tc.want.Min, tc.want.Max = 100, 200
				if tc.conv == single {
					tc.want.Min, tc.want.Max = 1, 10
				}
				if diff := cmp.Diff(tc.want, pageOf(pull(t, c, "A", r))); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func TestPullServesTheOthersWhenARangeFails(t *testing.T) {
	w := newWorld()
	w.say(t, single, "A", 3)
	w.say(t, group, "B", 3)
	ranges := []*v1.PullRange{
		{Conversation: string(single), Begin: 1, End: 3},
		{Conversation: string(single), Begin: 3, End: 2},
		{Conversation: "group:nowhere", Begin: 1, End: 3},
		{Conversation: "single:B:C", Begin: 1, End: 3},
		{Conversation: "single:B:A", Begin: 1, End: 3},
		{Conversation: "", Begin: 1, End: 3},
		{Conversation: string(single), Begin: 1, End: 3, Order: 7},
		{Conversation: string(single), Begin: 1, End: 3, Keep: 7},
		{Conversation: string(single), Begin: 1, End: 3},
		{Conversation: string(group), Begin: 2, End: 2},
	}
	want := []page{
		{Seqs: run(1, 3), Min: 1, Max: 3, IsEnd: true},
		{Error: "invalid_argument"}, {Error: "not_found"}, {Error: "not_found"}, {Error: "invalid_argument"},
		{Error: "invalid_argument"}, {Error: "invalid_argument"}, {Error: "invalid_argument"},
		{Seqs: run(1, 3), Min: 1, Max: 3, IsEnd: true},
		{Seqs: run(2, 2), Min: 1, Max: 3},
	}
	for name, c := range clients(t, newService(t, w, nil)) {
		t.Run(name, func(t *testing.T) {
			res, err := c.Pull(t.Context(), &v1.PullRequest{User: "A", Ranges: ranges})
			if err != nil {
				t.Fatal(err)
			}
			var got []page
			for i, p := range res.Pages {
				if p.Conversation != ranges[i].Conversation {
					t.Errorf("page %d is of %q", i, p.Conversation)
				}
				got = append(got, pageOf(p))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := w.count("Views"); got != 3 {
		t.Errorf("%d round trips for bounds in 3 calls", got)
	}
}

func TestPullHidesWhatIsNotTheUsers(t *testing.T) {
	w := newWorld()
	w.say(t, single, "A", 3)
	w.say(t, group, "B", 3)
	s := newService(t, w, func(c *syncapi.Config) { c.ClosedGroups = true })
	for _, cold := range []bool{false, true} {
		if cold {
			w.flush()
		}
		for name, ids := range map[string][2]convID{
			"single": {single, "single:A:Z"},
			"group":  {group, "group:zz"},
		} {
			there := pull(t, s, "C", &v1.PullRange{Conversation: string(ids[0]), Begin: 1, End: 3})
			absent := pull(t, s, "C", &v1.PullRange{Conversation: string(ids[1]), Begin: 1, End: 3})
			absent.Conversation = there.Conversation
			absent.Error.Message = strings.ReplaceAll(absent.Error.Message, string(ids[1]), string(ids[0]))
			if diff := cmp.Diff(there, absent, protocmp.Transform()); diff != "" {
				t.Errorf("%s, cold %v: a stranger can tell them apart: %s", name, cold, diff)
			}
			if there.Error.GetCode() != "not_found" {
				t.Errorf("%s, cold %v: %v", name, cold, there.Error)
			}
		}
	}
	w.settle(group, "C", 2, 0)
	got := pageOf(pull(t, s, "C", &v1.PullRange{Conversation: string(group), Begin: 1, End: 3}))
	if diff := cmp.Diff(page{Seqs: run(2, 3), Min: 2, Max: 3, IsEnd: true}, got); diff != "" {
		t.Error(diff)
	}
}

func TestPullBoundsTheRequest(t *testing.T) {
	w := newWorld()
	w.say(t, single, "A", 1)
	s := newService(t, w, nil)
	for _, n := range []int{0, 1, 500, 501} {
		req := &v1.PullRequest{User: "A"}
		for range n {
			req.Ranges = append(req.Ranges, &v1.PullRange{Conversation: string(single), Begin: 1, End: 1})
		}
		res, err := s.Pull(t.Context(), req)
		if n == 0 || n == 501 {
			if connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("%d ranges: %v", n, err)
			}
			continue
		}
		if err != nil || len(res.Pages) != n {
			t.Errorf("%d ranges: %d pages, %v", n, len(res.GetPages()), err)
		}
	}
	if _, err := s.Pull(t.Context(), &v1.PullRequest{User: "no spaces", Ranges: []*v1.PullRange{{}}}); !errors.Is(err, watermark.ErrBadID) {
		t.Errorf("bad user: %v", err)
	}
}

func TestPullFollowsRestToTheEnd(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 1000)
	w.with(group, func(t *talk) { t.hotFrom = 600 })
	s := newService(t, w, nil)
	for _, order := range []v1.Order{asc, desc} {
		for _, keep := range []v1.Keep{nearEnd, nearBegin} {
			seen := make(map[int64]int)
			next := &v1.Range{Begin: 1, End: 1 << 62}
			pages, ends := 0, 0
			for next != nil {
				p := pull(t, s, "A", &v1.PullRange{Conversation: string(group), Begin: next.Begin, End: next.End, Num: 20, Order: order, Keep: keep})
				pages++
				for _, s := range seqsOf(p) {
					seen[s]++
				}
				if p.IsEnd {
					ends++
				}
				if p.IsEnd && p.Rest != nil {
					t.Fatalf("%v %v: is_end with rest %v", order, keep, p.Rest)
				}
				next = p.Rest
			}
			if pages != 50 || len(seen) != 1000 {
				t.Errorf("%v %v: %d pages, %d seqs", order, keep, pages, len(seen))
			}
			away := order == asc && keep == nearBegin || order == desc && keep == nearEnd
			if want := 1; away && ends != want {
				t.Errorf("%v %v: %d pages say is_end", order, keep, ends)
			}
		}
	}
}

func TestPullServesTombstones(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 52)
	w.with(group, func(t *talk) {
		for s := seq(3); s <= 51; s++ {
			t.rows[s] = t.rows[s].Tombstone(watermark.Revoked{Seq: s, By: "B", Time: 5})
		}
	})
	p := pull(t, newService(t, w, nil), "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 52})
	if diff := cmp.Diff(run(1, 52), seqsOf(p)); diff != "" {
		t.Fatal(diff)
	}
	for _, m := range p.Messages {
		if want := m.Seq >= 3 && m.Seq <= 51; m.Revoked != want || (m.GetText() == "") != want {
			t.Errorf("seq %d: %v", m.Seq, m)
		}
	}
}

func TestPullTellsWhatThePeerHasRead(t *testing.T) {
	w := newWorld()
	w.say(t, single, "A", 5)
	w.settle(single, "B", 2, 0)
	w.with(single, func(t *talk) {
		m := t.members["B"]
		m.Receipt = 4
		t.members["B"] = m
	})
	w.say(t, group, "A", 5)
	s := newService(t, w, nil)
	for _, warm := range []bool{true, false} {
		w.with(single, func(t *talk) { t.warm = warm })
		for _, m := range pull(t, s, "A", &v1.PullRange{Conversation: string(single), Begin: 1, End: 5}).Messages {
			if want := m.Seq >= 2 && m.Seq <= 4; m.IsRead != want {
				t.Errorf("warm %v: is_read of %d is %v", warm, m.Seq, m.IsRead)
			}
		}
	}
	for _, m := range pull(t, s, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 5}).Messages {
		if m.IsRead {
			t.Errorf("is_read of %d in a group", m.Seq)
		}
	}
}

func TestPullCutsByBytes(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 50)
	w.say(t, single, "A", 50)
	for _, limit := range []int{1, 100, 1000} {
		s := newService(t, w, func(c *syncapi.Config) { c.PageBytes = limit })
		for _, keep := range []v1.Keep{nearEnd, nearBegin} {
			next := [2]*v1.Range{{Begin: 1, End: 50}, {Begin: 1, End: 50}}
			seen := [2]map[int64]int{{}, {}}
			for next[0] != nil || next[1] != nil {
				var of []int
				req := &v1.PullRequest{User: "A"}
				for i, id := range []convID{group, single} {
					if r := next[i]; r != nil {
						of = append(of, i)
						req.Ranges = append(req.Ranges, &v1.PullRange{Conversation: string(id), Begin: r.Begin, End: r.End, Keep: keep})
					}
				}
				res, err := s.Pull(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for i, p := range res.Pages {
					if len(p.Messages) == 0 {
						t.Fatalf("limit %d: a page without its one message: %v", limit, p)
					}
					if p.Covered.Begin != min(p.Messages[0].Seq, p.Messages[len(p.Messages)-1].Seq) {
						t.Fatalf("covered %v, served %v", p.Covered, seqsOf(p))
					}
					for _, s := range seqsOf(p) {
						seen[of[i]][s]++
					}
					next[of[i]] = p.Rest
				}
			}
			for i := range seen {
				if len(seen[i]) != 50 {
					t.Errorf("limit %d, %v: range %d gave %d seqs", limit, keep, i, len(seen[i]))
				}
				for s, n := range seen[i] {
					if n != 1 {
						t.Errorf("limit %d, %v: seq %d came %d times", limit, keep, s, n)
					}
				}
			}
		}
	}
}

func TestPullNeverOutgrowsWhatClientsAccept(t *testing.T) {
	w := newWorld()
	big := strings.Repeat("x", 60<<10)
	var ranges []*v1.PullRange
	for i := range 200 {
		id := convID(fmt.Sprintf("group:g%d", i))
		w.say(t, id, "B", 3)
		w.with(id, func(t *talk) {
			for s, m := range t.rows {
				m.Body = []byte(big)
				t.rows[s] = m
			}
		})
		ranges = append(ranges, &v1.PullRange{Conversation: string(id), Begin: 1, End: 3})
	}
	c := clients(t, newService(t, w, nil))["grpc"]
	pulls, got := 0, 0
	for len(ranges) > 0 {
		res, err := c.Pull(t.Context(), &v1.PullRequest{User: "A", Ranges: ranges})
		if err != nil {
			t.Fatal(err)
		}
		pulls++
		size, before := 0, got
		var next []*v1.PullRange
		for i, p := range res.Pages {
			got += len(p.Messages)
			for _, m := range p.Messages {
				size += len(m.GetText())
			}
			if p.Rest != nil {
				ranges[i].Begin, ranges[i].End = p.Rest.Begin, p.Rest.End
				next = append(next, ranges[i])
			}
		}
		if size > 4<<20 {
			t.Fatalf("an answer of %d bytes", size)
		}
		if got == before {
			t.Fatal("an answer that brings nothing")
		}
		ranges = next
	}
	if got != 600 {
		t.Errorf("%d messages in %d calls", got, pulls)
	}
}

func TestPullReadsManyRowsInWaves(t *testing.T) {
	w := newWorld()
	req := &v1.PullRequest{User: "A"}
	for i := range 7 {
		id := convID(fmt.Sprintf("group:g%d", i))
		w.say(t, id, "B", 900)
		req.Ranges = append(req.Ranges, &v1.PullRange{Conversation: string(id), Begin: 1, End: 1000, Num: 1000, Keep: v1.Keep(i%2 + 1)})
	}
	res, err := newService(t, w, nil).Pull(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range res.Pages {
		if diff := cmp.Diff(run(1, 900), seqsOf(p)); diff != "" || !p.IsEnd {
			t.Errorf("page %d, is_end %v: %s", i, p.IsEnd, diff)
		}
	}
	if n := w.count("Messages"); n < 4 || n > 8 {
		t.Errorf("%d waves for 6,300 rows", n)
	}
}
