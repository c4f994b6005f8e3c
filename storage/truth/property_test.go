package truth_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/watermark"
)

var (
	convs = []watermark.ConversationID{"single:ann:bob", "single:ann:cyd", "group:g1", "group:g2", "group:big"}
	users = []watermark.UserID{"ann", "bob", "cyd", "dan"}
	whole = watermark.Interval{First: -1 << 62, Last: 1 << 62}
)

// draw scripts a random log as an owner would write it.
func draw(rt *rapid.T, w *world) {
	type live struct {
		max, min watermark.Seq
		members  map[watermark.UserID]watermark.Member
	}
	all := make(map[watermark.ConversationID]*live)
	for _, c := range convs {
		all[c] = &live{members: make(map[watermark.UserID]watermark.Member)}
	}
	if rapid.IntRange(0, 3).Draw(rt, "crowd") == 0 {
		// More members than a cold load brings by itself.
		for from := 0; from < watermark.SmallGroup; from += 64 {
			var events []watermark.Event
			for i := range 64 {
				m, _, _ := watermark.Member{User: watermark.UserID(fmt.Sprintf("x%03d", from+i))}.Join("join", 0, watermark.HistoryAll, 0)
				events = append(events, watermark.WindowChanged{Member: m, Cause: "join"})
			}
			w.script("group:big", events...)
		}
	}
	for op := range rapid.IntRange(1, 40).Draw(rt, "records") {
		c := rapid.SampledFrom(convs).Draw(rt, "conversation")
		l := all[c]
		u := rapid.SampledFrom(users).Draw(rt, "user")
		if a, b, ok := c.Users(); ok {
			u = rapid.SampledFrom([]watermark.UserID{a, b}).Draw(rt, "participant")
		}
		m, ok := l.members[u]
		if !ok {
			m.User = u
		}
		id := fmt.Sprint("op", op)
		var events []watermark.Event
		switch kind := rapid.IntRange(0, 9).Draw(rt, "kind"); kind {
		case 0, 1, 2, 3:
			e := watermark.MessagesSequenced{Policy: watermark.UnreadPolicy(rapid.IntRange(0, 1).Draw(rt, "policy"))}
			for range rapid.IntRange(1, 3).Draw(rt, "run") {
				l.max++
				msg := watermark.Message{
					Seq: l.max, Sender: u, ClientID: fmt.Sprint(id, "-", l.max%2), Body: []byte(id),
					BodyType: watermark.BodyText, RecordTime: rapid.Int64Range(1, 50).Draw(rt, "time"),
				}
				if rapid.Bool().Draw(rt, "mentions") {
					msg.Mentions = rapid.SliceOfNDistinct(rapid.SampledFrom(users), 1, 2, rapid.ID).Draw(rt, "mentioned")
				}
				msg.Hash = msg.SumHash()
				e.Messages = append(e.Messages, msg)
			}
			events = append(events, e)
		case 4, 5, 6:
			switch kind {
			case 4:
				m, _, _ = m.Join(id, l.max, watermark.HistoryNone, 0)
			case 5:
				m, _ = m.Leave(id, l.max, 0)
			case 6:
				m, _ = m.Clear(id, l.max)
			}
			l.members[u] = m
			events = append(events, watermark.WindowChanged{Member: m, Cause: "join"})
		case 7:
			s := watermark.Seq(rapid.Int64Range(1, 12).Draw(rt, "mark"))
			events = append(events, watermark.ReadAdvanced{User: u, Read: min(s, l.max), Receipt: min(s, l.max)})
		case 8:
			if l.max > 0 {
				s := watermark.Seq(rapid.Int64Range(1, int64(l.max)).Draw(rt, "revoked"))
				events = append(events, watermark.Revoked{Seq: s, By: u, Time: int64(op + 1)})
			}
		case 9:
			l.min = max(l.min, watermark.Seq(rapid.Int64Range(0, int64(l.max)+1).Draw(rt, "min")))
			events = append(events, watermark.MinSeqRaised{Min: l.min},
				watermark.Repaired{Number: int64(op), From: max(l.max, 1)})
		}
		w.script(c, events...)
	}
}

