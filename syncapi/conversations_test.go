package syncapi_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// tb is what testing.T and rapid.T share of what the helpers need.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// device keeps a user's list as a client does.
type device struct {
	user    userID
	version string
	entries map[string]*v1.ConversationEntry
	former  map[string]*v1.ConversationEntry
	last    *v1.SyncConversationsResponse // of the last page
	pages   int                           // of the last sync
	full    bool
}

func newDevice(user userID) *device {
	return &device{user: user, entries: make(map[string]*v1.ConversationEntry), former: make(map[string]*v1.ConversationEntry)}
}

// sync follows pages until there is none, asking services in turn, and calls
// between after each but the last.
func (d *device) sync(t tb, size int64, between func(), services ...*syncapi.Service) {
	t.Helper()
	req := &v1.SyncConversationsRequest{User: string(d.user), Version: d.version, PageSize: size}
	seen := make(map[string]bool)
	for d.pages = 0; ; {
		res, err := services[d.pages%len(services)].SyncConversations(bg, req)
		if err != nil {
			t.Fatalf("page %d: %v", d.pages, err)
		}
		d.pages++
		d.last, d.full = res, res.FullResync
		for _, e := range res.Changed {
			id := e.Watermarks.Conversation
			d.entries[id], seen[id] = e, true
			delete(d.former, id)
		}
		for _, e := range res.Removed {
			id := e.Watermarks.Conversation
			d.former[id], seen[id] = e, true
			delete(d.entries, id)
		}
		if (res.Version == "") != (res.NextPageToken != "") {
			t.Fatalf("page %d: version %q, token %q", d.pages, res.Version, res.NextPageToken)
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			break
		}
		if d.pages > 500 {
			t.Fatalf("no end")
		}
		if between != nil {
			between()
		}
	}
	d.version = d.last.Version
	if d.full {
		unseen := func(id string, _ *v1.ConversationEntry) bool { return !seen[id] }
		maps.DeleteFunc(d.entries, unseen)
		maps.DeleteFunc(d.former, unseen)
	}
}

// bg is for helpers that a rapid.T calls, which has no context.
var bg = context.Background()

// call sends a message that may mention users.
func (w *world) call(t tb, id convID, sender userID, users ...userID) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.talkLocked(id)
	m := watermark.Message{
		Sender: sender, ClientID: fmt.Sprintf("c%d", c.Max+1), Kind: "text", Mentions: users,
		BodyType: watermark.BodyText, Body: fmt.Appendf(nil, "message %d", c.Max+1),
	}
	m.Hash = m.SumHash()
	if out := w.sendLocked(c, m); out.Verdict != watermark.Accepted && out.Reason != watermark.ReasonNotMember {
		t.Fatalf("send: %+v", out)
	}
}

// order lets the owner decide a command.
func (w *world) order(in watermark.Input) watermark.Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys++
	in.OpID = fmt.Sprint("op", w.keys)
	return w.decideLocked(in)
}

func (w *world) join(id convID, users ...userID) {
	for _, u := range users {
		w.order(watermark.Input{Conversation: id, Act: watermark.ActJoin, User: u})
	}
}

