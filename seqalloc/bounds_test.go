package seqalloc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestSeqsAreExactToTheLast(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		s := fresh()
		s.Max = watermark.MaxSeq - 2
		s.Members = map[watermark.UserID]watermark.Member{"bob": {Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: watermark.MaxSeq - 2}}}}
		x.warm(t, s)
		batch := []watermark.Input{
			x.send("alice", "a"), x.send("alice", "b"), x.send("alice", "c"), x.leave("bob", "l", 0), x.send("alice", "a"),
			x.join("bob", "j", watermark.HistoryNone, 0), x.raiseMin(watermark.MaxSeq),
		}
		want := []string{
			"accepted 9007199254740990", "accepted 9007199254740991", "refused seqs_exhausted", "accepted 9007199254740991",
			"resent 9007199254740990", "accepted 9007199254740991", "accepted 9007199254740991",
		}
		outs := x.decide(t, batch...)
		wantVerdicts(t, outs, want...)
		windows := []watermark.Membership{{Number: 1, Lower: watermark.MaxSeq - 2, Upper: watermark.MaxSeq}, {Number: 2, Lower: watermark.MaxSeq + 1}}
		if d := cmp.Diff(windows, outs[5].Member.Memberships); d != "" {
			t.Error(d)
		}
		if outs[6].Min != watermark.MaxSeq {
			t.Errorf("min is %d", outs[6].Min)
		}
		if got := x.score(t, keyspace.Read, "alice"); got != watermark.MaxSeq {
			t.Errorf("read is %d", got)
		}
		if got := x.client.HGet(t.Context(), x.key(keyspace.Meta), "max").Val(); got != "9007199254740991" {
			t.Errorf("the counter reads %s", got)
		}
		wantVerdicts(t, x.decide(t, x.send("alice", "d")), "refused seqs_exhausted")
	})
}

// A version or membership number that ran over could not be read any more, by
// the owner neither.
func TestMembersAreExactToTheLast(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		s := fresh()
		s.Max = 5
		s.Members = map[watermark.UserID]watermark.Member{
			"ann": {Version: int64(watermark.MaxSeq) - 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}}},
			"bob": {Version: 7, LastMembership: 1<<31 - 1},
		}
		x.warm(t, s)
		outs := x.decide(t, x.leave("ann", "l", 0), x.join("ann", "j", watermark.HistoryNone, 0), x.join("bob", "j", watermark.HistoryNone, 0))
		wantVerdicts(t, outs, "accepted 5", "refused window_full", "refused window_full")
		if got := outs[0].Member.Version; got != int64(watermark.MaxSeq) {
			t.Errorf("version is %d", got)
		}
		lost := watermark.Input{
			Conversation: x.conv, Origin: x.origin(), Act: watermark.ActResequence, OpID: "r",
			Member: &watermark.Member{User: "bob", Version: int64(watermark.MaxSeq)},
		}
		wantVerdicts(t, x.decide(t, lost), "refused window_full")
	})
}

func TestOwnMessagesAreBoundedByAnAdvance(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.policy = watermark.KeepOnSend
		x.warm(t, fresh())
		x.decide(t, x.send("bob", "first")) // seq 1
		for range 2 {
			for _, o := range x.decide(t, x.sends("alice", 500)...) {
				if o.Advance != nil {
					t.Fatalf("an advance at %d, below the bound", o.Seq)
				}
			}
		}
		if got := x.score(t, keyspace.Read, "alice"); got != 0 {
			t.Errorf("sending raised read to %d", got)
		}
		batch := []watermark.Input{x.send("alice", "1001"), x.send("bob", "second"), x.send("alice", "1002"), x.send("bob", "third")}
		for i, verdict := range []watermark.Verdict{watermark.Accepted, watermark.Again} {
			outs := x.decide(t, batch...)
			var got []*watermark.ReadAdvanced
			for _, o := range outs {
				got = append(got, o.Advance)
			}
			// Alice's oldest two are seqs 2 and 3.
			want := []*watermark.ReadAdvanced{nil, nil, {User: "alice", Read: 3}, nil}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("call %d: %s", i, d)
			}
			if outs[2].Verdict != verdict || outs[2].Seq != 1004 {
				t.Errorf("call %d: %+v", i, outs[2])
			}
		}
		if got := x.score(t, keyspace.Read, "alice"); got != 3 {
			t.Errorf("read is %d, want 3", got)
		}
		lo, hi := keyspace.OwnRange("alice")
		if n := x.client.ZLexCount(t.Context(), x.key(keyspace.Own), lo, hi).Val(); n != watermark.MaxOwn {
			t.Errorf("%d own messages", n)
		}
		lo, hi = keyspace.OwnRange("bob")
		if n := x.client.ZLexCount(t.Context(), x.key(keyspace.Own), lo, hi).Val(); n != 3 {
			t.Errorf("%d own messages of bob", n)
		}
	})
}

