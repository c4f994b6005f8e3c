package transfer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/watermark"
)

// pointer is an address in a printed value.
var pointer = regexp.MustCompile(`0x[0-9a-f]+`)

// What is copied is the same for whoever asks the store, not only for Compare,
// which may be blind on the same eye as Copy.
func TestCopyIsTheSameToItsReaders(t *testing.T) {
	ctx := t.Context()
	from, to := opened(t, file(t)), opened(t, file(t))
	fill(t, from, 411)
	n := copied(t, from, to)
	rep := same(t, from, to)
	if n.Members != rep.To.Members || n.Messages != rep.To.Messages || n.Conversations != rep.To.Conversations {
		t.Errorf("wrote %+v, there are %+v", n, rep.To.Counts)
	}
	model := storagetest.NewMemory()
	copied(t, to, model)
	var ids []watermark.ConversationID
	var wants []watermark.Want
	for i := range 411 {
		ids = append(ids, watermark.GroupOf(fmt.Sprintf("g%d-", i)))
	}
	ids = append(ids, "group:big", "single:alice:bob", "group:zz")
	for _, id := range ids {
		wants = append(wants, watermark.Want{Conversation: id, Sent: true, Roster: true})
	}
	read := func(h storagetest.History) string {
		states, err := h.States(ctx, wants)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, s := range states {
			fmt.Fprintf(&b, "%+v\n", *s)
		}
		for _, id := range ids {
			for last := watermark.Seq(0); ; {
				page, err := h.Messages(ctx, id, watermark.Interval{First: last + 1, Last: watermark.MaxSeq}, 1000)
				if err != nil {
					t.Fatal(err)
				}
				if len(page) == 0 {
					break
				}
				for _, m := range page {
					// What is below the minimum is nobody's, whether or not retention has
					// come to it.
					if last = m.Seq; id != "group:big" || m.Seq >= 1510 {
						fmt.Fprintf(&b, "%s %+v %+v\n", id, m, m.Revoked)
					}
				}
			}
		}
		return pointer.ReplaceAllString(b.String(), "")
	}
	want := read(from)
	if got := read(to); got != want {
		t.Error("the copy answers otherwise than its source")
	}
	if got := read(model); got != want {
		t.Error("a copy of the copy answers otherwise than the source")
	}
	// A resend of what retention has emptied is recognised in the copy too, and a
	// second copy of it changes nothing.
	for _, seq := range []watermark.Seq{1100, 1505} {
		for _, h := range []storagetest.History{from, to} {
			m := message(seq, "alice", fmt.Sprint("id-", seq))
			w, err := h.Write(ctx, watermark.Change{Rows: []watermark.Row{{Conversation: "group:big", Message: m}}})
			if err != nil || w.Rows[0] != watermark.Replay {
				t.Errorf("%d: %v %v", seq, w, err)
			}
		}
	}
	if n := copied(t, from, to); n.Sum() != 0 {
		t.Errorf("a second copy wrote %+v", n)
	}
}

func TestContentBelowTheMinimumStaysBehind(t *testing.T) {
	from, to := opened(t, file(t)), opened(t, file(t))
	fill(t, from, 60)
	copied(t, from, to)
	page, err := to.Messages(t.Context(), "group:big", watermark.Interval{First: 1, Last: 1509}, 10)
	if err != nil || len(page) != 0 {
		t.Errorf("%d rows below the minimum, %v", len(page), err)
	}
}

// Killed before and after each effect, a copy goes on where it was.
func TestKilledAnywhere(t *testing.T) {
	from := storagetest.NewMemory()
	fill(t, from, 60)
	all := copied(t, from, storagetest.NewMemory())
	ends := false
	for n := 1; !ends; n++ {
		for _, after := range []bool{false, true} {
			to := storagetest.NewMemory()
			_, err := transfer.Copy(t.Context(), transfer.Config{From: from, To: &mortal{to, n, after}, Page: 100})
			if ends = err == nil; ends {
				break
			}
			if !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			complete(t, to)
			if ps, err := to.Positions(t.Context()); err != nil || len(ps) > 0 && !compared(t, from, to).Same() {
				t.Errorf("killed at %d it claims to have the log up to %v, %v", n, ps, err)
			}
			rest := copied(t, from, to)
			if n > 2 && rest.Sum() > all.Sum()-int64(n-2) {
				t.Errorf("killed at %d it began again: %+v of %+v", n, rest, all)
			}
			same(t, from, to)
		}
		if n > 200 {
			t.Fatal("the copy does not end")
		}
	}
}

// complete checks that no conversation claims rows that are not there.
func complete(t *testing.T, h *storagetest.Memory) {
	t.Helper()
	convs, err := h.ScanConversations(t.Context(), "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range convs {
		page, err := h.Messages(t.Context(), c.ID, watermark.Interval{First: max(c.Min, 1), Last: c.Max}, 1000)
		if err != nil || len(page) != int(c.Max-max(c.Min, 1)+1) {
			t.Fatalf("%s claims %d..%d and has %d rows, %v", c.ID, c.Min, c.Max, len(page), err)
		}
	}
}

