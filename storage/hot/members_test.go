package hot_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMergeMakesMembersKnown(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	token := e.view(group, "ann").Token
	ann := open("ann", 3, 2)
	ann.Read, ann.Own = 4, []watermark.Seq{5, 7}
	ann.Ops = []watermark.AppliedOp{{ID: "join-1", Edge: 1}}
	never := watermark.Member{User: "cid", Read: 6} // sent, and never had a window
	if !e.merge(hot.Load{Conversation: group, Token: token, Members: []watermark.Member{ann, never}, Absent: []watermark.UserID{"bob"}}) {
		t.Fatal("not merged")
	}
	for _, want := range []watermark.Member{ann, {User: "bob"}, never} {
		v := e.view(group, want.User)
		if v.Temperature != watermark.Warm {
			t.Errorf("%s: temperature = %v, want warm", want.User, v.Temperature)
		}
		diff(t, string(want.User), v.Member, want)
	}
	if got := e.view(group, "eve").Temperature; got != watermark.Partial {
		t.Errorf("somebody else: temperature = %v, want partial", got)
	}
}

func TestMergeOfReceipts(t *testing.T) {
	e := newEnv(t)
	e.meta(single)
	ann, bob := open("ann", 1, 0), open("bob", 1, 0)
	ann.Receipt, bob.Receipt = 3, 7
	load := hot.Load{Conversation: single, Token: "t1", Members: []watermark.Member{ann, bob}}
	e.merge(load)
	ann.Receipt = 2
	e.merge(load)
	v := e.view(single, "ann")
	if v.Member.Receipt != 3 || v.PeerReceipt != 7 {
		t.Errorf("receipt %d, peer's %d, want 3 and 7", v.Member.Receipt, v.PeerReceipt)
	}
	e.meta(group)
	e.merge(hot.Load{Conversation: group, Token: "t1", Members: []watermark.Member{bob}})
	e.raise(group, watermark.Member{User: "bob", Read: 1, Receipt: 1})
	if n := e.client.Exists(t.Context(), e.space.Key(group, keyspace.Receipt)).Val(); n != 0 {
		t.Error("a group has receipts")
	}
}

func TestMergeIsForTheSameWarmUpOnly(t *testing.T) {
	tests := []struct {
		name   string
		meta   []any
		token  string
		merged bool
	}{
		{"the same", nil, "t1", true},
		{"no token", nil, "", false},
		{"warmed up again since", []any{"tok", "t2"}, "t1", false},
		{"warming again", []any{"st", "warming", "tok", "t2"}, "t1", false},
		{"warming, same token", []any{"st", "warming"}, "t1", false},
		{"another server", []any{"inc", "another-server"}, "t1", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			e.meta(group, tt.meta...)
			before := e.dump()
			got := e.merge(hot.Load{
				Conversation: group, Token: tt.token, Complete: true,
				Members: []watermark.Member{open("ann", 3, 2)}, Absent: []watermark.UserID{"bob"},
			})
			if got != tt.merged {
				t.Errorf("merged = %v, want %v", got, tt.merged)
			}
			if !tt.merged {
				diff(t, "a stale merge wrote", e.dump(), before)
			}
		})
	}
	t.Run("absent", func(t *testing.T) {
		e := newEnv(t)
		if e.merge(hot.Load{Conversation: group, Token: "t1", Members: []watermark.Member{open("ann", 3, 2)}}) {
			t.Error("merged into nothing")
		}
		diff(t, "keys", e.dump(), map[string]string{})
	})
}

// The owner kicks a member after somebody loaded it and before that load is
// merged: the kick stands.
func TestMergeKeepsANewerWindow(t *testing.T) {
	loaded := open("ann", 3, 2)
	kicked, _ := loaded.Leave("kick-1", 10, 0)
	e := newEnv(t)
	e.meta(group)
	e.member(group, kicked)
	loaded.Read = 8
	e.merge(hot.Load{Conversation: group, Token: "t1", Members: []watermark.Member{loaded}, Absent: []watermark.UserID{"ann"}})
	want := kicked
	want.Read = 8
	diff(t, "member", e.view(group, "ann").Member, want)
}

