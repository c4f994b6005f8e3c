package storagetest

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/watermark"
)

const group = watermark.ConversationID("group:g1")

var rowTests = []test{
	{"insert keeps every field", insertKeepsFields},
	{"fates in any mix", fatesInAnyMix},
	{"fates inside one change", fatesInsideOneChange},
	{"a conflict overwrites nothing", conflictOverwritesNothing},
	{"revoke leaves a tombstone", revokeLeavesTombstone},
	{"revoke in the change that inserts", revokeInSameChange},
	{"the first revoke stands", firstRevokeStands},
	{"an inserted tombstone stays one", insertedTombstone},
	{"bodies of any bytes and up to 1 MiB", bodies},
	{"random changes, compared with the model", randomChanges},
	{"an empty change does nothing", emptyChange},
}

func insertKeepsFields(t *testing.T, h History) {
	full := text(1, "alice", "first")
	bare := watermark.Message{Seq: 2, Sender: "bob", ClientID: "second"}
	bare.Hash = bare.SumHash()
	last := text(watermark.MaxSeq, "alice", "Ω \U0001F30A '; DROP")
	w := write(t, h, rowsOf(group, full, bare, last))
	equal(t, "fates", w.Rows, []watermark.Fate{watermark.Inserted, watermark.Inserted, watermark.Inserted})
	equal(t, "rows", stored(t, h, group), []watermark.Message{full, bare, last})
}

func fatesInAnyMix(t *testing.T, h History) {
	other := watermark.GroupOf("other")
	write(t, h, together(rowsOf(group, text(5, "alice", "a5"), text(6, "alice", "a6")), rowsOf(other, text(1, "bob", "b1")),
		convsOf(watermark.Conversation{ID: group, Min: 4, Max: 6})))
	retold := text(6, "alice", "a6")
	retold.SendTime, retold.Device = 77, "tablet"
	changed := text(5, "alice", "a5")
	changed.Body = []byte("something else")
	changed.Hash = changed.SumHash()
	c := together(
		rowsOf(group, text(3, "alice", "a3"), text(7, "alice", "a7"), text(5, "mallory", "a5"), retold),
		rowsOf(other, text(1, "bob", "b1"), text(1, "bob", "b2"), text(2, "bob", "b3")),
		rowsOf(group, changed, text(4, "alice", "a4")))
	w := write(t, h, c)
	equal(t, "fates", w.Rows, []watermark.Fate{
		watermark.Retired, watermark.Inserted, watermark.Conflict, watermark.Replay,
		watermark.Replay, watermark.Conflict, watermark.Inserted,
		watermark.Conflict, watermark.Inserted,
	})
	equal(t, "rows", stored(t, h, group), []watermark.Message{
		text(4, "alice", "a4"), text(5, "alice", "a5"), text(6, "alice", "a6"), text(7, "alice", "a7"),
	})
	w = write(t, h, c)
	equal(t, "fates again", w.Rows, []watermark.Fate{
		watermark.Retired, watermark.Replay, watermark.Conflict, watermark.Replay,
		watermark.Replay, watermark.Conflict, watermark.Replay,
		watermark.Conflict, watermark.Replay,
	})
}

func fatesInsideOneChange(t *testing.T, h History) {
	w := write(t, h, rowsOf(group, text(1, "alice", "a"), text(2, "alice", "b"), text(1, "alice", "a"), text(1, "bob", "a"), text(2, "alice", "b")))
	equal(t, "fates", w.Rows, []watermark.Fate{
		watermark.Inserted, watermark.Inserted, watermark.Replay, watermark.Conflict, watermark.Replay,
	})
	equal(t, "rows", stored(t, h, group), []watermark.Message{text(1, "alice", "a"), text(2, "alice", "b")})
}

func conflictOverwritesNothing(t *testing.T, h History) {
	first := text(1, "alice", "a")
	write(t, h, rowsOf(group, first))
	hash := first
	hash.Body = []byte("other")
	hash.Hash = hash.SumHash()
	for _, m := range []watermark.Message{text(1, "bob", "a"), text(1, "alice", "b"), hash} {
		w := write(t, h, together(rowsOf(group, m), convsOf(watermark.Conversation{ID: group, Max: 1})))
		equal(t, "fate", w.Rows, []watermark.Fate{watermark.Conflict})
		equal(t, "rows", stored(t, h, group), []watermark.Message{first})
	}
}

func revokeLeavesTombstone(t *testing.T, h History) {
	m := text(1, "alice", "a")
	r := watermark.Revoked{Seq: 1, By: "admin", Time: 99}
	write(t, h, rowsOf(group, m, text(2, "alice", "b")))
	write(t, h, revokesOf(group, r, watermark.Revoked{Seq: 40, Time: 1}))
	want := []watermark.Message{m.Tombstone(r), text(2, "alice", "b")}
	equal(t, "rows", stored(t, h, group), want)

	w := write(t, h, rowsOf(group, m, text(1, "bob", "x")))
	equal(t, "fates after the revoke", w.Rows, []watermark.Fate{watermark.Replay, watermark.Conflict})
	equal(t, "rows after a replay", stored(t, h, group), want)
	sent := must(h.Sent(t.Context(), group, 0))(t)
	equal(t, "id of the tombstone", sent[watermark.SentKey{Sender: "alice", ClientID: "a"}], watermark.Sent{Seq: 1, Hash: m.Hash})
}

func revokeInSameChange(t *testing.T, h History) {
	m := text(1, "alice", "a")
	r := watermark.Revoked{Seq: 1, Time: 0} // by the deployment, at a time of 0
	c := together(rowsOf(group, m), revokesOf(group, r))
	for range 2 {
		write(t, h, c)
		equal(t, "rows", stored(t, h, group), []watermark.Message{m.Tombstone(r)})
	}
}

