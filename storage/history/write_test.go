package history_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const group = watermark.ConversationID("group:g1")

func text(seq watermark.Seq, id string) watermark.Message {
	m := watermark.Message{Seq: seq, Sender: "ann", ClientID: id, BodyType: watermark.BodyText, Body: []byte(id)}
	m.Hash = m.SumHash()
	return m
}

func rowsOf(conv watermark.ConversationID, ms ...watermark.Message) (out []watermark.Row) {
	for _, m := range ms {
		out = append(out, watermark.Row{Conversation: conv, Message: m})
	}
	return out
}

func membersOf(ms ...watermark.Member) (c watermark.Change) {
	for _, m := range ms {
		c.Members = append(c.Members, watermark.MemberRow{Conversation: group, Member: m})
	}
	return c
}

func convsOf(ids ...watermark.ConversationID) (c watermark.Change) {
	for _, id := range ids {
		c.Conversations = append(c.Conversations, watermark.Conversation{ID: id, Max: 1})
	}
	return c
}

// once gives each answer for one command of the name, in order, and then the
// usual one.
func once(name string, answers ...bson.D) func(string, bson.Raw) bson.D {
	var n atomic.Int64
	return func(got string, _ bson.Raw) bson.D {
		if got != name {
			return nil
		}
		if i := n.Add(1); int(i) <= len(answers) {
			return answers[i-1]
		}
		return nil
	}
}

// TestRacingUpsertsAreTriedAgain: two writers insert the same document, one
// meets the duplicate key, and only that one's update is sent again.
func TestRacingUpsertsAreTriedAgain(t *testing.T) {
	f := startFake(t, once("update", writeErrors(11000, 2, 0), writeErrors(11000, 1)))
	s := f.open(t, history.Config{})
	if _, err := s.Write(t.Context(), convsOf("group:c", "group:a", "group:b")); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, cmd := range f.sent("update") {
		var ids []string
		for _, u := range documents(t, cmd, "updates") {
			ids = append(ids, u.Lookup("q", "_id").StringValue())
		}
		got = append(got, ids)
	}
	want := [][]string{{"group:a", "group:b", "group:c"}, {"group:a", "group:c"}, {"group:c"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("updates (-want +got)\n%s", diff)
	}
}

func TestRaceThatNeverEndsIsTransient(t *testing.T) {
	for name, c := range map[string]watermark.Change{
		"conversation": convsOf(group),
		"member":       membersOf(watermark.Member{User: "ann", Version: 1, LastMembership: 1}),
	} {
		t.Run(name, func(t *testing.T) {
			s := startFake(t, func(name string, _ bson.Raw) bson.D {
				if name == "update" {
					return writeErrors(11000, 0)
				}
				return nil
			}).open(t, history.Config{})
			_, err := s.Write(t.Context(), c)
			if fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != "race" {
				t.Errorf("%v: %s", err, fault.ReasonOf(err))
			}
		})
	}
}

// TestWindowsAreReadAgainAfterARace: between the look and the update another
// writer stores the same version with another window. The update names the
// version it saw, so it fails, and the second look finds the conflict.
func TestWindowsAreReadAgainAfterARace(t *testing.T) {
	joined, _, _ := watermark.Member{User: "ann"}.Join("join", 10, watermark.HistoryNone, 0)
	left, _ := joined.Leave("leave", 20, 0)
	other := bson.D{{Key: "_id", Value: "group:g1/ann"}, {Key: "v", Value: int64(2)}, {Key: "lm", Value: 1}}
	finds, updates := once("find", found(), found(other)), once("update", writeErrors(11000, 0))
	f := startFake(t, func(name string, cmd bson.Raw) bson.D {
		if d := finds(name, cmd); d != nil {
			return d
		}
		return updates(name, cmd)
	})
	s := f.open(t, history.Config{})
	left.Read = 7
	w, err := s.Write(t.Context(), membersOf(watermark.Member{User: "bob", Read: 3}, left))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.MemberConflicts, []int{1}) {
		t.Errorf("conflicts %v", w.MemberConflicts)
	}
	sent := f.sent("update")
	first, second := documents(t, sent[0], "updates"), documents(t, sent[1], "updates")
	if v, ok := first[0].Lookup("q", "v").Int64OK(); !ok || v != 0 {
		t.Errorf("the first update does not name the version it saw: %v", first[0])
	}
	if len(second) != 1 || second[0].Lookup("u", "$max", "r").AsInt64() != 7 {
		t.Errorf("the second update does not raise the mark: %v", second)
	}
	if _, err := second[0].LookupErr("u", "$set"); err == nil {
		t.Errorf("the second update sets the window: %v", second[0])
	}
}

