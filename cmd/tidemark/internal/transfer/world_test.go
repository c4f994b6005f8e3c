package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/watermark"
)

// opened is a store of a test, opened anew where it can be.
func opened(t testing.TB, path string) *embedded.Store {
	t.Helper()
	s, err := embedded.New(embedded.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func file(t testing.TB) string { return filepath.Join(t.TempDir(), "history.db") }

func write(t testing.TB, h storagetest.History, c watermark.Change) {
	t.Helper()
	if _, err := h.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func message(seq watermark.Seq, sender watermark.UserID, id string) watermark.Message {
	m := watermark.Message{
		Seq: seq, Sender: sender, ClientID: id, Kind: "chat", SendTime: 1000 + int64(seq), RecordTime: 2000 + int64(seq), Device: "phone",
		Mentions: []watermark.UserID{"bob"}, Attributes: map[string]string{"k": "v", "a": "b"}, BodyType: watermark.BodyText,
		Body: fmt.Appendf(nil, "%d: text of %s", seq, id),
	}
	m.Hash = m.SumHash()
	return m
}

func rows(conv watermark.ConversationID, first, last watermark.Seq) watermark.Change {
	var c watermark.Change
	for seq := first; seq <= last; seq++ {
		c.Rows = append(c.Rows, watermark.Row{Conversation: conv, Message: message(seq, "alice", fmt.Sprint("id-", seq))})
	}
	return c
}

func conv(c watermark.Conversation) watermark.Change {
	return watermark.Change{Conversations: []watermark.Conversation{c}}
}

func retire(t testing.TB, h storagetest.History, id watermark.ConversationID, below watermark.Seq) {
	t.Helper()
	write(t, h, conv(watermark.Conversation{ID: id, Min: below}))
	for {
		n, err := h.DeleteBelow(t.Context(), id, below, 300)
		if err != nil {
			t.Fatal(err)
		}
		if n < 300 {
			return
		}
	}
}

// fill writes a history in which everything occurs that a store can hold.
func fill(t testing.TB, h storagetest.History, groups int) {
	t.Helper()
	const big = watermark.ConversationID("group:big")
	for first := watermark.Seq(1); first <= 1601; first += 400 {
		write(t, h, rows(big, first, first+399))
	}
	write(t, h, conv(watermark.Conversation{
		ID: big, Max: 2000, ChangedAt: 12, Override: watermark.PolicyChanged{Version: 3, Choice: 2}, LastTime: 4000, Policy: watermark.KeepOnSend, Repair: watermark.Repaired{Number: 9, From: 7},
		Inputs: map[watermark.Partition]int64{{TopicID: "T.1$", Number: 3}: 77, {TopicID: "T2", Number: 0}: 0},
	}))
	// Ids that are left by retention, and rows that it has not come to yet.
	retire(t, h, big, 1500)
	write(t, h, conv(watermark.Conversation{ID: big, Min: 1510}))
	write(t, h, watermark.Change{Revokes: []watermark.RevokedRow{
		{Conversation: big, Revoked: watermark.Revoked{Seq: 1505, By: "admin", Time: 5}},
		{Conversation: big, Revoked: watermark.Revoked{Seq: 1900, By: "admin", Time: 5}},
		{Conversation: big, Revoked: watermark.Revoked{Seq: 1901}},
	}})
	var own []watermark.Seq
	for s := watermark.Seq(1000); s < 1000+watermark.MaxOwn; s++ {
		own = append(own, s)
	}
	for i := range groups {
		id := watermark.GroupOf(fmt.Sprintf("g%d-", i))
		c := rows(id, 1, watermark.Seq(1+i%3))
		if i%5 != 0 { // else its rows and members stand alone
			c.Conversations = []watermark.Conversation{{ID: id, Max: watermark.Seq(1 + i%3), LastTime: int64(i)}}
		}
		c.Members = []watermark.MemberRow{
			{Conversation: id, Member: watermark.Member{User: watermark.UserID(fmt.Sprint("u", i%17))}},
			{Conversation: id, Member: watermark.Member{
				User: "busy", Version: 3, LastMembership: 2, Read: 1, Receipt: 1, ChangedAt: int64(i),
				Memberships: []watermark.Membership{{Number: 1, Lower: 1, Upper: 1}, {Number: 2, Lower: 2}},
				Ops:         []watermark.AppliedOp{{ID: "op 1", Edge: 1}, {ID: "op-2", Edge: 2}},
			}},
		}
		write(t, h, c)
	}
	write(t, h, rows("group:zz", 1, 2)) // behind the last conversation
	write(t, h, watermark.Change{Positions: []watermark.Position{
		{Topic: "p.sequenced", Partition: watermark.Partition{TopicID: "S-1", Number: 1}, Next: 44},
		{Topic: "toRedis", Partition: watermark.Partition{TopicID: "T2", Number: 0}, Next: 5},
	}})
	write(t, h, watermark.Change{Members: []watermark.MemberRow{
		{Conversation: big, Member: watermark.Member{
			User: "alice", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}},
			Ops:  []watermark.AppliedOp{{ID: "op-9", Edge: 4}},
			Read: 900, Receipt: 5, ChangedAt: 3, Own: own, Attributes: map[string]string{"pinned": "1"},
		}},
		{Conversation: "single:alice:bob", Member: watermark.Member{User: "bob"}},
	}})
}

func copied(t testing.TB, from transfer.Source, to transfer.Target) transfer.Counts {
	t.Helper()
	n, err := transfer.Copy(t.Context(), transfer.Config{From: from, To: to, Page: 200})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func compared(t testing.TB, from transfer.Source, to transfer.Target) *transfer.Report {
	t.Helper()
	rep, err := transfer.Compare(t.Context(), transfer.Config{From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func same(t testing.TB, from transfer.Source, to transfer.Target) *transfer.Report {
	t.Helper()
	rep := compared(t, from, to)
	if !rep.Same() || rep.From != rep.To {
		t.Fatalf("the two differ in %d: %+v\n%+v\n%+v", rep.Differing, rep.Differences, rep.From, rep.To)
	}
	return rep
}

// errKilled ends a copy for good, like a process that is killed.
var errKilled = fault.New(fault.Fatal, "killed", errors.New("killed"))

// mortal is a target that dies at its nth call, before or after it took effect.
type mortal struct {
	transfer.Target
	left  int
	after bool
}

func (m *mortal) die(f func() error) error {
	if m.left--; m.left > 0 || m.after && m.left == 0 {
		if err := f(); err != nil {
			return err
		}
	}
	if m.left <= 0 {
		return errKilled
	}
	return nil
}

func (m *mortal) Write(ctx context.Context, c watermark.Change) (w watermark.Written, err error) {
	err = m.die(func() error {
		w, err = m.Target.Write(ctx, c)
		return err
	})
	return w, err
}

func (m *mortal) DeleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (n int, err error) {
	err = m.die(func() error {
		n, err = m.Target.DeleteBelow(ctx, conv, seq, limit)
		return err
	})
	return n, err
}
