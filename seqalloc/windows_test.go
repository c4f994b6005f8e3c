package seqalloc_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// TestWindowsMoveAsTheGoMethodsSay lets the script and watermark.Member do the
// same random operations and compares state and answers after each.
func TestWindowsMoveAsTheGoMethodsSay(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		rapid.Check(t, func(r *rapid.T) {
			x.warm(t, fresh())
			want := watermark.Member{User: "bob"}
			var edge watermark.Seq
			for i := range rapid.IntRange(1, 25).Draw(r, "ops") {
				// Some messages of somebody else move the edge.
				n := rapid.IntRange(0, 3).Draw(r, "messages")
				ins := x.sends("alice", n)
				edge += watermark.Seq(n)
				in, next, changed := windowOp(r, x, want, edge, fmt.Sprintf("op|%d;,%%", i))
				outs := x.decide(t, append(ins, in)...)
				got := outs[n]
				want = next
				if d := cmp.Diff(&want, got.Member, cmpopts.EquateEmpty()); d != "" {
					r.Fatalf("member after %+v at %d (-want +got):\n%s", in, edge, d)
				}
				if got.Changed != changed || got.Seq != edge || got.Verdict != watermark.Accepted {
					r.Fatalf("%+v at %d: want changed %v, got %+v", in, edge, changed, got)
				}
				verdict := x.decide(t, x.send("bob", fmt.Sprint("from bob ", i)))[0].Verdict
				if open := verdict == watermark.Accepted; open != want.Open() {
					r.Fatalf("bob may send: %v, with %+v", open, want)
				} else if open {
					edge++
					want.RaiseRead(edge)
				}
			}
		})
	})
}

func windowOp(r *rapid.T, x *fixture, m watermark.Member, edge watermark.Seq, op string) (in watermark.Input, next watermark.Member, changed bool) {
	switch rapid.IntRange(0, 2).Draw(r, "kind") {
	case 0:
		h := watermark.History(rapid.IntRange(0, 2).Draw(r, "history"))
		from := watermark.Seq(rapid.OneOf(rapid.Int64(), rapid.Int64Range(-1, int64(edge)+2)).Draw(r, "from"))
		next, changed, _ = m.Join(op, edge, h, from)
		return x.join("bob", op, h, from), next, changed
	case 1:
		number := rapid.Int32Range(0, m.LastMembership+1).Draw(r, "membership")
		next, changed = m.Leave(op, edge, number)
		return x.leave("bob", op, number), next, changed
	default:
		next, changed = m.Clear(op, edge)
		return x.clear("bob", op), next, changed
	}
}

func TestARepeatedOpChangesNothing(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		first := x.decide(t, x.send("alice", "a"), x.join("bob", "op", watermark.HistoryNone, 0), x.send("alice", "b"))[1]
		for _, in := range []watermark.Input{x.join("bob", "op", watermark.HistoryAll, 0), x.leave("bob", "op", 0), x.clear("bob", "op")} {
			got := x.decide(t, in)[0]
			want := first
			want.Changed = false
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%+v: %s", in, d)
			}
		}
		// Eight later ones push it out: then it is a new op.
		for i := range watermark.KeptOps {
			x.decide(t, x.join("bob", fmt.Sprint("later ", i), watermark.HistoryAll, 0))
		}
		if got := x.decide(t, x.leave("bob", "op", 0))[0]; !got.Changed {
			t.Errorf("%+v", got)
		}
	})
}

func TestALateKickOfAnOlderMembershipChangesNothing(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		s := fresh()
		s.Max = 399
		x.warm(t, s)
		x.decide(t, x.join("alice", "j1", watermark.HistoryAll, 0), x.leave("alice", "l1", 1))
		x.decide(t, x.sends("bob", 161)...)
		outs := x.decide(t, x.join("alice", "j2", watermark.HistoryNone, 0), x.send("alice", "back"), x.leave("alice", "late", 1), x.leave("alice", "l1", 0), x.send("alice", "again"))
		wantVerdicts(t, outs, "accepted 560", "accepted 561", "accepted 561", "accepted 399", "accepted 562")
		if outs[2].Changed || outs[3].Changed {
			t.Errorf("%+v", outs)
		}
		want := watermark.Intervals{{First: 1, Last: 399}, {First: 561, Last: watermark.MaxSeq}}
		if d := cmp.Diff(want, outs[3].Member.Window()); d != "" {
			t.Error(d)
		}
	})
}