// TestKeysStayBoundedAndExpire sends 10,000 messages, with commands between
// them, and looks at the size and the expiry of every key after each batch.
func TestKeysStayBoundedAndExpire(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		const batch = 500
		x.warm(t, fresh())
		for i := range 10000 / batch {
			x.policy = watermark.UnreadPolicy(i % 2)
			ins := x.sends("alice", batch/2)
			ins = append(ins, x.join("bob", fmt.Sprint("j", i), watermark.HistoryNone, 0), x.leave("bob", fmt.Sprint("l", i), 0), x.send("bob", "refused"))
			ins = append(ins, x.sends("carol", batch/2)...)
			seq := watermark.Seq((i + 1) * batch)
			ins = append(ins, x.revoke("", seq), x.revoke("", seq-30))
			x.decide(t, ins...)
			x.checkExpiry(t, 24*time.Hour)
		}
		bounds := map[keyspace.Part]int64{
			keyspace.Meta: 20, keyspace.Log: seqalloc.DefaultHotLog + 200, keyspace.Read: 3, keyspace.Receipt: 0, keyspace.Members: 3,
			keyspace.IDs: watermark.DedupeHorizon + batch, keyspace.OldIDs: watermark.DedupeHorizon + batch,
			keyspace.Own: 2 * watermark.MaxOwn, keyspace.Revoked: 20, keyspace.Refused: 4, // two commands, a refusal, a revoke of what the log has no more
		}
		for p, bound := range bounds {
			if n := x.size(t, p); n > bound {
				t.Errorf("%s holds %d, at most %d are allowed", p, n, bound)
			}
		}
		if n := x.size(t, keyspace.Log); n < seqalloc.DefaultHotLog-100 {
			t.Errorf("the hot log holds only %d", n)
		}
		if n := len(x.keys(t)); n > len(bounds) {
			t.Errorf("%d keys: %v", n, x.keys(t))
		}
	})
}

func TestEveryKeyExpiresWhicheverInputMakesIt(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		now := time.Now()
		a, err := seqalloc.New(seqalloc.Config{Redis: x.client, Space: x.space, Append: encode, Now: func() time.Time { return now }})
		check(t, err)
		x.Allocator = a
		for i, step := range []func() watermark.Input{
			func() watermark.Input { return x.raiseMin(1) },
			func() watermark.Input { return x.join("bob", "j", watermark.HistoryAll, 0) },
			func() watermark.Input { return x.clear("bob", "c") },
			func() watermark.Input { return x.revoke("", 5) },
			func() watermark.Input { return x.send("alice", "a") },
			func() watermark.Input { return x.clear("bob", "c2") },
			func() watermark.Input { return x.revoke("", 1) },
			func() watermark.Input { x.policy = watermark.KeepOnSend; return x.send("alice", "b") },
			func() watermark.Input { return x.revoke("", 1) },
		} {
			if i == 0 {
				x.warm(t, fresh())
			}
			x.decide(t, step())
			x.checkExpiry(t, 24*time.Hour)
		}
		// An expiry is renewed after a quarter of it, and when the clock falls.
		for _, move := range []time.Duration{time.Hour, 7 * time.Hour, -24 * time.Hour} {
			for _, k := range x.keys(t) {
				check(t, x.client.Expire(t.Context(), k, time.Minute).Err())
			}
			now = now.Add(move)
			x.decide(t, x.send("alice", fmt.Sprint("after ", move)))
			want := 24 * time.Hour
			if move == time.Hour {
				want = time.Minute
			}
			if got := x.client.TTL(t.Context(), x.key(keyspace.Meta)).Val().Round(time.Minute); got != want {
				t.Errorf("after %s the meta expires in %s, want %s", move, got, want)
			}
			if move != time.Hour {
				x.checkExpiry(t, want)
			}
		}
	})
}

// checkExpiry wants every key to expire, and none before the meta does.
func (x *fixture) checkExpiry(t *testing.T, most time.Duration) {
	t.Helper()
	meta := x.client.PTTL(t.Context(), x.key(keyspace.Meta)).Val()
	for _, k := range x.keys(t) {
		ttl := x.client.PTTL(t.Context(), k).Val()
		if ttl <= 0 || ttl > most {
			t.Fatalf("key %s expires in %s", k, ttl)
		}
		if ttl < meta-time.Second {
			t.Fatalf("key %s expires in %s, before the meta in %s", k, ttl, meta)
		}
	}
}

func (x *fixture) size(t testing.TB, p keyspace.Part) int64 {
	t.Helper()
	ctx, k := t.Context(), x.key(p)
	switch x.client.Type(ctx, k).Val() {
	case "hash":
		return x.client.HLen(ctx, k).Val()
	case "zset":
		return x.client.ZCard(ctx, k).Val()
	case "stream":
		return x.client.XLen(ctx, k).Val()
	default:
		return 0
	}
}

func TestConfigIsCheckedAsAWhole(t *testing.T) {
	_, err := seqalloc.New(seqalloc.Config{HotLog: -1, Space: keyspace.Space{Prefix: "a{b", Expiry: -1}})
	if err == nil {
		t.Fatal("no error")
	}
	want := "seqalloc: no redis client\nno message encoding\nhot log of -1 messages: must be 0..10000\nkey prefix \"a{b\" must not hold '{' or '}'\nexpiry -1ns is negative"
	if d := cmp.Diff(want, err.Error()); d != "" {
		t.Error(d)
	}
}
