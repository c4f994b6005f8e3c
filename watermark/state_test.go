package watermark_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	wm "github.com/tidemark-im/tidemark/watermark"
)

func text(seq wm.Seq, sender wm.UserID, id string) wm.Message {
	m := wm.Message{Seq: seq, Sender: sender, ClientID: id, Kind: "text", BodyType: wm.BodyText, Body: []byte(id), RecordTime: int64(seq) * 10}
	m.Hash = m.SumHash()
	return m
}

// history draws a log of one conversation as one owner would write it.
func history(t *rapid.T) []wm.Record {
	var out []wm.Record
	var seq wm.Seq
	members := map[wm.UserID]wm.Member{}
	in := wm.Partition{TopicID: "t", Number: 3}
	for i := range rapid.IntRange(1, 25).Draw(t, "records") {
		rec := wm.Record{Conversation: "single:A:B", Offset: int64(i), Inputs: []wm.Origin{{Partition: in, Offset: int64(i * 2)}}}
		u := rapid.SampledFrom([]wm.UserID{"A", "B"}).Draw(t, "user")
		switch rapid.IntRange(0, 7).Draw(t, "kind") {
		case 6:
			rec.Events = append(rec.Events, wm.PolicyChanged{Version: int64(i + 1), Choice: wm.PolicyChoice(i % 3)})
		case 7:
			m, _, _ := members[u].SetAttributes(fmt.Sprint("op", i), seq, map[string]string{"pinned": fmt.Sprint(i % 3), "x": ""})
			m.User = u
			members[u] = m
			rec.Events = append(rec.Events, wm.WindowChanged{Member: m, Cause: "attributes"})
		case 0, 1:
			run := wm.MessagesSequenced{Policy: wm.UnreadPolicy(rapid.IntRange(0, 1).Draw(t, "policy"))}
			for range rapid.IntRange(1, 3).Draw(t, "run") {
				seq++
				run.Messages = append(run.Messages, text(seq, u, fmt.Sprint(seq)))
			}
			rec.Events = append(rec.Events, run)
		case 2:
			m, _ := members[u].Clear(fmt.Sprint("op", i), seq)
			m.User = u
			members[u] = m
			rec.Events = append(rec.Events, wm.WindowChanged{Member: m})
		case 3:
			rec.Events = append(rec.Events, wm.ReadAdvanced{User: u, Read: wm.Seq(rapid.Int64Range(0, int64(seq)).Draw(t, "read")), Receipt: wm.Seq(rapid.Int64Range(0, int64(seq)).Draw(t, "receipt"))})
		case 4:
			rec.Events = append(rec.Events, wm.MinSeqRaised{Min: wm.Seq(rapid.Int64Range(0, int64(seq)+1).Draw(t, "min"))})
		case 5:
			rec.Events = append(rec.Events, wm.Repaired{Number: int64(i), From: seq + 1})
		}
		out = append(out, rec)
	}
	return out
}

func fold(recs []wm.Record) *wm.State {
	s := wm.NewState("single:A:B")
	for _, r := range recs {
		s.Apply(r)
	}
	return s
}

var sameState = cmpopts.EquateEmpty()

// What history knows up to some offset, merged with a tail from any earlier
// offset on, is the fold of the whole log; and applying records again changes
// nothing.
func TestFoldingASupersetIsHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := history(t)
		h := rapid.IntRange(0, len(log)).Draw(t, "history up to")
		from := rapid.IntRange(0, h).Draw(t, "tail from")
		want := fold(log)
		got := fold(log[:h])
		got.Merge(fold(log[from:]))
		if d := cmp.Diff(want, got, sameState); d != "" {
			t.Fatalf("history + tail (-want +got):\n%s", d)
		}
		reversed := fold(log[from:])
		reversed.Merge(fold(log[:h]))
		if d := cmp.Diff(want, reversed, sameState); d != "" {
			t.Fatalf("tail + history (-want +got):\n%s", d)
		}
		for _, r := range log[from:] {
			got.Apply(r)
		}
		if d := cmp.Diff(want, got, sameState); d != "" {
			t.Fatalf("applied again (-want +got):\n%s", d)
		}
	})
}

