package seqalloc_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// statuses collects what the scripts reply, in a word: what malloc.lua says, "run"
// where plain.lua has decided, "turned" where it has not.
type statuses struct{ seen []string }

func (*statuses) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*statuses) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s *statuses) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, c := range cmds {
			if c, ok := c.(*redis.Cmd); ok {
				list, ok := c.Val().([]any)
				switch {
				case !ok || len(list) == 0:
				case list[0] == int64(0):
					s.seen = append(s.seen, "turned")
				default:
					word, ok := list[0].(string)
					if !ok {
						word = "run"
					}
					s.seen = append(s.seen, word)
				}
			}
		}
		return err
	}
}

// What nearly every call brings takes the short way. That is a matter of cost
// only, so nothing else would show that it is taken no more.
func TestPlainBatchesTakeTheShortWay(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		s := &statuses{}
		x.client.AddHook(s)
		x.warm(t, fresh())
		took := func(name string, want string, ins ...watermark.Input) {
			t.Helper()
			s.seen = nil
			x.decide(t, ins...)
			if got := strings.Join(s.seen, " "); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		took("the first message, of whose keys none is there", "turned ok", x.sends("alice", 1)...)
		took("one", "run", x.sends("alice", 1)...)
		took("of a new sender", "run", x.sends("bob", 1)...)
		took("several of several", "run", slices.Concat(x.sends("alice", 3), x.sends("carol", 2), x.sends("bob", 1))...)
		took("with a command", "ok", append(x.sends("alice", 1), x.join("bob", "j", watermark.HistoryAll, 0))...)
		took("the noted command is settled", "turned ok", x.sends("bob", 1)...)
		took("of a member", "run", x.sends("bob", 1)...)
		// Also behind a rotation of the ids, with the log at its bound.
		for range 4 {
			x.decide(t, x.sends("bob", 450)...)
		}
		took("after many", "run", x.sends("bob", 1)...)
		took("after many", "run", x.sends("alice", 150)...)
		took("after many", "run", x.sends("bob", 1)...)
		if n := x.client.XLen(t.Context(), x.key(keyspace.Log)).Val(); n < seqalloc.DefaultHotLog || n > seqalloc.DefaultHotLog+100 {
			t.Errorf("%d messages in the hot log", n)
		}
		again := x.sends("alice", 1)
		took("once", "run", again...)
		took("twice", "turned ok", again...)
	})
}

// A hot log that the version before has cut without keeping count is counted
// once, and what follows takes the short way.
func TestAMetaOfTheVersionBeforeIsCounted(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		s := &statuses{}
		x.client.AddHook(s)
		x.warm(t, fresh())
		x.decide(t, x.sends("alice", 7)...)
		for name, harm := range map[string]func() error{
			"no count":             func() error { return x.client.HDel(t.Context(), x.key(keyspace.Meta), "base").Err() },
			"cut since":            func() error { return x.client.XTrimMaxLen(t.Context(), x.key(keyspace.Log), 3).Err() },
			"the log gone since":   func() error { return x.client.Del(t.Context(), x.key(keyspace.Log)).Err() },
			"the whole meta again": func() error { return nil },
		} {
			check(t, harm())
			s.seen = nil
			x.decide(t, x.sends("alice", 1)...)
			x.decide(t, x.sends("alice", 1)...)
			if len(s.seen) == 0 || s.seen[len(s.seen)-1] != "run" {
				t.Errorf("%s: %v", name, s.seen)
			}
			if ttl := x.client.TTL(t.Context(), x.key(keyspace.Log)).Val(); ttl <= 0 {
				t.Errorf("%s: the hot log lives %s", name, ttl)
			}
		}
	})
}

// Two conversations get the same batches. One of them names its warm-up in each,
// for which the short way is not made: outcomes and keys must be the same.
func TestTheShortWayDecidesLikeTheLongOne(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		rapid.Check(t, func(rt *rapid.T) { sameEitherWay(t, rt, x) })
	})
}