func firstRevokeStands(t *testing.T, h History) {
	m := text(1, "alice", "a")
	r1, r2 := watermark.Revoked{Seq: 1, By: "alice", Time: 5}, watermark.Revoked{Seq: 1, By: "admin", Time: 6}
	write(t, h, rowsOf(group, m))
	write(t, h, revokesOf(group, r1, r2))
	write(t, h, revokesOf(group, r2))
	equal(t, "rows", stored(t, h, group), []watermark.Message{m.Tombstone(r1)})
}

func insertedTombstone(t *testing.T, h History) {
	m := text(1, "alice", "a")
	dead := m.Tombstone(watermark.Revoked{Seq: 1, By: "alice", Time: 5})
	write(t, h, rowsOf(group, dead))
	w := write(t, h, rowsOf(group, m))
	equal(t, "fate", w.Rows, []watermark.Fate{watermark.Replay})
	equal(t, "rows", stored(t, h, group), []watermark.Message{dead})
}

func bodies(t *testing.T, h History) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	var ms []watermark.Message
	for i, b := range [][]byte{{0}, all, bytes.Repeat([]byte{0xff}, 4096), bytes.Repeat(all, 4096), []byte(`{"a":1}`), nil} {
		m := watermark.Message{Seq: watermark.Seq(i + 1), Sender: "alice", ClientID: fmt.Sprint(i), BodyType: watermark.BodyType(i % 4), Body: b}
		m.Hash = m.SumHash()
		ms = append(ms, m)
	}
	write(t, h, rowsOf(group, ms...))
	got := stored(t, h, group)
	for i := range got {
		// A comparison of a mebibyte byte by byte takes seconds.
		if !bytes.Equal(got[i].Body, ms[i].Body) {
			t.Errorf("body %d has %d bytes and is not what was written, %d bytes", i, len(got[i].Body), len(ms[i].Body))
		}
		got[i].Body, ms[i].Body = nil, nil
	}
	equal(t, "rows", got, ms)
}

func emptyChange(t *testing.T, h History) {
	w := write(t, h, watermark.Change{})
	if len(w.Rows)+len(w.MemberConflicts) != 0 {
		t.Errorf("an empty change gave %+v", w)
	}
	w = write(t, h, watermark.Change{Rows: []watermark.Row{}, Revokes: []watermark.RevokedRow{}, Members: []watermark.MemberRow{}})
	if len(w.Rows)+len(w.MemberConflicts) != 0 {
		t.Errorf("an empty change gave %+v", w)
	}
	equal(t, "conversation", conversation(t, h, group), watermark.Conversation{ID: group})
}

// randomChanges runs one history of changes, revokes, minima and deletions
// through h and through the model, and compares all that they say.
func randomChanges(t *testing.T, h History) {
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		conv := watermark.GroupOf(fmt.Sprint("round-", round))
		model := NewMemory()
		seq := rapid.Int64Range(1, 12)
		// A max that is far ahead leaves only the upper rows within the horizon.
		far := rapid.SampledFrom([]watermark.Seq{0, 0, 0, watermark.DedupeHorizon - 6})
		id := rapid.SampledFrom([]string{"x", "x", "x", "y"})
		for range rapid.IntRange(1, 6).Draw(rt, "changes") {
			var c watermark.Change
			for range rapid.IntRange(0, 6).Draw(rt, "rows") {
				s := seq.Draw(rt, "seq")
				c.Rows = append(c.Rows, watermark.Row{
					Conversation: conv,
					Message:      text(watermark.Seq(s), "alice", fmt.Sprint(id.Draw(rt, "id"), s%8)),
				})
			}
			for range rapid.IntRange(0, 2).Draw(rt, "revokes") {
				c.Revokes = append(c.Revokes, watermark.RevokedRow{
					Conversation: conv,
					Revoked:      watermark.Revoked{Seq: watermark.Seq(seq.Draw(rt, "revoked")), By: "bob", Time: seq.Draw(rt, "time")},
				})
			}
			c.Conversations = []watermark.Conversation{{
				ID: conv, Max: 12 + far.Draw(rt, "far"),
				Min: watermark.Seq(rapid.SampledFrom([]int64{0, 0, 1, 4, 8}).Draw(rt, "min")),
			}}
			got, want := must(h.Write(t.Context(), c))(rt), must(model.Write(t.Context(), c))(rt)
			equal(rt, "written", got, want)
			if rapid.Bool().Draw(rt, "delete") {
				below, limit := watermark.Seq(seq.Draw(rt, "below")), rapid.IntRange(0, 5).Draw(rt, "limit")
				equal(rt, "deleted", must(h.DeleteBelow(t.Context(), conv, below, limit))(rt),
					must(model.DeleteBelow(t.Context(), conv, below, limit))(rt))
			}
			in := watermark.Interval{First: watermark.Seq(seq.Draw(rt, "first")), Last: watermark.Seq(seq.Draw(rt, "last"))}
			limit := rapid.IntRange(0, 13).Draw(rt, "page")
			equal(rt, "messages", must(h.Messages(t.Context(), conv, in, limit))(rt), must(model.Messages(t.Context(), conv, in, limit))(rt))
			above := watermark.Seq(seq.Draw(rt, "above")) - 1
			equal(rt, "sent", must(h.Sent(t.Context(), conv, above))(rt), must(model.Sent(t.Context(), conv, above))(rt))
		}
	})
}
