package syncapi_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

type (
	convID = watermark.ConversationID
	userID = watermark.UserID
	seq    = watermark.Seq
)

const (
	single convID = "single:A:B"
	group  convID = "group:g1"
)

var errDown = fault.New(fault.Transient, "test", errors.New("secret-host:6379 is down"))

// world is a deployment without drivers: an owner that decides at once, a log
// that is the truth, and a Redis that may know less.
type world struct {
	mu      sync.Mutex
	convs   map[convID]*talk
	policy  watermark.UnreadPolicy
	answers map[watermark.AnswerKey]watermark.Answer
	slow    bool                // owners decide, but hand no answer over
	lag     time.Duration       // how long after a record is appended its answer is there
	waited  watermark.AnswerKey // the last one that was held back
	decided watermark.Answer
	held    []heldAnswer // all of them

	hotDown, truthDown, logDown bool
	beforeMessages              func() // runs once, between a call's bounds and its rows
	beforeLoad                  func() // runs once, before a load

	logName string
	ends    []int64 // of the partitions of the log

	calls   map[string]int
	peeks   int
	appends [][]watermark.ReadAdvanced // one for each record of marks
	keys    int                        // answers asked for
	loads   [][]watermark.Want
}

type heldAnswer struct {
	key    watermark.AnswerKey
	answer watermark.Answer
}

// talk is one conversation.
type talk struct {
	watermark.Conversation
	members map[userID]watermark.Member // what the log says
	marks   map[userID]watermark.Member // what Redis was told beyond it
	rows    map[seq]watermark.Message
	ids     map[watermark.SentKey]watermark.Sent

	warm    bool
	warmUps int
	hotFrom seq // rows below it are not in Redis
	lost    map[seq]bool
	unknown map[userID]bool // members that Redis does not know
	// complete says that Redis knows all members.
	complete bool
	// stale are members as Redis still has them, while the log knows better.
	stale map[userID]watermark.Member
}

func newWorld() *world {
	return &world{
		convs:   make(map[convID]*talk),
		answers: make(map[watermark.AnswerKey]watermark.Answer),
		calls:   make(map[string]int),
		logName: "log", ends: make([]int64, 3),
	}
}

func (w *world) partition(id convID) int32 { return int32(id[len(id)-1]) % int32(len(w.ends)) }

// appendLocked gives the place of a record about id on the log, plus 1.
func (w *world) appendLocked(id convID) int64 {
	end := &w.ends[w.partition(id)]
	*end++
	return *end
}

func (w *world) talkLocked(id convID) *talk {
	t := w.convs[id]
	if t == nil {
		t = &talk{
			Conversation: watermark.Conversation{ID: id},
			members:      make(map[userID]watermark.Member), marks: make(map[userID]watermark.Member),
			rows: make(map[seq]watermark.Message), ids: make(map[watermark.SentKey]watermark.Sent),
			warm: true, lost: make(map[seq]bool), unknown: make(map[userID]bool),
		}
		w.convs[id] = t
	}
	return t
}

// with changes a conversation under the lock.
func (w *world) with(id convID, f func(t *talk)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.talkLocked(id))
}

// set changes the world under the lock.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// flush makes Redis forget everything.
func (w *world) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.convs {
		t.warm = false
		t.marks = make(map[userID]watermark.Member)
	}
}

// say sends n messages of sender.
func (w *world) say(tb testing.TB, id convID, sender userID, n int) {
	tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		t := w.talkLocked(id)
		m := watermark.Message{
			Sender: sender, ClientID: fmt.Sprintf("c%d", t.Max+1), Kind: "text",
			BodyType: watermark.BodyText, Body: fmt.Appendf(nil, "message %d", t.Max+1),
		}
		m.Hash = m.SumHash()
		if out := w.sendLocked(t, m); out.Verdict != watermark.Accepted {
			tb.Fatalf("send of %s in %s: %+v", sender, id, out)
		}
	}
}

