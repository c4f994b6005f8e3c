package pipeline_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

// A part of the tail is kept as notes while it is small and as a state from then
// on, which nobody may notice: neither in what it says nor in whom it knows.
func TestTailSaysTheSameHoweverItIsKept(t *testing.T) {
	const conversations = 24
	kept := watermark.MessagesSequenced{Policy: watermark.KeepOnSend, Messages: []watermark.Message{tailMsg(1, "k", "kept")}}
	events := []watermark.Event{
		tailRun(1),
		watermark.ReadAdvanced{User: "reader", Read: 1, Receipt: 1},
		watermark.WindowChanged{Member: watermark.Member{User: "member", Version: 2, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 1}}}},
		watermark.MinSeqRaised{Min: 1},
		kept,
		watermark.Repaired{Number: 7, From: 1},
		watermark.Revoked{Seq: 1, By: "a", Time: 5},
	}
	l := newTailLog(t, 1)
	ids := []watermark.ConversationID{"single:a:bea"}
	for n := range conversations {
		ids = append(ids, watermark.GroupOf(fmt.Sprint("g", n)))
	}
	for n, id := range ids {
		for i := range n + 1 {
			rec := watermark.Record{Conversation: id, Events: []watermark.Event{events[i%len(events)]}}
			rec.Inputs = []watermark.Origin{{Partition: watermark.Partition{TopicID: "t", Number: 3}, Offset: int64(i)}}
			if i%3 == 2 {
				rec.Events = append(rec.Events, tailRun(watermark.Seq(i), watermark.Seq(i+1)))
			}
			l.addAll(rec)
		}
	}
	l.add(ids[5], tailRun(10, 11, 12, 13, 14, 15, 16, 17, 18, 19)) // too much for notes by itself
	for _, segment := range []int{4, 1000} {
		u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = segment })
		p := u.pin(ids...)
		states, err := p.States(t.Context(), ids)
		if err != nil {
			t.Fatal(err)
		}
		want := map[watermark.UserID][]watermark.ConversationID{}
		for _, id := range ids {
			l.completes(id, 0, -1, states[id])
			for user := range l.fold(id, 0, -1).Members {
				want[user] = append(want[user], id)
			}
		}
		if len(want["bea"]) != 1 || len(want["member"]) < 10 {
			t.Fatalf("members are in %v", want)
		}
		want["nobody"] = nil
		want["e"] = nil // a part of other ids
		for user, convs := range want {
			slices.Sort(convs)
			got, err := p.MembersOf(t.Context(), user)
			if diff := cmp.Diff(convs, got); err != nil || diff != "" {
				t.Errorf("segments of %d: conversations of %s: %v (-want +got):\n%s", segment, user, err, diff)
			}
		}
	}
}