// TestFates has an insert of five with three duplicates, told by index.
func TestFates(t *testing.T) {
	standing := func(m watermark.Message) bson.D {
		return bson.D{{Key: "c", Value: group}, {Key: "s", Value: int64(m.Seq)}, {Key: "f", Value: m.Sender}, {Key: "i", Value: m.ClientID}, {Key: "h", Value: m.Hash[:]}}
	}
	inserts := once("insert", writeErrors(11000, 4, 1, 2))
	finds := once("find",
		found(bson.D{{Key: "_id", Value: group}, {Key: "mn", Value: int64(3)}}),
		found(standing(text(4, "d")), standing(text(5, "other")), standing(text(7, "g"))))
	f := startFake(t, func(name string, cmd bson.Raw) bson.D {
		if d := inserts(name, cmd); d != nil {
			return d
		}
		return finds(name, cmd)
	})
	s := f.open(t, history.Config{})
	ms := []watermark.Message{text(7, "g"), text(3, "c"), text(1, "a"), text(5, "e"), text(4, "d"), text(6, "f"), text(3, "c"), text(6, "z")}
	w, err := s.Write(t.Context(), watermark.Change{Rows: rowsOf(group, ms...)})
	if err != nil {
		t.Fatal(err)
	}
	want := []watermark.Fate{
		watermark.Replay, watermark.Inserted, watermark.Retired, watermark.Conflict, watermark.Replay,
		watermark.Inserted, watermark.Replay, watermark.Conflict,
	}
	if diff := cmp.Diff(want, w.Rows); diff != "" {
		t.Errorf("fates (-want +got)\n%s", diff)
	}
	cmd := f.sent("insert")[0]
	var seqs []int64
	for _, d := range documents(t, cmd, "documents") {
		seqs = append(seqs, d.Lookup("s").Int64())
	}
	if !slices.Equal(seqs, []int64{3, 4, 5, 6, 7}) {
		t.Errorf("inserted in the order %v", seqs)
	}
}

// TestTakenAndGone: retention deletes a row between the insert that met it and
// the look at it. What became of it is not known, so the Change comes again.
func TestTakenAndGone(t *testing.T) {
	s := startFake(t, once("insert", writeErrors(11000, 0))).open(t, history.Config{})
	_, err := s.Write(t.Context(), watermark.Change{Rows: rowsOf(group, text(1, "a"))})
	if fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != "race" {
		t.Errorf("%v: %s", err, fault.ReasonOf(err))
	}
}

// TestNothingAfterAFailedPart: no max may stand without its rows.
func TestNothingAfterAFailedPart(t *testing.T) {
	f := startFake(t, once("insert", failed(14031)))
	s := f.open(t, history.Config{})
	c := convsOf(group)
	c.Rows = rowsOf(group, text(1, "a"))
	if _, err := s.Write(t.Context(), c); fault.ReasonOf(err) != "disk_full" {
		t.Errorf("error %v", err)
	}
	if got := f.sent("update"); len(got) > 0 {
		t.Errorf("the conversation was written: %v", got)
	}
}

// TestEveryWriteWaitsForTheMajority looks at what goes over the wire.
func TestEveryWriteWaitsForTheMajority(t *testing.T) {
	f := startFake(t, nil)
	s := f.open(t, history.Config{})
	c := membersOf(watermark.Member{User: "ann", Own: []watermark.Seq{1}})
	c.Rows = rowsOf(group, text(1, "a"))
	c.Revokes = []watermark.RevokedRow{{Conversation: group, Revoked: watermark.Revoked{Seq: 1}}}
	c.Conversations = convsOf(group).Conversations
	if _, err := s.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	writes := f.sent("insert", "update")
	if len(writes) != 4 {
		t.Errorf("%d writes", len(writes))
	}
	for _, cmd := range writes {
		wc := cmd.Lookup("writeConcern").Document()
		w, _ := wc.Lookup("w").StringValueOK()
		if j, _ := wc.Lookup("j").BooleanOK(); w != "majority" || !j {
			t.Errorf("%s: write concern %v", nameOf(cmd), wc)
		}
		if _, err := cmd.LookupErr("txnNumber"); err != nil {
			t.Errorf("%s is not retryable", nameOf(cmd))
		}
		if ordered, ok := cmd.Lookup("ordered").BooleanOK(); !ok || ordered {
			t.Errorf("%s is ordered", nameOf(cmd))
		}
		if _, err := cmd.LookupErr("startTransaction"); err == nil {
			t.Errorf("%s starts a transaction", nameOf(cmd))
		}
	}
}

// TestReadsGoToThePrimary whatever the URI says; and what is read before a
// write is the newest, whatever the read concern.
func TestReadsGoToThePrimary(t *testing.T) {
	f := startFake(t, nil)
	s := f.open(t, history.Config{URI: "mongodb://" + f.ln.Addr().String() + "/?readPreference=secondaryPreferred&readConcernLevel=majority"})
	if _, err := s.Messages(t.Context(), group, watermark.Interval{First: 1, Last: 9}, 9); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(t.Context(), watermark.Change{Rows: rowsOf(group, text(1, "a"))}); err != nil {
		t.Fatal(err)
	}
	var levels []string
	for _, cmd := range f.sent("find") {
		if mode, ok := cmd.Lookup("$readPreference", "mode").StringValueOK(); ok && mode != "primary" {
			t.Errorf("read preference %s", mode)
		}
		levels = append(levels, cmd.Lookup("readConcern", "level").StringValue())
	}
	if !slices.Equal(levels, []string{"majority", "local"}) {
		t.Errorf("read concerns %v", levels)
	}
}

