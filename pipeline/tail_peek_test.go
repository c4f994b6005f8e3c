package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

// tailCall is a run of messages that mention users.
func tailCall(first, last watermark.Seq, users ...watermark.UserID) watermark.MessagesSequenced {
	e := watermark.MessagesSequenced{}
	for s := first; s <= last; s++ {
		m := tailMsg(s, "a", fmt.Sprintf("m%d", s))
		m.Mentions = users
		e.Messages = append(e.Messages, m)
	}
	return e
}

func TestTailPeek(t *testing.T) {
	other, quiet := watermark.GroupOf("other"), watermark.GroupOf("quiet")
	for name, budget := range tailBudgets {
		t.Run(name, func(t *testing.T) {
			l := newTailLog(t, 2)
			l.add(tailConv, tailCall(1, 2, "b"), tailCall(3, 3, "b", "c"))
			l.add(other, tailCall(1, 150, "b"))
			at := 1 + l.add(tailConv, tailCall(4, 5, "c"), watermark.Revoked{Seq: 2, By: "a", Time: 7}, watermark.Revoked{Seq: 900, Time: 8})
			l.add(tailConv, tailCall(3, 3, "b", "c")) // decided again
			l.add(tailConv, watermark.MessagesSequenced{Messages: []watermark.Message{tailMsg(5, "z", "loser")}})
			l.add(other, tailCall(151, 160, "b"))
			u := l.tail(func(c *pipeline.TailConfig) { c.CacheBytes = budget; c.SegmentRecords = 2 })
			all := watermark.Intervals{{First: 1, Last: watermark.MaxSeq}}
			p := u.pin(tailConv, other, quiet)
			got, err := p.Peek(t.Context(), []watermark.Peek{
				{Conversation: tailConv, User: "b", Last: 5, Mentions: all},
				{Conversation: tailConv, User: "c", Last: 3, Mentions: watermark.Intervals{{First: 1, Last: 3}, {First: 5, Last: 5}}},
				{Conversation: tailConv, User: "d", Last: 9, Mentions: all},
				{Conversation: quiet, User: "b", Last: 1, Mentions: all},
				{Conversation: other, User: "c", Last: 160},
			})
			if err != nil {
				t.Fatal(err)
			}
			msg := func(s watermark.Seq, users ...watermark.UserID) *watermark.Message {
				return &tailCall(s, s, users...).Messages[0]
			}
			revokes := map[watermark.Seq]watermark.Revoked{2: {Seq: 2, By: "a", Time: 7, At: at}, 900: {Seq: 900, Time: 8, At: at}}
			want := []watermark.TailPeek{
				{Peeked: watermark.Peeked{Last: msg(5, "c"), Mentions: []watermark.Seq{1, 2, 3}}, Revokes: revokes},
				{Peeked: watermark.Peeked{Last: msg(3, "b", "c"), Mentions: []watermark.Seq{3, 5}}, Revokes: revokes},
				{Revokes: revokes},
				{},
				{Peeked: watermark.Peeked{Last: msg(160, "b")}},
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// However many there are, enough are known to count up to the bound.
			many, err := p.Peek(t.Context(), []watermark.Peek{{Conversation: other, User: "b", Mentions: all}})
			if n := len(many[0].Mentions); err != nil || n < watermark.MaxMentions || n > 2*watermark.MaxMentions {
				t.Errorf("%d mentions, %v", n, err)
			}
			if many[0].Mentions[len(many[0].Mentions)-1] != 160 {
				t.Errorf("mentions %v", many[0].Mentions)
			}
		})
	}
}

// What stood in the log before Ends was asked is below what it tells.
func TestTailEnds_AreAskedAnew(t *testing.T) {
	l := newTailLog(t, 3)
	u := l.tail(nil)
	p, err := u.PinAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	for i := range 5 {
		id := watermark.GroupOf(fmt.Sprint("ends-", i))
		l.add(id, tailRun(1))
		ends, err := p.Ends(t.Context())
		if err != nil || len(ends) != 3 {
			t.Fatalf("%v, %v", ends, err)
		}
		for n := range int32(3) {
			if ends[n] != l.end(n) {
				t.Errorf("partition %d ends at %d, want %d", n, ends[n], l.end(n))
			}
		}
		if p.Partition(id) != l.partition(id) {
			t.Errorf("%s is said to stand on %d", id, p.Partition(id))
		}
	}
	if _, err := u.pin(tailConv).Ends(t.Context()); err == nil {
		t.Error("ends of partitions that are not pinned")
	}
}
