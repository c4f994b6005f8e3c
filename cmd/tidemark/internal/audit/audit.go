// Package audit checks a deployment from the outside: it reads the sequenced
// log, history and Redis, and compares them with what the log alone implies.
//
// It knows nothing of how the roles work, only what must be so when they are at
// rest: the log is dense, no seq and no client message id stands for two
// messages, history is the log's projection, and what Redis may be believed
// about agrees with both. It changes nothing and may run beside traffic, but
// only a deployment at rest (no lag) gives a clean report: what is not yet
// projected shows as missing.
//
// Memory is O(conversations + members + messages), some fifty bytes for a
// message. A Report is not safe for concurrent use. When a source cannot be
// read, Run returns that error and no report.
package audit

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// History is what the audit reads of the history store.
type History interface {
	States(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error)
	Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error)
}

// Hot is what the audit reads of Redis.
type Hot interface {
	Views(ctx context.Context, asks []watermark.Ask) ([]watermark.View, error)
	Messages(ctx context.Context, spans []watermark.Span) ([][]watermark.Message, error)
}

// Sources are the three places that must agree.
type Sources struct {
	// Log gives the sequenced log, each partition in order.
	Log     iter.Seq2[watermark.Record, error]
	History History
	Hot     Hot
}

// Kind says what is wrong.
type Kind string

// The findings that there can be.
const (
	Hole         Kind = "hole"          // a seq was never given
	TwoMessages  Kind = "two_messages"  // one seq, two messages, and no repair
	TwoSeqs      Kind = "two_seqs"      // one client message id, two seqs, and no repair
	MissingRow   Kind = "missing_row"   // history lacks a message of the log
	OtherRow     Kind = "other_row"     // history has another message at a seq
	WrongBounds  Kind = "wrong_bounds"  // min or max differ
	WrongMember  Kind = "wrong_member"  // window or marks of a member differ
	StaleRedis   Kind = "stale_redis"   // Redis is believed and wrong
	OtherHotRow  Kind = "other_hot_row" // the hot log has another message at a seq
	UnknownState Kind = "unknown_state" // history does not know the conversation
)

// Finding is one thing that is wrong.
type Finding struct {
	Kind         Kind                     `json:"kind"`
	Conversation watermark.ConversationID `json:"conversation"`
	Detail       string                   `json:"detail"`
}

// Report says what was looked at and what is wrong.
type Report struct {
	Conversations int `json:"conversations"`
	Messages      int `json:"messages"`
	Members       int `json:"members"`
	Warm          int `json:"warm"`
	// Refused counts records of the log that cannot be decoded: dead letters.
	Refused  int       `json:"refused,omitempty"`
	Findings []Finding `json:"findings"`
}

// Clean tells whether nothing is wrong.
func (r *Report) Clean() bool { return len(r.Findings) == 0 }

func (r *Report) add(k Kind, c watermark.ConversationID, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{k, c, fmt.Sprintf(format, args...)})
}

// maxMissing is how many missing rows of one conversation are named.
const maxMissing = 10

// talk is what the log says about one conversation.
type talk struct {
	state   *watermark.State
	rows    map[watermark.Seq]entry
	ids     map[watermark.SentKey]watermark.Seq
	revoked map[watermark.Seq]bool
	// low is the lowest seq that the log still has; what is below is history's
	// alone, since the log is kept for a limited time.
	low watermark.Seq
}

type entry struct {
	sender   watermark.UserID
	clientID string
	hash     watermark.Hash
}

func entryOf(m *watermark.Message) entry { return entry{m.Sender, m.ClientID, m.Hash} }

// Run reads everything and compares.
func Run(ctx context.Context, src Sources) (*Report, error) {
	r := &Report{}
	talks := map[watermark.ConversationID]*talk{}
	for rec, err := range src.Log {
		if err != nil {
			return nil, fmt.Errorf("audit: read the log: %w", err)
		}
		t := talks[rec.Conversation]
		if t == nil {
			t = &talk{
				state: watermark.NewState(rec.Conversation), rows: map[watermark.Seq]entry{},
				ids: map[watermark.SentKey]watermark.Seq{}, revoked: map[watermark.Seq]bool{},
			}
			talks[rec.Conversation] = t
		}
		t.read(r, rec)
	}
	ids := slices.Sorted(maps.Keys(talks))
	r.Conversations = len(ids)
	for _, id := range ids {
		t := talks[id]
		r.Messages += len(t.rows)
		r.Members += len(t.state.Members)
		t.dense(r)
	}
	for chunk := range slices.Chunk(ids, 200) {
		if err := checkHistory(ctx, r, src.History, talks, chunk); err != nil {
			return nil, err
		}
		if err := checkHot(ctx, r, src.Hot, talks, chunk); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(a.Conversation, b.Conversation) })
	return r, nil
}

