package watermark_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	wm "github.com/tidemark-im/tidemark/watermark"
)

func TestWindowOfARejoiner(t *testing.T) {
	a := wm.Member{User: "A"}
	a, _ = a.Leave("op1", 399, 0)
	if d := cmp.Diff(wm.Intervals{{First: 1, Last: 399}}, a.Window()); d != "" {
		t.Fatalf("after leaving (-want +got):\n%s", d)
	}
	if a.Open() {
		t.Error("still open after leaving")
	}
	a, changed, _ := a.Join("op2", 560, wm.HistoryNone, 0)
	if !changed || !a.Open() || a.LastMembership != 2 {
		t.Fatalf("rejoin: changed %v, open %v, membership %d", changed, a.Open(), a.LastMembership)
	}
	a.RaiseRead(561)
	visible := a.Visible(1, 561)
	if d := cmp.Diff(wm.Intervals{{First: 1, Last: 399}, {First: 561, Last: 561}}, visible); d != "" {
		t.Errorf("visible (-want +got):\n%s", d)
	}
	if n := wm.Unread(visible, a.Read, nil); n != 0 {
		t.Errorf("unread = %d, want 0", n)
	}
	late, changed := a.Leave("op3", 561, 1)
	if changed || !late.Open() {
		t.Error("a kick that names the first membership changed the second")
	}
	if d := cmp.Diff(a.Window(), late.Window()); d != "" {
		t.Errorf("window after the late kick (-want +got):\n%s", d)
	}
	if _, ok := late.HasOp("op3"); !ok {
		t.Error("an op that changed nothing is not recorded: repeated later, it might")
	}
}

func TestJoin(t *testing.T) {
	left := wm.Member{User: "A", Version: 2, LastMembership: 1, Memberships: []wm.Membership{{Number: 1, Lower: 10, Upper: 50}}}
	tests := []struct {
		name    string
		member  wm.Member
		history wm.History
		from    wm.Seq
		want    wm.Intervals
		changed bool
	}{
		{"first, none", wm.Member{User: "A"}, wm.HistoryNone, 0, wm.Intervals{{First: 101, Last: wm.MaxSeq}}, true},
		{"first, all", wm.Member{User: "A"}, wm.HistoryAll, 0, wm.Intervals{{First: 1, Last: wm.MaxSeq}}, true},
		{"first, from", wm.Member{User: "A"}, wm.HistoryFrom, 60, wm.Intervals{{First: 60, Last: wm.MaxSeq}}, true},
		{"from beyond the edge is the edge", wm.Member{User: "A"}, wm.HistoryFrom, 1 << 50, wm.Intervals{{First: 101, Last: wm.MaxSeq}}, true},
		{"from below one", wm.Member{User: "A"}, wm.HistoryFrom, -7, wm.Intervals{{First: 1, Last: wm.MaxSeq}}, true},
		{"again, none", left, wm.HistoryNone, 0, wm.Intervals{{First: 10, Last: 50}, {First: 101, Last: wm.MaxSeq}}, true},
		{"again, all swallows the first", left, wm.HistoryAll, 0, wm.Intervals{{First: 1, Last: wm.MaxSeq}}, true},
		{"again, from inside the first", left, wm.HistoryFrom, 30, wm.Intervals{{First: 10, Last: 29}, {First: 30, Last: wm.MaxSeq}}, true},
		{"already in", wm.Member{User: "A", Version: 1, LastMembership: 1, Memberships: []wm.Membership{{Number: 1, Lower: 5}}}, wm.HistoryAll, 0, wm.Intervals{{First: 5, Last: wm.MaxSeq}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, changed, full := tt.member.Join("op", 100, tt.history, tt.from)
			if changed != tt.changed || full {
				t.Errorf("changed = %v, full = %v, want %v, false", changed, full, tt.changed)
			}
			if d := cmp.Diff(tt.want, got.Window()); d != "" {
				t.Errorf("window (-want +got):\n%s", d)
			}
			if got.Version != tt.member.Version+1 {
				t.Errorf("version = %d, want %d", got.Version, tt.member.Version+1)
			}
		})
	}
}

