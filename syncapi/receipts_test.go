package syncapi_test

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// whoHasRead follows pages.
func whoHasRead(t testing.TB, s *syncapi.Service, user userID, id convID, seq, size int64) (names []string, first *v1.WhoHasReadResponse, pages int) {
	t.Helper()
	req := &v1.WhoHasReadRequest{User: string(user), Conversation: string(id), Seq: seq, PageSize: size}
	for {
		res, err := s.WhoHasRead(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if pages++; pages == 1 {
			first = res
		}
		for _, r := range res.Readers {
			names = append(names, fmt.Sprintf("%s %d", r.User, r.ReadSeq))
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" || pages > 100 {
			return names, first, pages
		}
	}
}

func TestReadersOfAGroupSeeTheMessage(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	w.join(group, "A", "B", "C", "D", "E")
	w.say(t, group, "A", 10)
	w.order(watermark.Input{Conversation: group, Act: watermark.ActLeave, User: "C"}) // at 10
	w.join(group, "F")                                                                // sees from 11 on
	w.say(t, group, "A", 5)
	w.join(group, "C") // sees 1..10 and from 16 on
	w.say(t, group, "A", 5)
	for u, seq := range map[userID]int64{"B": 7, "C": 20, "D": 12, "E": 20, "F": 20} {
		mustRead(t, s, u, group, seq)
	}
	w.order(watermark.Input{Conversation: group, Act: watermark.ActClear, User: "E"}) // sees nothing of it any more
	want := map[int64][]string{
		1: {"B 7", "D 12", "A 20", "C 20"}, 8: {"D 12", "A 20", "C 20"}, 11: {"D 12", "A 20", "F 20"},
		13: {"A 20", "F 20"}, 16: {"A 20", "C 20", "F 20"}, 20: {"A 20", "C 20", "F 20"},
	}
	for _, from := range []string{"cold", "incomplete", "complete"} {
		w.with(group, func(tk *talk) { tk.warm, tk.complete = from != "cold", from == "complete" })
		for seq, names := range want {
			for _, size := range []int64{0, 1, 2} {
				got, first, _ := whoHasRead(t, s, "A", group, seq, size)
				if diff := cmp.Diff(names, got); diff != "" || first.Count != int64(len(names)) || first.CountAtMost {
					t.Errorf("%s, seq %d, size %d: count %d (at most %v)\n%s", from, seq, size, first.Count, first.CountAtMost, diff)
				}
			}
		}
		loads := w.count("Load")
		whoHasRead(t, s, "A", group, 1, 0)
		if n := w.count("Load") - loads; (n > 1) == (from != "cold") {
			t.Errorf("%s: %d loads of one more call: a warm conversation is to be known by now", from, n)
		}
	}
}

func TestReadersOfASingleConversation(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	w.say(t, single, "A", 5)
	mustRead(t, s, "B", single, 3)
	if _, err := s.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "B", Conversation: string(single), ReadSeq: 5}); err != nil {
		t.Fatal(err)
	}
	for seq, want := range map[int64]int64{1: 1, 3: 1, 4: 0, 5: 0} { // SetReadSeq tells nobody
		got, first, _ := whoHasRead(t, s, "A", single, seq, 0)
		if first.Count != want || int64(len(got)) != want {
			t.Errorf("seq %d: %d, %v", seq, first.Count, got)
		}
	}
}

func TestReadersAreToldToWhoSeesTheMessage(t *testing.T) {
	w := newWorld()
	w.join(group, "A")
	w.say(t, group, "A", 3)
	w.join(group, "B")
	w.say(t, group, "A", 1)
	s := newService(t, w, func(c *syncapi.Config) { c.ClosedGroups = true })
	ask := func(u userID, id convID, seq int64, token string) error {
		_, err := s.WhoHasRead(t.Context(), &v1.WhoHasReadRequest{User: string(u), Conversation: string(id), Seq: seq, PageToken: token})
		return err
	}
	for name, tt := range map[string]struct {
		err  error
		code connect.Code
	}{
		"before the join":      {ask("B", group, 3, ""), connect.CodeFailedPrecondition},
		"beyond the end":       {ask("B", group, 5, ""), connect.CodeFailedPrecondition},
		"a huge seq":           {ask("A", group, 1<<62, ""), connect.CodeFailedPrecondition},
		"no seq":               {ask("A", group, -1, ""), connect.CodeFailedPrecondition},
		"no member":            {ask("C", group, 1, ""), connect.CodeNotFound},
		"no such conversation": {ask("A", "group:none", 1, ""), connect.CodeNotFound},
		"no token":             {ask("A", group, 1, "AAAA"), connect.CodeInvalidArgument},
	} {
		if connect.CodeOf(tt.err) != tt.code {
			t.Errorf("%s: %v", name, tt.err)
		}
	}
	if err := ask("B", group, 4, ""); err != nil {
		t.Error(err)
	}
}

// Of a large group the readers come page by page, and their number is exact up
// to a bound.
func TestReadersOfALargeGroup(t *testing.T) {
	for _, n := range []int{2500, 10_001} {
		w := newWorld()
		s := newService(t, w, nil)
		w.say(t, group, "A", 2)
		w.with(group, func(tk *talk) {
			tk.complete = true
			for i := range n {
				m := watermark.Member{User: userID(fmt.Sprintf("u%05d", i)), Version: 1, LastMembership: 1, Read: 2}
				m.Memberships = []watermark.Membership{{Number: 1, Lower: seq(1 + i%2)}}
				tk.members[m.User] = m
			}
			m := tk.members["A"]
			m.Read = 0
			tk.members["A"] = m
		})
		got, first, pages := whoHasRead(t, s, "A", group, 1, 1000)
		if seen := (n + 1) / 2; len(got) != seen || pages < seen/1000 {
			t.Errorf("%d of %d readers on %d pages", len(got), seen, pages)
		}
		if want := n > 10_000; first.CountAtMost != want || !want && first.Count != int64(len(got)) || want && first.Count != int64(n) {
			t.Errorf("%d members: count %d, at most %v", n, first.Count, first.CountAtMost)
		}
	}
}

func FuzzReadersToken(f *testing.F) {
	w := newWorld()
	s := newService(f, w, nil)
	for _, u := range []userID{"A", "B", "C"} {
		w.say(f, group, u, 1)
	}
	res, err := s.WhoHasRead(f.Context(), &v1.WhoHasReadRequest{User: "A", Conversation: string(group), Seq: 1, PageSize: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(res.NextPageToken)
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		_, err := s.WhoHasRead(t.Context(), &v1.WhoHasReadRequest{User: "A", Conversation: string(group), Seq: 1, PageToken: token})
		if err != nil && connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Fatalf("%q: %v", token, err)
		}
	})
}
