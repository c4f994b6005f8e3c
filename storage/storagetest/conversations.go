package storagetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/watermark"
)

var conversationTests = []test{
	{"every field is kept", conversationKeepsFields},
	{"merged like Conversation.Merge, in any order", conversationMergesLikePure},
	{"the policy follows the highest max", policyFollowsMax},
	{"unknown ones are zero", unknownIsZero},
	{"many at once, in order and with repeats", manyConversations},
	{"all of them, page by page", conversationsPaged},
}

func conversationKeepsFields(t *testing.T, h History) {
	c := watermark.Conversation{
		ID: group, Min: 3, Max: watermark.MaxSeq, Policy: watermark.KeepOnSend, LastTime: 1 << 42,
		Inputs: map[watermark.Partition]int64{{TopicID: "T-1_x", Number: 0}: 7, {TopicID: "T-1_x", Number: 41}: 1 << 40, {TopicID: "", Number: 1}: 0},
		Repair: watermark.Repaired{Number: 12, From: 4}, ChangedAt: 1 << 50,
		Override: watermark.PolicyChanged{Version: 1 << 40, Choice: watermark.ChooseKeep},
	}
	write(t, h, convsOf(c))
	equal(t, "conversation", conversation(t, h, group), c)
}

func conversationMergesLikePure(t *testing.T, h History) {
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		want := watermark.Conversation{ID: watermark.GroupOf(fmt.Sprint("round-", round))}
		small := rapid.Int64Range(0, 9)
		var updates []watermark.Conversation
		for range rapid.IntRange(1, 8).Draw(rt, "updates") {
			top := small.Draw(rt, "max")
			u := watermark.Conversation{
				ID: want.ID, Min: watermark.Seq(small.Draw(rt, "min")), Max: watermark.Seq(top),
				// A policy that follows from the max makes the order unimportant.
				Policy: watermark.UnreadPolicy(top % 2), LastTime: small.Draw(rt, "time"),
				Repair:    watermark.Repaired{Number: small.Draw(rt, "number"), From: watermark.Seq(small.Draw(rt, "from"))},
				ChangedAt: small.Draw(rt, "changed at"),
			}
			// One version is one choice, as one owner makes them.
			u.Override.Version = small.Draw(rt, "override")
			u.Override.Choice = watermark.PolicyChoice(u.Override.Version % 3)
			for range rapid.IntRange(0, 3).Draw(rt, "inputs") {
				if u.Inputs == nil {
					u.Inputs = make(map[watermark.Partition]int64)
				}
				u.Inputs[watermark.Partition{TopicID: "t", Number: int32(small.Draw(rt, "partition"))}] = small.Draw(rt, "offset")
			}
			want.Merge(u)
			updates = append(updates, u)
		}
		updates = append(updates, updates[:len(updates)/2]...)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "order"), 0))
		rng.Shuffle(len(updates), func(i, j int) { updates[i], updates[j] = updates[j], updates[i] })
		for part := range slices.Chunk(updates, rapid.IntRange(1, 4).Draw(rt, "per change")) {
			must(h.Write(t.Context(), convsOf(part...)))(rt)
		}
		got := must(h.Conversations(t.Context(), []watermark.ConversationID{want.ID}))(rt)
		equal(rt, "conversation", got, []watermark.Conversation{want})
	})
}

func policyFollowsMax(t *testing.T, h History) {
	put := func(top watermark.Seq, p watermark.UnreadPolicy) watermark.UnreadPolicy {
		t.Helper()
		write(t, h, convsOf(watermark.Conversation{ID: group, Min: 1, Max: top, Policy: p}))
		return conversation(t, h, group).Policy
	}
	equal(t, "no message yet", put(0, watermark.KeepOnSend), watermark.AdvanceOnSend)
	equal(t, "first message", put(5, watermark.KeepOnSend), watermark.KeepOnSend)
	equal(t, "an older one", put(4, watermark.AdvanceOnSend), watermark.KeepOnSend)
	equal(t, "the same one", put(5, watermark.AdvanceOnSend), watermark.KeepOnSend)
	equal(t, "a newer one", put(6, watermark.AdvanceOnSend), watermark.AdvanceOnSend)
}

