package seqalloc_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestSeqsAreDenseAcrossCalls(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		next := watermark.Seq(1)
		for _, n := range []int{1, 3, 101, 1, 250} {
			for i, o := range x.decide(t, x.sends("alice", n)...) {
				if o.Verdict != watermark.Accepted || o.Seq != next {
					t.Fatalf("input %d of %d: %+v, want seq %d", i, n, o, next)
				}
				next++
			}
		}
		if got := x.score(t, keyspace.Read, "alice"); got != next-1 {
			t.Errorf("the sender has read %d, want %d", got, next-1)
		}
		last, err := x.client.XRevRangeN(t.Context(), x.key(keyspace.Log), "+", "-", 1).Result()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]any{"h": "h:id-356", "b": "body of id-356"}
		if last[0].ID != "356-0" || !cmp.Equal(want, last[0].Values) {
			t.Errorf("the hot log ends with %+v", last[0])
		}
	})
}

func TestSeveralConversationsInOneCall(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		warm := x.send("alice", "a")
		x.conv = "group:cold"
		cold := x.send("alice", "a")
		allocs, err := x.Malloc(t.Context(), []watermark.Batch{
			{Conversation: "group:cold", Inputs: []watermark.Input{cold}},
			{Conversation: group, Inputs: []watermark.Input{warm}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if allocs[0].Temperature != watermark.Cold || allocs[1].Temperature != watermark.Warm || allocs[1].Max != 1 {
			t.Errorf("%+v", allocs)
		}
	})
}

func TestAKickLiesExactlyBetweenTwoMessages(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		outs := x.decide(t,
			x.join("bob", "j1", watermark.HistoryNone, 0),
			x.send("bob", "a"), x.send("alice", "b"),
			x.leave("bob", "k1", 0),
			x.send("bob", "c"), x.send("alice", "d"),
			x.join("bob", "j2", watermark.HistoryNone, 0),
			x.send("bob", "e"))
		wantVerdicts(t, outs, "accepted 0", "accepted 1", "accepted 2", "accepted 2", "refused not_member", "accepted 3", "accepted 3", "accepted 4")
		want := &watermark.Member{
			User: "bob", Version: 3, LastMembership: 2, Read: 1,
			Memberships: []watermark.Membership{{Number: 1, Lower: 1, Upper: 2}, {Number: 2, Lower: 4}},
			Ops:         []watermark.AppliedOp{{ID: "j1", Edge: 0}, {ID: "k1", Edge: 2}, {ID: "j2", Edge: 3}},
		}
		if d := cmp.Diff(want, outs[6].Member); d != "" {
			t.Error(d)
		}
		if !outs[0].Changed || !outs[3].Changed || !outs[6].Changed {
			t.Errorf("a command says that it changed nothing: %+v", outs)
		}
	})
}

func TestRedeliveryGivesTheSameSeqs(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		batch := []watermark.Input{
			x.send("alice", "a"), x.send("bob", "b"), x.join("carol", "j", watermark.HistoryAll, 0),
			x.leave("carol", "l", 0), x.send("carol", "c"), x.send("alice", "a"), x.revoke("", 2), x.revoke("", 9), x.raiseMin(2),
		}
		first := x.decide(t, batch...)
		wantVerdicts(t, first, "accepted 1", "accepted 2", "accepted 2", "accepted 2", "refused not_member", "resent 1", "accepted 2", "refused no_such_seq", "accepted 2")
		again := []string{"again 1", "again 2", "again 2", "again 2", "refused not_member", "again 1", "again 2", "refused no_such_seq", "again 2"}
		for range 2 {
			wantVerdicts(t, x.decide(t, batch...), again...)
		}
		// Cut otherwise, and with something new at the end.
		wantVerdicts(t, x.decide(t, batch[:3]...), again[:3]...)
		wantVerdicts(t, x.decide(t, append(slices.Clone(batch[3:]), x.send("bob", "z"))...), append(slices.Clone(again[3:]), "accepted 3")...)
		// A batch that begins with something new settles what was refused.
		wantVerdicts(t, x.decide(t, x.send("bob", "y")), "accepted 4")
		wantVerdicts(t, x.decide(t, batch...), "again 1", "again 2", "again 2", "again 2", "known 0", "again 1", "again 4", "known 0", "again 4")
		if got := x.decide(t, batch[2])[0].Member; got.Version != 2 {
			t.Errorf("a redelivered join moved the window: %+v", got)
		}
	})
}

