package importer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/importer"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/watermark"
)

func file(t testing.TB, lines ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "import")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func said(conv string, seq int, sender, text string) string {
	return fmt.Sprintf(`{"type":"message","conversation":%q,"seq":%d,"sender":%q,"timeMs":%d,"clientMessageId":"c-%s-%d","text":%q}`, conv, seq, sender, 1000+seq, sender, seq, text)
}

func run(t testing.TB, to importer.Target, cfg importer.Config, lines ...string) (*importer.Report, error) {
	t.Helper()
	cfg.Source, cfg.To = importer.Lines(file(t, lines...), convert.Limits{}), to
	return importer.Import(t.Context(), cfg)
}

func imported(t testing.TB, to importer.Target, lines ...string) *importer.Report {
	t.Helper()
	rep, err := run(t, to, importer.Config{}, lines...)
	if err != nil {
		t.Fatalf("%v: %+v", err, rep.Faults)
	}
	return rep
}

// dump gives all that stands.
func dump(t testing.TB, h storagetest.History) string {
	t.Helper()
	var b strings.Builder
	convs, err1 := h.ScanConversations(t.Context(), "", 1000)
	rows, err2 := h.ScanRows(t.Context(), watermark.RowScan{Limit: 1000})
	members, err3 := h.ScanMembers(t.Context(), watermark.MemberKey{}, 1000)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for i := range convs {
		fmt.Fprintf(&b, "%+v\n", convs[i])
	}
	for i := range rows {
		fmt.Fprintf(&b, "%+v %+v\n", rows[i], rows[i].Message.Revoked)
	}
	for i := range members {
		fmt.Fprintf(&b, "%+v\n", members[i])
	}
	return regexp.MustCompile(`0x[0-9a-f]+`).ReplaceAllString(b.String(), "") // addresses
}

var story = []string{
	`{"type":"conversation","conversation":"group:g","min":3,"policy":"keep_on_send"}`,
	said("group:g", 3, "ann", "three"), said("group:g", 4, "bob", "four"),
	`{"type":"message","conversation":"group:g","seq":5,"sender":"ann","timeMs":1005,"revoked":{"by":"bob","timeMs":2000}}`,
	`{"type":"member","conversation":"group:g","user":"bob","windows":[{"from":1,"to":3},{"from":4}],"read":3}`,
	`{"type":"member","conversation":"group:g","user":"cid","joined":2,"left":4,"read":4}`,
	`{"type":"message","conversation":"single:ann:bob","order":"2024-01-01","sender":"ann","timeMs":1,"json":{"b":1,"a":[2]},"kind":"x","mentions":["bob"],"attributes":{"k":"v"}}`,
	`{"type":"message","conversation":"single:ann:bob","order":"2024-01-02","sender":"bob","timeMs":2,"data":"AAE="}`,
	`{"type":"member","conversation":"single:ann:bob","user":"ann","read":1,"receipt":1}`,
}

