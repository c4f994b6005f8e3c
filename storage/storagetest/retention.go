package storagetest

import (
	"fmt"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

var retentionTests = []test{
	{"deletes below the minimum, in bounded steps", deletesInSteps},
	{"one step across the horizon", stepAcrossHorizon},
	{"never deletes what is not below the minimum", deletesOnlyBelowMin},
	{"max outlives its rows", maxOutlivesRows},
	{"what is deleted is not inserted again", notInsertedAgain},
	{"ids are known as long as the horizon needs them", idsOutliveContent},
}

func drain(t *testing.T, h History, conv watermark.ConversationID, seq watermark.Seq, limit int) []int {
	t.Helper()
	var steps []int
	for {
		n := must(h.DeleteBelow(t.Context(), conv, seq, limit))(t)
		if n == 0 {
			return steps
		}
		steps = append(steps, n)
		if len(steps) > 1000 {
			t.Fatalf("deletion does not end: %v", steps[:20])
		}
	}
}

// long makes a conversation of n rows whose max is far ahead, so that none of
// them is within the horizon.
func long(t *testing.T, h History, conv watermark.ConversationID, n int) {
	t.Helper()
	write(t, h, together(watermark.Change{Rows: texts(conv, 1, n)},
		convsOf(watermark.Conversation{ID: conv, Max: watermark.Seq(n + watermark.DedupeHorizon)})))
}

func deletesInSteps(t *testing.T, h History) {
	other := watermark.GroupOf("g1-")
	long(t, h, group, 25)
	long(t, h, other, 25)
	write(t, h, convsOf(watermark.Conversation{ID: group, Min: 21}, watermark.Conversation{ID: other, Min: 21}))
	equal(t, "limit 0", must(h.DeleteBelow(t.Context(), group, 21, 0))(t), 0)
	equal(t, "limit -1", must(h.DeleteBelow(t.Context(), group, 21, -1))(t), 0)
	equal(t, "rows", seqs(stored(t, h, group)), upTo(1, 25))
	equal(t, "one step", must(h.DeleteBelow(t.Context(), group, 21, 8))(t), 8)
	equal(t, "rows left", len(stored(t, h, group)), 17)
	equal(t, "steps", drain(t, h, group, 21, 8), []int{8, 4})
	equal(t, "rows", seqs(stored(t, h, group)), upTo(21, 25))
	equal(t, "rows of another one", seqs(stored(t, h, other)), upTo(1, 25))
	equal(t, "huge numbers", must(h.DeleteBelow(t.Context(), other, 1<<62, 1<<40))(t), 20)
}

// stepAcrossHorizon has ten rows to remove and ten to empty.
func stepAcrossHorizon(t *testing.T, h History) {
	write(t, h, together(watermark.Change{Rows: texts(group, 1, 25)},
		convsOf(watermark.Conversation{ID: group, Min: 21, Max: watermark.DedupeHorizon + 10})))
	equal(t, "steps", drain(t, h, group, 21, 7), []int{7, 7, 6})
	equal(t, "rows", seqs(stored(t, h, group)), upTo(21, 25))
	equal(t, "ids", len(must(h.Sent(t.Context(), group, 0))(t)), 15)
}

func deletesOnlyBelowMin(t *testing.T, h History) {
	long(t, h, group, 10)
	equal(t, "no minimum", must(h.DeleteBelow(t.Context(), group, 8, 100))(t), 0)
	write(t, h, convsOf(watermark.Conversation{ID: group, Min: 4}))
	equal(t, "above the minimum", drain(t, h, group, 8, 100), []int{3})
	equal(t, "rows", seqs(stored(t, h, group)), upTo(4, 10))
	write(t, h, convsOf(watermark.Conversation{ID: group, Min: 8}))
	equal(t, "below the minimum", drain(t, h, group, 6, 100), []int{2})
	equal(t, "rows", seqs(stored(t, h, group)), upTo(6, 10))
}

func maxOutlivesRows(t *testing.T, h History) {
	c := watermark.Conversation{ID: group, Max: 10, LastTime: 5, Inputs: map[watermark.Partition]int64{{TopicID: "t"}: 9}}
	write(t, h, together(watermark.Change{Rows: texts(group, 1, 10)}, convsOf(c)))
	write(t, h, convsOf(watermark.Conversation{ID: group, Min: 11}))
	drain(t, h, group, 11, 3)
	equal(t, "rows", stored(t, h, group), []watermark.Message(nil))
	c.Min = 11
	equal(t, "conversation", conversation(t, h, group), c)
	write(t, h, convsOf(watermark.Conversation{ID: group, Max: 2}))
	equal(t, "conversation", conversation(t, h, group), c)
}

func notInsertedAgain(t *testing.T, h History) {
	long(t, h, group, 10)
	write(t, h, convsOf(watermark.Conversation{ID: group, Min: 6}))
	w := write(t, h, watermark.Change{Rows: texts(group, 4, 3)})
	equal(t, "still standing", w.Rows, []watermark.Fate{watermark.Replay, watermark.Replay, watermark.Replay})
	w = write(t, h, rowsOf(group, text(4, "mallory", "x")))
	equal(t, "other message, still standing", w.Rows, []watermark.Fate{watermark.Conflict})
	drain(t, h, group, 6, 100)
	w = write(t, h, together(watermark.Change{Rows: texts(group, 4, 3)}, revokesOf(group, watermark.Revoked{Seq: 4, Time: 1})))
	equal(t, "gone", w.Rows, []watermark.Fate{watermark.Retired, watermark.Retired, watermark.Replay})
	equal(t, "rows", seqs(stored(t, h, group)), upTo(6, 10))
}

func idsOutliveContent(t *testing.T, h History) {
	write(t, h, together(watermark.Change{Rows: texts(group, 1, 10)}, convsOf(watermark.Conversation{ID: group, Min: 8, Max: 10})))
	equal(t, "steps", drain(t, h, group, 8, 4), []int{4, 3})
	equal(t, "rows", seqs(stored(t, h, group)), upTo(8, 10))
	equal(t, "rows below", len(must(h.Messages(t.Context(), group, watermark.Interval{First: 1, Last: 7}, 10))(t)), 0)
	equal(t, "ids", len(must(h.Sent(t.Context(), group, 0))(t)), 10)
	states := must(h.States(t.Context(), []watermark.Want{{Conversation: group, Sent: true}}))(t)
	equal(t, "ids of the state", len(states[0].Sent), 10)
	m := text(3, "alice", fmt.Sprint("id-", 3))
	equal(t, "an id", states[0].Sent[watermark.SentKey{Sender: "alice", ClientID: m.ClientID}], watermark.Sent{Seq: 3, Hash: m.Hash})
	w := write(t, h, rowsOf(group, m, text(3, "mallory", "x")))
	equal(t, "fates", w.Rows, []watermark.Fate{watermark.Replay, watermark.Conflict})
	equal(t, "rows", seqs(stored(t, h, group)), upTo(8, 10))

	write(t, h, convsOf(watermark.Conversation{ID: group, Max: watermark.DedupeHorizon + 5}))
	equal(t, "the horizon has passed five", drain(t, h, group, 8, 100), []int{5})
	equal(t, "ids", len(must(h.Sent(t.Context(), group, 0))(t)), 5)
}