// Its dead letter stands, with the reason that it had: it gets no second one that
// names the other content which has its id by now.
func TestARefusedMessageThatComesAgainLateIsKnown(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.join("bob", "j", watermark.HistoryAll, 0), x.leave("bob", "l", 0))
		late := x.send("bob", "a")
		lost := x.send("bob", "a")
		lost.Act, lost.Seq = watermark.ActResequence, 9
		wantVerdicts(t, x.decide(t, late), "refused not_member")
		back, other := x.join("bob", "k", watermark.HistoryAll, 0), x.send("bob", "a")
		other.Message.Body = []byte("something else")
		other.Message.Hash = other.Message.SumHash()
		wantVerdicts(t, x.decide(t, back, other), "accepted 0", "accepted 1")
		wantVerdicts(t, x.decide(t, late, lost), "known 0", "known 0")
	})
}

func TestInputsOfAnotherPartitionHaveTheirOwnOffsets(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.offset = 100
		wantVerdicts(t, x.decide(t, x.send("alice", "a")), "accepted 1")
		in := x.send("alice", "b")
		in.Origin = watermark.Origin{Partition: watermark.Partition{TopicID: "topic", Number: 4}, Offset: 7}
		wantVerdicts(t, x.decide(t, in), "accepted 2")
		again := x.send("alice", "c")
		again.Origin = watermark.Origin{Partition: watermark.Partition{TopicID: "topic made anew", Number: 3}, Offset: 7}
		wantVerdicts(t, x.decide(t, again, in), "accepted 3", "again 2")
	})
}

func TestOffsetZeroIsFreshOnce(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.offset = -1
		in := x.send("alice", "a")
		wantVerdicts(t, x.decide(t, in), "accepted 1")
		wantVerdicts(t, x.decide(t, in), "again 1")
	})
}

func TestResendIsRecognised(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		wantVerdicts(t, x.decide(t, x.send("alice", "x"), x.send("alice", "x"), x.send("bob", "x")), "accepted 1", "resent 1", "accepted 2")
		wantVerdicts(t, x.decide(t, x.send("alice", "x")), "resent 1")
		other := x.send("alice", "x")
		other.Message.Body = []byte("something else")
		other.Message.Hash = other.Message.SumHash()
		wantVerdicts(t, x.decide(t, other), "refused id_reused")
		wantVerdicts(t, x.decide(t, other), "refused id_reused")
		// The last seq at which it counts, and the first at which it does not.
		x.decide(t, x.sends("bob", 498)...)
		x.decide(t, x.sends("bob", 500)...) // max is 1000
		wantVerdicts(t, x.decide(t, x.send("alice", "x")), "resent 1")
		x.decide(t, x.sends("bob", 1)...) // max is 1001, so seq 1 is 1,000 back
		wantVerdicts(t, x.decide(t, x.send("alice", "x")), "accepted 1002")
		wantVerdicts(t, x.decide(t, x.send("alice", "x")), "resent 1002")
	})
}

func TestHorizonIsTheSameWarmAndCold(t *testing.T) {
	for _, c := range []struct {
		seq  watermark.Seq
		want string
	}{{1000, "accepted 2001"}, {1001, "resent 1001"}} {
		t.Run(fmt.Sprint(c.seq), func(t *testing.T) {
			onEachRedis(t, func(t *testing.T, x *fixture) {
				in := x.send("alice", "x")
				s := fresh()
				s.Max = 2000
				s.Sent = map[watermark.SentKey]watermark.Sent{{Sender: "alice", ClientID: "x"}: {Seq: c.seq, Hash: in.Message.Hash}}
				x.warm(t, s)
				wantVerdicts(t, x.decide(t, in), c.want)
			})
		})
	}
}

