package topush_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

var errDied = errors.New("died")

const (
	group  = watermark.ConversationID("group:g")
	single = watermark.ConversationID("single:A:B")
)

// world is what outlives a worker: the log, the truth, the marks, and what was
// handed off.
type world struct {
	mu    sync.Mutex // a stage has a goroutine of its own
	log   []wire.Record
	base  map[watermark.ConversationID][]watermark.Member // members from before the log
	marks map[watermark.ConversationID]topush.Mark
	got   []topush.Delivery

	lists    map[watermark.UserID][]watermark.ConversationID
	standing map[watermark.ConversationID]time.Duration

	loads   []watermark.ConversationID
	renewed []watermark.Seq // of marks that were to be given a new life
	journal []string
	calls   int
	failAt  int
	failHow string // "before", "partial" or "after" its effect
	onCall  func(op string) error
}

func newWorld() *world {
	return &world{
		base:  make(map[watermark.ConversationID][]watermark.Member),
		marks: make(map[watermark.ConversationID]topush.Mark),
		lists: make(map[watermark.UserID][]watermark.ConversationID), standing: make(map[watermark.ConversationID]time.Duration),
	}
}

func (w *world) step(op string, n int, do func(n int)) error {
	w.mu.Lock()
	w.journal = append(w.journal, op)
	w.calls++
	hook := w.onCall
	w.mu.Unlock()
	if hook != nil {
		if err := hook(op); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls != w.failAt {
		do(n)
		return nil
	}
	switch w.failHow {
	case "partial":
		do(n / 2)
	case "after":
		do(n)
	}
	return errDied
}

func (w *world) stage(t testing.TB, change func(*topush.Config)) *topush.Stage {
	t.Helper()
	cfg := topush.Config{
		Truth: w, Marks: w, Deliverer: w,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
	change(&cfg)
	p, err := topush.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func asItIs(*topush.Config) {}

func (w *world) append(t testing.TB, conv watermark.ConversationID, events ...watermark.Event) {
	t.Helper()
	value, err := wire.EncodeRecord(watermark.Record{Conversation: conv, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	w.raw(value)
}

func (w *world) raw(value []byte) {
	w.log = append(w.log, wire.Record{Topic: wire.TopicSequenced, TopicID: "seq", Offset: int64(len(w.log)), Time: time.Now(), Value: value})
}

func said(seq watermark.Seq, sender watermark.UserID, device string) watermark.MessagesSequenced {
	m := watermark.Message{Seq: seq, Sender: sender, ClientID: fmt.Sprint("id", seq), Kind: "text", Device: device}
	m.Hash = m.SumHash()
	return watermark.MessagesSequenced{Messages: []watermark.Message{m}}
}

func member(u watermark.UserID, lower, upper watermark.Seq) watermark.Member {
	return watermark.Member{User: u, Version: 1, LastMembership: 1,
		Memberships: []watermark.Membership{{Number: 1, Lower: lower, Upper: upper}}}
}

// Load gives the members from before the log and the fold of all of it.
func (w *world) Load(_ context.Context, wants []watermark.Want) ([]*watermark.State, error) {
	out := make([]*watermark.State, len(wants))
	err := w.step("load", len(wants), func(int) {
		for i, want := range wants {
			w.loads = append(w.loads, want.Conversation)
			st := watermark.NewState(want.Conversation)
			for _, m := range w.base[want.Conversation] {
				st.MergeMember(m)
			}
			for _, r := range w.log {
				if rec, err := wire.DecodeRecord(r); err == nil && rec.Conversation == want.Conversation {
					st.Apply(rec)
				}
			}
			st.Complete = want.Roster
			out[i] = st
		}
	})
	return out, err
}

func (w *world) Pushed(_ context.Context, ids []watermark.ConversationID) ([]topush.Mark, error) {
	out := make([]topush.Mark, len(ids))
	err := w.step("pushed", len(ids), func(int) {
		for i, id := range ids {
			out[i] = w.marks[id]
		}
	})
	return out, err
}

func (w *world) RaisePushed(_ context.Context, marks []topush.Mark) error {
	return w.step("raise", len(marks), func(n int) {
		for _, m := range marks[:n] {
			if m.Renew {
				w.renewed = append(w.renewed, m.Seq)
			}
			old := w.marks[m.Conversation]
			w.marks[m.Conversation] = topush.Mark{Conversation: m.Conversation, Seq: max(old.Seq, m.Seq), Offset: max(old.Offset, m.Offset)}
		}
	})
}

func (w *world) Deliver(_ context.Context, ds []topush.Delivery) error {
	return w.step("deliver", len(ds), func(n int) { w.got = append(w.got, ds[:n]...) })
}

// Enlist implements topush.Crowds.
func (w *world) Enlist(_ context.Context, conv watermark.ConversationID, users []watermark.UserID, _ time.Duration) error {
	return w.step("enlist", len(users), func(n int) {
		for _, u := range users[:n] {
			if !slices.Contains(w.lists[u], conv) {
				w.lists[u] = append(w.lists[u], conv)
			}
		}
	})
}

// Delist implements topush.Crowds.
func (w *world) Delist(_ context.Context, conv watermark.ConversationID, users []watermark.UserID) error {
	return w.step("delist", len(users), func(n int) {
		for _, u := range users[:n] {
			w.lists[u] = slices.DeleteFunc(w.lists[u], func(c watermark.ConversationID) bool { return c == conv })
		}
	})
}

// StandCrowd implements topush.Crowds.
func (w *world) StandCrowd(_ context.Context, conv watermark.ConversationID, ttl time.Duration) error {
	return w.step("stand", 1, func(n int) {
		if n > 0 {
			w.standing[conv] = ttl
		}
	})
}

// FallCrowd implements topush.Crowds.
func (w *world) FallCrowd(_ context.Context, conv watermark.ConversationID) error {
	return w.step("fall", 1, func(n int) {
		if n > 0 {
			delete(w.standing, conv)
		}
	})
}

// StandingCrowds implements topush.Crowds.
func (w *world) StandingCrowds(_ context.Context, convs []watermark.ConversationID) ([]time.Duration, error) {
	out := make([]time.Duration, len(convs))
	return out, w.step("standing", len(convs), func(int) {
		for i, c := range convs {
			out[i] = w.standing[c]
		}
	})
}

// told gives the deliveries in one line each.
func (w *world) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, d := range w.got {
		users := make([]string, len(d.Users))
		for i, u := range d.Users {
			users[i] = string(u)
		}
		line := fmt.Sprintf("%s > %s max %d", what(d.Event), strings.Join(users, ","), d.Max)
		switch d.Reach {
		case topush.ToCrowd:
			line = fmt.Sprintf("%s > crowd at %d max %d", what(d.Event), d.Place.Changed, d.Max)
		case topush.Change:
			line = fmt.Sprintf("change %s at %d after %d", what(d.Event), d.Place.Changed, d.Place.Before)
		case topush.Seat:
			line = fmt.Sprintf("seat %s", strings.Join(users, ","))
		case topush.Dissolve:
			line = "dissolve"
		}
		if d.ExceptDevice != "" {
			line += fmt.Sprintf(" not %s/%s", d.ExceptUser, d.ExceptDevice)
		}
		out = append(out, line)
	}
	return out
}

func what(e watermark.Event) string {
	switch e := e.(type) {
	case watermark.MessagesSequenced:
		return fmt.Sprintf("message %d", e.Messages[0].Seq)
	case watermark.WindowChanged:
		return fmt.Sprintf("%s of %s", e.Cause, e.Member.User)
	case watermark.Revoked:
		return fmt.Sprintf("revoke %d", e.Seq)
	case watermark.ReadAdvanced:
		return fmt.Sprintf("read of %s %d/%d", e.User, e.Read, e.Receipt)
	case watermark.MinSeqRaised:
		return fmt.Sprintf("min %d", e.Min)
	case watermark.PolicyChanged:
		return fmt.Sprintf("policy %d", e.Choice)
	case watermark.Repaired:
		return fmt.Sprintf("repaired %d from %d", e.Number, e.From)
	}
	return "hint"
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func handle(t testing.TB, s *topush.Stage, records []wire.Record) int64 {
	t.Helper()
	durable, err := s.Handle(t.Context(), records)
	for until := time.Now().Add(time.Minute); err == nil && durable <= records[len(records)-1].Offset && time.Now().Before(until); {
		runtime.Gosched()
		durable, err = s.Flush(t.Context())
	}
	if err != nil {
		t.Fatalf("Handle: %v", err)
	}
	return durable
}

// each hands the log in record by record, as a worker that keeps up sees it.
func each(t testing.TB, w *world, s *topush.Stage, from int) {
	t.Helper()
	log := w.log
	for i := from; i < len(log); i++ {
		w.log = log[:i+1]
		handle(t, s, log[i:i+1])
	}
	w.log = log
}

func count(journal []string, op string) int {
	return len(slices.DeleteFunc(slices.Clone(journal), func(s string) bool { return s != op }))
}
