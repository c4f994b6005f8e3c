package simulation

import (
	"fmt"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

// TestASilentFallBackIsRepaired lets Redis fall back without becoming another
// incarnation, as nothing should and a broken fail-over does. Seqs that were
// given are given to other messages then, and history is what decides: no
// message of a producer that sends each once is lost, doubled or left without a
// seq, and it all comes to rest.
func TestASilentFallBackIsRepaired(t *testing.T) {
	conflicts := 0
	play(t, true, func(h *history) {
		h.settle()
		for _, id := range conversations {
			if n := h.repairs(id); n > 0 {
				conflicts++
				break
			}
		}
		for _, id := range conversations {
			h.compareRepaired(id)
		}
	})
	t.Logf("%d of them had conflicts", conflicts)
}

// repairs gives the repair number of a conversation.
func (h *history) repairs(id watermark.ConversationID) int64 {
	convs, err := h.w.history.Conversations(h.r.Context(), []watermark.ConversationID{id})
	h.check(err)
	return convs[0].Repair.Number
}

func (h *history) compareRepaired(id watermark.ConversationID) {
	rows, err := h.w.history.Messages(h.r.Context(), id, watermark.Interval{First: 1, Last: watermark.MaxSeq}, watermark.MaxPage)
	h.check(err)
	convs, err := h.w.history.Conversations(h.r.Context(), []watermark.ConversationID{id})
	h.check(err)
	next := max(convs[0].Min, 1)
	stands := make(map[string]watermark.Seq)
	for _, m := range rows {
		what := fmt.Sprintf("%s/%s", m.Sender, m.ClientID)
		if m.Seq != next || stands[what] > 0 {
			h.r.Fatalf("%s %d is %s, which stands at %d too; expected seq %d", id, m.Seq, what, stands[what], next)
		}
		stands[what], next = m.Seq, next+1
	}
	if next != convs[0].Max+1 {
		h.r.Fatalf("history of %s ends at %d, its counter at %d", id, next-1, convs[0].Max)
	}
	for _, m := range h.m.chats[id].rows {
		if what := fmt.Sprintf("%s/%s", m.Sender, m.ClientID); stands[what] == 0 {
			h.r.Fatalf("%s of %s is lost", what, id)
		}
	}
}