func TestImport(t *testing.T) {
	h := storagetest.NewMemory()
	rep := imported(t, h, story...)
	want := importer.Counts{Conversations: 2, Members: 5, Messages: 5}
	if rep.Written != want || rep.Imported != want || rep.Bad+rep.Live+rep.Faulty != 0 {
		t.Errorf("got %+v", rep)
	}
	states, err := h.States(t.Context(), []watermark.Want{{Conversation: "group:g", Sent: true, Roster: true}, {Conversation: "single:ann:bob", Sent: true, Roster: true}})
	if err != nil {
		t.Fatal(err)
	}
	g, s := states[0], states[1]
	if diff := cmp.Diff(watermark.Conversation{ID: "group:g", Min: 3, Max: 5, Policy: watermark.KeepOnSend, LastTime: 1005}, g.Conversation); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[watermark.UserID]watermark.Member{
		"ann": {User: "ann", Own: []watermark.Seq{3, 5}},
		"bob": {User: "bob", Version: 3, LastMembership: 2, Memberships: []watermark.Membership{{Number: 1, Upper: 3}, {Number: 2, Lower: 4}}, Read: 3, Own: []watermark.Seq{4}},
		"cid": {User: "cid", Version: 2, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 2, Upper: 4}}, Read: 4},
	}, g.Members); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(watermark.Conversation{ID: "single:ann:bob", Max: 2, LastTime: 2}, s.Conversation); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[watermark.UserID]watermark.Member{"ann": {User: "ann", Read: 1, Receipt: 1}, "bob": {User: "bob", Read: 2}}, s.Members); diff != "" {
		t.Error(diff)
	}
	if len(g.Sent) != 3 || len(s.Sent) != 2 || g.Sent[watermark.SentKey{Sender: "bob", ClientID: "c-bob-4"}].Seq != 4 {
		t.Errorf("ids: %v, %v", g.Sent, s.Sent)
	}
	rows, err := h.Messages(t.Context(), "single:ann:bob", watermark.Interval{First: 1, Last: 9}, 9)
	if err != nil || len(rows) != 2 || string(rows[0].Body) != `{"a":[2],"b":1}` || rows[0].Kind != "x" || rows[0].Attributes["k"] != "v" ||
		!strings.HasPrefix(rows[0].ClientID, "import-") || rows[0].ClientID == rows[1].ClientID || rows[1].BodyType != watermark.BodyData {
		t.Errorf("rows %+v, %v", rows, err)
	}
	before := dump(t, h)
	again := imported(t, h, story...)
	if again.Written != (importer.Counts{}) || again.Imported != want || dump(t, h) != before {
		t.Errorf("a second import wrote %+v, read back %+v", again.Written, again.Imported)
	}
}

// A later export of the same adds what came since.
func TestImportOfALaterExport(t *testing.T) {
	h, all := storagetest.NewMemory(), storagetest.NewMemory()
	imported(t, h, story[:3]...)
	rep := imported(t, h, story...)
	if want := (importer.Counts{Conversations: 2, Members: 5, Messages: 3}); rep.Written != want {
		t.Errorf("wrote %+v", rep.Written)
	}
	imported(t, all, story...)
	if diff := cmp.Diff(dump(t, all), dump(t, h)); diff != "" {
		t.Error(diff)
	}
}