// While it is copied the source goes on: nothing that the copy claims is
// missing at any moment, and the next call brings the rest.
func TestSourceThatIsWrittenMeanwhile(t *testing.T) {
	from, to := storagetest.NewMemory(), storagetest.NewMemory()
	fill(t, from, 60)
	reads, seq := 0, watermark.Seq(2000)
	_, err := transfer.Copy(t.Context(), transfer.Config{From: from, To: to, Step: func(transfer.Counts) {
		if reads++; reads%50 != 0 {
			return
		}
		seq++
		c := rows("group:big", seq, seq)
		c.Conversations = []watermark.Conversation{{ID: "group:big", Max: seq, Min: seq - 300}}
		c.Members = []watermark.MemberRow{{Conversation: "group:big", Member: watermark.Member{User: "alice", Read: seq}}}
		write(t, from, c)
		complete(t, to)
	}})
	if err != nil {
		t.Fatal(err)
	}
	complete(t, to)
	if compared(t, from, to).Same() {
		t.Fatal("the source has not changed")
	}
	retire(t, from, "group:big", seq-300)
	write(t, from, watermark.Change{Revokes: []watermark.RevokedRow{{Conversation: "group:big", Revoked: watermark.Revoked{Seq: 1999, By: "x", Time: 1}}}})
	copied(t, from, to)
	same(t, from, to)
	m := message(seq-301, "alice", fmt.Sprint("id-", seq-301))
	if w, err := to.Write(t.Context(), watermark.Change{Rows: []watermark.Row{{Conversation: "group:big", Message: m}}}); err != nil || w.Rows[0] != watermark.Replay {
		t.Errorf("the id of a row that came and went between two copies is not known: %v %v", w, err)
	}
}

func TestChangesAreCopied(t *testing.T) {
	from, to := opened(t, file(t)), opened(t, file(t))
	fill(t, from, 60)
	copied(t, from, to)
	c := rows("group:big", 2001, 2003)
	c.Revokes = []watermark.RevokedRow{{Conversation: "group:g7-", Revoked: watermark.Revoked{Seq: 1, By: "x", Time: 8}}}
	c.Members = []watermark.MemberRow{
		{Conversation: "group:g7-", Member: watermark.Member{User: "busy", Version: 4, LastMembership: 2, ChangedAt: 99}},
		{Conversation: "group:big", Member: watermark.Member{User: "alice", Read: 1500, Receipt: 3}},
		{Conversation: "group:new", Member: watermark.Member{User: "zoe"}},
	}
	c.Conversations = []watermark.Conversation{{ID: "group:big", Max: 2003, Repair: watermark.Repaired{Number: 10, From: 2}}}
	write(t, from, c)
	retire(t, from, "group:big", 1700)
	if compared(t, from, to).Same() {
		t.Fatal("a changed source is taken for the same")
	}
	want := transfer.Counts{Conversations: 1, Members: 3, Messages: 4}
	if n := copied(t, from, to); n != want {
		t.Errorf("wrote %+v, want %+v", n, want)
	}
	same(t, from, to)
}

