package syncapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// Order never says that nothing was appended: tests change times without a
// record.
func (f fakeTruth) Order(ctx context.Context, u userID, _ watermark.ListOrder) (out watermark.ListOrder, err error) {
	list, err := f.List(ctx, u)
	out.Log, out.Ends = list.Log, list.Ends
	for _, l := range list.Entries {
		out.Entries = append(out.Entries, watermark.Activity{Conversation: l.Conversation.ID, LastTime: l.Conversation.LastTime})
	}
	return out, err
}

// exact is a truth that says so, as the real one does: what it has is what was
// appended.
type exact struct{ fakeTruth }

func (e exact) Order(ctx context.Context, u userID, known watermark.ListOrder) (watermark.ListOrder, error) {
	same := false
	e.set(func() {
		if same = known.Log == e.logName && slices.Equal(known.Ends, e.ends); same {
			e.calls["Same"]++
		}
	})
	if same {
		return watermark.ListOrder{Log: known.Log, Ends: known.Ends, Same: true}, nil
	}
	return e.fakeTruth.Order(ctx, u, known)
}

func exactly(w *world) func(*syncapi.Config) {
	return func(c *syncapi.Config) { c.Truth = exact{fakeTruth{w}} }
}

// talksOf gives user A n conversations, the last one the latest.
func talksOf(tb testing.TB, w *world, n int) {
	for i := range n {
		at(tb, w, watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", i))), int64(1000+i))
	}
}

// at has a message come at a time.
func at(tb testing.TB, w *world, id convID, time int64) {
	w.with(id, func(t *talk) { t.LastTime = time - 1 })
	sender := userID("A")
	if !id.Admits(sender) {
		sender = "X"
	}
	w.say(tb, id, sender, 1)
}

func TestTheListIsReadOnceForItsPages(t *testing.T) {
	w := newWorld()
	talksOf(t, w, 1000)
	s := newService(t, w, exactly(w))
	if got, pages := list(t, s, 100, nil); len(got) != 1000 || pages != 10 {
		t.Errorf("%d conversations on %d pages", len(got), pages)
	}
	if reads, same := w.count("List"), w.count("Same"); reads != 1 || same != 1 {
		t.Errorf("the list was read %d times and looked at %d times, want once each", reads, same)
	}
	// Whoever asks anew is told of what came.
	at(t, w, "single:A:new", 5)
	if got, _ := list(t, s, 100, nil); len(got) != 1001 || got[1000] != "single:A:new" {
		t.Errorf("%d conversations", len(got))
	}
}

func TestTheListIsLookedAtOnceMoreWhenItEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		time        int64 // of the message that comes
		conv        convID
		after       int // page
		pages, more int
		reads       int
	}{
		"somebody else's":                    {conv: "single:X:Y", time: 5000, after: 3, pages: 10, reads: 2},
		"a new one, the latest":              {conv: "single:A:new", time: 5000, after: 3, pages: 11, more: 1, reads: 3},
		"a new one, older than all":          {conv: "single:A:new", time: 2, after: 3, pages: 11, more: 1, reads: 3},
		"a new one, where the walk has been": {conv: "single:A:new", time: 1090, after: 3, pages: 11, more: 1, reads: 3},
		"one that was to come":               {conv: "single:A:u00001", time: 5000, after: 3, pages: 11, more: 1, reads: 3},
		"one that was served":                {conv: "single:A:u00099", time: 5000, after: 3, pages: 11, more: 1, reads: 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			talksOf(t, w, 100)
			s := newService(t, w, exactly(w))
			got, pages := list(t, s, 10, func(page int) {
				if page == tt.after {
					at(t, w, tt.conv, tt.time)
				}
			})
			if pages != tt.pages || len(got) != 100+tt.more || tt.more > 0 && got[100] != string(tt.conv) {
				t.Errorf("%d pages, %d conversations, then %v", pages, len(got), got[min(100, len(got)):])
			}
			// The first page, the end of the walk, and what follows: the same then.
			if reads := w.count("List") + w.count("Same"); reads != tt.reads {
				t.Errorf("the list was looked at %d times, want %d", reads, tt.reads)
			}
		})
	}
}

