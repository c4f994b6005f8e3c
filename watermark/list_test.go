package watermark_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	wm "github.com/tidemark-im/tidemark/watermark"
)

// What changes the list of whom: by the offsets that conversation and members
// carry after each record.
func TestChangedAt(t *testing.T) {
	type at struct{ conv, a, b int64 }
	tests := []struct {
		name  string
		event wm.Event
		want  at
	}{
		{"a message", wm.MessagesSequenced{Messages: []wm.Message{text(1, "A", "x")}}, at{conv: 8}},
		{"a window, within which lies what is read", wm.WindowChanged{Member: wm.Member{User: "A", Version: 1}}, at{a: 8, b: 8}},
		{"a mark", wm.ReadAdvanced{User: "A", Read: 1}, at{a: 8}},
		{"a receipt, which the peer sees", wm.ReadAdvanced{User: "A", Read: 1, Receipt: 1}, at{a: 8, b: 8}},
		{"a revoke", wm.Revoked{Seq: 1}, at{conv: 8}},
		{"a raised minimum", wm.MinSeqRaised{Min: 1}, at{conv: 8}},
		{"a repair", wm.Repaired{Number: 1, From: 1}, at{conv: 8}},
		{"a policy", wm.PolicyChanged{Version: 1, Choice: wm.ChooseKeep}, at{conv: 8}},
	}
	for _, tt := range tests {
		s := wm.NewState("single:A:B")
		s.Apply(wm.Record{Conversation: s.ID, Events: []wm.Event{tt.event}, Offset: 7})
		got := at{s.ChangedAt, s.Members["A"].ChangedAt, s.Members["B"].ChangedAt}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestListedConversationsThatChanged(t *testing.T) {
	open := wm.Member{User: "A", Version: 1, LastMembership: 1, Memberships: []wm.Membership{{Number: 1}}, ChangedAt: 5}
	left := open
	left.Memberships = []wm.Membership{{Number: 1, Upper: 3}}
	for name, tt := range map[string]struct {
		conv    wm.ConversationID
		member  wm.Member
		in      bool
		changed int64 // the highest offset from which on it changed
	}{
		"a member":                         {"group:g", open, true, 8},
		"a former member":                  {"group:g", left, false, 4},
		"who only sent":                    {"group:g", wm.Member{User: "A"}, false, -1},
		"one of two":                       {"single:A:B", wm.Member{User: "A"}, true, 8},
		"one of two who left":              {"single:A:B", left, false, 4},
		"one of two, a mark after it left": {"single:A:B", wm.Member{User: "A", Version: 1, LastMembership: 1, ChangedAt: 10}, false, 9},
	} {
		l := wm.Listed{Conversation: wm.Conversation{ID: tt.conv, ChangedAt: 9}, Member: tt.member}
		if l.InList() != tt.in {
			t.Errorf("%s: in the list %v", name, l.InList())
		}
		for off := range int64(12) {
			if l.Changed(off) != (off <= tt.changed) {
				t.Errorf("%s: changed since %d: %v", name, off, l.Changed(off))
			}
		}
	}
}

func TestSetAttributes(t *testing.T) {
	m := wm.Member{User: "A"}
	full := map[string]string{}
	for i := range wm.MaxAttributes {
		full[fmt.Sprint("a", i)] = "v"
	}
	steps := []struct {
		name          string
		set           map[string]string
		changed, over bool
		want          map[string]string
	}{
		{"one", map[string]string{"muted": "1"}, true, false, map[string]string{"muted": "1"}},
		{"the same", map[string]string{"muted": "1", "x": ""}, false, false, map[string]string{"muted": "1"}},
		{"another", map[string]string{"pinned": "2"}, true, false, map[string]string{"muted": "1", "pinned": "2"}},
		{"too many", full, false, true, map[string]string{"muted": "1", "pinned": "2"}},
		{"removed", map[string]string{"muted": "", "pinned": ""}, true, false, nil},
		{"as many as fit", full, true, false, full},
		{"one for another", map[string]string{"a0": "", "b": "v"}, true, false, nil},
	}
	for i, st := range steps {
		was := m
		got, changed, over := m.SetAttributes(fmt.Sprint("op", i), 5, st.set)
		if changed != st.changed || over != st.over {
			t.Errorf("%s: changed %v, full %v", st.name, changed, over)
		}
		if over {
			if got.Version != was.Version {
				t.Errorf("%s: it was recorded", st.name)
			}
			continue
		}
		if _, ok := got.HasOp(fmt.Sprint("op", i)); !ok || got.Version != was.Version+1 || !got.Open() {
			t.Errorf("%s: %+v", st.name, got)
		}
		if st.want != nil || len(st.set) == 2 && st.name == "removed" {
			if d := cmp.Diff(st.want, got.Attributes, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s: %s", st.name, d)
			}
		}
		m = got
	}
	// The state before is not written to.
	a, _, _ := m.SetAttributes("x", 5, map[string]string{"b": "other"})
	if m.Attributes["b"] != "v" || a.Attributes["b"] != "other" {
		t.Errorf("shared: %v", m.Attributes)
	}
}

func TestPolicyOfAConversation(t *testing.T) {
	var p wm.PolicyChanged
	if p.Policy(wm.KeepOnSend) != wm.KeepOnSend || p.Policy(wm.AdvanceOnSend) != wm.AdvanceOnSend {
		t.Error("nothing said: the default does not hold")
	}
	for v := range int64(5) {
		for choice, want := range map[wm.PolicyChoice]wm.UnreadPolicy{wm.ChooseKeep: wm.KeepOnSend, wm.ChooseAdvance: wm.AdvanceOnSend, wm.ChooseDefault: wm.KeepOnSend} {
			q := wm.PolicyChanged{Version: v, Choice: choice}
			if q.Policy(wm.KeepOnSend) != want || wm.PolicyFromCode(q.Code()) != q {
				t.Errorf("%+v", q)
			}
			if next := (wm.PolicyChanged{Version: v + 1}); next.Code() <= q.Code() {
				t.Errorf("%+v does not go before %+v", next, q)
			}
			old := q
			if old.Merge(wm.PolicyChanged{Version: v, Choice: (choice + 1) % 3}); old != q {
				t.Errorf("the same version took the place of %+v", q)
			}
		}
	}
}