func TestFaults(t *testing.T) {
	good := said("single:z:zz", 1, "z", "good")
	member := func(fields string) string {
		return `{"type":"member","conversation":"group:g",` + fields + `}`
	}
	for name, tt := range map[string]struct {
		lines []string
		says  string
	}{
		"hole":               {[]string{said("group:g", 1, "a", "x"), said("group:g", 4, "a", "x")}, "line 2: a hole: seqs 2 to 3 are missing"},
		"hole at the start":  {[]string{said("group:g", 2, "a", "x")}, "line 1: a hole: seq 1 is missing"},
		"hole at the end":    {[]string{`{"type":"conversation","conversation":"group:g","max":3}`, said("group:g", 1, "a", "x")}, "line 1: a hole at the end: seqs 2 to 3 are missing"},
		"above its maximum":  {[]string{`{"type":"conversation","conversation":"group:g","max":1}`, said("group:g", 1, "a", "x"), said("group:g", 2, "a", "x")}, "line 1: there are messages up to seq 2"},
		"twice":              {[]string{said("group:g", 1, "a", "x"), said("group:g", 1, "a", "y")}, "line 2: seq 1 stands twice"},
		"seqs not sorted":    {[]string{said("group:g", 1, "a", "x"), said("group:g", 2, "a", "x"), said("group:g", 1, "a", "x")}, "line 3: seq 1 comes after 2"},
		"below the minimum":  {[]string{`{"type":"conversation","conversation":"group:g","min":2}`, said("group:g", 1, "a", "x")}, "line 2: seq 1 is below the minimum 2"},
		"late head":          {[]string{said("group:g", 1, "a", "x"), `{"type":"conversation","conversation":"group:g","min":1}`}, "line 2: the line of a conversation must be its first"},
		"seq and order":      {[]string{strings.Replace(good, `"seq":1`, `"seq":1,"order":1`, 1)}, "line 1: needs a seq or an order"},
		"then order":         {[]string{said("group:g", 1, "a", "x"), strings.Replace(said("group:g", 2, "a", "x"), `"seq"`, `"order"`, 1)}, "line 2: one message has a seq"},
		"order twice":        {[]string{strings.Replace(said("group:g", 2, "a", "x"), `"seq"`, `"order"`, 1), strings.Replace(said("group:g", 2, "b", "x"), `"seq"`, `"order"`, 1)}, "line 2: two messages have the order 2"},
		"order falls":        {[]string{strings.Replace(said("group:g", 10, "a", "x"), `"seq"`, `"order"`, 1), strings.Replace(said("group:g", 9, "a", "x"), `"seq"`, `"order"`, 1)}, "line 2: the input is not sorted: order 9 comes after 10"},
		"same client id":     {[]string{said("group:g", 1, "a", "x"), strings.Replace(said("group:g", 2, "a", "x"), "c-a-2", "c-a-1", 1)}, `line 2: client message id "c-a-1" of a stands at seq 1`},
		"conversation id":    {[]string{said("g", 1, "a", "x")}, "line 1: bad id: conversation \"g\""},
		"sender":             {[]string{said("group:g", 1, "a b", "x")}, "line 1: "},
		"a stranger":         {[]string{said("single:a:b", 1, "c", "x")}, "line 1: "},
		"no time":            {[]string{strings.Replace(good, `"timeMs":1001,`, "", 1)}, "line 1: timeMs must be above 0"},
		"unknown field":      {[]string{strings.Replace(good, `"text"`, `"txt"`, 1)}, `line 1: is not a message: unknown field "txt"`},
		"too large":          {[]string{said("group:g", 1, "a", strings.Repeat("x", convert.DefaultMaxBody+1))}, "line 1: "},
		"no type":            {[]string{`{"conversation":"group:g"}`}, `line 1: type must be`},
		"read beyond":        {[]string{said("group:g", 1, "a", "x"), member(`"user":"b","read":2`)}, "line 2: member b: read 2 is outside 0..1"},
		"receipt beyond":     {[]string{said("single:a:b", 1, "a", "x"), `{"type":"member","conversation":"single:a:b","user":"b","receipt":2}`}, "line 2: member b: receipt 2 is outside 0..1"},
		"receipt of a group": {[]string{said("group:g", 1, "a", "x"), member(`"user":"b","receipt":1`)}, "line 2: member b: receipt: a group has none"},
		"window beyond":      {[]string{said("group:g", 1, "a", "x"), member(`"user":"b","windows":[{"from":1,"to":2}]`)}, "the window 1 to 2 is above the last seq 1"},
		"windows overlap":    {[]string{said("group:g", 1, "a", "x"), member(`"user":"b","windows":[{"from":1,"to":1},{"from":1}]`)}, "must begin at 2"},
		"open in between":    {[]string{said("group:g", 1, "a", "x"), member(`"user":"b","windows":[{"from":1},{"from":1}]`)}, "open and not the last"},
		"member twice":       {[]string{said("group:g", 1, "a", "x"), member(`"user":"b"`), member(`"user":"b"`)}, "line 3: member b stands twice"},
		"member of others":   {[]string{said("single:a:b", 1, "a", "x"), `{"type":"member","conversation":"single:a:b","user":"c"}`}, "line 2: c is not one of the two users"},
		"message late":       {[]string{said("group:g", 1, "a", "x"), member(`"user":"b"`), said("group:g", 2, "a", "x")}, "line 3: a message comes after a member"},
	} {
		t.Run(name, func(t *testing.T) {
			lines := tt.lines
			if tt.lines[0] != good {
				lines = append(slices.Clone(lines), good)
			}
			h := storagetest.NewMemory()
			rep, err := run(t, h, importer.Config{}, lines...)
			if !errors.Is(err, importer.ErrFaults) || len(rep.Faults) == 0 {
				t.Fatalf("%v, %+v", err, rep)
			}
			if got := rep.Faults[0].At + ": " + rep.Faults[0].Detail; !strings.Contains(got, tt.says) {
				t.Errorf("says %q, want %q", got, tt.says)
			}
			if got := dump(t, h); got != "" {
				t.Errorf("there stands %s", got)
			}
			rep, err = run(t, h, importer.Config{SkipBad: true}, append(slices.Clone(tt.lines), said("single:z:zzz", 1, "z", "good"))...)
			if err != nil || rep.Bad != 1 || rep.Written.Messages != 1 || rep.Imported.Conversations != 1 {
				t.Errorf("without the bad: %v, %+v", err, rep)
			}
			rows, err := h.ScanRows(t.Context(), watermark.RowScan{Limit: 10})
			if err != nil || len(rows) != 1 || rows[0].Conversation != "single:z:zzz" {
				t.Errorf("rows %+v, %v", rows, err)
			}
		})
	}
}

