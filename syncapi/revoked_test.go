package syncapi_test

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

func (w *world) revoke(id convID, seqs ...seq) {
	for _, s := range seqs {
		w.order(watermark.Input{Conversation: id, Act: watermark.ActRevoke, Seq: s})
	}
}

// told gives what the last sync said was revoked in a conversation, -1 where it
// said that there is more.
func (d *device) told(id convID) []int64 {
	e := d.entries[string(id)]
	if e.GetMoreRevoked() {
		return append(slices.Clone(e.GetRevoked()), -1)
	}
	return e.GetRevoked()
}

func TestRevokesAreToldSinceTheVersion(t *testing.T) {
	for _, cold := range []bool{false, true} {
		w := newWorld()
		s := newService(t, w, nil)
		w.join(group, "A", "B")
		w.say(t, group, "B", 9)
		w.say(t, single, "B", 2)
		w.revoke(group, 8)
		d := newDevice("A")
		step := func(what string, want []int64, do func()) {
			t.Helper()
			do()
			if cold {
				w.flush()
			}
			d.sync(t, 1, nil, s)
			if got := d.told(group); !slices.Equal(got, want) {
				t.Errorf("%s, cold %t: told %v, want %v", what, cold, got, want)
			}
		}
		step("a device that has no version", []int64{8}, func() {})
		step("some", []int64{2, 5}, func() { w.revoke(group, 5, 2) })
		step("a message, no revoke", nil, func() { w.say(t, group, "B", 1) })
		step("one that is revoked already", nil, func() { w.revoke(group, 5) })
		step("what the member has cleared", []int64{11}, func() {
			w.order(watermark.Input{Conversation: group, Act: watermark.ActClear, User: "A"})
			w.say(t, group, "B", 1)
			w.revoke(group, 3, 11)
		})
		step("another log", []int64{11}, func() { w.set(func() { w.logName = "other" }) })
		w.order(watermark.Input{Conversation: group, Act: watermark.ActLeave, User: "A", Actor: "B"})
		d.sync(t, 0, nil, s)
		w.revoke(group, 9)
		d.sync(t, 0, nil, s)
		if e := d.former[string(group)]; len(e.GetRevoked()) > 0 {
			t.Errorf("a former member is told of %v", e.GetRevoked())
		}
	}
}

// While a user is not in a group it is told of no revoke there, and its version
// moves on. Who comes back is told of all that it can see, once.
func TestRevokesOfWhileTheUserWasAwayAreToldWhenItIsBack(t *testing.T) {
	for _, cold := range []bool{false, true} {
		for _, size := range []int64{0, 1} {
			w := newWorld()
			s := newService(t, w, nil)
			w.join(group, "A", "B")
			w.join("group:other", "A", "B")
			w.say(t, group, "B", 9)
			w.say(t, "group:other", "B", 3)
			d := newDevice("A")
			sync := func(want ...int64) {
				t.Helper()
				if cold {
					w.flush()
				}
				d.sync(t, size, nil, s)
				if got := d.told(group); !slices.Equal(got, want) {
					t.Errorf("cold %t, pages of %d: told %v, want %v", cold, size, got, want)
				}
			}
			sync()
			w.order(watermark.Input{Conversation: group, Act: watermark.ActLeave, User: "A", Actor: "B"})
			sync()
			w.revoke(group, 2, 8)
			sync() // a former member is told nothing, and has a newer version
			w.say(t, "group:other", "B", 1)
			sync()
			w.join(group, "A")
			sync(2, 8)
			w.say(t, group, "B", 1)
			sync()
			w.revoke(group, 10)
			sync(10)
			// Its own mark moves in the group that it was always in.
			mustRead(t, s, "A", group, 9)
			sync()
		}
	}
}