func (w *world) sendLocked(t *talk, m watermark.Message) watermark.Answer {
	t.warm = true
	sender := t.memberLocked(m.Sender)
	key := watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}
	if old, ok := t.ids[key]; ok {
		if old.Hash != m.Hash {
			return watermark.Answer{Verdict: watermark.Refused, Reason: watermark.ReasonIDReused}
		}
		return watermark.Answer{Verdict: watermark.Resent, Seq: old.Seq}
	}
	if !sender.Open() {
		return watermark.Answer{Verdict: watermark.Refused, Reason: watermark.ReasonNotMember}
	}
	t.Max++
	m.Seq = t.Max
	t.ChangedAt = w.appendLocked(t.ID)
	t.rows[m.Seq] = m
	t.ids[key] = watermark.Sent{Seq: m.Seq, Hash: m.Hash}
	t.LastTime++
	m.RecordTime = t.LastTime
	t.rows[m.Seq] = m
	if w.policy == watermark.KeepOnSend {
		sender.Merge(watermark.Member{User: m.Sender, Own: []seq{m.Seq}})
	} else {
		sender.RaiseRead(m.Seq)
	}
	t.members[m.Sender] = sender
	return watermark.Answer{Verdict: watermark.Accepted, Seq: m.Seq, Min: t.Min}
}

func (t *talk) memberLocked(u userID) watermark.Member {
	m := t.members[u]
	m.User = u
	return m
}

// touchLocked says that the peer of u sees a change, as the log's fold does.
func (t *talk) touchLocked(u userID, at int64) {
	if peer, ok := t.ID.Peer(u); ok {
		m := t.memberLocked(peer)
		m.ChangedAt = at
		t.members[peer] = m
	}
}

func (w *world) decideLocked(in watermark.Input) watermark.Answer {
	t := w.talkLocked(in.Conversation)
	t.warm = true
	t.Inputs = map[watermark.Partition]int64{{}: 1}
	m := t.memberLocked(in.User)
	out := watermark.Answer{Seq: t.Max}
	if op, ok := m.HasOp(in.OpID); ok && in.User != "" {
		return watermark.Answer{Verdict: watermark.Again, Seq: op.Edge, Min: t.Min, Member: &m}
	}
	var full bool
	switch in.Act {
	case watermark.ActJoin:
		m, out.Changed, full = m.Join(in.OpID, t.Max, in.History, in.Seq)
	case watermark.ActLeave:
		m, out.Changed = m.Leave(in.OpID, t.Max, in.Membership)
	case watermark.ActClear:
		m, out.Changed = m.Clear(in.OpID, t.Max)
	case watermark.ActSetAttributes:
		if !m.Listed(in.Conversation) {
			return watermark.Answer{Verdict: watermark.Refused, Reason: watermark.ReasonNotMember}
		}
		m, out.Changed, full = m.SetAttributes(in.OpID, t.Max, in.Attributes)
	case watermark.ActSetPolicy:
		out.Changed = t.Override.Choice != in.Policy
		t.Override = watermark.PolicyChanged{Version: t.Override.Version + 1, Choice: in.Policy}
	case watermark.ActRaiseMin:
		if in.Seq > t.Max+1 {
			return watermark.Answer{Verdict: watermark.Refused, Reason: watermark.ReasonNoSuchSeq}
		}
		out.Changed = in.Seq > t.Min
		t.Min = max(t.Min, in.Seq)
	case watermark.ActRevoke:
		row, ok := t.rows[in.Seq]
		if !ok {
			return watermark.Answer{Verdict: watermark.Refused, Reason: watermark.ReasonNoSuchSeq}
		}
		out.Changed = row.Revoked == nil
		if out.Changed {
			t.rows[in.Seq] = row.Tombstone(watermark.Revoked{Seq: in.Seq, By: in.Actor, At: w.ends[w.partition(t.ID)] + 1})
		}
	}
	if full {
		return watermark.Answer{Verdict: watermark.Refused, Reason: watermark.ReasonWindowFull}
	}
	switch at := w.appendLocked(t.ID); {
	case in.Act == watermark.ActWarm: // of which nothing is to be known
	case in.User != "":
		m.ChangedAt = at
	default:
		t.ChangedAt = at
	}
	if in.User != "" {
		t.members[in.User] = m
		out.Member = &m
		t.touchLocked(in.User, m.ChangedAt)
	}
	out.Min = t.Min
	return out
}

func (w *world) answerLocked(key watermark.AnswerKey, a watermark.Answer) {
	switch {
	case key.Caller == "":
	case w.slow:
		w.waited, w.decided = key, a
		w.held = append(w.held, heldAnswer{key, a})
	case w.lag > 0:
		time.AfterFunc(w.lag, func() { w.set(func() { w.answers[key] = a }) })
	default:
		w.answers[key] = a
	}
}

func (w *world) count(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[name]
}

type fakeHot struct{ *world }

func (h fakeHot) enter(ctx context.Context, name string) (func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.calls[name]++
	if h.hotDown {
		h.mu.Unlock()
		return nil, errDown
	}
	return h.mu.Unlock, nil
}