func TestAFullWindowTakesNoMoreMemberships(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		m := watermark.Member{User: "bob", Version: 600, LastMembership: watermark.MaxMemberships}
		for i := range watermark.MaxMemberships {
			seq := watermark.Seq(2*i + 1)
			m.Memberships = append(m.Memberships, watermark.Membership{Number: int32(i + 1), Lower: seq, Upper: seq})
		}
		s := fresh()
		s.Max = 1000
		s.Members = map[watermark.UserID]watermark.Member{"bob": m}
		x.warm(t, s)
		full := x.join("bob", "one too many", watermark.HistoryNone, 0)
		wantVerdicts(t, x.decide(t, full), "refused window_full")
		wantVerdicts(t, x.decide(t, full), "refused window_full")
		// A refused op is not a decided one, and all of the history makes room.
		out := x.decide(t, x.join("bob", "one too many", watermark.HistoryAll, 0))[0]
		want := &watermark.Member{
			User: "bob", Version: 601, LastMembership: watermark.MaxMemberships + 1,
			Memberships: []watermark.Membership{{Number: watermark.MaxMemberships + 1}},
			Ops:         []watermark.AppliedOp{{ID: "one too many", Edge: 1000}},
		}
		if d := cmp.Diff(want, out.Member); d != "" {
			t.Error(d)
		}
	})
}

func TestClearMarksReadAndDropsOwnMessages(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.policy = watermark.KeepOnSend
		x.warm(t, fresh())
		outs := x.decide(t, x.send("alice", "a"), x.send("bob", "b"), x.send("alice", "c"), x.clear("alice", "c"), x.send("alice", "d"))
		if m := outs[3].Member; m.Read != 3 || !outs[3].Changed {
			t.Errorf("%+v", outs[3])
		}
		if got := x.score(t, keyspace.Read, "alice"); got != 3 {
			t.Errorf("read is %d", got)
		}
		if d := cmp.Diff([]string{keyspace.OwnMember("alice", 4), keyspace.OwnMember("bob", 2)}, x.own(t)); d != "" {
			t.Error(d)
		}
	})
}

func TestAttributesAreBounded(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		set := func(op string, attrs map[string]string) watermark.Input {
			in := x.clear("alice", op)
			in.Act, in.Attributes = watermark.ActSetAttributes, attrs
			return in
		}
		many := make(map[string]string)
		for i := range watermark.MaxAttributes {
			many[fmt.Sprintf("a%d", i)] = "v"
		}
		outs := x.decide(t, x.join("alice", "j", watermark.HistoryAll, 0), set("1", many), set("2", map[string]string{"b": "v"}),
			set("3", map[string]string{"a0": "", "b": "v"}), set("3", map[string]string{"c": "v"}))
		wantVerdicts(t, outs, "accepted 0", "accepted 0", "refused attributes_full", "accepted 0", "accepted 0")
		last := outs[4].Member.Attributes
		if len(last) != watermark.MaxAttributes || last["a0"] != "" || last["b"] != "v" || outs[4].Changed {
			t.Errorf("in the end %v, changed %v", last, outs[4].Changed)
		}
	})
}

// Attributes make nobody a member.
func TestAttributesAreAMembers(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		set := func(u watermark.UserID, op string) watermark.Input {
			in := x.clear(u, op)
			in.Act, in.Attributes = watermark.ActSetAttributes, map[string]string{"muted": "1"}
			return in
		}
		outs := x.decide(t, set("alice", "1"), x.join("bob", "2", watermark.HistoryAll, 0), set("bob", "3"), x.leave("bob", "4", 0), set("bob", "5"), set("bob", "3"))
		wantVerdicts(t, outs, "refused not_member", "accepted 0", "accepted 0", "accepted 0", "refused not_member", "accepted 0")
	})
}