func TestAVersionBringsWhatChanged(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	stop := runService(t, s)
	defer stop()
	d := newDevice("A")
	d.sync(t, 0, nil, s)
	if !d.full || len(d.entries) != 0 || d.version == "" {
		t.Fatalf("empty list: full %v, %v", d.full, d.entries)
	}
	group2 := watermark.GroupOf("g2")
	steps := []struct {
		name             string
		do               func()
		changed, removed []convID
		check            func(e *v1.ConversationEntry) bool
	}{
		{name: "nothing", do: func() {}},
		{name: "a message", do: func() { w.call(t, single, "B") }, changed: []convID{single}, check: func(e *v1.ConversationEntry) bool {
			return e.Watermarks.Unread == 1 && e.Last.GetText() == "message 1"
		}},
		{name: "joined", do: func() { w.join(group, "A", "B"); w.join(group2, "A") }, changed: []convID{group, group2}},
		{name: "what others do elsewhere", do: func() { w.call(t, "single:B:C", "B") }},
		{name: "what another reads", do: func() { mustRead(t, s, "B", group, 1) }},
		{name: "messages that mention", do: func() {
			w.call(t, group, "B", "A", "B")
			w.call(t, group, "B", "C")
			w.call(t, group, "B", "A")
		}, changed: []convID{group}, check: func(e *v1.ConversationEntry) bool {
			return e.Mentions == 2 && !e.MoreMentions && e.Watermarks.Unread == 3
		}},
		{name: "read on another device", do: func() { mustRead(t, s, "A", group, 1) }, changed: []convID{group}, check: func(e *v1.ConversationEntry) bool {
			return e.Watermarks.ReadSeq == 1 && e.Mentions == 1 && e.Watermarks.Unread == 2
		}},
		{name: "the peer read", do: func() { w.call(t, single, "A"); d.sync(t, 0, nil, s); mustRead(t, s, "B", single, 2) }, changed: []convID{single}, check: func(e *v1.ConversationEntry) bool {
			return e.Watermarks.PeerReceiptSeq == 2 && e.Last.IsRead
		}},
		{name: "the last message revoked", do: func() { w.order(watermark.Input{Conversation: group, Act: watermark.ActRevoke, Seq: 3}) }, changed: []convID{group}, check: func(e *v1.ConversationEntry) bool {
			return e.Last.Seq == 3 && e.Last.Revoked && e.Last.Body == nil && e.Mentions == 0 && e.Watermarks.Unread == 2
		}},
		{name: "muted", do: func() {
			_, err := s.SetConversationAttributes(t.Context(), &v1.SetConversationAttributesRequest{User: "A", Conversation: string(group), Attributes: map[string]string{"muted": "1"}})
			if err != nil {
				t.Fatal(err)
			}
		}, changed: []convID{group}, check: func(e *v1.ConversationEntry) bool {
			return e.Attributes["muted"] == "1" && d.last.TotalUnread == 2 && d.last.TotalUnreadUnmuted == 0 && d.last.TotalConversations == 3
		}},
		{name: "cleared", do: func() { w.order(watermark.Input{Conversation: group, Act: watermark.ActClear, User: "A"}) }, changed: []convID{group}, check: func(e *v1.ConversationEntry) bool {
			return e.Last == nil && e.Watermarks.Unread == 0 && len(e.Watermarks.Visible) == 0 && e.Watermarks.Member
		}},
		{name: "retention", do: func() {
			w.call(t, group, "B")
			d.sync(t, 0, nil, s)
			w.order(watermark.Input{Conversation: group, Act: watermark.ActRaiseMin, Seq: 5})
		}, changed: []convID{group}, check: func(e *v1.ConversationEntry) bool { return e.Last == nil && e.Watermarks.MinSeq == 5 }},
		{name: "kicked", do: func() {
			w.call(t, group, "B")
			w.order(watermark.Input{Conversation: group, Act: watermark.ActLeave, User: "A", Actor: "B"})
			w.call(t, group, "B")
		}, removed: []convID{group}, check: func(e *v1.ConversationEntry) bool {
			return e.Watermarks.MaxSeq == 5 && e.Watermarks.LastTimeMs == 0 && len(e.Watermarks.Visible) == 1 && e.Last.Seq == 5 && e.Mentions == 0
		}},
		{name: "what goes on behind the kick", do: func() { w.call(t, group, "B", "A") }},
		{name: "back", do: func() { w.join(group, "A"); w.call(t, group, "B") }, changed: []convID{group}, check: func(e *v1.ConversationEntry) bool {
			return e.Watermarks.MaxSeq == 8 && len(e.Watermarks.Visible) == 2 && e.Watermarks.Membership == 2 && e.Last.Seq == 8
		}},
		{name: "left and back", do: func() {
			w.order(watermark.Input{Conversation: group2, Act: watermark.ActLeave, User: "A"})
			w.join(group2, "A")
		}, changed: []convID{group2}},
		{name: "only sent", do: func() { w.call(t, watermark.GroupOf("open"), "A") }},
	}
	for _, st := range steps {
		for _, warm := range []bool{true, false} { // the second time nothing changed
			if warm {
				st.do()
			} else {
				w.flush()
			}
			d.sync(t, 0, nil, s)
			var want []convID
			if warm {
				want = slices.Concat(st.changed, st.removed)
			}
			if got := idsOf(d.last); !slices.Equal(got, sorted(want)) || d.full || d.pages != 1 {
				t.Fatalf("%s, warm %v: %v, want %v (full %v, %d pages)", st.name, warm, got, want, d.full, d.pages)
			}
			if !warm {
				continue
			}
			if len(d.last.Changed) != len(st.changed) {
				t.Fatalf("%s: changed %v, removed %v", st.name, d.last.Changed, d.last.Removed)
			}
			if st.check != nil && !st.check(append(d.last.Changed, d.last.Removed...)[0]) {
				t.Errorf("%s: %v", st.name, d.last)
			}
			whole := newDevice("A")
			whole.sync(t, 0, nil, s)
			sameList(t, st.name, whole, d)
		}
	}
}