// A version of a process of the version before is taken: it does not say how often
// the user joined, so what was revoked is told once more where anything changed.
func TestVersionsOfTheVersionBefore(t *testing.T) {
	const joined = 1 + 6 + 8 // where it begins
	w := newWorld()
	s := newService(t, w, nil)
	w.join(group, "A", "B")
	w.say(t, group, "B", 9)
	w.revoke(group, 8)
	first, err := s.SyncConversations(t.Context(), &v1.SyncConversationsRequest{User: "A"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := base64.RawURLEncoding.DecodeString(first.Version)
	if err != nil || b[0] != 2 {
		t.Fatal(b, err)
	}
	_, n := binary.Varint(b[joined:])
	old := append([]byte{1}, slices.Delete(b, joined, joined+n)[1:]...)
	ask := func() *v1.SyncConversationsResponse {
		t.Helper()
		res, err := s.SyncConversations(t.Context(), &v1.SyncConversationsRequest{User: "A", Version: base64.RawURLEncoding.EncodeToString(old)})
		if err != nil || res.FullResync {
			t.Fatal(res, err)
		}
		return res
	}
	if res := ask(); len(res.Changed) != 0 {
		t.Errorf("nothing has changed, and told is %v", res.Changed)
	}
	mustRead(t, s, "A", group, 3)
	if res := ask(); len(res.Changed) != 1 || !slices.Equal(res.Changed[0].Revoked, []int64{8}) {
		t.Errorf("told %v", res.Changed)
	}
}

func TestMoreRevokesThanAnEntryNames(t *testing.T) {
	w := newWorld()
	w.join(group, "A", "B")
	w.say(t, group, "B", watermark.MaxRevoked+5)
	s, d := newService(t, w, nil), newDevice("A")
	d.sync(t, 0, nil, s)
	for q := seq(1); q <= watermark.MaxRevoked; q++ {
		w.revoke(group, q)
	}
	d.sync(t, 0, nil, s)
	if got := d.told(group); len(got) != watermark.MaxRevoked+1 || got[len(got)-1] != -1 {
		t.Errorf("told %d seqs", len(got))
	}
	w.revoke(group, watermark.MaxRevoked+1)
	d.sync(t, 0, nil, s)
	if got := d.told(group); !slices.Equal(got, []int64{watermark.MaxRevoked + 1}) {
		t.Errorf("told %v", got)
	}
}

// TestEveryRevokeIsTold lets devices walk in pages while messages are revoked, and
// their user leaves groups and comes back: when nothing happens any more, each has
// been told of every revoke.
func TestEveryRevokeIsTold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld()
		group2 := convID("group:other")
		convs := []convID{group, group2, single}
		for _, id := range convs {
			if !id.Single() {
				w.join(id, "A", "B")
			}
			w.say(t, id, "B", 4)
		}
		s := newService(t, w, nil)
		d := newDevice("A")
		told := map[convID]map[int64]bool{group: {}, group2: {}, single: {}}
		act := func() {
			for _, id := range convs {
				for _, q := range d.told(id) {
					told[id][q] = true
				}
			}
			id := rapid.SampledFrom(convs).Draw(rt, "conversation")
			switch rapid.IntRange(0, 4).Draw(rt, "act") {
			case 3:
				if !id.Single() {
					w.order(watermark.Input{Conversation: id, Act: watermark.ActLeave, User: "A", Actor: "B"})
				}
			case 4:
				if !id.Single() {
					w.order(watermark.Input{Conversation: id, Act: watermark.ActJoin, User: "A", History: watermark.HistoryAll})
				}
			case 0:
				w.revoke(id, seq(rapid.Int64Range(1, 4).Draw(rt, "revoked")))
			case 1:
				w.say(t, id, "B", 1)
			}
		}
		for range rapid.IntRange(1, 6).Draw(rt, "syncs") {
			act()
			d.sync(rt, rapid.Int64Range(0, 2).Draw(rt, "size"), act, s)
			act()
		}
		for _, id := range convs[:2] {
			w.order(watermark.Input{Conversation: id, Act: watermark.ActJoin, User: "A", History: watermark.HistoryAll})
		}
		for range 2 {
			d.sync(rt, 0, nil, s)
			for _, id := range convs {
				for _, q := range d.told(id) {
					told[id][q] = true
				}
			}
		}
		for _, id := range convs {
			w.with(id, func(tk *talk) {
				for q, m := range tk.rows {
					if m.Revoked != nil && !told[id][int64(q)] {
						rt.Errorf("the revoke of %s/%d was not told", id, q)
					}
				}
			})
		}
	})
}

// Who left a single conversation does not learn from the peer's receipt that it
// went on.
func TestALeaverSeesNoLaterReceipt(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	w.say(t, single, "A", 3)
	w.order(watermark.Input{Conversation: single, Act: watermark.ActLeave, User: "A"})
	w.say(t, single, "B", 5)
	mustRead(t, s, "B", single, 8)
	for _, cold := range []bool{false, true} {
		if cold {
			w.flush()
		}
		res, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: []string{string(single)}})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Watermarks[0]; got.MaxSeq != 3 || got.PeerReceiptSeq != 3 {
			t.Errorf("cold %t: max %d, receipt %d, want 3 and 3", cold, got.MaxSeq, got.PeerReceiptSeq)
		}
	}
}