func TestJoinIsRefusedWhenTheWindowIsFull(t *testing.T) {
	m := wm.Member{User: "A"}
	edge := wm.Seq(0)
	for i := range wm.MaxMemberships {
		edge += 10
		m, _, _ = m.Join(fmt.Sprint("j", i), edge, wm.HistoryNone, 0)
		edge += 10
		m, _ = m.Leave(fmt.Sprint("l", i), edge, 0)
	}
	if _, changed, full := m.Join("last", edge+10, wm.HistoryNone, 0); changed || !full {
		t.Errorf("changed = %v, full = %v, want false, true", changed, full)
	}
	m, changed, full := m.Join("all", edge+10, wm.HistoryAll, 0)
	if !changed || full || len(m.Memberships) != 1 {
		t.Errorf("a join with all of the history: changed %v, full %v, %d memberships", changed, full, len(m.Memberships))
	}
}

func TestClear(t *testing.T) {
	m := wm.Member{User: "A", Own: []wm.Seq{15, 20}}
	m, changed := m.Clear("c1", 20)
	if !changed || m.Read != 20 || len(m.Own) != 0 {
		t.Fatalf("changed %v, read %d, own %v", changed, m.Read, m.Own)
	}
	if v := m.Visible(1, 20); len(v) != 0 {
		t.Errorf("visible after clearing: %v", v)
	}
	if d := cmp.Diff(wm.Intervals{{First: 21, Last: 61}}, m.Visible(1, 61)); d != "" {
		t.Errorf("visible later (-want +got):\n%s", d)
	}
	if n := wm.Unread(m.Visible(1, 61), m.Read, nil); n != 41 {
		t.Errorf("unread = %d, want 41", n)
	}
	if _, changed := m.Clear("c2", 20); changed {
		t.Error("clearing again at the same edge changed something")
	}
	left := wm.Member{User: "A", Version: 1, LastMembership: 1, Memberships: []wm.Membership{{Number: 1, Upper: 10}}}
	left, _ = left.Clear("c", 12)
	if left.Open() || len(left.Window()) != 0 {
		t.Errorf("a cleared leaver sees %v, open %v", left.Window(), left.Open())
	}
}

func TestLeaveOfNothingSeen(t *testing.T) {
	m, _, _ := wm.Member{User: "A"}.Join("j", 5, wm.HistoryNone, 0)
	m, changed := m.Leave("l", 5, 0)
	if !changed || m.Open() || len(m.Window()) != 0 {
		t.Errorf("changed %v, open %v, window %v", changed, m.Open(), m.Window())
	}
	empty, _ := wm.Member{User: "A"}.Leave("l", 0, 0)
	if empty.Open() || len(empty.Window()) != 0 {
		t.Errorf("left an empty conversation: open %v, window %v", empty.Open(), empty.Window())
	}
}

func TestUnreadAndClamp(t *testing.T) {
	capped := wm.Intervals{{First: 1, Last: 399}}
	two := wm.Intervals{{First: 1, Last: 10}, {First: 21, Last: 30}}
	tests := []struct {
		name          string
		visible       wm.Intervals
		mark, clamped wm.Seq
		read          wm.Seq
		own           []wm.Seq
		unread        int64
	}{
		{"R4 mark above the maximum", wm.Intervals{{First: 1, Last: 10}}, 15, 10, 10, nil, 0},
		{"R4 capped below the read mark", capped, 561, 399, 561, nil, 0},
		{"R5 huge", wm.Intervals{{First: 1, Last: 10}}, math.MaxInt64, 10, 0, nil, 10},
		{"negative mark", capped, -1, 0, 0, nil, 399},
		{"mark in the gap", two, 15, 10, 10, nil, 10},
		{"own do not count", two, 5, 5, 5, []wm.Seq{3, 7, 15, 22, 40}, 13},
		{"nothing visible", nil, 7, 0, 3, []wm.Seq{5}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := wm.ClampRead(tt.visible, tt.mark); got != tt.clamped {
				t.Errorf("clamped = %d, want %d", got, tt.clamped)
			}
			if got := wm.Unread(tt.visible, tt.read, tt.own); got != tt.unread {
				t.Errorf("unread = %d, want %d", got, tt.unread)
			}
		})
	}
}