// TestErrorsOfTheServer goes the whole way from the wire to the class.
func TestErrorsOfTheServer(t *testing.T) {
	concern := bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, {Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "x"}}}}
	both := append(writeErrors(11000, 0), concern[2])
	tests := []struct {
		name    string
		answers []bson.D
		class   fault.Class
		reason  string // one of, where it depends on when the time is over
	}{
		{"one election, then the driver's own repetition", []bson.D{retryable(10107)}, 0, ""},
		{"an election that lasts", forEver(retryable(189)), fault.Transient, "election|timeout"},
		{"one broken connection", []bson.D{hangUp}, 0, ""},
		{"a connection that breaks each time", forEver(hangUp), fault.Transient, "network|timeout"},
		{"not on a majority yet", []bson.D{concern}, fault.Transient, "write_concern"},
		{"duplicates that are not on a majority yet", []bson.D{both}, fault.Transient, "write_concern"},
		{"a conflict of writers", []bson.D{writeErrors(112, 0)}, fault.Transient, "conflict"},
		{"one row too large among duplicates", []bson.D{mixed(11000, 10334)}, fault.Poison, "too_large"},
		{"not allowed to write", []bson.D{failed(13)}, fault.Fatal, "auth"},
		{"a validator of somebody", []bson.D{writeErrors(121, 0)}, fault.Fatal, "validation"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := startFake(t, once("insert", tt.answers...)).open(t, history.Config{Timeout: 2 * time.Second})
			w, err := s.Write(t.Context(), watermark.Change{Rows: rowsOf(group, text(1, "a"), text(2, "b"))})
			if tt.reason == "" {
				if err != nil || len(w.Rows) != 2 {
					t.Errorf("%v, %v", w, err)
				}
				return
			}
			if err == nil || fault.ClassOf(err) != tt.class || !slices.Contains(strings.Split(tt.reason, "|"), fault.ReasonOf(err)) || len(w.Rows) > 0 {
				t.Errorf("%v %s %v: %v", fault.ClassOf(err), fault.ReasonOf(err), w, err)
			}
		})
	}
}

// forEver is more answers than the driver asks for.
func forEver(d bson.D) []bson.D { return slices.Repeat([]bson.D{d}, 10000) }

// retryable answers with an error and the label that lets the driver try again.
func retryable(code int) bson.D {
	return append(failed(code), bson.E{Key: "errorLabels", Value: bson.A{"RetryableWriteError"}})
}

func mixed(codes ...int) bson.D {
	var list bson.A
	for i, c := range codes {
		list = append(list, bson.D{{Key: "index", Value: i}, {Key: "code", Value: c}, {Key: "errmsg", Value: "x"}})
	}
	return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 0}, {Key: "writeErrors", Value: list}}
}

// TestInsertsAreCut by number and by bytes, so that the indexes of an answer
// are those of one command.
func TestInsertsAreCut(t *testing.T) {
	var many, large []watermark.Message
	for i := range 1201 {
		many = append(many, text(watermark.Seq(i+1), fmt.Sprint(i)))
	}
	for i := range 20 {
		m := text(watermark.Seq(i+1), fmt.Sprint(i))
		m.Body = bytes.Repeat([]byte("x"), 1<<20)
		large = append(large, m)
	}
	for name, tt := range map[string]struct {
		rows []watermark.Message
		want []int
	}{
		"by number": {many, []int{500, 500, 201}},
		"by bytes":  {large, []int{7, 7, 6}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, nil)
			s := f.open(t, history.Config{})
			w, err := s.Write(t.Context(), watermark.Change{Rows: rowsOf(group, tt.rows...)})
			if err != nil || len(w.Rows) != len(tt.rows) {
				t.Fatal(err)
			}
			var got []int
			for _, cmd := range f.sent("insert") {
				got = append(got, len(documents(t, cmd, "documents")))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("inserts of %v, want %v", got, tt.want)
			}
		})
	}
}

// TestWrongCredentials: the server refuses, and the error is one clear line
// with nothing secret in it.
func TestWrongCredentials(t *testing.T) {
	f := startFake(t, once("saslStart", failed(18), failed(18), failed(18)))
	for _, uri := range []string{"mongodb://ann:p@ss/w:rd@%s/", "mongodb://ann:p%%40ss%%2Fw%%3Ard@%s/"} {
		s := f.open(t, history.Config{URI: fmt.Sprintf(uri, f.ln.Addr())})
		err := s.Prepare(t.Context())
		if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != "auth" {
			t.Fatalf("%v %s: %v", fault.ClassOf(err), fault.ReasonOf(err), err)
		}
		for _, secret := range []string{"p@ss", "w:rd", "p%40ss"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the password is in the error: %v", err)
			}
		}
	}
	if n := len(f.sent("saslStart")); n == 0 {
		t.Error("nobody tried to log in")
	}
}