// What becomes active before the last page that is asked for is served, whoever
// serves which page and whatever was forgotten in between.
func TestTheListHasWhatComesMeanwhile(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld()
		n := rapid.IntRange(1, 30).Draw(rt, "conversations")
		talksOf(t, w, n)
		want := make(map[string]bool)
		for i := range n {
			want[string(watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", i))))] = true
		}
		one := rapid.Bool().Draw(rt, "one process")
		now := time.Unix(0, 0)
		var services []*syncapi.Service
		for range 2 {
			services = append(services, newService(t, w, func(c *syncapi.Config) {
				exactly(w)(c)
				c.Now = func() time.Time { return now }
			}))
		}
		top, token := int64(5000), ""
		got := make(map[string]bool)
		for pages := 0; ; pages++ {
			s := services[0]
			if !one && rapid.Bool().Draw(rt, "the other") {
				s = services[1]
			}
			size := rapid.Int64Range(1, 12).Draw(rt, "size")
			res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: size, PageToken: token})
			if err != nil {
				rt.Fatal(err)
			}
			for _, m := range res.Watermarks {
				got[m.Conversation] = true
			}
			if token = res.NextPageToken; token == "" {
				break
			}
			if pages > 10 {
				continue // or it might never end
			}
			for range rapid.IntRange(0, 3).Draw(rt, "events") {
				switch rapid.IntRange(0, 3).Draw(rt, "event") {
				case 0: // the latest of all, new or old
					top++
					c := watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", rapid.IntRange(0, n+5).Draw(rt, "which"))))
					at(t, w, c, top)
					want[string(c)] = true
				case 1: // one that is new, with an old time
					c := watermark.SingleOf("A", userID(fmt.Sprintf("new%d", rapid.IntRange(0, 5).Draw(rt, "which"))))
					if !want[string(c)] {
						at(t, w, c, rapid.Int64Range(900, 1100).Draw(rt, "time"))
						want[string(c)] = one // else the process that has the page may not know that it is new
					}
				case 2:
					at(t, w, "single:X:Y", 7000)
				case 3:
					if !one {
						now = now.Add(11 * time.Minute)
					}
				}
			}
		}
		for c, must := range want {
			if must && !got[c] {
				rt.Errorf("%s was not listed", c)
			}
		}
	})
}

// A page that is asked for again is answered again.
func TestAPageOfTheListMayBeRepeated(t *testing.T) {
	w := newWorld()
	talksOf(t, w, 35)
	s := newService(t, w, exactly(w))
	ask := func(token string) *v1.GetWatermarksResponse {
		t.Helper()
		res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: 10, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	token := ""
	for page := 1; ; page++ {
		first, again := ask(token), ask(token)
		if len(first.Watermarks) != len(again.Watermarks) || first.Watermarks[0].Conversation != again.Watermarks[0].Conversation ||
			(first.NextPageToken == "") != (again.NextPageToken == "") {
			t.Errorf("page %d: %v, and again %v", page, first, again)
		}
		if token = again.NextPageToken; token == "" {
			if page != 4 {
				t.Errorf("%d pages, want 4", page)
			}
			return
		}
	}
}

// A token that is made to name somebody else's list is served one's own.
func TestNobodyIsServedAnothersList(t *testing.T) {
	w := newWorld()
	talksOf(t, w, 30)
	w.say(t, "single:B:C", "B", 1)
	s := newService(t, w, exactly(w))
	first, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	token, err := base64.RawURLEncoding.DecodeString(first.NextPageToken)
	if err != nil {
		t.Fatal(err)
	}
	mark := sha256.Sum256([]byte("B"))
	copy(token[1:7], mark[:])
	stolen := base64.RawURLEncoding.EncodeToString(token)
	res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "B", PageSize: 100, PageToken: stolen})
	if err != nil || len(res.Watermarks) != 1 || res.Watermarks[0].Conversation != "single:B:C" {
		t.Errorf("B was served %v, %v", res, err)
	}
}

// The order is not kept for ever: a walk that goes on after that has the list as
// it is.
func TestTheOrderOfAListExpires(t *testing.T) {
	w := newWorld()
	talksOf(t, w, 30)
	now := time.Unix(0, 0)
	s := newService(t, w, func(c *syncapi.Config) {
		exactly(w)(c)
		c.Now = func() time.Time { return now }
	})
	got, _ := list(t, s, 10, func(page int) {
		if page == 1 {
			now = now.Add(11 * time.Minute)
		}
	})
	if len(got) != 30 || w.count("List") != 2 {
		t.Errorf("%d conversations, the list was read %d times, want 30 and 2", len(got), w.count("List"))
	}
}