// meddle lets the log grow, toMongo work or die in the middle, and retention
// delete.
func meddle(rt *rapid.T, t testing.TB, w *world) {
	for range rapid.IntRange(0, 3).Draw(rt, "actions") {
		n := rapid.IntRange(0, 1).Draw(rt, "partition")
		switch rapid.IntRange(0, 5).Draw(rt, "action") {
		case 0:
			w.append(n, rapid.IntRange(1, 8).Draw(rt, "appended"))
		case 1, 2:
			w.project(t, n, rapid.IntRange(1, 8).Draw(rt, "projected"), "never")
		case 3:
			w.project(t, n, rapid.IntRange(1, 8).Draw(rt, "projected"), rapid.SampledFrom([]storagetest.Step{
				"", storagetest.StepRows, storagetest.StepRevokes, storagetest.StepMembers, storagetest.StepConversations,
			}).Draw(rt, "dies after"))
		case 4:
			w.writeAhead(t, n, rapid.IntRange(1, 8).Draw(rt, "written ahead"))
		case 5:
			w.retain(t, rapid.SampledFrom(convs).Draw(rt, "retained"), 2)
		}
	}
}

func drawWorld(rt *rapid.T, t testing.TB) *world {
	w := newWorld()
	draw(rt, w)
	for i := range w.logs {
		w.append(i, rapid.IntRange(0, len(w.logs[i].records)).Draw(rt, "end"))
	}
	for range 4 {
		meddle(rt, t, w)
	}
	w.hook = func() { meddle(rt, t, w) }
	return w
}

func diff(want, got any) string { return cmp.Diff(want, got, cmpopts.EquateEmpty()) }

// TestLoadIsTheFoldOfTheLog loads while everything moves and expects exactly
// what the log says up to where the tail was read.
func TestLoadIsTheFoldOfTheLog(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, t)
		tr, last := w.truth(t, rapid.IntRange(1, 3).Draw(rt, "chunk"))
		var wants []watermark.Want
		for _, c := range rapid.SliceOfN(rapid.SampledFrom(convs), 1, 6).Draw(rt, "wanted") {
			wants = append(wants, watermark.Want{
				Conversation: c, Sent: rapid.Bool().Draw(rt, "sent"), Roster: rapid.IntRange(0, 5).Draw(rt, "roster") == 0,
				Users: rapid.SliceOfN(rapid.SampledFrom(append(slices.Clone(users), "x001", "nobody")), 0, 3).Draw(rt, "users"),
			})
		}
		before := w.ends()
		states, err := tr.Load(t.Context(), wants)
		if err != nil {
			rt.Fatal(err)
		}
		if w.pins != w.released {
			rt.Errorf("%d pins, %d released", w.pins, w.released)
		}
		seen := last().seen
		for i, want := range wants {
			n := partitionOf(want.Conversation)
			if seen[n] < before[n] {
				rt.Fatalf("the tail of partition %d was read up to %d, %d stood there before the call", n, seen[n], before[n])
			}
			checkState(rt, want, states[i], w.fold(want.Conversation, 0, seen[n]))
		}
	})
}

func checkState(rt *rapid.T, want watermark.Want, got, full *watermark.State) {
	if d := diff(full.Conversation, got.Conversation); d != "" {
		rt.Errorf("%s (-log +load)\n%s", want.Conversation, d)
	}
	members := full.Members
	if !got.Complete {
		if len(full.Members) <= watermark.SmallGroup || want.Roster {
			rt.Errorf("%s: %d members, not complete", want.Conversation, len(full.Members))
		}
		members = make(map[watermark.UserID]watermark.Member)
		for _, u := range want.Users {
			if m, ok := full.Members[u]; ok {
				members[u] = m
			}
		}
	}
	if d := diff(members, got.Members); d != "" {
		rt.Errorf("members of %s, wanted %v (-log +load)\n%s", want.Conversation, want.Users, d)
	}
	sent := full.Sent
	if !want.Sent {
		sent = nil
	}
	if d := diff(sent, got.Sent); d != "" {
		rt.Errorf("ids of %s (-log +load)\n%s", want.Conversation, d)
	}
}