func TestStateKeepsTheIDsOfTheHorizon(t *testing.T) {
	s := wm.NewState("group:g")
	const n = 10 * wm.DedupeHorizon
	for seq := wm.Seq(1); seq <= n; seq++ {
		s.Apply(wm.Record{Events: []wm.Event{wm.MessagesSequenced{Messages: []wm.Message{text(seq, "A", seq.String())}}}})
	}
	for seq := wm.Seq(n - wm.DedupeHorizon + 1); seq <= n; seq++ {
		if got := s.Sent[wm.SentKey{Sender: "A", ClientID: seq.String()}]; got.Seq != seq {
			t.Fatalf("id of seq %d: %v", seq, got)
		}
	}
	if len(s.Sent) > 3*wm.DedupeHorizon {
		t.Errorf("%d ids kept", len(s.Sent))
	}
}

func TestSingleConversationHasBothUsersFromItsFirstMessage(t *testing.T) {
	s := wm.NewState("single:A:B")
	s.Apply(wm.Record{Events: []wm.Event{wm.MessagesSequenced{Messages: []wm.Message{text(1, "B", "x")}}}})
	if _, ok := s.Members["A"]; !ok {
		t.Error("A does not have the conversation that B opened")
	}
	if v := s.ViewOf("A"); v.Max != 1 || wm.Unread(v.Member.Visible(v.Min, v.Max), v.Member.Read, v.Member.Own) != 1 {
		t.Errorf("A's view: %+v", v)
	}
	if v := s.ViewOf("B"); wm.Unread(v.Member.Visible(v.Min, v.Max), v.Member.Read, v.Member.Own) != 0 {
		t.Errorf("B's own message is unread: %+v", v)
	}
}

func TestRepairedKeepsTheLowestPointToPullFrom(t *testing.T) {
	var r wm.Repaired
	r.Merge(wm.Repaired{Number: 7, From: 50})
	r.Merge(wm.Repaired{Number: 9, From: 60})
	r.Merge(wm.Repaired{})
	if r != (wm.Repaired{Number: 9, From: 50}) {
		t.Errorf("repair = %+v", r)
	}
}

func TestHashCoversTheContentOnly(t *testing.T) {
	base := text(1, "A", "id")
	base.Attributes = map[string]string{"a": "1", "b": "2"}
	base.Mentions = []wm.UserID{"B"}
	base.Hash = base.SumHash()
	sum := base.Hash
	same := base
	same.Seq, same.SendTime, same.RecordTime, same.Device = 9, 8, 7, "phone"
	if same.SumHash() != sum {
		t.Error("times, seq or device change the hash")
	}
	for name, change := range map[string]func(*wm.Message){
		"kind":      func(m *wm.Message) { m.Kind = "image" },
		"body":      func(m *wm.Message) { m.Body = []byte("other") },
		"body type": func(m *wm.Message) { m.BodyType = wm.BodyData },
		"mentions":  func(m *wm.Message) { m.Mentions = []wm.UserID{"C"} },
		"attribute": func(m *wm.Message) { m.Attributes = map[string]string{"a": "12", "b": ""} },
	} {
		m := base
		change(&m)
		if m.SumHash() == sum {
			t.Errorf("another %s has the same hash", name)
		}
	}
	tomb := base.Tombstone(wm.Revoked{Seq: 1, By: "A"})
	if tomb.Body != nil || tomb.Attributes != nil || tomb.Mentions != nil || tomb.Hash != sum || !tomb.SameAs(&base) {
		t.Errorf("tombstone: %+v", tomb)
	}
}

// Of two messages at one seq the first stands, and only its id is known to
// stand there: the owner gives the other one a seq of its own by that.
func TestAnIDThatLostItsSeqDoesNotStandThere(t *testing.T) {
	said := func(seq wm.Seq, id string) wm.Record {
		return wm.Record{Events: []wm.Event{wm.MessagesSequenced{Messages: []wm.Message{{Seq: seq, Sender: "A", ClientID: id}}}}}
	}
	log := []wm.Record{said(1, "a"), said(2, "b"), said(3, "c"), said(2, "a"), said(3, "x"), said(4, "d")}
	want := map[wm.SentKey]wm.Sent{
		{Sender: "A", ClientID: "a"}: {Seq: 1}, {Sender: "A", ClientID: "b"}: {Seq: 2},
		{Sender: "A", ClientID: "c"}: {Seq: 3}, {Sender: "A", ClientID: "d"}: {Seq: 4},
	}
	for cut := range len(log) + 1 {
		s, later := wm.NewState("group:g"), wm.NewState("group:g")
		for _, rec := range log[:cut] {
			s.Apply(rec)
		}
		for _, rec := range log[cut:] {
			later.Apply(rec)
		}
		s.Merge(later)
		if d := cmp.Diff(want, s.Sent); d != "" {
			t.Errorf("cut at %d (-want +got):\n%s", cut, d)
		}
	}
}
