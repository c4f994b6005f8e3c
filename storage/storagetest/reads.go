package storagetest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

var readTests = []test{
	{"ranges", ranges},
	{"bounds of a page", pageBounds},
	{"ids of all allowed bytes", idsOfAllBytes},
	{"conversations do not mix", conversationsDoNotMix},
	{"roster of 1,000 members", rosterPaging},
	{"memberships of a user", membershipPaging},
	{"activity of a user", activityOf},
	{"sent ids", sentIDs},
	{"states: who is in them", statesMembers},
	{"states: many conversations", statesMany},
	{"states: sent ids within the horizon", statesSent},
	{"peeks give the last row and the mentions", peeks},
	{"a peek sees no mention that is gone", peeksAfterLoss},
	{"many peeks, compared with the model", manyPeeks},
	{"what was revoked from an offset on", peeksOfRevokes},
	{"more revokes than a peek gives", peeksOfManyRevokes},
}

func ranges(t *testing.T, h History) {
	write(t, h, together(rowsOf(group, text(1, "a", "1"), text(2, "a", "2"), text(5, "a", "5")),
		rowsOf(group, text(watermark.MaxSeq-1, "a", "x"), text(watermark.MaxSeq, "a", "y"), text(3, "a", "3"))))
	top := watermark.MaxSeq
	tests := []struct {
		first, last watermark.Seq
		limit       int
		want        []watermark.Seq
	}{
		{1, 5, 10, []watermark.Seq{1, 2, 3, 5}},
		{2, 3, 10, []watermark.Seq{2, 3}},
		{2, 2, 10, []watermark.Seq{2}},
		{4, 4, 10, nil},
		{3, 2, 10, nil},
		{1, 5, 2, []watermark.Seq{1, 2}},
		{0, 1 << 62, 5, []watermark.Seq{1, 2, 3, 5, top - 1}},
		{math.MinInt64, math.MaxInt64, math.MaxInt, []watermark.Seq{1, 2, 3, 5, top - 1, top}},
		{math.MaxInt64, math.MinInt64, 10, nil},
		{-5, 0, 10, nil},
		{top, 1 << 62, 10, []watermark.Seq{top}},
		{1 << 62, math.MaxInt64, 10, nil},
		{1, 5, 0, nil},
		{1, 5, -1, nil},
		{1, 5, math.MinInt, nil},
	}
	for _, tt := range tests {
		got := must(h.Messages(t.Context(), group, watermark.Interval{First: tt.first, Last: tt.last}, tt.limit))(t)
		equal(t, fmt.Sprintf("%d..%d, at most %d", tt.first, tt.last, tt.limit), seqs(got), tt.want)
	}
}

func pageBounds(t *testing.T, h History) {
	const n = watermark.MaxPage + 5
	c := watermark.Change{Rows: texts(group, 1, n)}
	for i := range n {
		c.Members = append(c.Members,
			watermark.MemberRow{Conversation: group, Member: watermark.Member{User: watermark.UserID(fmt.Sprintf("u%04d", i))}},
			watermark.MemberRow{Conversation: watermark.GroupOf(fmt.Sprintf("c%04d", i)), Member: watermark.Member{User: "busy"}})
	}
	write(t, h, c)
	ctx := t.Context()
	for _, limit := range []int{watermark.MaxPage, watermark.MaxPage + 1, 1 << 40, math.MaxInt} {
		equal(t, "messages", len(must(h.Messages(ctx, group, whole, limit))(t)), watermark.MaxPage)
		equal(t, "roster", len(must(h.Roster(ctx, group, "", limit))(t)), watermark.MaxPage)
		equal(t, "memberships", len(must(h.MembershipsOf(ctx, "busy", "", limit))(t)), watermark.MaxPage)
	}
	for _, limit := range []int{0, -1, math.MinInt} {
		equal(t, "messages", len(must(h.Messages(ctx, group, whole, limit))(t)), 0)
		equal(t, "roster", len(must(h.Roster(ctx, group, "", limit))(t)), 0)
		equal(t, "memberships", len(must(h.MembershipsOf(ctx, "busy", "", limit))(t)), 0)
	}
}