func (h fakeHot) Views(ctx context.Context, asks []syncapi.Ask) ([]watermark.View, error) {
	leave, err := h.enter(ctx, "Views")
	if err != nil {
		return nil, err
	}
	defer leave()
	out := make([]watermark.View, len(asks))
	for i, a := range asks {
		out[i] = h.viewLocked(a)
	}
	return out, nil
}

func (h fakeHot) viewLocked(a syncapi.Ask) watermark.View {
	t := h.convs[a.Conversation]
	if t == nil || !t.warm {
		return watermark.View{Temperature: watermark.Cold}
	}
	st := t.stateLocked()
	maps.Copy(st.Members, t.stale)
	for _, m := range t.marks {
		st.MergeMember(m)
	}
	v := st.ViewOf(a.User)
	v.Token, v.Inputs = t.tokenLocked(), nil
	peer, _ := a.Conversation.Peer(a.User)
	if t.unknown[a.User] || t.unknown[peer] {
		v.Temperature = watermark.Partial
		if t.unknown[a.User] {
			v.Member = watermark.Member{User: a.User, Read: t.marks[a.User].Read}
		}
		if t.unknown[peer] {
			v.PeerReceipt, v.PeerWindow = t.marks[peer].Receipt, nil
		}
	}
	return v
}

func (t *talk) tokenLocked() string { return fmt.Sprintf("%s %d", t.ID, t.warmUps) }

func (t *talk) stateLocked() *watermark.State {
	st := watermark.NewState(t.ID)
	st.Conversation = t.Conversation
	st.Members = maps.Clone(t.members)
	st.Complete = true
	return st
}