// Windows after any sequence of ops agree with a list that keeps, for each seq,
// whether the member may see it.
func TestWindowsAgreeWithListingEverySeq(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := wm.Member{User: "A"}
		const top = 120
		can := make([]bool, top+1)
		in := true // never joined: sees what is and what comes
		edge := wm.Seq(0)
		for i := range rapid.IntRange(1, 12).Draw(t, "ops") {
			grow := wm.Seq(rapid.IntRange(0, 8).Draw(t, "grow"))
			for s := edge + 1; s <= edge+grow; s++ {
				can[s] = in
			}
			edge += grow
			op := fmt.Sprint(i)
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				h := wm.History(rapid.IntRange(0, 2).Draw(t, "history"))
				from := wm.Seq(rapid.IntRange(-1, 100).Draw(t, "from"))
				known := m.Known()
				m, _, _ = m.Join(op, edge, h, from)
				if known && in {
					break
				}
				if !known {
					clear(can)
				}
				for s := wm.Seq(1); s <= edge; s++ {
					if h == wm.HistoryAll || (h == wm.HistoryFrom && s >= from) {
						can[s] = true
					}
				}
				in = true
			case 1:
				m, _ = m.Leave(op, edge, 0)
				in = false
			case 2:
				m, _ = m.Clear(op, edge)
				clear(can)
			}
			if m.Version != int64(i+1) {
				t.Fatalf("version = %d after %d ops", m.Version, i+1)
			}
			if m.Open() != in {
				t.Fatalf("open = %v, want %v", m.Open(), in)
			}
			w := m.Window()
			for s := wm.Seq(1); s <= edge; s++ {
				if w.Contains(s) != can[s] {
					t.Fatalf("after op %d seq %d: visible %v, want %v (%v)", i, s, w.Contains(s), can[s], m.Memberships)
				}
			}
			if w.Contains(edge+1) != in {
				t.Fatalf("what comes: visible %v, want %v", w.Contains(edge+1), in)
			}
			for j := 1; j < len(w); j++ {
				if w[j].First <= w[j-1].Last {
					t.Fatalf("intervals overlap: %v", w)
				}
			}
			if len(m.Ops) > wm.KeptOps {
				t.Fatalf("%d ops kept", len(m.Ops))
			}
		}
	})
}

func member(t *rapid.T, label string) wm.Member {
	m := wm.Member{User: "A"}
	// States of one version are equal, as one owner makes them: derive the
	// windows from the version.
	m.Version = rapid.Int64Range(0, 4).Draw(t, label+" version")
	for i := range m.Version {
		m.Memberships = append(m.Memberships, wm.Membership{Number: int32(i + 1), Lower: wm.Seq(i*10 + 1), Upper: wm.Seq(i*10 + 5)})
		m.Ops = append(m.Ops, wm.AppliedOp{ID: fmt.Sprint(i)})
		m.Attributes = map[string]string{"pinned": fmt.Sprint(i)}
		m.LastMembership = int32(i + 1)
	}
	m.Read = wm.Seq(rapid.IntRange(0, 30).Draw(t, label+" read"))
	m.Receipt = wm.Seq(rapid.IntRange(0, 30).Draw(t, label+" receipt"))
	m.ChangedAt = rapid.Int64Range(0, 9).Draw(t, label+" changed")
	for s := m.Read + 1; s < 35; s++ {
		if rapid.IntRange(0, 4).Draw(t, label+" own") == 0 {
			m.Own = append(m.Own, s)
		}
	}
	return m
}

func TestMemberMergeIsASemilattice(t *testing.T) {
	merge := func(a, b wm.Member) wm.Member { a.Own = slices.Clone(a.Own); a.Merge(b); return a }
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := member(t, "a"), member(t, "b"), member(t, "c")
		equal := cmpopts.EquateEmpty()
		for _, pair := range []struct {
			law  string
			x, y wm.Member
		}{
			{"idempotent", merge(a, a), a},
			{"commutative", merge(a, b), merge(b, a)},
			{"associative", merge(merge(a, b), c), merge(a, merge(b, c))},
			{"absorbs", merge(merge(a, b), a), merge(a, b)},
		} {
			if d := cmp.Diff(pair.x, pair.y, equal); d != "" {
				t.Fatalf("not %s:\n%s", pair.law, d)
			}
		}
	})
}