func TestUnsortedInput(t *testing.T) {
	h := storagetest.NewMemory()
	_, err := run(t, h, importer.Config{SkipBad: true}, said("group:b", 1, "a", "x"), said("group:a", 1, "a", "x"))
	if err == nil || !strings.Contains(err.Error(), `line 2: the input is not sorted by conversation: "group:a" comes after "group:b", which began at line 1`) {
		t.Error(err)
	}
	if got := dump(t, h); got != "" {
		t.Errorf("there stands %s", got)
	}
}

// A line of which nobody knows whose it is ends an import also where the bad
// are to be skipped: any of the others may lack it.
func TestALineOfNobodyIsNotSkipped(t *testing.T) {
	for _, line := range []string{"nonsense", `{"type":"message"}`, `{"type":"message","conversation":7}`} {
		rep, err := run(t, storagetest.NewMemory(), importer.Config{SkipBad: true}, said("group:b", 1, "a", "x"), line)
		if !errors.Is(err, importer.ErrFaults) || rep.Faulty != 1 || rep.Faults[0].At != "line 2" || rep.Bad != 0 {
			t.Errorf("%s: %v, %+v", line, err, rep)
		}
	}
}

func TestFaultsAreCountedBeyondThoseNamed(t *testing.T) {
	var lines []string
	for i := range 9 {
		lines = append(lines, said(fmt.Sprint("group:", i), 2, "a", "x"))
	}
	rep, err := run(t, storagetest.NewMemory(), importer.Config{Reported: 3}, lines...)
	if err == nil || len(rep.Faults) != 3 || rep.Faulty != 9 || rep.Bad != 9 {
		t.Errorf("%v, %+v", err, rep)
	}
}