// read takes one record. The first message in the log stands for a seq; one
// that a repair follows lost its place, and its id stands where the repair put
// it.
func (t *talk) read(r *Report, rec watermark.Record) {
	repaired := slices.ContainsFunc(rec.Events, func(e watermark.Event) bool { _, ok := e.(watermark.Repaired); return ok })
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.MessagesSequenced:
			for i := range e.Messages {
				t.message(r, &e.Messages[i], repaired)
			}
		case watermark.Revoked:
			t.revoked[e.Seq] = true
		}
	}
	t.state.Apply(rec)
}

func (t *talk) message(r *Report, m *watermark.Message, repaired bool) {
	key := watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}
	if old, ok := t.rows[m.Seq]; !ok {
		t.rows[m.Seq] = entryOf(m)
		if t.low == 0 || m.Seq < t.low {
			t.low = m.Seq
		}
	} else if old != entryOf(m) {
		// It lost its place; a repair must give it another one.
		if _, moved := t.ids[key]; !moved {
			t.ids[key] = -m.Seq
		}
		return
	}
	switch at, ok := t.ids[key]; {
	case !ok || at == m.Seq || (at < 0 && repaired):
		t.ids[key] = m.Seq
	case m.Seq-at > watermark.DedupeHorizon && at > 0:
		t.ids[key] = m.Seq // beyond the horizon a resend is another message
	default:
		r.add(TwoSeqs, t.state.ID, "client message id %q of %s stands at seq %d and at %d", m.ClientID, m.Sender, max(at, -at), m.Seq)
	}
}

func (t *talk) dense(r *Report) {
	var missing []watermark.Seq
	for s := t.low; s > 0 && s <= t.state.Max && len(missing) < 10; s++ {
		if _, ok := t.rows[s]; !ok {
			missing = append(missing, s)
		}
	}
	if len(missing) > 0 {
		r.add(Hole, t.state.ID, "seqs up to %d lack %v", t.state.Max, missing)
	}
	for key, at := range t.ids {
		if at < 0 {
			r.add(TwoMessages, t.state.ID, "message %q of %s lost seq %d to another one and was never repaired", key.ClientID, key.Sender, -at)
		}
	}
}

func checkHistory(ctx context.Context, r *Report, h History, talks map[watermark.ConversationID]*talk, ids []watermark.ConversationID) error {
	wants := make([]watermark.Want, len(ids))
	for i, id := range ids {
		wants[i] = watermark.Want{Conversation: id, Roster: true}
	}
	states, err := h.States(ctx, wants)
	if err != nil {
		return fmt.Errorf("audit: read history: %w", err)
	}
	for i, got := range states {
		t := talks[ids[i]]
		if !got.Exists() && t.state.Exists() {
			r.add(UnknownState, got.ID, "history does not know it, the log has %d messages", len(t.rows))
			continue
		}
		if got.Max != t.state.Max || max(got.Min, 1) != max(t.state.Min, 1) {
			r.add(WrongBounds, got.ID, "history has %d..%d, the log %d..%d", max(got.Min, 1), got.Max, max(t.state.Min, 1), t.state.Max)
		}
		if got.Override.Code() < t.state.Override.Code() {
			r.add(WrongBounds, got.ID, "history says of the unread policy %+v, the log %+v", got.Override, t.state.Override)
		}
		for u, want := range t.state.Members {
			if m := got.Members[u]; !sameMember(m, want) {
				r.add(WrongMember, got.ID, "history has of %s: %s; the log: %s", u, describe(m), describe(want))
			}
		}
		if err := checkRows(ctx, r, h, t); err != nil {
			return err
		}
	}
	return nil
}

