package tomongo_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// tb is what *testing.T and *rapid.T share.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

var errDied = errors.New("died")

// How a call that is chosen to fail ends.
const (
	before  = "before"
	partial = "partial"
	after   = "after"
)

// world is what outlives a worker: the log, a history built on the merges of
// the vocabulary, Redis and the owner's topic.
type world struct {
	log []wire.Record

	rows    map[watermark.ConversationID]map[watermark.Seq]watermark.Message
	convs   map[watermark.ConversationID]watermark.Conversation
	members map[watermark.ConversationID]map[watermark.UserID]watermark.Member

	hot     []watermark.MemberRow
	owned   []watermark.Input
	letters []wire.Out

	journal []string
	changes []watermark.Change
	known   map[watermark.Position]int64 // by position without Next
	broken  []string                     // see checkRows
	calls   int
	failAt  int
	failHow string
	onCall  func(op string) error
}

func newWorld() *world {
	return &world{
		rows:    make(map[watermark.ConversationID]map[watermark.Seq]watermark.Message),
		convs:   make(map[watermark.ConversationID]watermark.Conversation),
		members: make(map[watermark.ConversationID]map[watermark.UserID]watermark.Member),
		known:   make(map[watermark.Position]int64),
	}
}

func (w *world) step(op string, n int, do func(n int)) error {
	w.journal = append(w.journal, op)
	w.calls++
	if w.onCall != nil {
		if err := w.onCall(op); err != nil {
			return err
		}
	}
	if w.calls != w.failAt {
		do(n)
		return nil
	}
	switch w.failHow {
	case partial:
		do(n / 2)
	case after:
		do(n)
	}
	return errDied
}