// Every column of every table is changed once behind the store's back.
func TestCompareSeesAManipulatedRow(t *testing.T) {
	from, at := opened(t, file(t)), file(t)
	to := opened(t, at)
	fill(t, from, 60)
	copied(t, from, to)
	db, err := sql.Open("sqlite", at)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for table, where := range map[string]string{
		"messages":      "conversation = 'group:big' AND seq = 1950",
		"conversations": "id = 'group:big'",
		"inputs":        "conversation = 'group:big' AND topic = 'T2'",
		"members":       "conversation = 'group:g1-' AND user = 'busy'",
		"positions":     "topic = 'toRedis'",
		"own":           "conversation = 'group:big' AND user = 'alice' AND seq = 1100",
	} {
		columns := columnsOf(t, db, table)
		for _, set := range append(columns, "") {
			// The index of members has the columns too, so a copy of the row is put
			// back.
			text := "DELETE FROM " + table + " WHERE " + where
			if set != "" {
				text = fmt.Sprintf("UPDATE %s SET %s WHERE %s", table, set, where)
			}
			if strings.Contains(text, "own_count") {
				continue // a count that the store keeps for itself
			}
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("CREATE TEMP TABLE kept AS SELECT * FROM " + table); err != nil {
				t.Fatal(err)
			}
			res, err := tx.Exec(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if n, err := res.RowsAffected(); n != 1 || err != nil {
				t.Fatalf("%s: %d rows, %v", text, n, err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if rep := compared(t, from, to); rep.Same() || len(rep.Differences) == 0 || rep.Differences[0].Detail == "" || rep.From.Digest == rep.To.Digest {
				t.Errorf("%s: not seen, %+v", text, rep)
			}
			for _, back := range []string{"DELETE FROM " + table, "INSERT INTO " + table + " SELECT * FROM kept", "DROP TABLE kept"} {
				if _, err := db.Exec(back); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	same(t, from, to)
	for i, offset := range []string{"9", "NULL"} { // of a message that is revoked on both sides
		if _, err := db.Exec("UPDATE messages SET revoked_offset = " + offset + " WHERE conversation = 'group:big' AND seq = 1900"); err != nil {
			t.Fatal(err)
		}
		if rep := compared(t, from, to); rep.Same() != (i == 1) {
			t.Errorf("revoked at %s: %+v", offset, rep)
		}
	}
	write(t, to, rows("group:big", 2001, 2001))
	if rep := compared(t, from, to); rep.Differing != 1 || rep.Differences[0].Detail != "seq 2001 is in the target only" || rep.Differences[0].Kind != "messages" {
		t.Errorf("a row more: %+v", rep)
	}
}

// columnsOf gives an assignment for each column that changes it.
func columnsOf(t *testing.T, db *sql.DB, table string) (out []string) {
	t.Helper()
	found, err := db.Query("SELECT name, type FROM pragma_table_info(?)", table)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var name, kind string
		if err := found.Scan(&name, &kind); err != nil {
			t.Fatal(err)
		}
		switch {
		case name == "mentions" || name == "ops" || name == "memberships" || name == "attributes":
			out = append(out, name+" = '"+map[string]string{"mentions": `["eve"]`, "ops": "[]", "memberships": "[[1,1,0]]", "attributes": `{"k":"w"}`}[name]+"'")
		case name == "revoked_by" || name == "revoked_at":
			out = append(out, "revoked_by = 'eve', revoked_at = 1") // one without the other says nothing
		case name == "revoked_offset":
			out = append(out, "revoked_by = 'eve', revoked_at = 1, revoked_offset = 9")
		case kind == "BLOB":
			out = append(out, fmt.Sprintf("%s = randomblob(length(%s))", name, name))
		case kind == "TEXT" && (name == "conversation" || name == "id"):
			out = append(out, name+" = 'group:zzz'")
		case kind == "TEXT":
			out = append(out, fmt.Sprintf("%s = coalesce(%s, '') || 'x'", name, name))
		case name == "seq":
			out = append(out, "seq = seq + 5000")
		case name == "policy" || name == "gone" || name == "body_type":
			out = append(out, fmt.Sprintf("%s = (%s + 1) %% 2", name, name))
		default:
			out = append(out, fmt.Sprintf("%s = coalesce(%s, 0) + 1", name, name))
		}
	}
	return out
}

func TestAnotherHistoryIsLeftAlone(t *testing.T) {
	from := storagetest.NewMemory()
	write(t, from, rows("group:a", 1, 3))
	to := storagetest.NewMemory()
	m := message(2, "mallory", "x")
	write(t, to, watermark.Change{Rows: []watermark.Row{{Conversation: "group:a", Message: m}}})
	_, err := transfer.Copy(t.Context(), transfer.Config{From: from, To: to})
	if !errors.Is(err, transfer.ErrClash) || !strings.Contains(err.Error(), "group:a/2") {
		t.Errorf("got %v", err)
	}
	rep := compared(t, from, to)
	if rep.Differing != 1 || rep.Differences[0].From.Messages != 3 || rep.Differences[0].To.Messages != 1 {
		t.Errorf("got %+v", rep)
	}

	from, to = storagetest.NewMemory(), storagetest.NewMemory()
	write(t, from, watermark.Change{Members: []watermark.MemberRow{{Conversation: "group:a", Member: watermark.Member{User: "u", Version: 1, LastMembership: 1}}}})
	write(t, to, watermark.Change{Members: []watermark.MemberRow{{Conversation: "group:a", Member: watermark.Member{User: "u", Version: 1, LastMembership: 2}}}})
	if _, err := transfer.Copy(t.Context(), transfer.Config{From: from, To: to}); !errors.Is(err, transfer.ErrClash) {
		t.Errorf("got %v", err)
	}
}

func TestDifferencesAreBounded(t *testing.T) {
	from, to := storagetest.NewMemory(), storagetest.NewMemory()
	fill(t, from, 60)
	if rep := compared(t, from, to); len(rep.Differences) != 20 || rep.Differing < 150 || rep.To.Sum() != 0 {
		t.Errorf("%d of %d differences", len(rep.Differences), rep.Differing)
	}
}

// hungry notes the largest page that was asked for.
type hungry struct {
	transfer.Target
	rows int
}

func (h *hungry) ScanRows(ctx context.Context, s watermark.RowScan) ([]watermark.StoredRow, error) {
	h.rows = max(h.rows, s.Limit)
	return h.Target.ScanRows(ctx, s)
}

func (h *hungry) Write(ctx context.Context, c watermark.Change) (watermark.Written, error) {
	h.rows = max(h.rows, len(c.Rows), len(c.Members), len(c.Conversations))
	return h.Target.Write(ctx, c)
}

func TestMemoryIsAFewPages(t *testing.T) {
	from, to := &hungry{Target: storagetest.NewMemory()}, &hungry{Target: storagetest.NewMemory()}
	fill(t, from.Target.(*storagetest.Memory), 10)
	copied(t, from, to)
	if from.rows > 200 || to.rows > 200 {
		t.Errorf("%d rows are read and %d written at once", from.rows, to.rows)
	}
}