func TestWhatStandsIsNotTouched(t *testing.T) {
	lines := []string{said("group:g", 1, "ann", "a"), said("group:g", 2, "ann", "b"), `{"type":"member","conversation":"group:g","user":"bob","joined":1,"left":2}`}
	for name, tt := range map[string]struct {
		before []string
		change watermark.Change
		says   string
	}{
		"another message":    {[]string{said("group:g", 1, "ann", "other")}, watermark.Change{}, "line 1: another message stands at seq 1 in the target, of ann"},
		"more than here":     {append(slices.Clone(lines[:2]), said("group:g", 3, "ann", "c")), watermark.Change{}, "the target has it up to seq 3, the input only to 2"},
		"other windows":      {append(slices.Clone(lines[:2]), `{"type":"member","conversation":"group:g","user":"bob","joined":2,"left":2}`), watermark.Change{}, "line 3: the windows of bob stand otherwise"},
		"another policy":     {append([]string{`{"type":"conversation","conversation":"group:g","policy":"keep_on_send"}`}, lines...), watermark.Change{}, "another unread policy"},
		"a live one":         {lines[:1], live("group:g", 1), "line 2: refused: a deployment goes on with this conversation and has no message at seq 2"},
		"a live one, no row": {nil, live("group:g", 0), "line 1: refused: a deployment goes on"},
	} {
		t.Run(name, func(t *testing.T) {
			h := storagetest.NewMemory()
			if len(tt.before) > 0 {
				imported(t, h, tt.before...)
			}
			if _, err := h.Write(t.Context(), tt.change); err != nil {
				t.Fatal(err)
			}
			before := dump(t, h)
			rep, err := run(t, h, importer.Config{}, lines...)
			if !errors.Is(err, importer.ErrFaults) || !strings.Contains(rep.Faults[0].At+": "+rep.Faults[0].Detail, tt.says) {
				t.Errorf("%v, %+v", err, rep)
			}
			if dump(t, h) != before {
				t.Error("something was written")
			}
		})
	}
}

func live(id watermark.ConversationID, last watermark.Seq) watermark.Change {
	return watermark.Change{Conversations: []watermark.Conversation{{ID: id, Max: last, Inputs: map[watermark.Partition]int64{{TopicID: "T"}: 7}}}}
}