func (h fakeHot) Messages(ctx context.Context, spans []syncapi.Span) ([][]watermark.Message, error) {
	leave, err := h.enter(ctx, "Messages")
	if err != nil {
		return nil, err
	}
	if f := h.beforeMessages; f != nil {
		h.beforeMessages = nil
		leave()
		f()
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	out := make([][]watermark.Message, len(spans))
	for i, s := range spans {
		t := h.convs[s.Conversation]
		if t == nil || !t.warm {
			continue
		}
		out[i] = cutLocked(s, t.readLocked(watermark.Interval{First: max(s.First, t.hotFrom), Last: s.Last}))
	}
	return out, nil
}

// cutLocked keeps as many rows at the kept edge as the span has bytes for.
func cutLocked(s syncapi.Span, rows []watermark.Message) []watermark.Message {
	kept := slices.Clone(rows)
	if s.Keep == watermark.NearEnd {
		slices.Reverse(kept)
	}
	left := s.Bytes
	for i, m := range kept {
		if left -= len(m.Body); left < 0 && i > 0 && s.Bytes > 0 {
			kept = kept[:i]
			break
		}
	}
	slices.SortFunc(kept, func(a, b watermark.Message) int { return int(a.Seq - b.Seq) })
	return kept
}

func (t *talk) readLocked(i watermark.Interval) []watermark.Message {
	var out []watermark.Message
	for s := max(i.First, 1); s <= min(i.Last, t.Max); s++ {
		if m, ok := t.rows[s]; ok && !t.lost[s] {
			out = append(out, m)
		}
	}
	return out
}

func (h fakeHot) MergeMembers(ctx context.Context, loads []watermark.MemberLoad) ([]bool, error) {
	leave, err := h.enter(ctx, "MergeMembers")
	if err != nil {
		return nil, err
	}
	defer leave()
	merged := make([]bool, len(loads))
	for i, l := range loads {
		t := h.talkLocked(l.Conversation)
		if merged[i] = t.warm && l.Token == t.tokenLocked(); !merged[i] {
			continue
		}
		for _, m := range l.Members {
			delete(t.unknown, m.User)
		}
		for _, u := range l.Absent {
			delete(t.unknown, u)
		}
		t.complete = t.complete || l.Complete
	}
	return merged, nil
}

func (h fakeHot) RaiseReads(ctx context.Context, rows []watermark.MemberRow) error {
	leave, err := h.enter(ctx, "RaiseReads")
	if err != nil {
		return err
	}
	defer leave()
	for _, r := range rows {
		if t := h.talkLocked(r.Conversation); t.warm {
			m := t.marks[r.Member.User]
			m.User = r.Member.User
			m.Merge(r.Member)
			t.marks[m.User] = m
		}
	}
	return nil
}

func (h fakeHot) Readers(ctx context.Context, id convID, s seq, after watermark.Reader, limit int) (out watermark.Readership, err error) {
	leave, err := h.enter(ctx, "Readers")
	if err != nil {
		return out, err
	}
	defer leave()
	t := h.convs[id]
	if t == nil || !t.warm || !t.complete {
		return out, nil
	}
	out.Known = true
	var list []watermark.Reader
	for u, m := range t.stateLocked().Members {
		m.Merge(t.marks[u])
		if m.Read < s {
			continue
		}
		out.Count++
		if m.Read > after.Read || m.Read == after.Read && u > after.User {
			list = append(list, watermark.Reader{User: u, Read: m.Read, Window: m.Window()})
		}
	}
	slices.SortFunc(list, func(a, b watermark.Reader) int {
		return cmp.Or(cmp.Compare(a.Read, b.Read), cmp.Compare(a.User, b.User))
	})
	out.Readers = list[:min(len(list), limit)]
	return out, nil
}

func (h fakeHot) Answers(ctx context.Context, keys []watermark.AnswerKey) ([]*watermark.Answer, error) {
	leave, err := h.enter(ctx, "Answers")
	if err != nil {
		return nil, err
	}
	defer leave()
	h.keys += len(keys)
	out := make([]*watermark.Answer, len(keys))
	for i, k := range keys {
		if a, ok := h.answers[k]; ok {
			out[i] = &a
		}
	}
	return out, nil
}

type fakeTruth struct{ *world }

func (f fakeTruth) Load(_ context.Context, wants []watermark.Want) ([]*watermark.State, error) {
	f.mu.Lock()
	if before := f.beforeLoad; before != nil {
		f.beforeLoad = nil
		f.mu.Unlock()
		before()
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	f.calls["Load"]++
	f.loads = append(f.loads, wants)
	if f.truthDown {
		return nil, errDown
	}
	out := make([]*watermark.State, len(wants))
	for i, w := range wants {
		if t := f.convs[w.Conversation]; t != nil {
			out[i] = t.stateLocked()
			if w.Sent {
				out[i].Sent = maps.Clone(t.ids)
			}
		} else {
			out[i] = watermark.NewState(w.Conversation)
		}
	}
	return out, nil
}

func (f fakeTruth) Messages(_ context.Context, id convID, span watermark.Interval) ([]watermark.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls["truth.Messages"]++
	if f.truthDown {
		return nil, errDown
	}
	if span.Len() > watermark.MaxPage {
		return nil, fmt.Errorf("span %v is too long", span)
	}
	t := f.convs[id]
	if t == nil {
		return nil, nil
	}
	return t.readLocked(span), nil
}

func (f fakeTruth) List(_ context.Context, u userID) (out watermark.List, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls["List"]++
	if f.truthDown {
		return out, errDown
	}
	out.Log, out.Ends = f.logName, slices.Clone(f.ends)
	for id, t := range f.convs {
		m, ok := t.members[u]
		if _, peer := id.Peer(u); ok || peer && t.Max > 0 {
			m.User = u
			out.Entries = append(out.Entries, watermark.Listed{Conversation: t.Conversation, Member: m, Partition: f.partition(id)})
		}
	}
	return out, nil
}

func (f fakeTruth) Peek(_ context.Context, peeks []watermark.Peek) ([]watermark.Peeked, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls["Peek"]++
	f.peeks += len(peeks)
	if f.truthDown {
		return nil, errDown
	}
	out := make([]watermark.Peeked, len(peeks))
	for i, p := range peeks {
		t := f.convs[p.Conversation]
		if t == nil {
			continue
		}
		if m, ok := t.rows[p.Last]; ok && !t.lost[p.Last] {
			out[i].Last = &m
		}
		for s := seq(1); s <= t.Max; s++ {
			if m := t.rows[s]; p.Mentions.Contains(s) && slices.Contains(m.Mentions, p.User) && len(out[i].Mentions) < watermark.MaxMentions {
				out[i].Mentions = append(out[i].Mentions, s)
			}
			if r := t.rows[s].Revoked; r != nil && p.RevokedFrom > 0 && r.At >= p.RevokedFrom && len(out[i].Revoked) < watermark.MaxRevoked {
				out[i].Revoked = append(out[i].Revoked, s)
			}
		}
	}
	return out, nil
}

type fakeLog struct{ *world }

func (l fakeLog) enter(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	l.calls[name]++
	if l.logDown {
		l.mu.Unlock()
		return errDown
	}
	return nil
}