func TestSinglesTakeTheirTwoUsersOnly(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.conv = single
		x.warm(t, fresh())
		batch := []watermark.Input{
			x.send("alice", "a"), x.send("mallory", "b"), x.join("mallory", "j", watermark.HistoryAll, 0), x.revoke("mallory", 1),
			x.send("bob", "c"),
		}
		wantVerdicts(t, x.decide(t, batch...), "accepted 1", "refused not_participant", "refused not_participant", "refused no_such_seq", "accepted 2")
		wantVerdicts(t, x.decide(t, batch...), "again 1", "refused not_participant", "refused not_participant", "refused no_such_seq", "again 2")
	})
}

func TestUnknownMembersAreAskedFor(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, &watermark.State{Members: map[watermark.UserID]watermark.Member{"alice": {}}})
		batch := []watermark.Input{
			x.send("alice", "a"), x.send("bob", "b"), x.leave("carol", "l", 0), x.revoke("dave", 1), x.raiseMin(1), x.send("bob", "c"),
		}
		a := x.call(t, batch...)
		// With the token of the warm-up that stands, which the load is merged under.
		token, err := x.client.HGet(t.Context(), x.key(keyspace.Meta), "tok").Result()
		if err != nil || token == "" {
			t.Fatalf("token %q, %v", token, err)
		}
		want := watermark.Allocation{Temperature: watermark.Partial, Token: token, Unknown: []watermark.UserID{"bob", "carol", "dave"}}
		if d := cmp.Diff(want, a); d != "" {
			t.Fatal(d)
		}
		for _, u := range want.Unknown {
			if err := x.client.HSet(t.Context(), x.key(keyspace.Members), string(u), keyspace.NoWindow).Err(); err != nil {
				t.Fatal(err)
			}
		}
		wantVerdicts(t, x.decide(t, batch...), "accepted 1", "accepted 2", "accepted 2", "accepted 2", "accepted 2", "accepted 3")
	})
}

func TestRaiseMinAndRevokeStayWithinBounds(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.sends("alice", 5)...)
		outs := x.decide(t,
			x.raiseMin(7), x.raiseMin(3), x.raiseMin(2), x.raiseMin(-4), x.raiseMin(1<<62),
			x.revoke("", 2), x.revoke("", 6), x.revoke("", -1), x.revoke("", 1<<62), x.revoke("", 4), x.revoke("", 4),
			x.raiseMin(6), x.send("alice", "last"))
		wantVerdicts(t, outs,
			"refused no_such_seq", "accepted 5", "accepted 5", "accepted 5", "refused no_such_seq",
			"refused no_such_seq", "refused no_such_seq", "refused no_such_seq", "refused no_such_seq", "accepted 5", "accepted 5",
			"accepted 5", "accepted 6")
		var mins []watermark.Seq
		var changed []bool
		for _, o := range outs {
			mins, changed = append(mins, o.Min), append(changed, o.Changed)
		}
		if d := cmp.Diff([]watermark.Seq{0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 6, 6}, mins); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]bool{false, true, false, false, false, false, false, false, false, true, false, true, false}, changed); d != "" {
			t.Error(d)
		}
	})
}

func TestRevokeKeepsTheHeaderOnly(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.send("alice", "a"), x.send("alice", "b"), x.revoke("bob", 1), x.revoke("", 2))
		for seq, want := range map[string]string{"1": "77|bob|h:a", "2": "77||h:b"} {
			if got := x.client.HGet(t.Context(), x.key(keyspace.Revoked), seq).Val(); got != want {
				t.Errorf("tombstone of %s is %q, want %q", seq, got, want)
			}
		}
		if n := x.client.XLen(t.Context(), x.key(keyspace.Log)).Val(); n != 0 {
			t.Errorf("%d messages are left in the hot log", n)
		}
		// The revoked tail is no reason to call the counter wrong.
		x.decide(t, x.send("alice", "c"), x.send("alice", "d"), x.send("alice", "e"), x.revoke("", 4), x.revoke("", 5))
		wantVerdicts(t, x.decide(t, x.send("alice", "f")), "accepted 6")
	})
}

