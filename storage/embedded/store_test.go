package embedded_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/watermark"
)

const group = watermark.ConversationID("group:g1")

var whole = watermark.Interval{First: 1, Last: watermark.MaxSeq}

func message(seq watermark.Seq, body string) watermark.Message {
	m := watermark.Message{Seq: seq, Sender: "ann", ClientID: fmt.Sprint("id", seq), BodyType: watermark.BodyText, Body: []byte(body)}
	m.Hash = m.SumHash()
	return m
}

func rows(c watermark.ConversationID, ms ...watermark.Message) (out []watermark.Row) {
	for _, m := range ms {
		out = append(out, watermark.Row{Conversation: c, Message: m})
	}
	return out
}

func write(t testing.TB, s *embedded.Store, c watermark.Change) watermark.Written {
	t.Helper()
	w, err := s.Write(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestPathsAreTakenAsTheyAre uses a name that is full of what a database URI
// would read as something else.
func TestPathsAreTakenAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"plain.db", "a b?mode=memory&c#d%41.db", "file:x.db", "ü.db"} {
		path := filepath.Join(dir, name)
		s := openFile(t, path).Store
		write(t, s, watermark.Change{Rows: rows(group, message(1, "x"))})
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	t.Chdir(dir)
	write(t, openFile(t, "relative.db").Store, watermark.Change{Rows: rows(group, message(1, "x"))})
	if _, err := os.Stat(filepath.Join(dir, "relative.db")); err != nil {
		t.Error(err)
	}
}

// TestTwoStoresInMemory shows that they have nothing to do with each other.
func TestTwoStoresInMemory(t *testing.T) {
	a, b := openFile(t, ""), openFile(t, "")
	write(t, a.Store, watermark.Change{Rows: rows(group, message(1, "x"))})
	if ms, err := b.Messages(t.Context(), group, whole, 10); err != nil || len(ms) != 0 {
		t.Errorf("%v, %v", ms, err)
	}
}

// TestSettings pins what durability and concurrency rest on.
func TestSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h.db")
	s := openFile(t, path)
	for _, conn := range []string{"writer", "reader"} {
		got, err := s.Settings(t.Context(), conn == "writer")
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "5000", "secure_delete": "2"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", conn, diff)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, setUp ...string) string {
		path := filepath.Join(dir, name)
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for _, text := range setUp {
			if _, err := db.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	newer := filepath.Join(dir, "newer.db")
	if err := openFile(t, newer).Close(); err != nil {
		t.Fatal(err)
	}
	file("newer.db", "PRAGMA user_version = 999")
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("no database at all. ", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path, reason string
		class              fault.Class
	}{
		{"another program's database", file("foreign.db", "CREATE TABLE users (id)"), "not_a_history", fault.Fatal},
		{"another program's version", file("versioned.db", "PRAGMA user_version = 3"), "not_a_history", fault.Fatal},
		{"a newer schema", newer, "schema_newer", fault.Fatal},
		{"no database", garbage, "corrupt", fault.Fatal},
		{"a directory that is not there", filepath.Join(dir, "none", "h.db"), "cannot_open", fault.Transient},
		{"a directory", dir, "cannot_open", fault.Transient},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := embedded.New(embedded.Config{Path: tt.path})
			if err == nil {
				t.Fatal(errors.Join(errors.New("no error"), s.Close()))
			}
			if fault.ClassOf(err) != tt.class || fault.ReasonOf(err) != tt.reason {
				t.Errorf("%v %s: %v", fault.ClassOf(err), fault.ReasonOf(err), err)
			}
			if !strings.Contains(err.Error(), filepath.Base(tt.path)) {
				t.Errorf("the path is not named: %v", err)
			}
		})
	}
}

