package storagetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/watermark"
)

var memberTests = []test{
	{"every field is kept", memberKeepsFields},
	{"merged like Member.Merge, in any order", memberMergesLikePure},
	{"the version decides, a clash is reported", memberClash},
	{"marks never fall", marksNeverFall},
	{"own messages are a set above read", ownIsASet},
	{"own messages are bounded", ownIsBounded},
	{"twice inside one change", memberTwiceInOneChange},
	{"read state of messages is derived", readIsDerived},
}

func memberKeepsFields(t *testing.T, h History) {
	m := watermark.Member{
		User: "alice", Version: 9, LastMembership: 3,
		Memberships: []watermark.Membership{{Number: 1, Upper: 399}, {Number: 2, Lower: 401, Upper: 450}, {Number: 3, Lower: watermark.MaxSeq}},
		Ops:         []watermark.AppliedOp{{ID: "op <1> \"é\"", Edge: 399}, {ID: "op2", Edge: watermark.MaxSeq}},
		Read:        450, Receipt: 12, Own: []watermark.Seq{451, 1 << 40}, ChangedAt: 1 << 50,
		Attributes: map[string]string{"muted": "1", "a.b-c_d": "\"é\"|,;"},
	}
	closed := watermark.Member{User: "bob", Version: 2, LastMembership: 1, Ops: []watermark.AppliedOp{{ID: "kick", Edge: 0}}}
	touched := watermark.Member{User: "carol"}
	write(t, h, membersOf(group, m, closed, touched))
	got := must(h.Members(t.Context(), group, []watermark.UserID{"carol", "alice", "nobody", "bob", "alice"}))(t)
	equal(t, "members", distinctMembers(got), []watermark.Member{m, closed, touched})
	page := must(h.MembershipsOf(t.Context(), "alice", "", 10))(t)
	equal(t, "membership", page, []watermark.MemberRow{{Conversation: group, Member: m}})
}

// distinctMembers allows a member that was asked for twice to come twice.
func distinctMembers(ms []watermark.Member) []watermark.Member {
	return slices.CompactFunc(byUser(ms), func(a, b watermark.Member) bool { return a.User == b.User })
}

// memberMergesLikePure makes a user's states as an owner would, mixes them with
// marks and own messages, and hands them over shuffled, with repeats and cut
// into changes anyhow.
func memberMergesLikePure(t *testing.T, h History) {
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		conv := watermark.GroupOf(fmt.Sprint("round-", round))
		states := []watermark.Member{{User: "alice"}}
		for i := range rapid.IntRange(0, 12).Draw(rt, "ops") {
			m, edge := states[len(states)-1], watermark.Seq(10*i)
			switch rapid.IntRange(0, 3).Draw(rt, "op") {
			case 3:
				m, _, _ = m.SetAttributes(fmt.Sprint("op", i), edge, map[string]string{"pinned": fmt.Sprint(i), fmt.Sprint("x", i%4): []string{"", "on"}[i/4%2]})
			case 0:
				m, _, _ = m.Join(fmt.Sprint("op", i), edge, watermark.History(i%3), edge/2)
			case 1:
				m, _ = m.Leave(fmt.Sprint("op", i), edge, 0)
			case 2:
				m, _ = m.Clear(fmt.Sprint("op", i), edge)
			}
			m.ChangedAt = int64(i + 1)
			states = append(states, m)
		}
		var updates []watermark.Member
		for range rapid.IntRange(1, 12).Draw(rt, "updates") {
			m := rapid.SampledFrom(states).Draw(rt, "state")
			m.Read = max(m.Read, watermark.Seq(rapid.Int64Range(0, 60).Draw(rt, "read")))
			m.Receipt = watermark.Seq(rapid.Int64Range(0, 60).Draw(rt, "receipt"))
			m.Own = nil
			for _, s := range rapid.SliceOfNDistinct(rapid.Int64Range(1, 80), 0, 5, rapid.ID[int64]).Draw(rt, "own") {
				m.Own = append(m.Own, watermark.Seq(s))
			}
			slices.Sort(m.Own)
			updates = append(updates, m)
		}
		want := watermark.Member{User: "alice"}
		for _, u := range updates {
			want.Merge(u)
		}
		updates = append(updates, updates[:len(updates)/2]...)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "order"), 0))
		rng.Shuffle(len(updates), func(i, j int) { updates[i], updates[j] = updates[j], updates[i] })
		for part := range slices.Chunk(updates, rapid.IntRange(1, 5).Draw(rt, "per change")) {
			w := must(h.Write(t.Context(), membersOf(conv, part...)))(rt)
			equal(rt, "conflicts", w.MemberConflicts, []int(nil))
		}
		got := must(h.Members(t.Context(), conv, []watermark.UserID{"alice"}))(rt)
		equal(rt, "member", got, []watermark.Member{want})
	})
}