func TestOnlyWhoSeesAMessageRevokesIt(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.sends("alice", 3)...)
		outs := x.decide(t,
			x.join("bob", "j1", watermark.HistoryFrom, 2), x.revoke("bob", 1), x.revoke("bob", 2),
			x.leave("bob", "l1", 0), x.send("alice", "four"), x.revoke("bob", 4), x.revoke("bob", 3))
		wantVerdicts(t, outs, "accepted 3", "refused no_such_seq", "accepted 3", "accepted 3", "accepted 4", "refused no_such_seq", "accepted 4")
	})
}

func TestRevokeBelowTheHotLogIsAppendedAgain(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		s := fresh()
		s.Max = 50
		x.warm(t, s)
		in := x.revoke("", 20)
		outs := x.decide(t, in)
		wantVerdicts(t, outs, "accepted 50")
		if !outs[0].Changed {
			t.Error("says that nothing was changed")
		}
		wantVerdicts(t, x.decide(t, in), "again 50")
	})
}

func TestWarmChangesNothing(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		in := watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActWarm}
		outs := x.decide(t, in, x.send("alice", "a"))
		wantVerdicts(t, outs, "accepted 0", "accepted 1")
		if ev := outs[0].Events(&in); len(ev) != 0 || outs[0].Changed {
			t.Errorf("%+v, %v", outs[0], ev)
		}
	})
}

func TestResequence(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		lost := x.send("alice", "loser").Message
		s := fresh()
		s.Max = 12
		s.Sent = map[watermark.SentKey]watermark.Sent{{Sender: "alice", ClientID: "loser"}: {Seq: 10, Hash: lost.Hash}}
		x.warm(t, s)
		reseq := func(number int64, from watermark.Seq) watermark.Input {
			return watermark.Input{Conversation: x.conv, Origin: x.origin(), Act: watermark.ActResequence, OpID: "r", Message: lost, Seq: from, Repair: number}
		}
		in := reseq(41, 10)
		repaired := &watermark.Repaired{Number: 41, From: 10}
		for i, want := range []string{"accepted 13", "again 13"} {
			outs := x.decide(t, in)
			wantVerdicts(t, outs, want)
			if d := cmp.Diff(repaired, outs[0].Repaired); d != "" {
				t.Errorf("call %d: %s", i, d)
			}
		}
		// The same conflict is reported again, and another of its kind.
		wantVerdicts(t, x.decide(t, reseq(41, 10), reseq(50, 12), x.send("alice", "loser")), "again 13", "again 13", "resent 13")
		row, err := x.client.HMGet(t.Context(), x.key(keyspace.Meta), keyspace.MetaFields()...).Result()
		if err != nil {
			t.Fatal(err)
		}
		meta, err := keyspace.ParseMeta(x.conv, row)
		if err != nil {
			t.Fatal(err)
		}
		if want := (watermark.Repaired{Number: 50, From: 10}); meta.Conversation.Repair != want {
			t.Errorf("repair %+v, want %+v", meta.Conversation.Repair, want)
		}
	})
}

func TestResequencedMemberStateGetsTheHighestVersion(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		x.decide(t, x.join("bob", "j", watermark.HistoryAll, 0))
		in := watermark.Input{
			Conversation: x.conv, Origin: x.origin(), Act: watermark.ActResequence, OpID: "r",
			Member: &watermark.Member{User: "bob", Version: 5},
		}
		want := &watermark.Member{
			User: "bob", Version: 6, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}},
			Ops: []watermark.AppliedOp{{ID: "j"}},
		}
		for _, verdict := range []string{"accepted 0", "again 0"} {
			outs := x.decide(t, in)
			wantVerdicts(t, outs, verdict)
			if d := cmp.Diff(want, outs[0].Member); d != "" {
				t.Error(d)
			}
		}
	})
}

func TestAnInputWithoutSubstanceIsRefused(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		bad := []watermark.Input{{Act: watermark.ActSend}, {Act: watermark.ActResequence}, {Act: watermark.Act(99)}}
		for i := range bad {
			bad[i].Origin = x.origin()
		}
		wantVerdicts(t, x.decide(t, append(bad, x.send("alice", "a"))...), "refused invalid", "refused invalid", "refused invalid", "accepted 1")
	})
}