// idsOfAllBytes makes ids of each allowed byte, alone and as a suffix, and
// expects byte order everywhere.
func idsOfAllBytes(t *testing.T, h History) {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~@-"
	var users []watermark.UserID
	for i := range len(allowed) {
		users = append(users, watermark.UserID(allowed[i:i+1]), watermark.UserID("m"+allowed[i:i+1]), watermark.UserID(allowed[i:i+1]+"m"))
	}
	users = append(users, watermark.UserID(allowed[:64]))
	slices.Sort(users)
	users = slices.Compact(users)
	var c watermark.Change
	var convs []watermark.ConversationID
	for i, u := range users {
		c.Members = append(c.Members, watermark.MemberRow{Conversation: group, Member: watermark.Member{User: u, Read: watermark.Seq(i)}})
		for _, conv := range []watermark.ConversationID{watermark.GroupOf(string(u)), watermark.SingleOf(u, "0-0")} {
			convs = append(convs, conv)
			c.Rows = append(c.Rows, watermark.Row{Conversation: conv, Message: text(1, u, "x")})
			c.Members = append(c.Members, watermark.MemberRow{Conversation: conv, Member: watermark.Member{User: "reader"}})
			c.Conversations = append(c.Conversations, watermark.Conversation{ID: conv, Max: 1, LastTime: int64(i)})
		}
	}
	slices.Sort(convs)
	write(t, h, c)
	members, _ := paged(t, rosterOf(t, h, group, 7))
	var got []watermark.UserID
	for _, m := range members {
		got = append(got, m.User)
	}
	equal(t, "roster", got, users)
	rows, _ := paged(t, membershipsOf(t, h, "reader", 11))
	var gotConvs []watermark.ConversationID
	for _, r := range rows {
		gotConvs = append(gotConvs, r.Conversation)
	}
	equal(t, "memberships", gotConvs, convs)
	for i, u := range users {
		conv := watermark.GroupOf(string(u))
		equal(t, string(conv), stored(t, h, conv), []watermark.Message{text(1, u, "x")})
		equal(t, string(u), member(t, h, group, u).Read, watermark.Seq(i))
	}
}

// conversationsDoNotMix uses ids that are prefixes of one another, and seqs at
// which a key of text or of signed bytes would sort wrongly.
func conversationsDoNotMix(t *testing.T, h History) {
	var c watermark.Change
	steps := []watermark.Seq{1, 2, 9, 10, 99, 127, 128, 255, 256, 65535, 65536, 1<<31 - 1, 1 << 31, 1 << 32, 1<<53 - 1}
	ids := []watermark.ConversationID{"group:a", "group:a-", "group:a.", "group:a0", "group:aa", "group:b", "single:a:b", "single:a:b-"}
	for _, id := range ids {
		for _, s := range steps {
			c.Rows = append(c.Rows, watermark.Row{Conversation: id, Message: text(s, "alice", string(id))})
		}
		c.Members = append(c.Members, watermark.MemberRow{Conversation: id, Member: watermark.Member{User: watermark.UserID("only-" + id[len(id)-1:])}})
	}
	write(t, h, c)
	for _, id := range ids {
		got := stored(t, h, id)
		equal(t, string(id), seqs(got), steps)
		for _, m := range got {
			equal(t, "client id", m.ClientID, string(id))
		}
		for i, s := range steps[1:] {
			in := watermark.Interval{First: steps[i], Last: s}
			equal(t, fmt.Sprint(id, in), seqs(must(h.Messages(t.Context(), id, in, 10))(t)), []watermark.Seq{steps[i], s})
		}
		equal(t, "roster", len(must(h.Roster(t.Context(), id, "", 10))(t)), 1)
	}
}