func (w *world) projector(t tb, change func(*tomongo.Config)) *tomongo.Projector {
	t.Helper()
	cfg := tomongo.Config{
		History: w, Hot: w, Owner: owner{w}, Log: w,
		FlushEvery: time.Hour, // a slow machine must not flush by itself
		Logger:     slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
	change(&cfg)
	p, err := tomongo.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *world) stage(t tb, change func(*tomongo.Config)) *tomongo.Stage {
	t.Helper()
	s, err := w.projector(t, change).Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func asItIs(*tomongo.Config) {}

// append puts a record on the log.
func (w *world) append(t tb, conv watermark.ConversationID, events ...watermark.Event) {
	t.Helper()
	rec := watermark.Record{Conversation: conv, Events: events}
	for _, e := range events {
		if _, ok := e.(watermark.ReadAdvanced); !ok {
			rec.Inputs = []watermark.Origin{{Partition: watermark.Partition{TopicID: "in"}, Offset: int64(len(w.log))}}
		}
	}
	value, err := wire.EncodeRecord(rec)
	if err != nil {
		t.Fatal(err)
	}
	w.raw(value)
}

func (w *world) raw(value []byte) {
	w.log = append(w.log, wire.Record{
		Topic: wire.TopicSequenced, TopicID: "seq", Offset: int64(len(w.log)), Time: time.Now(), Value: value,
	})
}

// message makes a message whose content follows from its id.
func message(seq watermark.Seq, sender watermark.UserID, id string) watermark.Message {
	m := watermark.Message{
		Seq: seq, Sender: sender, ClientID: id, Kind: "text", SendTime: 5, RecordTime: 1000 + int64(seq),
		BodyType: watermark.BodyText, Body: []byte("text of " + id),
	}
	m.Hash = m.SumHash()
	return m
}

func said(ms ...watermark.Message) watermark.MessagesSequenced {
	return watermark.MessagesSequenced{Messages: ms}
}

func read(u watermark.UserID, seq watermark.Seq) watermark.ReadAdvanced {
	return watermark.ReadAdvanced{User: u, Read: seq}
}

// History.

func (w *world) Write(_ context.Context, c watermark.Change) (watermark.Written, error) {
	out := watermark.Written{Rows: make([]watermark.Fate, len(c.Rows))}
	w.changes = append(w.changes, c)
	total := len(c.Rows) + len(c.Revokes) + len(c.Members) + len(c.Conversations) + len(c.Positions)
	op := "write"
	switch {
	case len(c.Rows)+len(c.Revokes) > 0 || len(c.Members) > 0 && c.Members[0].Member.Version > 0:
	case len(c.Positions) > 0 && len(c.Members)+len(c.Conversations) > 0:
		op = "flush"
	case len(c.Conversations) > 0:
		op = "bounds"
	}
	err := w.step(op, total, func(n int) {
		for i, r := range c.Rows {
			if n--; n >= 0 {
				out.Rows[i] = w.insert(r)
			}
		}
		for _, r := range c.Revokes {
			if n--; n >= 0 {
				w.revoke(r)
			}
		}
		for i, r := range c.Members {
			if n--; n >= 0 && !w.merge(r) {
				out.MemberConflicts = append(out.MemberConflicts, i)
			}
		}
		for _, r := range c.Conversations {
			if n--; n >= 0 {
				old := w.convs[r.ID]
				old.ID = r.ID
				old.Merge(r)
				w.convs[r.ID] = old
				w.checkRows(old)
			}
		}
		for _, p := range c.Positions {
			if n--; n >= 0 {
				key := p
				key.Next = 0
				w.known[key] = max(w.known[key], p.Next)
			}
		}
	})
	return out, err
}

// checkRows notes where a maximum stands without its rows: whoever reads history
// would take them for deleted.
func (w *world) checkRows(c watermark.Conversation) {
	for seq := max(c.Min, 1); seq <= c.Max; seq++ {
		if _, ok := w.rows[c.ID][seq]; !ok {
			w.broken = append(w.broken, fmt.Sprintf("%s: maximum %d without row %d", c.ID, c.Max, seq))
		}
	}
}

func (w *world) insert(r watermark.Row) watermark.Fate {
	if r.Message.Seq < w.convs[r.Conversation].Min {
		return watermark.Retired
	}
	rows := w.rows[r.Conversation]
	if rows == nil {
		rows = make(map[watermark.Seq]watermark.Message)
		w.rows[r.Conversation] = rows
	}
	if old, ok := rows[r.Message.Seq]; ok {
		if old.SameAs(&r.Message) {
			return watermark.Replay
		}
		return watermark.Conflict
	}
	rows[r.Message.Seq] = r.Message
	return watermark.Inserted
}

func (w *world) revoke(r watermark.RevokedRow) {
	if m, ok := w.rows[r.Conversation][r.Revoked.Seq]; ok && m.Revoked == nil {
		w.rows[r.Conversation][r.Revoked.Seq] = m.Tombstone(r.Revoked)
	}
}

// merge tells whether the member's version did not stand there with another
// state.
func (w *world) merge(r watermark.MemberRow) bool {
	ms := w.members[r.Conversation]
	if ms == nil {
		ms = make(map[watermark.UserID]watermark.Member)
		w.members[r.Conversation] = ms
	}
	old, ok := ms[r.Member.User]
	if ok && old.Version > 0 && old.Version == r.Member.Version &&
		(!slices.Equal(old.Memberships, r.Member.Memberships) || !slices.Equal(old.Ops, r.Member.Ops)) {
		return false
	}
	old.User = r.Member.User
	old.Merge(r.Member)
	ms[r.Member.User] = old
	return true
}

func (w *world) DeleteBelow(_ context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (int, error) {
	deleted := 0
	err := w.step("delete", limit, func(n int) {
		for s := range w.rows[conv] {
			if s < seq && deleted < n {
				delete(w.rows[conv], s)
				deleted++
			}
		}
	})
	return deleted, err
}

// Redis, the owner, the dead letters.

func (w *world) RaiseReads(_ context.Context, rows []watermark.MemberRow) error {
	return w.step("raise", len(rows), func(n int) { w.hot = append(w.hot, rows[:n]...) })
}

type owner struct{ w *world }

func (o owner) Append(_ context.Context, inputs []watermark.Input) error {
	return o.w.step("owner", len(inputs), func(n int) { o.w.owned = append(o.w.owned, inputs[:n]...) })
}

func (w *world) Append(_ context.Context, outs []wire.Out) error {
	return w.step("dead letter", len(outs), func(n int) { w.letters = append(w.letters, outs[:n]...) })
}

// fold is what the log says.
func (w *world) fold(t tb) map[watermark.ConversationID]*watermark.State {
	t.Helper()
	out := make(map[watermark.ConversationID]*watermark.State)
	for _, r := range w.log {
		rec, err := wire.DecodeRecord(r)
		if err != nil {
			continue
		}
		if out[rec.Conversation] == nil {
			out[rec.Conversation] = watermark.NewState(rec.Conversation)
		}
		out[rec.Conversation].Apply(rec)
	}
	return out
}

// checkProjection compares history with the log.
func (w *world) checkProjection(t tb) {
	t.Helper()
	if len(w.broken) > 0 {
		t.Errorf("%d times, first: %s", len(w.broken), w.broken[0])
	}
	rows := make(map[string]watermark.Message)
	got := make(map[string]watermark.Message)
	for id, st := range w.fold(t) {
		if st.Exists() {
			equal(t, "conversation", w.convs[id], st.Conversation)
		}
		equal(t, fmt.Sprint("members of ", id), w.members[id], st.Members)
		for seq, m := range w.rows[id] {
			got[fmt.Sprint(id, "/", seq)] = m
		}
	}
	for _, r := range w.log {
		rec, err := wire.DecodeRecord(r)
		if err != nil {
			continue
		}
		for _, e := range rec.Events {
			switch e := e.(type) {
			case watermark.MessagesSequenced:
				for _, m := range e.Messages {
					if k := fmt.Sprint(rec.Conversation, "/", m.Seq); rows[k].Seq == 0 {
						rows[k] = m
					}
				}
			case watermark.Revoked:
				if k := fmt.Sprint(rec.Conversation, "/", e.Seq); rows[k].Seq != 0 && rows[k].Revoked == nil {
					e.At = rec.Offset + 1
					rows[k] = rows[k].Tombstone(e)
				}
			}
		}
	}
	for id, st := range w.fold(t) {
		for seq := watermark.Seq(1); seq < st.Min; seq++ {
			delete(rows, fmt.Sprint(id, "/", seq))
		}
	}
	equal(t, "rows", got, rows)
}

func equal(t tb, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// position is how far history says that it has the log; -1: it does not know it.
func (w *world) position() int64 {
	next, ok := w.known[watermark.Position{Topic: wire.TopicSequenced, Partition: watermark.Partition{TopicID: "seq"}}]
	if !ok {
		return -1
	}
	return next
}

func handle(t tb, s *tomongo.Stage, records []wire.Record) int64 {
	t.Helper()
	durable, err := s.Handle(context.Background(), records)
	if err != nil {
		t.Fatalf("Handle: %v", err)
	}
	return durable
}

func flush(t tb, s *tomongo.Stage) int64 {
	t.Helper()
	durable, err := s.Flush(context.Background())
	if err != nil {
		t.Fatalf("Flush: %v", err)
	}
	return durable
}