func sorted(ids []convID) []convID {
	out := slices.Clone(ids)
	slices.Sort(out)
	return out
}

func idsOf(res *v1.SyncConversationsResponse) (ids []convID) {
	for _, e := range slices.Concat(res.Changed, res.Removed) {
		ids = append(ids, convID(e.Watermarks.Conversation))
	}
	return sorted(ids)
}

// sameList compares what two devices show.
func sameList(t tb, when string, want, got *device) {
	t.Helper()
	// What was revoked is told since the version.
	since := protocmp.IgnoreFields(&v1.ConversationEntry{}, "revoked", "more_revoked")
	if diff := cmp.Diff(want.entries, got.entries, protocmp.Transform(), since); diff != "" {
		t.Errorf("%s: a full read and a device that followed versions differ (-full +device):\n%s", when, diff)
	}
	for id := range want.former {
		if got.former[id] == nil {
			t.Errorf("%s: %s is not among what the user left", when, id)
		}
	}
	if want.last.TotalUnread != got.last.TotalUnread || want.last.TotalUnreadUnmuted != got.last.TotalUnreadUnmuted || want.last.TotalConversations != got.last.TotalConversations {
		t.Errorf("%s: totals %d %d %d, want %d %d %d", when, got.last.TotalUnread, got.last.TotalUnreadUnmuted, got.last.TotalConversations,
			want.last.TotalUnread, want.last.TotalUnreadUnmuted, want.last.TotalConversations)
	}
	var unread int64
	for _, e := range want.entries {
		unread += e.Watermarks.Unread
	}
	if unread != want.last.TotalUnread || int64(len(want.entries)) != want.last.TotalConversations {
		t.Errorf("%s: %d unread in %d conversations, said to be %d in %d", when, unread, len(want.entries), want.last.TotalUnread, want.last.TotalConversations)
	}
}

func mustRead(t testing.TB, s *syncapi.Service, u userID, id convID, seq int64) {
	t.Helper()
	if _, err := s.MarkConversationRead(t.Context(), &v1.MarkConversationReadRequest{User: string(u), Conversation: string(id), ReadSeq: seq}); err != nil {
		t.Fatal(err)
	}
}

// What is appended and not yet raised in Redis is in the list all the same: the
// version says that it is.
func TestTheListKnowsMarksBeforeRedisDoes(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	w.say(t, single, "B", 5)
	d := newDevice("A")
	d.sync(t, 0, nil, s)
	if err := (fakeLog{w}).AppendMarks(t.Context(), single, []watermark.ReadAdvanced{{User: "A", Read: 4}, {User: "B", Receipt: 3}}); err != nil {
		t.Fatal(err)
	}
	w.with(single, func(tk *talk) { tk.stale = map[userID]watermark.Member{"A": {User: "A"}, "B": {User: "B"}} })
	d.sync(t, 0, nil, s)
	if m := d.entries[string(single)].Watermarks; m.ReadSeq != 4 || m.PeerReceiptSeq != 3 || m.Unread != 1 {
		t.Errorf("%v", m)
	}
	// And it does not fall for whoever asks Redis alone now.
	if m := marks(t, s, "A", single); m.ReadSeq != 4 || m.PeerReceiptSeq != 3 {
		t.Errorf("%v", m)
	}
}