func crowd(conv watermark.ConversationID, n int) (watermark.Change, []watermark.Member) {
	var all []watermark.Member
	for i := range n {
		m, _, _ := watermark.Member{User: watermark.UserID(fmt.Sprintf("u%05d", i))}.Join("join", watermark.Seq(i), watermark.HistoryNone, 0)
		m.Read = watermark.Seq(i + 1)
		if i%10 == 0 {
			m.Own = []watermark.Seq{watermark.Seq(i + 2), watermark.Seq(i + 5)}
		}
		m.ChangedAt = int64(i + 1)
		all = append(all, m)
	}
	return membersOf(conv, all...), all
}

func rosterPaging(t *testing.T, h History) {
	c, all := crowd(group, 1000)
	other, _ := crowd(watermark.GroupOf("g2"), 20)
	write(t, h, together(c, other))
	got, sizes := paged(t, rosterOf(t, h, group, 300))
	equal(t, "page sizes", sizes, []int{300, 300, 300, 100, 0})
	equal(t, "members", got, all)
	equal(t, "after an id that is nobody's", must(h.Roster(t.Context(), group, "u00998~", 10))(t), all[999:])
}

func membershipPaging(t *testing.T, h History) {
	var c watermark.Change
	var want []watermark.MemberRow
	for i := range 250 {
		m := watermark.Member{
			User: "alice", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: watermark.Seq(i)}},
			Ops: []watermark.AppliedOp{{ID: "join", Edge: watermark.Seq(i)}}, Read: watermark.Seq(i), ChangedAt: int64(i * 3),
		}
		if i%7 == 0 {
			m.Own = []watermark.Seq{1000, 1001}
		}
		r := watermark.MemberRow{Conversation: watermark.GroupOf(fmt.Sprintf("c%03d", i)), Member: m}
		want = append(want, r)
		bob := r
		bob.Member.User = "bob"
		c.Members = append(c.Members, r)
		if i%2 == 0 {
			c.Members = append(c.Members, bob)
		}
	}
	slices.Reverse(c.Members)
	write(t, h, c)
	got, sizes := paged(t, membershipsOf(t, h, "alice", 100))
	equal(t, "page sizes", sizes, []int{100, 100, 50, 0})
	equal(t, "memberships", got, want)
	equal(t, "of bob", len(must(h.MembershipsOf(t.Context(), "bob", "", 1000))(t)), 125)
}

func sentIDs(t *testing.T, h History) {
	again := text(9, "alice", "a") // sent again, long after the first
	again.Body = []byte("anew")
	again.Hash = again.SumHash()
	write(t, h, rowsOf(group, text(2, "bob", "a"), text(3, "alice", "b"), again, text(1, "alice", "a")))
	key := func(u watermark.UserID, id string) watermark.SentKey {
		return watermark.SentKey{Sender: u, ClientID: id}
	}
	at := func(m watermark.Message) watermark.Sent { return watermark.Sent{Seq: m.Seq, Hash: m.Hash} }
	equal(t, "all", must(h.Sent(t.Context(), group, 0))(t), map[watermark.SentKey]watermark.Sent{
		key("alice", "a"): at(again), key("bob", "a"): at(text(2, "bob", "a")), key("alice", "b"): at(text(3, "alice", "b")),
	})
	equal(t, "above 2", must(h.Sent(t.Context(), group, 2))(t), map[watermark.SentKey]watermark.Sent{
		key("alice", "a"): at(again), key("alice", "b"): at(text(3, "alice", "b")),
	})
	equal(t, "below zero", len(must(h.Sent(t.Context(), group, math.MinInt64))(t)), 3)
	equal(t, "above all", len(must(h.Sent(t.Context(), group, 1<<62))(t)), 0)
}