func sameEitherWay(t *testing.T, rt *rapid.T, x *fixture) {
	x.del(t, t.Context())
	x.conv, x.offset = group, 0
	state := fresh()
	state.Complete = rapid.Bool().Draw(rt, "complete")
	state.Max = rapid.SampledFrom([]watermark.Seq{0, 2, 2147483640, watermark.MaxSeq - 6}).Draw(rt, "max")
	state.LastTime = rapid.Int64Range(0, 1020).Draw(rt, "time")
	open := watermark.Membership{Number: 2, Lower: 1}
	closed := watermark.Membership{Number: 1, Lower: 1, Upper: 1}
	state.Members = map[watermark.UserID]watermark.Member{
		"ann": {}, "bob": {Version: 2, LastMembership: 2, Memberships: []watermark.Membership{closed, open}},
		"gone": {Version: 1, LastMembership: 1, Memberships: []watermark.Membership{closed}},
		"left": {Version: 3, LastMembership: 3, Memberships: []watermark.Membership{open}},
	}
	other := *x
	other.conv = "group:g2"
	tokens, err := x.Begin(t.Context(), []watermark.ConversationID{x.conv, other.conv})
	check(t, err)
	state.ID = x.conv
	second := *state
	second.ID = other.conv
	_, err = x.Install(t.Context(), []seqalloc.Loaded{{Token: tokens[0], State: state}, {Token: tokens[1], State: &second}})
	check(t, err)
	users := []watermark.UserID{"ann", "ann", "bob", "bob", "bob", "gone", "left", "new"}
	for range rapid.IntRange(1, 6).Draw(rt, "batches") {
		var ins []watermark.Input
		for range rapid.IntRange(1, 4).Draw(rt, "inputs") {
			in := x.send(users[rapid.IntRange(0, len(users)-1).Draw(rt, "user")], fmt.Sprint("id", rapid.IntRange(0, 12).Draw(rt, "id")))
			if rapid.IntRange(0, 9).Draw(rt, "content") == 0 {
				in.Message.Body = []byte("something else")
				in.Message.Hash = in.Message.SumHash()
			}
			in.Message.RecordTime = rapid.Int64Range(990, 1040).Draw(rt, "record time")
			ins = append(ins, in)
		}
		if rapid.IntRange(0, 9).Draw(rt, "late") == 0 {
			x.offset -= int64(rapid.IntRange(0, 3).Draw(rt, "back"))
		}
		place := watermark.Place{Partition: watermark.Partition{TopicID: rapid.SampledFrom([]string{"p", "pq"}).Draw(rt, "place"), Number: 1}, Number: rapid.Int64Range(0, 12).Draw(rt, "number")}
		floor := watermark.Seq(rapid.SampledFrom([]int64{0, 0, 0, 3}).Draw(rt, "floor"))
		policy := rapid.SampledFrom([]watermark.UnreadPolicy{watermark.AdvanceOnSend, watermark.AdvanceOnSend, watermark.KeepOnSend}).Draw(rt, "policy")
		allocs, err := x.Malloc(t.Context(), []watermark.Batch{
			{Conversation: x.conv, Place: place, Floor: floor, Policy: policy, Inputs: ins},
			{Conversation: other.conv, Place: place, Floor: floor, Policy: policy, Inputs: ins, Token: tokens[1]},
		})
		check(t, err)
		for i := range allocs {
			allocs[i].Token = ""
		}
		if d := cmp.Diff(allocs[1], allocs[0]); d != "" {
			rt.Fatalf("outcomes (-long +short):\n%s", d)
		}
	}
	if d := cmp.Diff(other.contents(t), x.contents(t)); d != "" {
		rt.Fatalf("keys (-long +short):\n%s", d)
	}
}

// The short way looks at both generations of ids, also where it is the second to
// come behind a rotation.
func TestTheShortWayKnowsTheOldGenerationOfIDs(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.sends("bob", 499)...)
		wantVerdicts(t, x.decide(t, x.send("alice", "x")), "accepted 500")
		x.decide(t, x.sends("bob", 500)...) // max is 1000, which rotates them
		x.decide(t, x.sends("bob", 1)...)
		wantVerdicts(t, x.decide(t, x.send("alice", "x")), "resent 500")
		x.decide(t, x.sends("bob", 1)...)
		wantVerdicts(t, x.decide(t, x.send("bob", "y"), x.send("alice", "x")), "accepted 1003", "resent 500")
	})
}

func TestTheShortWayKnowsAnIDTwiceInABatch(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.sends("bob", 1)...)
		wantVerdicts(t, x.decide(t, x.send("alice", "x"), x.send("bob", "x"), x.send("alice", "x")), "accepted 2", "accepted 3", "resent 2")
		wantVerdicts(t, x.decide(t, x.send("bob", "y"), x.send("alice", "x")), "accepted 4", "resent 2")
	})
}

// contents gives what stands in the conversation's keys, by part, but for its
// warm-up, and which of them would never expire.
func (x *fixture) contents(t testing.TB) map[string]any {
	t.Helper()
	out := make(map[string]any)
	all := x.dump(t)
	for _, p := range []keyspace.Part{
		keyspace.Meta, keyspace.Log, keyspace.Read, keyspace.Receipt, keyspace.Members,
		keyspace.IDs, keyspace.OldIDs, keyspace.Own, keyspace.Revoked, keyspace.Refused,
	} {
		content, ok := all[x.key(p)]
		if !ok {
			continue
		}
		if fields, ok := content.(map[string]string); ok {
			delete(fields, "tok")
			if x.space.Incarnation == "" {
				delete(fields, "inc") // the server's own, of which a Cluster has several
			}
		}
		out[string(p)] = content
		out[string(p)+" expires"] = x.client.TTL(t.Context(), x.key(p)).Val() > 0
	}
	return out
}