func TestVersionsOfAnotherLogBringTheWholeList(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	crowd(t, w, 20)
	d := newDevice("A")
	d.sync(t, 0, nil, s)
	good := d.version
	tests := map[string]func() (version string){
		"none":               func() string { return "" },
		"no version":         func() string { return "!" },
		"cut":                func() string { return good[:len(good)-1] },
		"longer":             func() string { return good + "AA" },
		"of another user":    func() string { o := newDevice("u00001"); o.sync(t, 0, nil, s); return o.version },
		"another topic":      func() string { w.set(func() { w.logName = "other" }); return good },
		"more partitions":    func() string { w.set(func() { w.logName, w.ends = "log", append(w.ends, 0) }); return good },
		"records were lost":  func() string { w.set(func() { w.ends = w.ends[:3]; w.ends[0]-- }); return good },
		"of a newer program": func() string { w.set(func() { w.ends[0]++ }); return "B" + good[1:] },
	}
	for _, name := range []string{"none", "no version", "cut", "longer", "of another user", "another topic", "more partitions", "records were lost", "of a newer program"} {
		version := tests[name]()
		got := newDevice("A")
		got.version = version
		got.entries["single:A:gone"] = &v1.ConversationEntry{}
		got.sync(t, 7, nil, s)
		if !got.full || len(got.entries) != 20 {
			t.Errorf("%s: full %v, %d conversations", name, got.full, len(got.entries))
		}
	}
	d.sync(t, 0, nil, s)
	if d.full || len(idsOf(d.last)) != 0 {
		t.Errorf("the good one: %v", d.last)
	}
	if _, err := s.SyncConversations(t.Context(), &v1.SyncConversationsRequest{User: "A", Version: strings.Repeat("A", 1<<20)}); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a version of 1 MiB: %v", err)
	}
}

// A walk goes on in another process, and its pages may be cut anywhere.
func TestWalksGoOnElsewhere(t *testing.T) {
	w := newWorld()
	crowd(t, w, 300)
	a, b := newService(t, w, nil), newService(t, w, func(c *syncapi.Config) { c.PageBytes = 2000 })
	d := newDevice("A")
	now := int64(2_000_000)
	d.sync(t, 40, func() {
		// Those at the end jump to the front.
		for i := range 5 {
			now++
			id := watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", 295+i)))
			w.call(t, id, "A")
			w.with(id, func(tk *talk) { tk.LastTime = now })
		}
	}, a, b, b)
	if len(d.entries) != 300 || !d.full {
		t.Errorf("%d of 300 conversations", len(d.entries))
	}
	d.sync(t, 0, nil, b)
	whole := newDevice("A")
	whole.sync(t, 0, nil, a)
	sameList(t, "after", whole, d)
}

func TestAWalkReadsTheListOnce(t *testing.T) {
	w := newWorld()
	crowd(t, w, 1000)
	w.flush()
	s := newService(t, w, nil)
	d := newDevice("A")
	d.sync(t, 100, nil, s)
	// One for the walk, one for the walk over what changed meanwhile.
	if n := w.count("List"); n != 2 || d.pages != 11 {
		t.Errorf("the list was read %d times for %d pages", n, d.pages)
	}
	if n := w.count("Load"); n != 10 {
		t.Errorf("%d loads", n)
	}
	if n := w.count("Peek"); n != 10 {
		t.Errorf("%d peeks", n)
	}
	var at int64
	for i, e := range d.order(t, s, 333) {
		if i > 0 && e.Watermarks.LastTimeMs > at {
			t.Fatalf("%s comes after one that is older", e.Watermarks.Conversation)
		}
		at = e.Watermarks.LastTimeMs
	}
}

