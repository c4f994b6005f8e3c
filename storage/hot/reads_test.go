package hot_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMarksOnlyRise(t *testing.T) {
	e := newEnv(t)
	e.meta(single)
	e.member(single, open("ann", 1, 0))
	e.member(single, open("bob", 1, 0))
	for _, m := range []watermark.Member{
		{User: "ann", Read: 5, Receipt: 4}, {User: "ann", Read: 3, Receipt: 2}, {User: "ann"}, {User: "ann", Read: -7, Receipt: -1},
	} {
		e.raise(single, m)
		got := e.view(single, "ann").Member
		if got.Read != 5 || got.Receipt != 4 {
			t.Errorf("after %+v: read %d, receipt %d, want 5 and 4", m, got.Read, got.Receipt)
		}
	}
	if got := e.view(single, "bob").PeerReceipt; got != 4 {
		t.Errorf("peer's receipt = %d, want 4", got)
	}
}

func TestHugeMarksStayWithinSeqs(t *testing.T) {
	e := newEnv(t)
	e.meta(single)
	e.raise(single, watermark.Member{User: "ann", Read: 1<<63 - 1, Receipt: 1<<63 - 1})
	got := e.view(single, "ann").Member
	if got.Read != watermark.MaxSeq || got.Receipt != watermark.MaxSeq {
		t.Errorf("read %d, receipt %d, want %d", got.Read, got.Receipt, watermark.MaxSeq)
	}
}

func TestWhereMarksAreKept(t *testing.T) {
	tests := []struct {
		name string
		meta []any
		kept bool
	}{
		{"warm", []any{}, true},
		{"warming", []any{"st", "warming"}, true},
		{"foreign", []any{"inc", "another-server"}, false},
		{"foreign and warming", []any{"inc", "another-server", "st", "warming"}, false},
		{"unknown state", []any{"st", "other"}, false},
		{"absent", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			if tt.meta != nil {
				e.meta(single, tt.meta...)
			}
			before := e.dump()
			e.raise(single, watermark.Member{User: "ann", Read: 5, Receipt: 4})
			if !tt.kept {
				diff(t, "a mark was written", e.dump(), before)
				return
			}
			if got := e.client.ZScore(t.Context(), e.space.Key(single, keyspace.Read), "ann").Val(); got != 5 {
				t.Errorf("score = %v, want 5", got)
			}
			for _, p := range []keyspace.Part{keyspace.Read, keyspace.Receipt, keyspace.Meta} {
				if ttl := e.client.TTL(t.Context(), e.space.Key(single, p)).Val(); ttl < 23*time.Hour {
					t.Errorf("%s expires in %v", p, ttl)
				}
			}
		})
	}
}

func TestAMarkDropsTheOwnSeqsThatItPasses(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "max", 40)
	ann, bob := open("ann", 1, 0), open("bob", 1, 0)
	ann.Own = []watermark.Seq{3, 15, 16, 17, 40}
	bob.Own = []watermark.Seq{4, 12}
	e.member(group, ann)
	e.member(group, bob)
	e.raise(group, watermark.Member{User: "ann", Read: 16})
	diff(t, "ann's own seqs", e.view(group, "ann").Member.Own, []watermark.Seq{17, 40})
	diff(t, "bob's own seqs", e.view(group, "bob").Member.Own, bob.Own)
	if got := e.client.ZCard(t.Context(), e.space.Key(group, keyspace.Own)).Val(); got != 4 {
		t.Errorf("own seqs that stand = %d, want 4", got)
	}
}

