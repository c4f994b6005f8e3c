package toredis_test

import (
	"testing"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// fallBack lets Redis lose its last writes once, in silence, before the next call
// of op, and does then what else happens meanwhile.
func (w *world) fallBack(t *testing.T, op string, writes int, meanwhile func()) {
	t.Helper()
	done := false
	w.onCall = func(call string) error {
		if call == op && !done {
			done = true
			if n := w.redis.Undo(writes); n != writes {
				t.Errorf("Redis lost %d writes, want %d", n, writes)
			}
			meanwhile()
		}
		return nil
	}
}

// lost is the command to give a message another seq than it lost.
func lost(t *testing.T, w *world, input int, seq int64) *v1.Command {
	t.Helper()
	m := decode(t, w.input(0)[input]).Message
	return &v1.Command{Conversation: group, OpId: "lost", Kind: &v1.Command_Resequence{Resequence: &v1.ResequenceCommand{
		RepairNumber: 3,
		Message: &v1.LoggedMessage{Seq: seq, Sender: string(m.Sender), ClientMessageId: m.ClientID, Hash: m.Hash[:], Kind: m.Kind,
			BodyType: v1.BodyType_BODY_TYPE_TEXT, Body: m.Body},
	}}}
}

// TestWhatWasLoadedIsAFloor has Redis fall back to what it held before a load,
// which looks warm.
func TestWhatWasLoadedIsAFloor(t *testing.T) {
	w := newWorld(1)
	w.redis.KeepUndo = 9
	for _, id := range []string{"1", "2"} {
		w.send(t, -1, group, "A", id, "a", "")
	}
	s := w.stage(t, 0)
	handle(t, s, w.input(0)[:1])
	handle(t, s, w.input(0)[1:])
	w.redis.Undo(1)

	// The next owner loads, and appends nothing that has a seq.
	w.command(t, &v1.Command{Conversation: group, OpId: "lost", Kind: &v1.Command_Resequence{Resequence: &v1.ResequenceCommand{
		Member: &v1.MemberState{User: "B", Version: 1},
	}}})
	w.send(t, -1, group, "A", "3", "a", "")
	s = w.stage(t, 0)
	handle(t, s, w.input(0)[2:3])
	w.redis.Undo(3) // begin, install, malloc
	handle(t, s, w.input(0)[3:])
	equal(t, "log", story(t, w, 0), []string{
		"group:g1 1 A/1", "group:g1 2 A/2", "group:g1 resequence B v2", "group:g1 3 A/3",
	})
}

// TestResequenceIsDecidedOnWhatWasLoadedForIt has Redis fall back between load and
// script to what it held when it gave a taken seq, and a worker that was presumed
// dead go on with that.
func TestResequenceIsDecidedOnWhatWasLoadedForIt(t *testing.T) {
	w := newWorld(1)
	w.redis.KeepUndo = 9
	for _, id := range []string{"1", "2", "3", "4"} {
		w.send(t, -1, group, "A", id, "a", "")
	}
	s := w.stage(t, 0)
	handle(t, s, w.input(0)[:1])
	handle(t, s, w.input(0)[1:2])
	w.redis.Undo(1)
	zombie := w.stage(t, 0)
	handle(t, zombie, w.input(0)[2:3]) // A/3 gets the seq of A/2
	w.command(t, lost(t, w, 2, 2))
	w.command(t, lost(t, w, 2, 2))
	handle(t, w.stage(t, 0), w.input(0)[4:5])
	want := []string{
		"group:g1 1 A/1", "group:g1 2 A/2", "group:g1 2 A/3",
		"group:g1 3 A/3", "group:g1 watermark.Repaired {Number:3 From:2}",
	}
	equal(t, "log", story(t, w, 0), want)

	// begin, install, malloc of the repair; begin, install of the next one.
	w.fallBack(t, "malloc", 5, func() { handle(t, zombie, w.input(0)[3:4]) })
	handle(t, w.stage(t, 0), w.input(0)[5:])
	equal(t, "log", story(t, w, 0), append(want, "group:g1 3 A/4", want[3], want[4]))
}