// TestFullDisk limits the file's pages: what does not fit is refused as a
// whole, and fits later.
func TestFullDisk(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "h.db"))
	write(t, s.Store, watermark.Change{Rows: rows(group, message(1, "x"))})
	if err := s.LimitPages(t.Context(), 64); err != nil {
		t.Fatal(err)
	}
	change := watermark.Change{
		Rows:          rows(group, message(2, "small"), message(3, strings.Repeat("large", 200_000))),
		Conversations: []watermark.Conversation{{ID: group, Max: 3}},
	}
	_, err := s.Write(t.Context(), change)
	if fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != "disk_full" {
		t.Fatalf("%v %s: %v", fault.ClassOf(err), fault.ReasonOf(err), err)
	}
	ms, err := s.Messages(t.Context(), group, whole, 10)
	if err != nil || len(ms) != 1 {
		t.Errorf("%d rows, %v", len(ms), err)
	}
	if err := s.LimitPages(t.Context(), 1<<30); err != nil {
		t.Fatal(err)
	}
	w := write(t, s.Store, change)
	if !slices.Equal(w.Rows, []watermark.Fate{watermark.Inserted, watermark.Inserted}) {
		t.Errorf("fates %v", w.Rows)
	}
}

// TestAnotherProcessWrites holds the write lock from outside.
func TestAnotherProcessWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h.db")
	s := openFile(t, path)
	db, err := sql.Open("sqlite", path+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ShortenBusyTimeout(t.Context()); err != nil {
		t.Fatal(err)
	}
	change := watermark.Change{Rows: rows(group, message(1, "x"))}
	_, err = s.Write(t.Context(), change)
	if fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != "busy" {
		t.Errorf("%v %s: %v", fault.ClassOf(err), fault.ReasonOf(err), err)
	}
	if _, err := s.Messages(t.Context(), group, whole, 10); err != nil {
		t.Errorf("readers wait for writers: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	write(t, s.Store, change)
}

// TestWriteIsWhole ends the context between parts of a write.
func TestWriteIsWhole(t *testing.T) {
	for _, path := range []string{"", filepath.Join(t.TempDir(), "h.db")} {
		s := openFile(t, path)
		var many []watermark.Message
		for i := range 3000 {
			many = append(many, message(watermark.Seq(i+1), "x"))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := s.Write(ctx, watermark.Change{Rows: rows(group, many...), Conversations: []watermark.Conversation{{ID: group, Max: 3000}}})
			done <- err
		}()
		cancel()
		err := <-done
		cs, cerr := s.Conversations(t.Context(), []watermark.ConversationID{group})
		ms, merr := s.Messages(t.Context(), group, whole, 1000)
		if cerr != nil || merr != nil {
			t.Fatal(cerr, merr)
		}
		if none := cs[0].Max == 0 && len(ms) == 0; none != (err != nil) {
			t.Errorf("write gave %v, max %d, %d rows", err, cs[0].Max, len(ms))
		}
		if err != nil && (fault.ClassOf(err) != fault.Transient || !errors.Is(err, context.Canceled)) {
			t.Errorf("%v: %v", fault.ClassOf(err), err)
		}
	}
}

// TestColdLoadIsBatched counts the queries of 10,000 conversations.
func TestColdLoadIsBatched(t *testing.T) {
	s := openFile(t, "")
	var c watermark.Change
	var wants []watermark.Want
	for i := range 10_000 {
		conv := watermark.SingleOf("ann", watermark.UserID(fmt.Sprintf("u%05d", i)))
		wants = append(wants, watermark.Want{Conversation: conv, Users: []watermark.UserID{"ann"}, Sent: true})
		c.Rows = append(c.Rows, watermark.Row{Conversation: conv, Message: message(1, "x")})
		c.Members = append(c.Members, watermark.MemberRow{Conversation: conv, Member: watermark.Member{User: "ann", Own: []watermark.Seq{1}}})
		c.Conversations = append(c.Conversations, watermark.Conversation{ID: conv, Max: 1})
	}
	write(t, s.Store, c)
	before := s.Queries()
	states, err := s.States(t.Context(), wants)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.Queries() - before; n > 120 {
		t.Errorf("%v queries", n)
	}
	for i, st := range states {
		if st.ID != wants[i].Conversation || st.Max != 1 || len(st.Members) != 1 || len(st.Sent) != 1 || !st.Complete {
			t.Fatalf("state %d: %+v", i, st)
		}
	}
}

// TestContentIsGone looks in the file for what was revoked or deleted.
func TestContentIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h.db")
	s := openFile(t, path)
	body := func(seq watermark.Seq) string { return strings.Repeat(fmt.Sprintf("<body %d>", seq), 20) }
	const top = watermark.DedupeHorizon + 2
	write(t, s.Store, watermark.Change{
		Rows:          rows(group, message(1, body(1)), message(3, body(3)), message(4, body(4)), message(5, body(5))),
		Conversations: []watermark.Conversation{{ID: group, Min: 4, Max: top}},
	})
	write(t, s.Store, watermark.Change{Revokes: []watermark.RevokedRow{{Conversation: group, Revoked: watermark.Revoked{Seq: 4}}}})
	if n, err := s.DeleteBelow(t.Context(), group, 4, 10); err != nil || n != 2 {
		t.Fatalf("%d deleted, %v", n, err)
	}
	if err := s.Close(); err != nil { // folds the write-ahead log into the file
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for seq, want := range map[watermark.Seq]bool{1: false, 3: false, 4: false, 5: true} {
		if got := strings.Contains(string(b), fmt.Sprintf("<body %d>", seq)); got != want {
			t.Errorf("body %d in the file: %v, want %v", seq, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "h.db"))
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err == nil {
		t.Error("a closed store is said to be well")
	}
	if _, err := s.Write(t.Context(), watermark.Change{Rows: rows(group, message(1, "x"))}); err == nil {
		t.Error("a closed store took a write")
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, err := embedded.New(embedded.Config{Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other := message(1, "other")
	other.ClientID = "other"
	v1, _, _ := watermark.Member{User: "ann"}.Join("a", 1, watermark.HistoryAll, 0)
	v2, _, _ := watermark.Member{User: "ann"}.Join("b", 1, watermark.HistoryAll, 0)
	write(t, s, watermark.Change{
		Rows:          rows(group, message(1, "x"), message(1, "x"), other, message(2, "y")),
		Members:       []watermark.MemberRow{{Conversation: group, Member: v1}, {Conversation: group, Member: v2}},
		Conversations: []watermark.Conversation{{ID: group, Min: 2, Max: 2}},
	})
	if _, err := s.DeleteBelow(t.Context(), group, 2, 10); err != nil {
		t.Fatal(err)
	}
	write(t, s, watermark.Change{Rows: rows(group, message(0, "below"))})
	if _, err := s.Messages(t.Context(), group, whole, 10); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Messages(ended, group, whole, 10); err == nil {
		t.Fatal("no error")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, fmt.Sprintf("%s %s: %s", f.GetType(), f.GetName(), f.GetHelp()))
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			got = append(got, fmt.Sprint(labels, " ", m.GetCounter().GetValue(), " ", m.GetHistogram().GetSampleCount()))
		}
	}
	want := []string{
		"HISTOGRAM tidemark_embedded_call_seconds: Time of one call, by operation.",
		"[delete] 0 1", "[messages] 0 2", "[write] 0 2",
		"COUNTER tidemark_embedded_deleted_rows_total: Message rows of which retention took the content.",
		"[] 1 0",
		"COUNTER tidemark_embedded_errors_total: Calls that failed, by operation, class and reason.",
		"[transient messages unavailable] 1 0",
		"COUNTER tidemark_embedded_member_conflicts_total: Member states whose version stood there already with another window.",
		"[] 1 0",
		"COUNTER tidemark_embedded_queries_total: Statements that read for more than one row, by operation.",
		"[messages] 2 0",
		"COUNTER tidemark_embedded_rows_total: Message rows that were to be inserted, by what became of them.",
		"[conflict] 1 0", "[inserted] 2 0", "[replay] 1 0", "[retired] 1 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