func memberClash(t *testing.T, h History) {
	joined, _, _ := watermark.Member{User: "alice"}.Join("join", 10, watermark.HistoryNone, 0)
	kicked, _ := joined.Leave("kick", 20, 0)
	cleared, _ := joined.Clear("clear", 15) // of the same version as kicked
	write(t, h, membersOf(group, joined))
	w := write(t, h, membersOf(group, kicked))
	equal(t, "conflicts", w.MemberConflicts, []int(nil))

	other := watermark.Member{User: "bob", Version: 2, LastMembership: 1}
	cleared.Receipt = 3
	w = write(t, h, membersOf(group, other, cleared, joined, kicked))
	equal(t, "conflicts", w.MemberConflicts, []int{1})
	want := kicked
	want.Merge(watermark.Member{Read: cleared.Read, Receipt: 3})
	equal(t, "windows stay, marks are merged", member(t, h, group, "alice"), want)

	sameWindow := kicked
	sameWindow.Ops = slices.Clone(kicked.Ops)
	sameWindow.Ops[1].ID = "another op"
	w = write(t, h, membersOf(group, sameWindow))
	equal(t, "conflict of ops alone", w.MemberConflicts, []int{0})

	rejoined, _, _ := kicked.Join("rejoin", 30, watermark.HistoryNone, 0)
	w = write(t, h, membersOf(group, rejoined))
	equal(t, "conflicts", w.MemberConflicts, []int(nil))
	want.Merge(rejoined)
	equal(t, "the next version", member(t, h, group, "alice"), want)
}

func marksNeverFall(t *testing.T, h History) {
	steps := []watermark.Member{
		{Read: 5, Receipt: 2}, {Read: 3, Receipt: 4}, {Read: 20}, {Receipt: 1}, {Read: 19, Receipt: 5}, {},
	}
	want := watermark.Member{User: "alice"}
	for _, m := range steps {
		m.User = "alice"
		want.Merge(m)
		write(t, h, membersOf(group, m))
		equal(t, "member", member(t, h, group, "alice"), want)
	}
	equal(t, "read", want.Read, watermark.Seq(20))
}

func ownIsASet(t *testing.T, h History) {
	put := func(read watermark.Seq, own ...watermark.Seq) []watermark.Seq {
		t.Helper()
		write(t, h, membersOf(group, watermark.Member{User: "alice", Read: read, Own: own}))
		return member(t, h, group, "alice").Own
	}
	equal(t, "added", put(0, 6, 7), []watermark.Seq{6, 7})
	equal(t, "added below and twice", put(0, 3, 7, 9), []watermark.Seq{3, 6, 7, 9})
	equal(t, "passed by read", put(6), []watermark.Seq{7, 9})
	equal(t, "late and already read", put(0, 3, 6), []watermark.Seq{7, 9})
	equal(t, "read and own at once", put(8, 8, 10), []watermark.Seq{9, 10})
	equal(t, "all read", put(10), []watermark.Seq(nil))
	equal(t, "anew", put(0, 11), []watermark.Seq{11})
}

func ownIsBounded(t *testing.T, h History) {
	own := upTo(1, watermark.MaxOwn)
	write(t, h, membersOf(group, watermark.Member{User: "alice", Own: own}))
	equal(t, "as many as allowed", member(t, h, group, "alice"), watermark.Member{User: "alice", Own: own})
	more := []watermark.Seq{watermark.MaxOwn + 1, watermark.MaxOwn + 2, watermark.MaxOwn + 3}
	write(t, h, membersOf(group, watermark.Member{User: "alice", Own: more}))
	equal(t, "three more", member(t, h, group, "alice"), watermark.Member{User: "alice", Read: 3, Own: upTo(4, watermark.MaxOwn+3)})
	write(t, h, membersOf(group, watermark.Member{User: "alice", Own: own}))
	equal(t, "repeated", member(t, h, group, "alice"), watermark.Member{User: "alice", Read: 3, Own: upTo(4, watermark.MaxOwn+3)})
}

func memberTwiceInOneChange(t *testing.T, h History) {
	v1, _, _ := watermark.Member{User: "alice"}.Join("join", 10, watermark.HistoryNone, 0)
	v2, _ := v1.Leave("leave", 20, 0)
	clash, _ := v1.Clear("clear", 12)
	w := write(t, h, membersOf(group, v2, watermark.Member{User: "alice", Read: 4, Own: []watermark.Seq{5, 9}}, clash, v1,
		watermark.Member{User: "alice", Read: 5}))
	equal(t, "conflicts", w.MemberConflicts, []int{2})
	want := v2
	want.Merge(watermark.Member{Read: 12})
	equal(t, "member", member(t, h, group, "alice"), want)
}

// readIsDerived marks before the row is there: is_read of the row must still
// be right, with nothing written for it.
func readIsDerived(t *testing.T, h History) {
	conv := watermark.SingleOf("alice", "bob")
	write(t, h, together(membersOf(conv, watermark.Member{User: "alice"}, watermark.Member{User: "bob", Read: 2, Receipt: 2}),
		convsOf(watermark.Conversation{ID: conv, Max: 3})))
	write(t, h, rowsOf(conv, text(1, "alice", "a"), text(2, "alice", "b"), text(3, "alice", "c")))
	states := must(h.States(t.Context(), []watermark.Want{{Conversation: conv}}))(t)
	v := states[0].ViewOf("alice")
	var read []watermark.Seq
	for _, m := range stored(t, h, conv) {
		if m.Seq <= v.PeerReceipt && v.PeerWindow.Contains(m.Seq) {
			read = append(read, m.Seq)
		}
	}
	equal(t, "read messages", read, upTo(1, 2))
}