func statesMembers(t *testing.T, h History) {
	small, large := watermark.GroupOf("small"), watermark.GroupOf("large")
	cs, allSmall := crowd(small, watermark.SmallGroup)
	cl, allLarge := crowd(large, watermark.SmallGroup+1)
	write(t, h, together(cs, cl))
	users := []watermark.UserID{"u00003", "nobody", "u00150", "u00003"}
	tests := []struct {
		name     string
		want     watermark.Want
		complete bool
		members  []watermark.Member
	}{
		{"small, nobody asked for", watermark.Want{Conversation: small}, true, allSmall},
		{"small, some asked for", watermark.Want{Conversation: small, Users: users}, true, allSmall},
		{"large, nobody asked for", watermark.Want{Conversation: large}, false, nil},
		{"large, some asked for", watermark.Want{Conversation: large, Users: users}, false, []watermark.Member{allLarge[3], allLarge[150]}},
		{"large, all asked for", watermark.Want{Conversation: large, Roster: true}, true, allLarge},
	}
	for _, tt := range tests {
		states := must(h.States(t.Context(), []watermark.Want{tt.want}))(t)
		var got []watermark.Member
		for _, m := range states[0].Members {
			got = append(got, m)
		}
		equal(t, tt.name, byUser(got), tt.members)
		equal(t, tt.name+": complete", states[0].Complete, tt.complete)
	}
	wants := make([]watermark.Want, len(tests))
	for i, tt := range tests {
		wants[i] = tt.want
	}
	for i, s := range must(h.States(t.Context(), wants))(t) {
		equal(t, tests[i].name+", all in one call", len(s.Members), len(tests[i].members))
		equal(t, tests[i].name+", all in one call: complete", s.Complete, tests[i].complete)
	}
}

func statesMany(t *testing.T, h History) {
	const n = 1300
	model := NewMemory()
	var wants []watermark.Want
	for from := 0; from < n; from += 100 {
		var c watermark.Change
		for i := from; i < from+100; i++ {
			conv := watermark.SingleOf(watermark.UserID(fmt.Sprintf("u%04d", i)), "x")
			c.Conversations = append(c.Conversations, watermark.Conversation{
				ID: conv, Max: watermark.Seq(i%3 + 1), LastTime: int64(i),
				Inputs: map[watermark.Partition]int64{{TopicID: "t"}: int64(i)},
			})
			c.Rows = append(c.Rows, texts(conv, 1, i%3+1)...)
			c.Members = append(c.Members, membersOf(conv, watermark.Member{User: "x", Read: 1}, watermark.Member{User: "alice", Own: []watermark.Seq{2}}).Members...)
			wants = append(wants, watermark.Want{Conversation: conv, Sent: i%2 == 0})
		}
		write(t, h, c)
		write(t, model, c)
	}
	wants = append(wants, watermark.Want{Conversation: "group:none", Sent: true}, wants[1])
	wants[5].Users = []watermark.UserID{"nobody"}
	got, want := must(h.States(t.Context(), wants))(t), must(model.States(t.Context(), wants))(t)
	equal(t, "states", got, want)
	// A conversation that is wanted twice is two states.
	last := got[len(got)-1]
	last.MergeMember(watermark.Member{User: "x", Read: 50})
	last.Inputs[watermark.Partition{TopicID: "t"}] = 99
	equal(t, "the other copy", got[1], want[1])
}

func statesSent(t *testing.T, h History) {
	const top = watermark.DedupeHorizon + 20
	rows := texts(group, 1, top+2) // two of them are ahead of the max, as after a crash
	write(t, h, together(watermark.Change{Rows: rows}, convsOf(watermark.Conversation{ID: group, Max: top})))
	states := must(h.States(t.Context(), []watermark.Want{{Conversation: group, Sent: true}, {Conversation: group}}))(t)
	got := make(map[watermark.Seq]bool)
	for _, v := range states[0].Sent {
		got[v.Seq] = true
	}
	equal(t, "number of ids", len(got), watermark.DedupeHorizon+2)
	equal(t, "the oldest", []bool{got[20], got[21], got[top+2]}, []bool{false, true, true})
	equal(t, "not asked for", len(states[1].Sent), 0)
	states = must(h.States(t.Context(), []watermark.Want{{Conversation: group}}))(t)
	equal(t, "not asked for, alone", len(states[0].Sent), 0)
}