// Many raise the mark of one member in any order, and nobody ever sees it fall.
func TestConcurrentRaisesAreMonotone(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "max", 1000)
	e.member(group, open("ann", 1, 0))
	const writers, marks = 4, 100
	done := make(chan struct{})
	var writing, watching sync.WaitGroup
	for w := range writers {
		order := rand.Perm(marks)
		writing.Go(func() {
			for _, n := range order {
				m := watermark.Member{User: "ann", Read: watermark.Seq(n*writers + w + 1)}
				if err := e.RaiseReads(t.Context(), []watermark.MemberRow{{Conversation: group, Member: m}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	watching.Go(func() {
		var last watermark.Seq
		for {
			views, err := e.Views(t.Context(), []hot.Ask{{Conversation: group, User: "ann"}})
			if err != nil {
				t.Error(err)
				return
			}
			if views[0].Member.Read < last {
				t.Errorf("read fell from %d to %d", last, views[0].Member.Read)
			}
			last = views[0].Member.Read
			select {
			case <-done:
				return
			default:
			}
		}
	})
	writing.Wait()
	close(done)
	watching.Wait()
	if got := e.view(group, "ann").Member.Read; got != writers*marks {
		t.Errorf("read = %d, want %d", got, writers*marks)
	}
}

// A large group that reads at once is a few script calls in one round trip.
func TestManyMarksAtOnce(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	e.meta(single)
	rows := []watermark.MemberRow{{Conversation: single, Member: watermark.Member{User: "ann", Read: 3}}}
	for i := range 5000 {
		u := watermark.UserID(fmt.Sprint("u", i))
		rows = append(rows, watermark.MemberRow{Conversation: group, Member: watermark.Member{User: u, Read: 7}})
	}
	e.raise(group, watermark.Member{User: "u0", Read: 1})
	if trips := e.trips.during(func() {
		if err := e.RaiseReads(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
	}); trips != 1 {
		t.Errorf("round trips = %d, want 1", trips)
	}
	if got := e.client.ZCount(t.Context(), e.space.Key(group, keyspace.Read), "7", "7").Val(); got != 5000 {
		t.Errorf("marks = %d, want 5000", got)
	}
	if got := e.client.ZScore(t.Context(), e.space.Key(single, keyspace.Read), "ann").Val(); got != 3 {
		t.Errorf("mark in the other conversation = %v, want 3", got)
	}
}

func TestReaders(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "full", "1", "max", 100)
	var want []hot.Reader
	for i := range 1000 {
		// Upper case sorts before lower case by bytes, not by a locale.
		r := hot.Reader{User: watermark.UserID(fmt.Sprintf("%c%03d", "aBcD"[i%4], i)), Read: watermark.Seq(i % 7 * 20)}
		r.Window = watermark.Intervals{{First: 1, Last: watermark.MaxSeq}}
		if i%3 == 0 { // of the others nothing is known, which is never to have had a window
			m := watermark.Member{User: r.User, Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 7, Upper: 90}}}
			e.do("HSET", e.space.Key(group, keyspace.Members), string(r.User), keyspace.MemberText(&m))
			r.Window = m.Window()
		}
		if r.Read > 0 {
			e.do("ZADD", e.space.Key(group, keyspace.Read), int64(r.Read), string(r.User))
		}
		if r.Read >= 40 {
			want = append(want, r)
		}
	}
	slices.SortFunc(want, func(a, b hot.Reader) int {
		if a.Read != b.Read {
			return int(a.Read - b.Read)
		}
		if a.User < b.User {
			return -1
		}
		return 1
	})
	for _, seq := range []watermark.Seq{21, 40} {
		var got []hot.Reader
		var after hot.Reader
		for {
			page, err := e.Readers(t.Context(), group, seq, after, 33)
			if err != nil {
				t.Fatal(err)
			}
			if !page.Known || page.Count != int64(len(want)) {
				t.Fatalf("known %v, count %d, want true and %d", page.Known, page.Count, len(want))
			}
			if len(page.Readers) == 0 {
				break
			}
			got = append(got, page.Readers...)
			after = got[len(got)-1]
		}
		diff(t, "readers", got, want)
	}
	count, err := e.ReadCount(t.Context(), group, 101)
	diff(t, "count", count, hot.Readership{Known: true, Count: int64(len(want)) - count40to100(want)})
	if err != nil {
		t.Error(err)
	}
}

func count40to100(readers []hot.Reader) int64 {
	var n int64
	for _, r := range readers {
		if r.Read <= 100 {
			n++
		}
	}
	return n
}

// A cursor whose reader has moved on still continues at its place.
func TestReadersAfterTheCursorMoved(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "full", "1")
	for _, u := range []string{"a", "b", "c", "d"} {
		e.do("ZADD", e.space.Key(group, keyspace.Read), 5, u)
	}
	e.raise(group, watermark.Member{User: "b", Read: 9})
	page, err := e.Readers(t.Context(), group, 1, hot.Reader{User: "b", Read: 5}, 10)
	if err != nil {
		t.Fatal(err)
	}
	all := watermark.Intervals{{First: 1, Last: watermark.MaxSeq}}
	diff(t, "readers", page.Readers, []hot.Reader{
		{User: "c", Read: 5, Window: all}, {User: "d", Read: 5, Window: all}, {User: "b", Read: 9, Window: all},
	})
}

func TestReadersAreUnknownUnlessAllMembersAreKnown(t *testing.T) {
	for name, meta := range map[string][]any{
		"not complete": {}, "foreign": {"full", "1", "inc", "x"}, "warming": {"full", "1", "st", "warming"}, "absent": nil,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			if meta != nil {
				e.meta(group, meta...)
			}
			e.do("ZADD", e.space.Key(group, keyspace.Read), 5, "ann")
			page, err := e.Readers(t.Context(), group, 1, hot.Reader{}, 10)
			diff(t, "readers", page, hot.Readership{})
			count, err2 := e.ReadCount(t.Context(), group, 1)
			diff(t, "count", count, hot.Readership{})
			if err != nil || err2 != nil {
				t.Error(err, err2)
			}
		})
	}
}

func TestReadersOfHugeAndSmallSeqs(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "full", "1")
	e.raise(group, watermark.Member{User: "ann", Read: 5})
	for seq, want := range map[watermark.Seq]int64{-1 << 63: 1, 0: 1, 1: 1, 5: 1, 6: 0, 1<<63 - 1: 0} {
		page, err := e.Readers(t.Context(), group, seq, hot.Reader{}, -1)
		if err != nil || page.Count != want || int64(len(page.Readers)) != want {
			t.Errorf("readers of %d = %+v, %v, want %d", seq, page, err, want)
		}
	}
}