func TestMergeReplacesAnOlderWindow(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	newer, _ := open("ann", 9, 2).Leave("kick-1", 10, 0) // version 10: compared as a number
	e.member(group, open("ann", 9, 2))
	e.merge(hot.Load{Conversation: group, Token: "t1", Members: []watermark.Member{newer}})
	diff(t, "member", e.view(group, "ann").Member, newer)

	e.do("HSET", e.space.Key(group, keyspace.Members), "bob", keyspace.NoWindow)
	e.merge(hot.Load{Conversation: group, Token: "t1", Members: []watermark.Member{open("bob", 1, 2)}})
	diff(t, "member that was known to have none", e.view(group, "bob").Member, open("bob", 1, 2))
}

func TestMergeOfALargeRoster(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	var roster []watermark.Member
	for i := range 3000 {
		m := open(watermark.UserID(fmt.Sprintf("u%05d", i)), 1, 0)
		m.Read = watermark.Seq(i%10) + 1
		roster = append(roster, m)
	}
	load := hot.Load{Conversation: group, Token: "t1", Members: roster, Absent: []watermark.UserID{"eve"}, Complete: true}
	e.merge(hot.Load{Conversation: group, Token: "t1", Members: roster[:1]}) // teaches the server the script
	if trips := e.trips.during(func() { e.merge(load) }); trips != 2 {
		t.Errorf("round trips = %d, want 2: the roster, and that it is complete", trips)
	}
	if got := e.client.HLen(t.Context(), e.space.Key(group, keyspace.Members)).Val(); got != 3001 {
		t.Errorf("members = %d, want 3001", got)
	}
	for _, u := range []watermark.UserID{"u00000", "u02999", "nobody"} {
		if got := e.view(group, u).Temperature; got != watermark.Warm {
			t.Errorf("%s: temperature = %v, want warm", u, got)
		}
	}
	count, err := e.ReadCount(t.Context(), group, 10)
	if err != nil || count.Count != 300 {
		t.Errorf("have read 10 = %+v, %v, want 300", count, err)
	}
}

func TestAStaleLargeRosterIsNotComplete(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	load := hot.Load{Conversation: group, Token: "t0", Complete: true}
	for i := range 3000 {
		load.Members = append(load.Members, open(watermark.UserID(fmt.Sprint("u", i)), 1, 0))
	}
	before := e.dump()
	if e.merge(load) {
		t.Error("merged with a stale token")
	}
	diff(t, "a stale merge wrote", e.dump(), before)
}

// losing lets the first command of each pipeline get lost.
type losing struct{ infoHook }

func (losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (losing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds[1:])
		cmds[0].SetErr(io.ErrUnexpectedEOF)
		return cmp.Or(err, io.ErrUnexpectedEOF)
	}
}

// A roster of which a part was lost on the way must not count as complete.
func TestALargeRosterThatIsLostInPartIsNotComplete(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	load := hot.Load{Conversation: group, Token: "t1", Complete: true}
	for i := range 3000 {
		load.Members = append(load.Members, open(watermark.UserID(fmt.Sprint("u", i)), 1, 0))
	}
	e.merge(hot.Load{Conversation: group, Token: "t1", Members: load.Members[2999:]}) // teaches the server the script
	lossy := redis.NewClient(e.client.Options())
	defer lossy.Close()
	lossy.Ping(t.Context())
	lossy.AddHook(losing{})
	h, err := hot.New(hot.Config{Redis: lossy, Space: e.space, Decode: decode})
	if err != nil {
		t.Fatal(err)
	}
	if merged, err := h.MergeMembers(t.Context(), []hot.Load{load}); err == nil {
		t.Errorf("merged = %v without an error", merged)
	}
	if got := e.view(group, "u2000").Temperature; got != watermark.Warm {
		t.Errorf("a member that arrived: temperature = %v, want warm", got)
	}
	if got := e.view(group, "u0").Temperature; got != watermark.Partial {
		t.Errorf("a member that was lost: temperature = %v, want partial", got)
	}
}