func peeks(t *testing.T, h History) {
	other := watermark.GroupOf("g") // a prefix of the other one
	long := make([]watermark.Row, 0, 400)
	for i := range 400 { // "bob" and "carol" in each, but for every fourth
		m := text(watermark.Seq(i+1), "alice", fmt.Sprint("id-", i))
		if i%4 == 3 {
			m.Mentions = nil
		}
		long = append(long, watermark.Row{Conversation: group, Message: m})
	}
	write(t, h, watermark.Change{Rows: long})
	only := text(7, "alice", "only")
	only.Mentions = []watermark.UserID{"bob"}
	write(t, h, rowsOf(other, only))
	all := watermark.Intervals{{First: -1 << 62, Last: 1 << 62}}
	got := must(h.Peek(t.Context(), []watermark.Peek{
		{Conversation: other, User: "bob", Last: 7, Mentions: all},
		{Conversation: other, User: "carol", Last: 6, Mentions: all},
		{Conversation: group, User: "carol", Last: 400, Mentions: watermark.Intervals{{First: 2, Last: 5}, {First: 8, Last: 8}, {First: 399, Last: 1000}}},
		{Conversation: group, User: "carol", Mentions: all},
		{Conversation: group, User: "nobody", Last: 1, Mentions: all},
		{Conversation: watermark.GroupOf("none"), User: "bob", Last: 1, Mentions: all},
		{Conversation: group, User: "bob"},
		{Conversation: other, User: "bob", Last: 7},
	}))(t)
	lowest := make([]watermark.Seq, 0, watermark.MaxMentions)
	for s := watermark.Seq(1); len(lowest) < watermark.MaxMentions; s++ {
		if s%4 != 0 {
			lowest = append(lowest, s)
		}
	}
	equal(t, "peeks", got, []watermark.Peeked{
		{Last: &only, Mentions: []watermark.Seq{7}},
		{},
		{Last: &long[399].Message, Mentions: []watermark.Seq{2, 3, 5, 399}},
		{Mentions: lowest},
		{Last: &long[0].Message},
		{}, {},
		{Last: &only},
	})
	equal(t, "no peeks", must(h.Peek(t.Context(), nil))(t), []watermark.Peeked{})
}

func peeksAfterLoss(t *testing.T, h History) {
	write(t, h, together(watermark.Change{Rows: texts(group, 1, 6)}, convsOf(watermark.Conversation{ID: group, Min: 3, Max: 6})))
	write(t, h, revokesOf(group, watermark.Revoked{Seq: 4, By: "alice", Time: 9}, watermark.Revoked{Seq: 6, Time: 10}))
	must(h.DeleteBelow(t.Context(), group, 3, 10))(t)
	write(t, h, watermark.Change{Rows: texts(group, 1, 6)}) // again: replays
	all := watermark.Intervals{{First: 1, Last: 100}}
	gone := texts(group, 6, 1)[0].Message.Tombstone(watermark.Revoked{Seq: 6, Time: 10})
	got := must(h.Peek(t.Context(), []watermark.Peek{
		{Conversation: group, User: "bob", Last: 6, Mentions: all}, {Conversation: group, User: "bob", Last: 2},
	}))(t)
	equal(t, "peeks", got, []watermark.Peeked{{Last: &gone, Mentions: []watermark.Seq{3, 5}}, {}})
}

// manyPeeks asks for more than one piece of each kind of list.
func manyPeeks(t *testing.T, h History) {
	const n = 1201
	model := NewMemory()
	var asks []watermark.Peek
	for i := range n {
		conv := watermark.GroupOf(fmt.Sprint("many-", i))
		c := watermark.Change{Rows: texts(conv, 1, 1+i%5)}
		write(t, h, c)
		must(model.Write(t.Context(), c))(t)
		asks = append(asks, watermark.Peek{
			Conversation: conv, User: []watermark.UserID{"bob", "carol", "dan"}[i%3], Last: watermark.Seq(i % 7),
			Mentions: watermark.Intervals{{First: 1, Last: 2}, {First: 4, Last: watermark.Seq(i % 9)}}[:i%3],
		})
	}
	want := must(model.Peek(t.Context(), asks))(t)
	equal(t, "peeks", must(h.Peek(t.Context(), asks))(t), want)
}

