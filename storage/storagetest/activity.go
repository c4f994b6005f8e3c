package storagetest

import (
	"fmt"
	"math"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

// activityOf compares with what memberships and conversations say, page by page.
func activityOf(t *testing.T, h History) {
	const n = watermark.MaxPage + 5
	var c watermark.Change
	var want []watermark.Activity
	for i := range n {
		a := watermark.Activity{Conversation: watermark.GroupOf(fmt.Sprintf("c%04d", i))}
		if i%3 != 0 { // of a member that came first the conversation is not there yet
			a.LastTime = int64(1) << 42 * int64(i%2+1)
			c.Conversations = append(c.Conversations, watermark.Conversation{ID: a.Conversation, Max: 1, LastTime: a.LastTime})
		}
		c.Members = append(c.Members,
			watermark.MemberRow{Conversation: a.Conversation, Member: watermark.Member{User: "busy", Read: 1}},
			watermark.MemberRow{Conversation: a.Conversation, Member: watermark.Member{User: "busy2"}})
		want = append(want, a)
	}
	write(t, h, c)
	write(t, h, convsOf(watermark.Conversation{ID: watermark.GroupOf("not-hers"), Max: 1, LastTime: 5}))
	var got []watermark.Activity
	var after watermark.ConversationID
	for range n {
		page := must(h.ActivityOf(t.Context(), "busy", after, 400))(t)
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
		after = page[len(page)-1].Conversation
	}
	equal(t, "activity", got, want)
	for _, limit := range []int{watermark.MaxPage, watermark.MaxPage + 1, math.MaxInt} {
		equal(t, "a page", must(h.ActivityOf(t.Context(), "busy", "", limit))(t), want[:watermark.MaxPage])
	}
	for _, limit := range []int{0, -1, math.MinInt} {
		equal(t, "no page", len(must(h.ActivityOf(t.Context(), "busy", "", limit))(t)), 0)
	}
	equal(t, "of nobody", len(must(h.ActivityOf(t.Context(), "bus", "", 10))(t)), 0)
}