// Tokens that processes of the versions before have made are taken, and a walk of
// such pages ends: they do not say how many walks there were.
func TestTokensOfTheVersionsBefore(t *testing.T) {
	const mark, snapshot, print = 1, 7, 15 // where they begin
	for version, kept := range map[byte]int{1: snapshot, 2: print} {
		w := newWorld()
		talksOf(t, w, 30)
		s := newService(t, w, exactly(w))
		var names []string
		for token, pages := "", 0; ; pages++ {
			res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: 10, PageToken: token})
			if err != nil || pages > 20 {
				t.Fatal(version, pages, err)
			}
			for _, m := range res.Watermarks {
				names = append(names, m.Conversation)
			}
			if res.NextPageToken == "" {
				break
			}
			b, err := base64.RawURLEncoding.DecodeString(res.NextPageToken)
			if err != nil || b[0] != 3 {
				t.Fatal(b, err)
			}
			rest := b[print+8:]
			numbers := 0
			for range 3 {
				_, n := binary.Varint(rest[numbers:])
				numbers += n
			}
			_, walk := binary.Varint(rest[numbers:])
			old := append([]byte{version}, b[mark:kept]...)
			old = append(append(old, rest[:numbers]...), rest[numbers+walk:]...)
			token = base64.RawURLEncoding.EncodeToString(old)
			at(t, w, "single:A:u00029", int64(2000+pages))
		}
		if slices.Sort(names); len(slices.Compact(names)) != 30 {
			t.Errorf("version %d: %d conversations", version, len(names))
		}
	}
}

// A conversation that gets a message with a time that the walk has passed, and
// that is not the latest, is served although the page that follows does not find
// the order: it asks another process, or a lost answer again.
func TestWhatRisesIntoAWalkIsServedThoughTheOrderIsGone(t *testing.T) {
	ask := func(t *testing.T, s *syncapi.Service, token string) ([]string, string) {
		t.Helper()
		res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", PageSize: 10, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range res.Watermarks {
			names = append(names, m.Conversation)
		}
		return names, res.NextPageToken
	}
	rest := func(t *testing.T, s *syncapi.Service, token string) (all []string) {
		t.Helper()
		for pages := 0; token != ""; pages++ {
			var names []string
			if names, token = ask(t, s, token); pages > 20 {
				t.Fatal("no end")
			}
			all = append(all, names...)
		}
		return all
	}
	const old = "single:A:u00000"
	for _, lost := range []string{"another process", "a lost answer"} {
		t.Run(lost, func(t *testing.T) {
			w := newWorld()
			talksOf(t, w, 30)
			first, second := newService(t, w, exactly(w)), newService(t, w, exactly(w))
			_, token := ask(t, first, "")
			if lost == "another process" {
				at(t, w, old, 1025) // the first page ended at 1020
				if got := rest(t, second, token); !slices.Contains(got, old) {
					t.Errorf("it is not among %v", got)
				}
				return
			}
			_, token = ask(t, first, token)
			rest(t, first, token) // which lets go of the order
			at(t, w, old, 1025)
			if got := rest(t, first, token); !slices.Contains(got, old) {
				t.Errorf("it is not among %v", got)
			}
		})
	}
	t.Run("always another process, and a list that never stands still", func(t *testing.T) {
		w := newWorld()
		talksOf(t, w, 50)
		services := []*syncapi.Service{newService(t, w, exactly(w)), newService(t, w, exactly(w))}
		met := map[string]bool{}
		for token, pages := "", 0; ; {
			names, next := ask(t, services[pages%2], token)
			for _, name := range names {
				met[name] = true
			}
			if token = next; token == "" {
				break
			}
			if pages++; pages > 20 { // four walks over all
				t.Fatal("no end")
			}
			at(t, w, watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", pages%3))), int64(1045))
		}
		if len(met) != 50 {
			t.Errorf("%d conversations", len(met))
		}
	})
}

// What came to the list while a walk was under way, with an old time, is served
// in the walk that follows also where that finds nothing that was kept.
func TestWhatCameIsServedThoughTheOrderExpired(t *testing.T) {
	w := newWorld()
	talksOf(t, w, 30)
	now := time.Unix(0, 0)
	s := newService(t, w, func(c *syncapi.Config) {
		exactly(w)(c)
		c.Now = func() time.Time { return now }
	})
	got, _ := list(t, s, 10, func(page int) {
		switch page {
		case 1:
			at(t, w, "single:A:new", 1025) // where the walk has been
		case 3:
			now = now.Add(11 * time.Minute)
		}
	})
	if !slices.Contains(got, "single:A:new") {
		t.Errorf("it is not among the %d that were listed", len(got))
	}
}