// What was imported and is in use now is passed over, marks and all.
func TestImportAgainAfterItWentLive(t *testing.T) {
	h := storagetest.NewMemory()
	imported(t, h, story...)
	for _, c := range []watermark.Change{live("group:g", 9), live("single:ann:bob", 2)} {
		if _, err := h.Write(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	before := dump(t, h)
	rep := imported(t, h, story...)
	if rep.Live != 2 || rep.Written != (importer.Counts{}) || dump(t, h) != before {
		t.Errorf("%+v", rep)
	}
}

// The history of a deployment is not written to by mistake.
func TestHistoryOfADeployment(t *testing.T) {
	h := storagetest.NewMemory()
	change := live("group:other", 3)
	change.Positions = []watermark.Position{{Topic: "toRedis", Partition: watermark.Partition{TopicID: "T"}, Next: 9}}
	if _, err := h.Write(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	before := dump(t, h)
	if rep, err := run(t, h, importer.Config{}, story...); !errors.Is(err, importer.ErrLive) || !rep.IntoLive || dump(t, h) != before {
		t.Errorf("%v, %+v", err, rep)
	}
	rep, err := run(t, h, importer.Config{IntoLive: true}, story...)
	if err != nil || !rep.IntoLive || rep.Imported.Messages != 5 {
		t.Errorf("%v, %+v", err, rep)
	}
}

// errKilled ends an import for good, like a process that is killed.
var errKilled = fault.New(fault.Fatal, "killed", errors.New("killed"))

// mortal is a target that dies at its nth write: before it took effect, after,
// or with a prefix of it, as a store without transactions may.
type mortal struct {
	storagetest.History
	left, how int
}

func (m *mortal) Write(ctx context.Context, c watermark.Change) (watermark.Written, error) {
	if m.left--; m.left > 0 {
		return m.History.Write(ctx, c)
	}
	switch m.how {
	case 1:
		_, _ = m.History.Write(ctx, c)
	case 2:
		c.Conversations = nil
		c.Rows, c.Members = c.Rows[:len(c.Rows)/2], nil
		_, _ = m.History.Write(ctx, c)
	case 3:
		c.Conversations = c.Conversations[:len(c.Conversations)/2]
		_, _ = m.History.Write(ctx, c)
	}
	return watermark.Written{}, errKilled
}

// drawn gives the lines of a random input.
func drawn(t *rapid.T) (lines []string) {
	users := []string{"ann", "bob", "cid"}
	for i := range rapid.IntRange(1, 5).Draw(t, "conversations") {
		conv := fmt.Sprintf("group:g%d", i)
		minimum := rapid.IntRange(1, 3).Draw(t, "min")
		last := minimum - 1 + rapid.IntRange(0, 7).Draw(t, "messages")
		policy := rapid.SampledFrom([]string{"advance_on_send", "keep_on_send"}).Draw(t, "policy")
		lines = append(lines, fmt.Sprintf(`{"type":"conversation","conversation":%q,"min":%d,"max":%d,"policy":%q}`, conv, minimum, last, policy))
		for seq := minimum; seq <= last; seq++ {
			line := said(conv, seq, rapid.SampledFrom(users).Draw(t, "sender"), "text")
			if rapid.IntRange(0, 4).Draw(t, "revoked") == 0 {
				line = strings.TrimSuffix(line, "}") + `,"revoked":true}`
			}
			lines = append(lines, line)
		}
		for _, u := range users[:rapid.IntRange(0, 3).Draw(t, "members")] {
			read := rapid.IntRange(0, last).Draw(t, "read")
			lines = append(lines, fmt.Sprintf(`{"type":"member","conversation":%q,"user":%q,"read":%d,"joined":%d}`, conv, u, read, rapid.IntRange(1, last+1).Draw(t, "joined")))
		}
	}
	return lines
}

// Killed anywhere, however often, and run again: the same as one run; and at
// every moment a conversation has what its bounds speak of.
func TestKilledAnywhereAndRunAgain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lines := drawn(rt)
		path := file(t, lines...)
		once, h := storagetest.NewMemory(), storagetest.NewMemory()
		cfg := importer.Config{Source: importer.Lines(path, convert.Limits{}), Page: rapid.IntRange(1, 9).Draw(rt, "page")}
		cfg.To = once
		if _, err := importer.Import(t.Context(), cfg); err != nil {
			rt.Fatal(err)
		}
		for kills := rapid.IntRange(1, 4).Draw(rt, "kills"); kills > 0; kills-- {
			cfg.To = &mortal{h, rapid.IntRange(1, 6).Draw(rt, "at"), rapid.IntRange(0, 3).Draw(rt, "how")}
			if _, err := importer.Import(t.Context(), cfg); err != nil && !errors.Is(err, errKilled) {
				rt.Fatal(err)
			}
			whole(rt, t.Context(), h)
		}
		cfg.To = h
		rep, err := importer.Import(t.Context(), cfg)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(dump(t, once), dump(t, h)); diff != "" {
			rt.Fatalf("%s\n%s", strings.Join(lines, "\n"), diff)
		}
		again, err := importer.Import(t.Context(), cfg)
		if err != nil || again.Written != (importer.Counts{}) || again.Imported != rep.Imported || dump(t, once) != dump(t, h) {
			rt.Fatalf("again: %v, %+v", err, again)
		}
	})
}

// What changes between the check and the import ends it: it is not taken on
// trust.
func TestInputThatChanges(t *testing.T) {
	for stage, left := range map[importer.Stage]int{importer.Importing: 0, importer.Verifying: 1} {
		h := storagetest.NewMemory()
		path := file(t, said("group:g", 1, "ann", "a"))
		before := importer.Checking
		if stage == importer.Verifying {
			before = importer.Importing
		}
		_, err := importer.Import(t.Context(), importer.Config{Source: importer.Lines(path, convert.Limits{}), To: h, Step: func(s importer.Stage, _ int64) {
			if s == before {
				if err := os.Rename(file(t, said("group:g", 1, "ann", "a"), said("group:g", 3, "ann", "a")), path); err != nil {
					t.Error(err)
				}
			}
		}})
		if err == nil || !strings.Contains(err.Error(), "changed while it was imported: line 2: a hole") {
			t.Errorf("%s: %v", stage, err)
		}
		rows, err := h.ScanRows(t.Context(), watermark.RowScan{Limit: 9})
		if err != nil || len(rows) != left {
			t.Errorf("%s: %d rows, %v", stage, len(rows), err)
		}
	}
}

