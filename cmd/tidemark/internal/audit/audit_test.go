package audit_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	wm "github.com/tidemark-im/tidemark/watermark"
)

const conv = wm.ConversationID("group:g")

// run audits w and gives what was found.
func run(t testing.TB, cfg audit.Config, scope audit.Scope) (*audit.Report, []audit.Finding) {
	t.Helper()
	var found []audit.Finding
	cfg.Found = func(f audit.Finding) { found = append(found, f) }
	a, err := audit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := a.Run(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	return rep, found
}

// wantKinds checks the kinds of findings.
func wantKinds(t testing.TB, rep *audit.Report, want map[audit.Kind]int) {
	t.Helper()
	if d := cmp.Diff(want, rep.Findings); d != "" {
		t.Errorf("findings (-want +got)\n%s", d)
	}
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	_, err := audit.New(audit.Config{Rate: -1, Mender: &audit.Mender{}})
	for _, want := range []string{"no history", "no fence", "the mender lacks something", "rate -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// What the workers do not pass in time is undecided: neither clean nor found.
func TestWhatIsNotPassedIsUndecided(t *testing.T) {
	w := newWorld()
	w.fill(t, "group:0", 3)
	w.fill(t, "group:1", 3)
	w.conversation = func(c wm.Conversation) wm.Conversation { c.Max++; return c } // a row is under way
	w.pass = func([]int32) map[int32]error { return map[int32]error{1: errors.New("toMongo stands still")} }
	rep, _ := run(t, w.config(), audit.Scope{})
	wantKinds(t, rep, map[audit.Kind]int{audit.MaxAboveRows: 1})
	if rep.Undecided != 1 || rep.Behind[1] != "toMongo stands still" || rep.Clean() {
		t.Errorf("%+v", rep)
	}
}

// A row that rots will not get well by waiting, so nobody is waited for.
func TestSomeFaultsNeedNoWaiting(t *testing.T) {
	w := newWorld()
	rotten := msg(2, "b")
	rotten.Body = []byte("x")
	c := wm.Change{Conversations: []wm.Conversation{{ID: conv, Max: 3}}}
	for _, m := range []wm.Message{msg(1, "a"), rotten, msg(3, "a")} {
		c.Rows = append(c.Rows, wm.Row{Conversation: conv, Message: m})
	}
	if _, err := w.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.pass = func([]int32) map[int32]error {
		return map[int32]error{0: errors.New("behind"), 1: errors.New("behind")}
	}
	rep, _ := run(t, w.config(), audit.Scope{})
	wantKinds(t, rep, map[audit.Kind]int{audit.DamagedRow: 1, audit.TwoSeqs: 1})
	if w.passed > 0 || rep.Undecided > 0 {
		t.Errorf("waited %d times, %+v", w.passed, rep)
	}
}

// What is under way at the first look and there at the second is nothing.
func TestWhatArrivesIsNoFinding(t *testing.T) {
	w := newWorld()
	w.fill(t, conv, 3, "ann")
	arrived := false
	w.conversation = func(c wm.Conversation) wm.Conversation {
		if !arrived {
			c.Max = 2 // the row is there, its maximum is not yet
		}
		return c
	}
	w.heads = func(wm.ConversationID) audit.Head { return audit.Head{Warm: true, Max: 5} }
	w.known = func(_ wm.ConversationID, u wm.UserID) audit.Known {
		return audit.Known{Known: true, Max: 5, Member: wm.Member{User: u, Read: 5, Version: 2}}
	}
	w.pass = func([]int32) map[int32]error {
		arrived = true
		c := wm.Change{Conversations: []wm.Conversation{{ID: conv, Max: 5}}}
		for _, m := range []wm.Message{msg(4, "x"), msg(5, "y")} {
			c.Rows = append(c.Rows, wm.Row{Conversation: conv, Message: m})
		}
		c.Members = []wm.MemberRow{{Conversation: conv, Member: wm.Member{User: "ann", Read: 5, Version: 2}}}
		if _, err := w.Write(t.Context(), c); err != nil {
			t.Error(err)
		}
		return nil
	}
	rep, found := run(t, w.config(), audit.Scope{})
	if !rep.Clean() || rep.Suspicions < 3 {
		t.Errorf("%+v %v", rep, found)
	}
}

// A mark that is lower at the second look fell, in either store.
func TestAMarkThatFallsIsFound(t *testing.T) {
	t.Run("history", func(t *testing.T) {
		w := newWorld()
		w.fill(t, conv, 3, "ann", "bob")
		w.members = func(ms []wm.Member) []wm.Member {
			for i := range ms {
				if ms[i].User == "bob" {
					ms[i].Read = 0
				}
			}
			return ms
		}
		rep, found := run(t, w.config(), audit.Scope{})
		wantKinds(t, rep, map[audit.Kind]int{audit.MarkFell: 1})
		if len(found) != 1 || found[0].User != "bob" {
			t.Errorf("%v", found)
		}
	})
	t.Run("redis", func(t *testing.T) {
		w := newWorld()
		w.fill(t, conv, 3, "ann")
		w.heads = func(wm.ConversationID) audit.Head { return audit.Head{Warm: true, Max: 3} }
		read := wm.Seq(3)
		w.known = func(_ wm.ConversationID, u wm.UserID) audit.Known {
			k := audit.Known{Known: true, Max: 3, Member: wm.Member{User: u, Read: read}}
			read = 2
			return k
		}
		w.pass = func([]int32) map[int32]error {
			_, err := w.Write(t.Context(), wm.Change{Members: []wm.MemberRow{{Conversation: conv, Member: wm.Member{User: "ann", Read: 3}}}})
			if err != nil {
				t.Error(err)
			}
			return nil
		}
		rep, _ := run(t, w.config(), audit.Scope{})
		wantKinds(t, rep, map[audit.Kind]int{audit.MarkFell: 1})
	})
	t.Run("with redis", func(t *testing.T) {
		w := newWorld()
		w.fill(t, conv, 3, "ann")
		w.heads = func(wm.ConversationID) audit.Head { return audit.Head{Warm: w.passed == 0, Max: 3} }
		w.known = func(_ wm.ConversationID, u wm.UserID) audit.Known {
			return audit.Known{Known: true, Max: 3, Member: wm.Member{User: u, Read: 3}}
		}
		rep, _ := run(t, w.config(), audit.Scope{})
		wantKinds(t, rep, map[audit.Kind]int{audit.MarkFell: 1})
	})
}

// A client message id beyond the horizon is another message.
func TestTheHorizonOfIDs(t *testing.T) {
	for apart, want := range map[int]int{1: 1, wm.DedupeHorizon: 1, wm.DedupeHorizon + 1: 0} {
		w := newWorld()
		w.fill(t, conv, apart+1)
		a, err := audit.New(w.config())
		if err != nil {
			t.Fatal(err)
		}
		most, twice, err := a.Remembered(t.Context(), func(yield func(*wm.Message) bool) {
			for s := 1; s <= 5000; s++ {
				id := fmt.Sprint("m", s)
				if s == 2000+apart {
					id = "m2000"
				}
				if m := msg(wm.Seq(s), id); !yield(&m) {
					return
				}
			}
		})
		if err != nil || twice != want || most > wm.DedupeHorizon+1 {
			t.Errorf("%d apart: %d twice, %d remembered, %v", apart, twice, most, err)
		}
	}
}

func TestScopes(t *testing.T) {
	w := newWorld()
	for i := range 250 {
		w.fill(t, wm.GroupOf(fmt.Sprint(i)), 2)
	}
	rep, _ := run(t, w.config(), audit.Scope{})
	if rep.Conversations != 250 || rep.Messages != 500 || !rep.Clean() {
		t.Errorf("all: %+v", rep)
	}
	if rep, _ = run(t, w.config(), audit.Scope{Sample: 30}); rep.Conversations != 30 {
		t.Errorf("sample: %+v", rep)
	}
	if rep, _ = run(t, w.config(), audit.Scope{Sample: 1000}); rep.Conversations != 250 {
		t.Errorf("a sample of more than there are: %+v", rep)
	}
	if rep, _ = run(t, w.config(), audit.Scope{Conversations: []wm.ConversationID{"group:7", "group:7", "group:8"}}); rep.Conversations != 2 {
		t.Errorf("named: %+v", rep)
	}
	a, err := audit.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Run(t.Context(), audit.Scope{Conversations: []wm.ConversationID{"group:nobody"}}); !errors.Is(err, audit.ErrUnknown) {
		t.Errorf("a mistyped conversation: %v", err)
	}
	if _, err := a.Run(t.Context(), audit.Scope{Sample: audit.MaxSample + 1}); err == nil {
		t.Error("a sample above the bound was taken")
	}
}

// Each conversation must have the same chance to be in a sample.
func TestASampleIsByChance(t *testing.T) {
	w := newWorld()
	for i := range 10 {
		w.fill(t, wm.GroupOf(fmt.Sprint(i)), 1)
	}
	seen := map[wm.ConversationID]bool{}
	for deadline := time.Now().Add(30 * time.Second); len(seen) < 10; {
		w.conversation = func(c wm.Conversation) wm.Conversation { seen[c.ID] = true; return c }
		run(t, w.config(), audit.Scope{Sample: 1})
		if time.Now().After(deadline) {
			t.Fatalf("only %v came", seen)
		}
	}
}

// Memory does not grow with what there is, nor with what is wrong with it.
func TestBuffersAreBounded(t *testing.T) {
	w := newWorld()
	var users []wm.UserID
	for i := range 3000 {
		users = append(users, wm.UserID(fmt.Sprintf("u%04d", i)))
	}
	w.fill(t, "group:large", 4000, users...)
	for i := range 2500 {
		id := wm.GroupOf(fmt.Sprint("small-", i))
		w.fill(t, id, 1)
		w.log = append(w.log, wm.Record{Conversation: id, Events: []wm.Event{wm.MessagesSequenced{Messages: []wm.Message{msg(1, "m1"), msg(2, "lost")}}}})
	}
	// Everything is suspect: counters are behind, marks are only in Redis.
	w.heads = func(wm.ConversationID) audit.Head { return audit.Head{Warm: true, Complete: true, Max: 0} }
	w.known = func(_ wm.ConversationID, u wm.UserID) audit.Known {
		return audit.Known{Known: true, Max: 4000, Member: wm.Member{User: u, Read: 5}}
	}
	cfg := w.config()
	listed := map[audit.Kind]int{}
	cfg.Found = func(f audit.Finding) { listed[f.Kind]++ }
	a, err := audit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	held := 0
	w.called = func(string) { held = max(held, a.Held()) }
	rep, err := a.Run(t.Context(), audit.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	wantKinds(t, rep, map[audit.Kind]int{audit.RedisBehind: 2501, audit.ChangeNeverAppended: 3000, audit.MissingRow: 2500, audit.MissingMark: 2500})
	if listed[audit.ChangeNeverAppended] != audit.MaxListed || listed[audit.RedisBehind] != 2501 {
		t.Errorf("listed %v", listed)
	}
	for what, x := range map[string][2]int{
		"rows of a page": {w.mostRows, audit.PageRows}, "members of a page": {w.mostMembers, audit.PageMembers},
		"a limit": {w.mostLimit, audit.PageMembers}, "conversations of a batch": {w.mostConvs, audit.BatchConversations},
		"suspicions": {held, audit.MaxSuspicions + audit.Workers},
	} {
		if got, bound := x[0], x[1]; got > bound || got == 0 {
			t.Errorf("%s: %d at once, the bound is %d", what, got, bound)
		}
	}
}

// What Redis holds and history has nothing of is looked at in an audit of
// everything, also where nobody could name it.
func TestConversationsThatOnlyRedisHas(t *testing.T) {
	w := newWorld()
	w.fill(t, conv, 3)
	const lost = wm.ConversationID("group:lost")
	w.heads = func(c wm.ConversationID) audit.Head {
		if c == "group:cold" {
			return audit.Head{}
		}
		return audit.Head{Warm: true, Max: 3}
	}
	w.held = []wm.ConversationID{lost, conv, "group:cold", lost}
	rep, found := run(t, w.config(), audit.Scope{})
	wantKinds(t, rep, map[audit.Kind]int{audit.NeverAppended: 1})
	if len(found) == 1 && found[0].Conversation != lost {
		t.Errorf("found %+v", found[0])
	}
	// One that is new is in history by the second look.
	w.pass = func([]int32) map[int32]error {
		if c, err := w.Memory.Conversations(t.Context(), []wm.ConversationID{lost}); err == nil && !c[0].Exists() {
			w.fill(t, lost, 3)
		}
		return nil
	}
	rep, _ = run(t, w.config(), audit.Scope{})
	wantKinds(t, rep, map[audit.Kind]int{})
	if rep.Suspicions != 1 {
		t.Errorf("%d suspicions, want 1", rep.Suspicions)
	}
}