func peeksOfRevokes(t *testing.T, h History) {
	other, third := watermark.GroupOf("g"), watermark.GroupOf("h")                                       // one a prefix of the other one
	fallen := text(7, "alice", "fallen").Tombstone(watermark.Revoked{Seq: 7, By: "bob", Time: 3, At: 9}) // from another history
	unknown := text(8, "alice", "unknown").Tombstone(watermark.Revoked{Seq: 8, By: "bob", Time: 3})
	write(t, h, together(watermark.Change{Rows: texts(group, 1, 6)}, rowsOf(group, fallen, unknown), watermark.Change{Rows: texts(other, 1, 3)}))
	write(t, h, together(
		revokesOf(group, watermark.Revoked{Seq: 5, At: 10}, watermark.Revoked{Seq: 2, At: 20}, watermark.Revoked{Seq: 3, At: 1 << 50}, watermark.Revoked{Seq: 4}),
		revokesOf(other, watermark.Revoked{Seq: 2, At: 15}),
	))
	// The first one stands, so its place does too.
	write(t, h, revokesOf(group, watermark.Revoked{Seq: 5, At: 30}, watermark.Revoked{Seq: 4, At: 30}))
	ask := func(conv watermark.ConversationID, from int64) watermark.Peek {
		return watermark.Peek{Conversation: conv, User: "bob", RevokedFrom: from}
	}
	got := must(h.Peek(t.Context(), []watermark.Peek{
		ask(third, 1), ask(group, 1), ask(other, 1), ask(group, 11), ask(group, 0), ask(group, 10), ask(group, 20), ask(other, 16),
		ask(group, 21), ask(group, 1<<50+1), ask(group, 9), ask(group, 1),
	}))(t)
	seqs := make([][]watermark.Seq, len(got))
	for i := range got {
		seqs[i] = got[i].Revoked
	}
	equal(t, "revoked", seqs, [][]watermark.Seq{
		nil, {2, 3, 5, 7}, {2}, {2, 3}, nil, {2, 3, 5}, {2, 3}, nil, {3}, nil, {2, 3, 5, 7}, {2, 3, 5, 7},
	})
	equal(t, "as they stand", stored(t, h, group)[4].Revoked.At, int64(10))
}

// peeksOfManyRevokes has more of them than a peek gives in the middle of its
// list.
func peeksOfManyRevokes(t *testing.T, h History) {
	before, after := watermark.GroupOf("f"), watermark.GroupOf("z")
	const n = watermark.MaxRevoked + 50
	c := watermark.Change{Rows: texts(group, 1, n)}
	for s := watermark.Seq(1); s <= n; s++ {
		c.Revokes = append(c.Revokes, watermark.RevokedRow{Conversation: group, Revoked: watermark.Revoked{Seq: s, At: int64(s)}})
	}
	for _, id := range []watermark.ConversationID{before, after} {
		c = together(c, watermark.Change{Rows: texts(id, 1, 2)}, revokesOf(id, watermark.Revoked{Seq: 2, At: 5}))
	}
	write(t, h, c)
	got := must(h.Peek(t.Context(), []watermark.Peek{
		{Conversation: after, RevokedFrom: 1}, {Conversation: group, RevokedFrom: 1}, {Conversation: before, RevokedFrom: 1}, {Conversation: group, RevokedFrom: 51},
		{Conversation: group, RevokedFrom: 52},
	}))(t)
	equal(t, "before", got[2].Revoked, []watermark.Seq{2})
	equal(t, "after", got[0].Revoked, []watermark.Seq{2})
	equal(t, "how many", []int{len(got[1].Revoked), len(got[3].Revoked), len(got[4].Revoked)},
		[]int{watermark.MaxRevoked, watermark.MaxRevoked, watermark.MaxRevoked - 1})
}