// careless loses what it has taken.
type careless struct{ storagetest.History }

func (c careless) Write(ctx context.Context, ch watermark.Change) (watermark.Written, error) {
	ch.Rows = slices.Clone(ch.Rows)[:max(len(ch.Rows)-1, 0)]
	w, err := c.History.Write(ctx, ch)
	w.Rows = append(w.Rows, watermark.Inserted)
	return w, err
}

func TestWhatIsMissingInTheEndIsSeen(t *testing.T) {
	_, err := run(t, careless{storagetest.NewMemory()}, importer.Config{}, story...)
	if err == nil || !strings.Contains(err.Error(), "seq 2 of single:ann:bob does not stand") {
		t.Error(err)
	}
}

// busy fails each call once, as a store does that is away for a moment.
type busy struct {
	storagetest.History
	calls int
}

func (b *busy) Write(ctx context.Context, c watermark.Change) (watermark.Written, error) {
	if b.calls++; b.calls%2 == 1 {
		return watermark.Written{}, fault.New(fault.Transient, "busy", errors.New("busy"))
	}
	return b.History.Write(ctx, c)
}

func TestPassingFaultsAreWaitedFor(t *testing.T) {
	b := &busy{History: storagetest.NewMemory()}
	imported(t, b, story...)
	if b.calls < 2 {
		t.Errorf("%d calls", b.calls)
	}
}

func whole(rt *rapid.T, ctx context.Context, h storagetest.History) {
	convs, err := h.ScanConversations(ctx, "", 1000)
	if err != nil {
		rt.Fatal(err)
	}
	for _, c := range convs {
		rows, err := h.Messages(ctx, c.ID, watermark.Interval{First: max(c.Min, 1), Last: c.Max}, 1000)
		if err != nil || watermark.Seq(len(rows)) != c.Max-max(c.Min, 1)+1 {
			rt.Fatalf("%s claims %d to %d and has %d rows, %v", c.ID, c.Min, c.Max, len(rows), err)
		}
	}
}

// Long conversations among others that stand there already, in a real store.
func TestImportIntoAFilledFile(t *testing.T) {
	s, err := embedded.New(embedded.Config{Path: filepath.Join(t.TempDir(), "history.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	others := []string{said("group:a", 1, "ann", "x"), said("group:m", 1, "ann", "x"), said("group:m-", 1, "ann", "x"), said("single:a:b", 1, "a", "x")}
	imported(t, s, others...)
	var lines []string
	for _, conv := range []string{"group:b", "group:m.", "group:m0", "single:a:c"} {
		for seq := 1; seq <= 700+rand.IntN(9); seq++ {
			lines = append(lines, said(conv, seq, "a", "text"))
		}
	}
	rep := imported(t, s, lines...)
	if rep.Written.Messages != int64(len(lines)) || rep.Imported.Messages != int64(len(lines)) {
		t.Errorf("%+v", rep)
	}
	if rep := imported(t, s, lines...); rep.Written != (importer.Counts{}) {
		t.Errorf("%+v", rep)
	}
}

// A line is held in memory, so its length has a bound, and the error names it.
func TestALineThatIsTooLong(t *testing.T) {
	path := file(t, story[0], `{"type":"message"`)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(importer.MaxLine+1000), f.Close()); err != nil {
		t.Fatal(err)
	}
	// The hole of the file is one line of zero bytes behind the two that it has.
	h := storagetest.NewMemory()
	_, err = importer.Import(t.Context(), importer.Config{Source: importer.Lines(path, convert.Limits{}), To: h})
	if want := fmt.Sprintf("line 3 is longer than %d bytes", importer.MaxLine); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if dump(t, h) != dump(t, storagetest.NewMemory()) {
		t.Error("something is imported")
	}
}