// order reads the list anew and gives its entries as they came.
func (d *device) order(t tb, s *syncapi.Service, size int64) (out []*v1.ConversationEntry) {
	req := &v1.SyncConversationsRequest{User: string(d.user), PageSize: size}
	for {
		res, err := s.SyncConversations(bg, req)
		if err != nil {
			t.Fatalf("%v", err)
		}
		out = append(out, res.Changed...)
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			return out
		}
	}
}

func TestAWalkEndsWhateverHappensMeanwhile(t *testing.T) {
	w := newWorld()
	crowd(t, w, 9)
	s := newService(t, w, nil)
	d := newDevice("A")
	d.sync(t, 1, func() {
		for i := range 9 {
			w.call(t, watermark.SingleOf("A", userID(fmt.Sprintf("u%05d", i))), "A")
		}
	}, s)
	if d.pages > 8*9 {
		t.Errorf("%d pages", d.pages)
	}
	d.sync(t, 0, nil, s)
	whole := newDevice("A")
	whole.sync(t, 0, nil, s)
	sameList(t, "after", whole, d)
}

// A group that an early page has brought, and that the user leaves before the
// last one, is told to be gone, though nothing of it can be seen.
func TestAWalkTellsWhatWasLeftMeanwhile(t *testing.T) {
	w := newWorld()
	s := newService(t, w, nil)
	w.join(group, "A")
	w.say(t, single, "B", 1)
	w.with(group, func(tk *talk) { tk.LastTime = 9 }) // it comes first
	d := newDevice("A")
	d.sync(t, 1, func() {
		if len(d.entries) == 1 {
			w.order(watermark.Input{Conversation: group, Act: watermark.ActLeave, User: "A"})
		}
	}, s)
	if _, ok := d.entries[string(group)]; ok || !d.full || len(d.entries) != 1 {
		t.Errorf("full %v, %v", d.full, d.entries)
	}
}

// What goes on in a group that the user has left does not move it out of the way
// of a walk that goes on in another process.
func TestAWalkMeetsWhatWasLeft(t *testing.T) {
	w := newWorld()
	services := []*syncapi.Service{newService(t, w, nil), newService(t, w, nil)}
	w.join(group, "A", "B")
	w.say(t, single, "B", 1)
	d := newDevice("A")
	d.sync(t, 0, nil, services...)
	w.say(t, single, "B", 3)
	w.order(watermark.Input{Conversation: group, Act: watermark.ActLeave, User: "A"})
	d.sync(t, 1, func() { w.say(t, group, "B", 9) }, services...)
	if _, ok := d.entries[string(group)]; ok || d.former[string(group)] == nil || d.pages < 2 {
		t.Errorf("%d pages: in the list %v, left %v", d.pages, d.entries, d.former)
	}
}