func unknownIsZero(t *testing.T, h History) {
	write(t, h, together(rowsOf(group, text(1, "alice", "a")), membersOf(group, watermark.Member{User: "alice"}),
		convsOf(watermark.Conversation{ID: group, Max: 1})))
	unknown := watermark.GroupOf("g") // a prefix of what is known
	ctx := t.Context()
	equal(t, "conversation", conversation(t, h, unknown), watermark.Conversation{ID: unknown})
	equal(t, "members", must(h.Members(ctx, unknown, []watermark.UserID{"alice"}))(t), []watermark.Member(nil))
	equal(t, "a member", must(h.Members(ctx, group, []watermark.UserID{"alic", "alice2"}))(t), []watermark.Member(nil))
	equal(t, "no members asked", must(h.Members(ctx, group, nil))(t), []watermark.Member(nil))
	equal(t, "roster", must(h.Roster(ctx, unknown, "", 10))(t), []watermark.Member(nil))
	equal(t, "memberships", must(h.MembershipsOf(ctx, "alic", "", 10))(t), []watermark.MemberRow(nil))
	equal(t, "messages", must(h.Messages(ctx, unknown, whole, 10))(t), []watermark.Message(nil))
	equal(t, "sent", must(h.Sent(ctx, unknown, 0))(t), map[watermark.SentKey]watermark.Sent{})
	equal(t, "deleted", must(h.DeleteBelow(ctx, unknown, 1<<62, 10))(t), 0)
	want := watermark.NewState(unknown)
	want.Complete = true
	equal(t, "states", must(h.States(ctx, []watermark.Want{{Conversation: unknown, Users: []watermark.UserID{"alice"}, Sent: true}}))(t),
		[]*watermark.State{want})
	equal(t, "no states", must(h.States(ctx, nil))(t), []*watermark.State(nil))
	equal(t, "no conversations", must(h.Conversations(ctx, nil))(t), []watermark.Conversation(nil))
}

func manyConversations(t *testing.T, h History) {
	const n = 1201
	var c watermark.Change
	var ids []watermark.ConversationID
	var want []watermark.Conversation
	for i := range n {
		conv := watermark.Conversation{
			ID: watermark.GroupOf(fmt.Sprint("many-", i*7919%n)), Max: watermark.Seq(i + 1),
			Inputs: map[watermark.Partition]int64{{TopicID: "t", Number: int32(i % 3)}: int64(i)},
		}
		c.Conversations = append(c.Conversations, conv)
		unknown := watermark.GroupOf(fmt.Sprint("none-", i))
		ids = append(ids, conv.ID, unknown)
		want = append(want, conv, watermark.Conversation{ID: unknown})
	}
	write(t, h, c)
	ids, want = append(ids, ids[0], ids[0]), append(want, want[0], want[0])
	got := must(h.Conversations(t.Context(), ids))(t)
	equal(t, "conversations", got, want)
}

// conversationsPaged has conversations with a row of their own, some of which
// also have messages, and messages whose conversation was lost: first, in
// between, side by side, and last.
func conversationsPaged(t *testing.T, h History) {
	var c watermark.Change
	var want []watermark.ConversationID
	for i := range 25 {
		id := watermark.GroupOf(fmt.Sprintf("paged-%02d", i))
		want = append(want, id)
		orphan := i == 0 || i == 7 || i == 8 || i == 24
		if !orphan {
			c.Conversations = append(c.Conversations, watermark.Conversation{ID: id, Max: 2})
		}
		if orphan || i%3 == 0 {
			c.Rows = append(c.Rows, rowsOf(id, text(1, "alice", "a"), text(2, "bob", "b")).Rows...)
		}
	}
	want = append(want, "single:alice:bob")
	c.Conversations = append(c.Conversations, watermark.Conversation{ID: "single:alice:bob", Min: 1})
	c.Members = append(c.Members, watermark.MemberRow{Conversation: "group:a-mark-alone", Member: watermark.Member{User: "alice", Read: 1}})
	write(t, h, c)
	for _, limit := range []int{1, 2, 7, 100} {
		var got []watermark.ConversationID
		for after := watermark.ConversationID(""); ; {
			page := must(h.ConversationsAfter(t.Context(), after, limit))(t)
			if len(page) == 0 {
				break
			}
			if len(page) > limit || !slices.IsSorted(page) {
				t.Fatalf("limit %d after %q: %v", limit, after, page)
			}
			got, after = append(got, page...), page[len(page)-1]
		}
		equal(t, fmt.Sprint("pages of ", limit), got, want)
	}
	for _, limit := range []int{0, -1} {
		equal(t, "no limit", must(h.ConversationsAfter(t.Context(), "", limit))(t), []watermark.ConversationID(nil))
	}
}
