package embedded_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/watermark"
)

func memory(t testing.TB) *embedded.Store {
	t.Helper()
	s, err := embedded.New(embedded.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func fates(n int, f watermark.Fate) []watermark.Fate {
	out := make([]watermark.Fate, n)
	for i := range out {
		out[i] = f
	}
	return out
}

// Rows above their conversation's maximum are inserted many at a time. Somebody
// who writes rows alone leaves some there, and they are told all the same.
func TestRowsThatStandAboveTheMaximumAreTold(t *testing.T) {
	for _, n := range []int{1, 3, 4, 15, 64, 100, 199} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := memory(t)
			var ms []watermark.Message
			for seq := range n {
				ms = append(ms, message(watermark.Seq(seq+1), "x"))
			}
			if w := write(t, s, watermark.Change{Rows: rows(group, ms...)}); cmp.Diff(fates(n, watermark.Inserted), w.Rows) != "" {
				t.Fatalf("fates = %v, want all inserted", w.Rows)
			}
			other := message(watermark.Seq(n), "y")
			next := message(watermark.Seq(n+1), "z")
			w := write(t, s, watermark.Change{Rows: rows(group, append(append(ms[:n-1:n-1], other), next)...)})
			want := append(fates(n-1, watermark.Replay), watermark.Conflict, watermark.Inserted)
			if diff := cmp.Diff(want, w.Rows); diff != "" {
				t.Errorf("fates: %s", diff)
			}
			got, err := s.Messages(t.Context(), group, whole, 1000)
			if err != nil || len(got) != n+1 || string(got[n-1].Body) != "x" {
				t.Errorf("%d messages, %v, want %d and the first at its place", len(got), err, n+1)
			}
		})
	}
}

// The first of two messages of one change at one place stands.
func TestOfTwoMessagesAtOnePlaceTheFirstStands(t *testing.T) {
	s := memory(t)
	one, two, three := message(1, "a"), message(1, "b"), message(2, "c")
	w := write(t, s, watermark.Change{Rows: rows(group, one, two, one, three)})
	want := []watermark.Fate{watermark.Inserted, watermark.Conflict, watermark.Replay, watermark.Inserted}
	if diff := cmp.Diff(want, w.Rows); diff != "" {
		t.Errorf("fates: %s", diff)
	}
}

// A mark passes own messages only where it takes them away.
func TestMarksOfWhoHasOwnMessagesTakeThemAway(t *testing.T) {
	s := memory(t)
	row := func(user watermark.UserID, m watermark.Member) watermark.MemberRow {
		m.User = user
		return watermark.MemberRow{Conversation: group, Member: m}
	}
	write(t, s, watermark.Change{Members: []watermark.MemberRow{
		row("ann", watermark.Member{Own: []watermark.Seq{3, 5, 9}}), row("bob", watermark.Member{Read: 4}),
	}})
	write(t, s, watermark.Change{Members: []watermark.MemberRow{
		row("ann", watermark.Member{Read: 5, ChangedAt: 7}), row("bob", watermark.Member{Read: 2, Receipt: 1}), row("cid", watermark.Member{Read: 1}),
	}})
	got, err := s.Members(t.Context(), group, []watermark.UserID{"ann", "bob", "cid"})
	if err != nil {
		t.Fatal(err)
	}
	want := []watermark.Member{
		{User: "ann", Read: 5, Own: []watermark.Seq{9}, ChangedAt: 7}, {User: "bob", Read: 4, Receipt: 1}, {User: "cid", Read: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