func checkRows(ctx context.Context, r *Report, h History, t *talk) error {
	seqs := slices.Sorted(maps.Keys(t.rows))
	missing := 0
	for next := max(t.state.Min, 1); next <= t.state.Max && missing < maxMissing; next += watermark.MaxPage {
		last := min(next+watermark.MaxPage-1, t.state.Max)
		rows, err := h.Messages(ctx, t.state.ID, watermark.Interval{First: next, Last: last}, watermark.MaxPage)
		if err != nil {
			return fmt.Errorf("audit: read messages of %s: %w", t.state.ID, err)
		}
		have := map[watermark.Seq]bool{}
		for i := range rows {
			m := &rows[i]
			have[m.Seq] = true
			if want := t.rows[m.Seq]; m.Seq >= t.low && want != entryOf(m) {
				r.add(OtherRow, t.state.ID, "history has %q of %s at seq %d, the log %q of %s", m.ClientID, m.Sender, m.Seq, want.clientID, want.sender)
			}
			if m.Seq >= t.low && t.revoked[m.Seq] != (m.Revoked != nil) {
				r.add(OtherRow, t.state.ID, "seq %d: revoked in the log is %v, in history %v", m.Seq, t.revoked[m.Seq], m.Revoked != nil)
			}
		}
		i, _ := slices.BinarySearch(seqs, next)
		if len(rows) == 0 && next > t.low && (i == len(seqs) || seqs[i] > last) {
			// A hole, which is a finding already. It may be as wide as seqs go, so
			// it is jumped over.
			if i == len(seqs) {
				return nil
			}
			next = seqs[i] - watermark.MaxPage
			continue
		}
		for s := next; s <= last && missing < maxMissing; s++ {
			if _, ok := t.rows[s]; !have[s] && (ok || s < t.low) {
				missing++
				r.add(MissingRow, t.state.ID, "history lacks seq %d", s)
			}
		}
	}
	return nil
}

func checkHot(ctx context.Context, r *Report, h Hot, talks map[watermark.ConversationID]*talk, ids []watermark.ConversationID) error {
	var asks []watermark.Ask
	for _, id := range ids {
		for _, u := range slices.Sorted(maps.Keys(talks[id].state.Members)) {
			asks = append(asks, watermark.Ask{Conversation: id, User: u})
		}
	}
	views, err := h.Views(ctx, asks)
	if err != nil {
		return fmt.Errorf("audit: read redis: %w", err)
	}
	warm := map[watermark.ConversationID]bool{}
	for i, v := range views {
		if v.Temperature == watermark.Cold {
			continue
		}
		id, t := asks[i].Conversation, talks[asks[i].Conversation]
		warm[id] = true
		if v.Max != t.state.Max || max(v.Min, 1) != max(t.state.Min, 1) {
			r.add(StaleRedis, id, "redis has %d..%d, the log %d..%d", max(v.Min, 1), v.Max, max(t.state.Min, 1), t.state.Max)
		}
		if want := t.state.Members[asks[i].User]; v.Temperature == watermark.Warm && !sameMember(v.Member, want) {
			r.add(StaleRedis, id, "redis has of %s: %s; the log: %s", asks[i].User, describe(v.Member), describe(want))
		}
	}
	r.Warm += len(warm)
	return checkHotRows(ctx, r, h, talks, slices.Sorted(maps.Keys(warm)))
}

func checkHotRows(ctx context.Context, r *Report, h Hot, talks map[watermark.ConversationID]*talk, ids []watermark.ConversationID) error {
	spans := make([]watermark.Span, len(ids))
	for i, id := range ids {
		spans[i] = watermark.Span{Conversation: id, First: 1, Last: watermark.MaxSeq}
	}
	got, err := h.Messages(ctx, spans)
	if err != nil {
		return fmt.Errorf("audit: read hot logs: %w", err)
	}
	for i, rows := range got {
		t := talks[ids[i]]
		for j := range rows {
			if want := t.rows[rows[j].Seq]; rows[j].Seq >= t.low && want != entryOf(&rows[j]) {
				r.add(OtherHotRow, ids[i], "the hot log has %q of %s at seq %d, the log %q of %s", rows[j].ClientID, rows[j].Sender, rows[j].Seq, want.clientID, want.sender)
			}
		}
	}
	return nil
}

// sameMember compares what a client could notice: the window, whether it is
// open, the marks, and what the member set.
func sameMember(a, b watermark.Member) bool {
	return slices.Equal(a.Window(), b.Window()) && a.Open() == b.Open() && a.Read == b.Read && a.Receipt == b.Receipt &&
		maps.Equal(a.Attributes, b.Attributes)
}

func describe(m watermark.Member) string {
	return fmt.Sprintf("window %v, open %v, read %d, receipt %d, attributes %v", m.Window(), m.Open(), m.Read, m.Receipt, m.Attributes)
}
