package syncapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// crowd gives user A n conversations, the first the latest.
func crowd(tb testing.TB, w *world, n int) {
	for i := range n {
		id := watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", i)))
		w.say(tb, id, "A", 1)
		w.with(id, func(t *talk) { t.LastTime = int64(1_000_000 - i/2) })
	}
}

type lister interface {
	GetWatermarks(ctx context.Context, req *v1.GetWatermarksRequest) (*v1.GetWatermarksResponse, error)
}

// list walks over all pages and calls between after each.
func list(tb testing.TB, c lister, size int64, between func(page int)) (names []string, pages int) {
	tb.Helper()
	token := ""
	for {
		res, err := c.GetWatermarks(tb.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: size, PageToken: token})
		if err != nil {
			tb.Fatal(err)
		}
		pages++
		for _, m := range res.Watermarks {
			if m.Error != nil {
				tb.Fatalf("%s: %v", m.Conversation, m.Error)
			}
			names = append(names, m.Conversation)
		}
		if token = res.NextPageToken; token == "" {
			return names, pages
		}
		if pages > 1000 {
			tb.Fatal("no end")
		}
		if between != nil {
			between(pages)
		}
	}
}

func TestTheListHasEachConversationOnceActiveFirst(t *testing.T) {
	w := newWorld()
	crowd(t, w, 1234)
	w.say(t, "single:B:C", "B", 1)
	var want []string
	for i := range 1234 {
		want = append(want, string(watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", i)))))
	}
	for name, c := range clients(t, newService(t, w, nil)) {
		for size, pages := range map[int64]int{0: 3, -5: 3, 100: 13, 1000: 2, 1 << 62: 2} {
			got, n := list(t, c, size, nil)
			if diff := cmp.Diff(want, got); diff != "" || n != pages {
				t.Errorf("%s, size %d: %d pages, %s", name, size, n, diff)
			}
		}
	}
}

func TestTheListMissesNothingThatBecomesActive(t *testing.T) {
	for _, moved := range []int{1, 30, 99} {
		w := newWorld()
		crowd(t, w, 100)
		s := newService(t, w, nil)
		now := int64(2_000_000)
		got, _ := list(t, s, 10, func(page int) {
			// Conversations that were still to come jump to the front.
			if page > 3 {
				return
			}
			for i := range moved {
				now++
				w.with(watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", 99-i))), func(t *talk) { t.LastTime = now })
			}
		})
		seen := make(map[string]bool)
		for _, n := range got {
			seen[n] = true
		}
		if len(seen) != 100 {
			t.Errorf("%d moved: %d of 100 conversations were listed", moved, len(seen))
		}
	}
}

func TestTheListIsBoundedByBytes(t *testing.T) {
	w := newWorld()
	crowd(t, w, 50)
	s := newService(t, w, func(c *syncapi.Config) { c.PageBytes = 200 })
	got, pages := list(t, s, 0, nil)
	if len(got) != 50 || pages < 10 {
		t.Errorf("%d conversations on %d pages", len(got), pages)
	}
	s = newService(t, w, func(c *syncapi.Config) { c.PageBytes = 1 })
	if got, pages := list(t, s, 0, nil); len(got) != 50 || pages != 50 {
		t.Errorf("%d conversations on %d pages", len(got), pages)
	}
}

func TestTheListOfAColdRedisIsLoadedTogether(t *testing.T) {
	w := newWorld()
	crowd(t, w, 1000)
	w.flush()
	s := newService(t, w, nil)
	if got, _ := list(t, s, 1000, nil); len(got) != 1000 {
		t.Errorf("%d conversations", len(got))
	}
	if n := w.count("Load"); n != 2 {
		t.Errorf("%d loads", n)
	}
}

func TestTheListHidesClosedGroups(t *testing.T) {
	w := newWorld()
	w.say(t, group, "A", 1)
	w.say(t, single, "A", 1)
	s := newService(t, w, func(c *syncapi.Config) { c.ClosedGroups = true })
	if got, _ := list(t, s, 0, nil); len(got) != 1 || got[0] != string(single) {
		t.Errorf("%v", got)
	}
	if got, _ := list(t, newService(t, w, nil), 0, nil); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

func TestGivenConversationsAreAnsweredInOrder(t *testing.T) {
	w := newWorld()
	w.say(t, single, "B", 7)
	ids := []string{string(single), "group:none", "nonsense", string(single), "single:B:C"}
	for name, c := range clients(t, newService(t, w, nil)) {
		res, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: ids})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range res.Watermarks {
			got = append(got, fmt.Sprintf("%s %d %s", m.Conversation, m.Unread, m.GetError().GetCode()))
		}
		want := []string{"single:A:B 7 ", "group:none 0 not_found", "nonsense 0 invalid_argument", "single:A:B 7 ", "single:B:C 0 not_found"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if _, err := c.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: make([]string, 501)}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: 501 conversations: %v", name, err)
		}
	}
}

func TestPageTokensAreTheirMakersAndUsers(t *testing.T) {
	w := newWorld()
	crowd(t, w, 3)
	s := newService(t, w, nil)
	first, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: 1})
	if err != nil || first.NextPageToken == "" {
		t.Fatalf("%v, %v", first, err)
	}
	for user, token := range map[string]string{
		"u00000": first.NextPageToken,
		"A":      first.NextPageToken[1:],
		"B":      "",
		"C":      strings.Repeat("A", 10_000),
		"D":      "!",
	} {
		_, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: user, PageToken: token})
		if token != "" && connect.CodeOf(err) != connect.CodeInvalidArgument || token == "" && err != nil {
			t.Errorf("%s with %.20q: %v", user, token, err)
		}
	}
}

func FuzzPageToken(f *testing.F) {
	w := newWorld()
	crowd(f, w, 5)
	s := newService(f, w, nil)
	token := ""
	for {
		f.Add(token)
		res, err := s.GetWatermarks(f.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: 2, PageToken: token})
		if err != nil {
			f.Fatal(err)
		}
		if token = res.NextPageToken; token == "" {
			break
		}
	}
	f.Add("AQAAAAAAAA")
	f.Fuzz(func(t *testing.T, token string) {
		// Whatever token: refused, or a walk that ends.
		for range 20 {
			res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: 2, PageToken: token})
			if err != nil {
				if connect.CodeOf(err) != connect.CodeInvalidArgument {
					t.Fatalf("%q: %v", token, err)
				}
				return
			}
			if token = res.NextPageToken; token == "" {
				return
			}
		}
		t.Fatal("no end")
	})
}