func TestAWalkThatMovedToAnotherLogStartsAgain(t *testing.T) {
	w := newWorld()
	crowd(t, w, 9)
	first, err := newService(t, w, nil).SyncConversations(t.Context(), &v1.SyncConversationsRequest{User: "A", PageSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	w.set(func() { w.logName = "other" })
	_, err = newService(t, w, nil).SyncConversations(t.Context(), &v1.SyncConversationsRequest{User: "A", PageToken: first.NextPageToken})
	if connect.CodeOf(err) != connect.CodeAborted {
		t.Errorf("%v", err)
	}
}

// A device that follows versions ends with what a full read gives, whatever
// happens between and during its syncs, wherever its pages are served, and
// whatever Redis forgets.
func TestFollowingVersionsIsAFullRead(t *testing.T) {
	users := []userID{"A", "B", "C"}
	convs := []convID{single, "single:A:C", group, watermark.GroupOf("g2"), watermark.GroupOf("g3"), "single:B:C"}
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld()
		w.policy = watermark.UnreadPolicy(rapid.IntRange(0, 1).Draw(rt, "policy"))
		closed := rapid.Bool().Draw(rt, "closed groups")
		var services []*syncapi.Service
		for range rapid.IntRange(1, 2).Draw(rt, "processes") {
			services = append(services, newService(t, w, func(c *syncapi.Config) {
				c.ClosedGroups, c.PageBytes = closed, rapid.SampledFrom([]int{0, 300}).Draw(rt, "page bytes")
			}))
		}
		act := func() {
			id := rapid.SampledFrom(convs).Draw(rt, "conversation")
			u := rapid.SampledFrom(users).Draw(rt, "user")
			if a, b, ok := id.Users(); ok {
				u = rapid.SampledFrom([]userID{a, b}).Draw(rt, "participant")
			}
			in := watermark.Input{Conversation: id, User: u}
			var top seq
			w.with(id, func(tk *talk) { top = tk.Max })
			some := func(what string) seq { return seq(rapid.Int64Range(1, int64(max(top, 1))).Draw(rt, what)) }
			switch rapid.IntRange(0, 10).Draw(rt, "act") {
			case 0, 1, 2:
				w.call(rt, id, u, rapid.SampledFrom(users).Draw(rt, "mentioned"))
			case 3:
				in.Act, in.History = watermark.ActJoin, watermark.History(rapid.IntRange(0, 1).Draw(rt, "history"))
				w.order(in)
			case 4:
				in.Act = watermark.ActLeave
				w.order(in)
			case 5:
				in.Act = watermark.ActClear
				w.order(in)
			case 6:
				if top > 0 {
					w.order(watermark.Input{Conversation: id, Act: watermark.ActRevoke, Seq: some("revoked")})
				}
			case 7:
				if top > 0 {
					w.order(watermark.Input{Conversation: id, Act: watermark.ActRaiseMin, Seq: some("min")})
				}
			case 8:
				in.Act, in.Attributes = watermark.ActSetAttributes, map[string]string{"muted": rapid.SampledFrom([]string{"", "1"}).Draw(rt, "muted")}
				w.order(in)
			case 9:
				w.flush()
			case 10:
				mark := watermark.ReadAdvanced{User: u}
				w.with(id, func(tk *talk) {
					m := tk.memberLocked(u)
					mark.Read = watermark.ClampRead(m.Visible(tk.Min, tk.Max), some("read"))
				})
				if mark.Read > 0 {
					if id.Single() && rapid.Bool().Draw(rt, "receipt") {
						mark.Receipt = mark.Read
					}
					if err := (fakeLog{w}).AppendMarks(bg, id, []watermark.ReadAdvanced{mark}); err != nil {
						rt.Fatal(err)
					}
				}
			}
		}
		d := newDevice("A")
		for range rapid.IntRange(1, 6).Draw(rt, "syncs") {
			for range rapid.IntRange(0, 8).Draw(rt, "acts") {
				act()
			}
			d.sync(rt, rapid.Int64Range(0, 3).Draw(rt, "size"), act, services...)
		}
		d.sync(rt, rapid.Int64Range(0, 3).Draw(rt, "size"), nil, services...)
		whole := newDevice("A")
		whole.sync(rt, 0, nil, services[0])
		sameList(rt, "in the end", whole, d)
		d.sync(rt, 0, nil, services...)
		if n := len(idsOf(d.last)); n != 0 || d.pages != 1 {
			rt.Errorf("%d conversations on %d pages although nothing changed", n, d.pages)
		}
	})
}

func TestSnapshotsAreLetGo(t *testing.T) {
	w := newWorld()
	crowd(t, w, 50)
	now := time.Unix(1_000_000, 0)
	s := newService(t, w, func(c *syncapi.Config) { c.Now = func() time.Time { return now } })
	d := newDevice("A")
	d.sync(t, 10, func() { now = now.Add(11 * time.Minute) }, s)
	if len(d.entries) != 50 || w.count("List") != d.pages {
		t.Errorf("%d conversations, the list was read %d times for %d pages", len(d.entries), w.count("List"), d.pages)
	}
}

// runService lets calls that wait for an owner be answered until stop.
func runService(t testing.TB, s *syncapi.Service) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	return func() { cancel(); wg.Wait() }
}