// TestMessagesAreTheLogs reads rows while everything moves: what stood in the
// log before the call is there, and nothing is there that the log has not.
func TestMessagesAreTheLogs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, t)
		tr, _ := w.truth(t, 0)
		c := rapid.SampledFrom(convs).Draw(rt, "read")
		first := watermark.Seq(rapid.Int64Range(-1, 12).Draw(rt, "first"))
		in := watermark.Interval{First: first, Last: first + watermark.Seq(rapid.Int64Range(-1, 12).Draw(rt, "length"))}
		p := &w.logs[partitionOf(c)]
		before := p.end
		got, err := tr.Messages(t.Context(), c, in)
		if err != nil {
			rt.Fatal(err)
		}
		after := p.end
		final := make(map[watermark.Seq]watermark.Message)
		for _, m := range rowsOf(c, p.records[:after], in) {
			final[m.Seq] = m
		}
		gone := revokesOf(c, p.records[:after], whole)
		had := make(map[watermark.Seq]watermark.Message)
		var prev watermark.Seq
		for _, m := range got {
			if m.Seq <= prev {
				rt.Errorf("seq %d after %d", m.Seq, prev)
			}
			prev, had[m.Seq] = m.Seq, m
			want, ok := final[m.Seq]
			if r, revoked := gone[m.Seq]; ok && revoked && m.Revoked != nil {
				want = want.Tombstone(r)
			}
			if d := diff(want, m); d != "" {
				rt.Errorf("seq %d (-log +read)\n%s", m.Seq, d)
			}
		}
		low := w.fold(c, 0, after).Min
		revoked := revokesOf(c, p.records[:before], whole)
		for _, m := range rowsOf(c, p.records[:before], in) {
			row, ok := had[m.Seq]
			if !ok && m.Seq >= low {
				rt.Errorf("seq %d is missing, min %d", m.Seq, low)
			}
			if _, dead := revoked[m.Seq]; ok && dead && row.Revoked == nil {
				rt.Errorf("seq %d is revoked and was served", m.Seq)
			}
		}
	})
}

// TestListIsTheLogs lists while everything moves.
func TestListIsTheLogs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, t)
		tr, last := w.truth(t, rapid.IntRange(1, 3).Draw(rt, "chunk"))
		u := rapid.SampledFrom(users).Draw(rt, "whose")
		before := w.ends()
		list, err := tr.List(t.Context(), u)
		if err != nil {
			rt.Fatal(err)
		}
		for n, end := range list.Ends {
			if end < int64(before[n]) || end > int64(last().seen[n]) {
				rt.Errorf("partition %d: covered up to %d, %d before the call, %d read", n, end, before[n], last().seen[n])
			}
		}
		got := list.Entries
		had := make(map[watermark.ConversationID]bool)
		for i, e := range got {
			c := e.Conversation.ID
			full := w.fold(c, 0, last().seen[partitionOf(c)])
			want := watermark.Listed{Conversation: full.Conversation, Member: full.Members[u], Partition: int32(partitionOf(c))}
			if d := diff(want, e); d != "" || had[c] {
				rt.Errorf("%s (-log +list)\n%s", c, d)
			}
			had[c] = true
			if i > 0 && (got[i-1].Conversation.LastTime < e.Conversation.LastTime ||
				got[i-1].Conversation.LastTime == e.Conversation.LastTime && got[i-1].Conversation.ID > c) {
				rt.Errorf("%s stands after %s", c, got[i-1].Conversation.ID)
			}
		}
		for _, c := range convs {
			// Everything below the ends that it tells is in it.
			if _, ok := w.fold(c, 0, int(list.Ends[partitionOf(c)])).Members[u]; ok && !had[c] {
				rt.Errorf("%s is missing", c)
			}
		}
	})
}