func TestMergeBoundsOwnSeqs(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "max", 5000)
	m := open("ann", 1, 0)
	for s := range watermark.Seq(900) {
		m.Own = append(m.Own, 2*s+1)
	}
	e.member(group, m)
	for i := range m.Own {
		m.Own[i]++
	}
	e.merge(hot.Load{Conversation: group, Token: "t1", Members: []watermark.Member{m}})
	if got := e.client.ZCard(t.Context(), e.space.Key(group, keyspace.Own)).Val(); got != watermark.MaxOwn {
		t.Errorf("own seqs = %d, want %d", got, watermark.MaxOwn)
	}
	diff(t, "the latest stay", e.view(group, "ann").Member.Own, span(801, 1800))
}

func TestMergeExtendsTheExpiryOfAllParts(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	e.member(group, open("bob", 1, 0))
	e.log(group, 1, 3)
	e.do("EXPIRE", e.space.Key(group, keyspace.Meta), 60)
	e.merge(hot.Load{Conversation: group, Token: "t1", Members: []watermark.Member{{User: "ann", Version: 1, Read: 3, Own: []watermark.Seq{5}}}})
	for _, p := range []keyspace.Part{keyspace.Meta, keyspace.Members, keyspace.Read, keyspace.Own, keyspace.Log} {
		ttl := e.client.TTL(t.Context(), e.space.Key(group, p)).Val()
		if ttl < 23*time.Hour || ttl > keyspace.DefaultExpiry {
			t.Errorf("%s expires in %v, want about %v", p, ttl, keyspace.DefaultExpiry)
		}
	}
}

// Whatever is raised and merged in whatever order, Redis says what the pure
// merge says.
func TestMergesCommute(t *testing.T) {
	seq := rapid.Map(rapid.Int64Range(0, 40), func(n int64) watermark.Seq { return watermark.Seq(n) })
	own := rapid.Custom(func(t *rapid.T) []watermark.Seq {
		s := rapid.SliceOfN(rapid.Map(rapid.Int64Range(1, 40), func(n int64) watermark.Seq { return watermark.Seq(n) }), 0, 6).Draw(t, "own")
		slices.Sort(s)
		return slices.Compact(s)
	})
	e := newEnv(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		conv := watermark.SingleOf("ann", watermark.UserID(fmt.Sprint("peer", n)))
		e.meta(conv, "max", 40)
		_, peer, _ := conv.Users()
		e.member(conv, open(peer, 1, 0))
		want := watermark.Member{User: "ann"}
		known := false
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			m := watermark.Member{User: "ann", Read: seq.Draw(rt, "read"), Receipt: seq.Draw(rt, "receipt")}
			if rapid.Bool().Draw(rt, "mark") {
				e.raise(conv, m)
			} else {
				// One version is one window.
				if v := rapid.Int64Range(0, 12).Draw(rt, "version"); v > 0 {
					m.Version, m.LastMembership = v, 1
					m.Memberships = []watermark.Membership{{Number: 1, Lower: watermark.Seq(v)}}
				}
				m.Own = own.Draw(rt, "own")
				known = true
				e.merge(hot.Load{Conversation: conv, Token: "t1", Members: []watermark.Member{m}})
			}
			want.Merge(m)
		}
		got := e.view(conv, "ann")
		if (got.Temperature == watermark.Warm) != known {
			rt.Fatalf("temperature = %v, known %v", got.Temperature, known)
		}
		if len(want.Own) == 0 {
			want.Own = nil
		}
		want.Ops = nil
		if fmt.Sprintf("%+v", got.Member) != fmt.Sprintf("%+v", want) {
			rt.Fatalf("member = %+v, want %+v", got.Member, want)
		}
		if n := e.client.ZCard(t.Context(), e.space.Key(conv, keyspace.Own)).Val(); n != int64(len(want.Own)) {
			rt.Fatalf("own seqs that stand = %d, want %d", n, len(want.Own))
		}
	})
}
