package storagetest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

var durabilityTests = []test{
	{"two writers of the same", twoWritersOfTheSame},
	{"two writers of one seq", twoWritersOfOneSeq},
	{"two writers of one member", twoWritersOfOneMember},
	{"a write whose context has ended", endedContext},
	{"reopened, everything is there", reopened},
}

// race runs f for two writers at once.
func race(f func(writer int)) {
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() { f(w) })
	}
	wg.Wait()
}

func twoWritersOfTheSame(t *testing.T, h History) {
	const rounds, each = 10, 30
	fates := [2][]watermark.Fate{}
	race(func(writer int) {
		for r := range rounds {
			c := watermark.Change{Rows: texts(group, watermark.Seq(r*each+1), each)}
			c.Conversations = []watermark.Conversation{{ID: group, Max: watermark.Seq((r + 1) * each)}}
			w, err := tryWrite(t, h, c)
			if err != nil {
				t.Errorf("write: %v", err)
				return
			}
			fates[writer] = append(fates[writer], w.Rows...)
		}
	})
	if len(fates[0]) != len(fates[1]) {
		t.Fatalf("%d and %d fates", len(fates[0]), len(fates[1]))
	}
	for i := range fates[0] {
		a, b := fates[0][i], fates[1][i]
		if a == watermark.Inserted && b == watermark.Inserted || a > watermark.Replay || b > watermark.Replay {
			t.Errorf("row %d: fates %v and %v", i, a, b)
		}
	}
	equal(t, "rows", seqs(stored(t, h, group)), upTo(1, rounds*each))
	equal(t, "max", conversation(t, h, group).Max, watermark.Seq(rounds*each))
}

func twoWritersOfOneSeq(t *testing.T, h History) {
	const n = 60
	fates := [2][n]watermark.Fate{}
	race(func(writer int) {
		for i := range n {
			m := text(watermark.Seq(i+1), watermark.UserID(fmt.Sprint("writer-", writer)), "x")
			w, err := tryWrite(t, h, rowsOf(group, m))
			if err != nil {
				t.Errorf("write: %v", err)
				return
			}
			fates[writer][i] = w.Rows[0]
		}
	})
	for i, m := range stored(t, h, group) {
		winner := 0
		if m.Sender == "writer-1" {
			winner = 1
		}
		if fates[winner][i] == watermark.Conflict || fates[1-winner][i] != watermark.Conflict {
			t.Errorf("seq %d stands by writer %d, fates %v and %v", m.Seq, winner, fates[0][i], fates[1][i])
		}
	}
}

func twoWritersOfOneMember(t *testing.T, h History) {
	const n = 60
	race(func(writer int) {
		for i := range n {
			m := watermark.Member{User: "alice", Receipt: watermark.Seq(i*2 + writer), Own: []watermark.Seq{watermark.Seq(1000 + i*2 + writer)}}
			c := together(membersOf(group, m), convsOf(watermark.Conversation{
				ID: group, Max: watermark.Seq(i*2 + writer),
				Inputs: map[watermark.Partition]int64{{TopicID: "t", Number: int32(writer)}: int64(i)},
			}))
			if _, err := tryWrite(t, h, c); err != nil {
				t.Errorf("write: %v", err)
				return
			}
		}
	})
	equal(t, "member", member(t, h, group, "alice"), watermark.Member{User: "alice", Receipt: 2*n - 1, Own: upTo(1000, 1000+2*n-1)})
	equal(t, "conversation", conversation(t, h, group), watermark.Conversation{
		ID: group, Max: 2*n - 1,
		Inputs: map[watermark.Partition]int64{{TopicID: "t", Number: 0}: n - 1, {TopicID: "t", Number: 1}: n - 1},
	})
}

func endedContext(t *testing.T, h History) {
	write(t, h, rowsOf(group, text(1, "alice", "a")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := rowsOf(group, text(2, "alice", "b"))
	if _, err := h.Write(ctx, c); err == nil {
		t.Error("a write with an ended context gave no error")
	}
	if _, err := h.Messages(ctx, group, whole, 10); err == nil {
		t.Error("a read with an ended context gave no error")
	}
	w := write(t, h, c)
	if w.Rows[0] != watermark.Inserted && w.Rows[0] != watermark.Replay {
		t.Errorf("fate of the second try: %v", w.Rows[0])
	}
	equal(t, "rows", seqs(stored(t, h, group)), upTo(1, 2))
}

func reopened(t *testing.T, h History) {
	r, ok := h.(Reopener)
	if !ok {
		return // what lives in memory ends with its process
	}
	model := NewMemory()
	c, members := crowd(group, 20)
	changes := []watermark.Change{
		together(watermark.Change{Rows: texts(group, 1, 30)}, c),
		revokesOf(group, watermark.Revoked{Seq: 7, By: "admin", Time: 3}),
		convsOf(watermark.Conversation{
			ID: group, Min: 5, Max: 30, Policy: watermark.KeepOnSend, LastTime: 8,
			Inputs: map[watermark.Partition]int64{{TopicID: "t", Number: 4}: 12}, Repair: watermark.Repaired{Number: 2, From: 3},
		}),
	}
	for i, change := range changes {
		equal(t, "written", write(t, h, change), write(t, model, change))
		h = r.Reopen(t)
		if r, ok = h.(Reopener); !ok && i+1 < len(changes) {
			t.Fatal("what Reopen gives cannot be reopened")
		}
	}
	equal(t, "deleted", drain(t, h, group, 5, 100), drain(t, model, group, 5, 100))
	h = r.Reopen(t)
	wants := []watermark.Want{{Conversation: group, Sent: true}}
	equal(t, "states", must(h.States(t.Context(), wants))(t), must(model.States(t.Context(), wants))(t))
	equal(t, "rows", stored(t, h, group), stored(t, model, group))
	equal(t, "roster", must(h.Roster(t.Context(), group, "", 100))(t), members)
	w := write(t, h, changes[0])
	equal(t, "replayed", w, write(t, model, changes[0]))
}