// TestPeekIsTheLogs peeks while everything moves: what stood in the log before
// the call is there, and nothing is there that the log has not.
func TestPeekIsTheLogs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, t)
		tr, _ := w.truth(t, rapid.IntRange(1, 3).Draw(rt, "chunk"))
		var peeks []watermark.Peek
		for _, c := range rapid.SliceOfN(rapid.SampledFrom(convs), 1, 5).Draw(rt, "peeked") {
			first := watermark.Seq(rapid.Int64Range(1, 6).Draw(rt, "first"))
			peeks = append(peeks, watermark.Peek{
				Conversation: c, User: rapid.SampledFrom(users).Draw(rt, "user"), Last: watermark.Seq(rapid.Int64Range(0, 9).Draw(rt, "last")),
				Mentions:    watermark.Intervals{{First: first, Last: first + 3}, {First: first + 6, Last: watermark.MaxSeq}},
				RevokedFrom: rapid.Int64Range(0, 6).Draw(rt, "revoked from"),
			})
		}
		before := w.ends()
		got, err := tr.Peek(t.Context(), peeks)
		if err != nil {
			rt.Fatal(err)
		}
		after := w.ends()
		for i, p := range peeks {
			n := partitionOf(p.Conversation)
			checkPeek(rt, p, got[i], w.peekAt(p, before[n]), w.peekAt(p, after[n]), w.fold(p.Conversation, 0, after[n]).Min)
		}
	})
}

// peekAt answers a peek from the first end records of the log.
func (w *world) peekAt(p watermark.Peek, end int) (out watermark.Peeked) {
	log := w.logs[partitionOf(p.Conversation)].records[:end]
	gone := revokesOf(p.Conversation, log, whole)
	for _, m := range rowsOf(p.Conversation, log, whole) {
		if r, ok := gone[m.Seq]; ok {
			m = m.Tombstone(r)
		}
		if m.Seq == p.Last {
			out.Last = &m
		}
		if slices.Contains(m.Mentions, p.User) && p.Mentions.Contains(m.Seq) {
			out.Mentions = append(out.Mentions, m.Seq)
		}
		if m.Revoked != nil && p.RevokedFrom > 0 && m.Revoked.At >= p.RevokedFrom {
			out.Revoked = append(out.Revoked, m.Seq)
		}
	}
	return out
}

// checkPeek compares with what stood before the call and after it. Below the
// minimum retention may have taken anything.
func checkPeek(rt *rapid.T, p watermark.Peek, got, before, after watermark.Peeked, low watermark.Seq) {
	if got.Last == nil && before.Last != nil && p.Last >= low {
		rt.Errorf("%v: the message is missing", p)
	}
	if got.Last != nil && diff(before.Last, got.Last) != "" && diff(after.Last, got.Last) != "" {
		rt.Errorf("%v: %v, before %v, after %v", p, got.Last, before.Last, after.Last)
	}
	if !slices.IsSorted(got.Mentions) || len(slices.Compact(slices.Clone(got.Mentions))) != len(got.Mentions) {
		rt.Errorf("%v: mentions %v", p, got.Mentions)
	}
	// A message that is revoked twice may be told of again, and one that the log
	// does not have too.
	for _, s := range before.Revoked {
		if s >= low && !slices.Contains(got.Revoked, s) {
			rt.Errorf("%v: the revoke of %d is missing in %v", p, s, got.Revoked)
		}
	}
	if !slices.IsSorted(got.Revoked) || p.RevokedFrom == 0 && len(got.Revoked) > 0 {
		rt.Errorf("%v: revoked %v", p, got.Revoked)
	}
	// A revoke may come in between, so a mention may be of before or of after.
	for _, s := range got.Mentions {
		if !slices.Contains(before.Mentions, s) && !slices.Contains(after.Mentions, s) {
			rt.Errorf("%v: no mention stands at %d", p, s)
		}
	}
	for _, s := range before.Mentions {
		if s >= low && slices.Contains(after.Mentions, s) && !slices.Contains(got.Mentions, s) {
			rt.Errorf("%v: the mention at %d is missing", p, s)
		}
	}
}
