package truth_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/storage/truth"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is the sequenced log, toMongo and history, small and in one goroutine:
// hook runs between any two steps of a call, so that everything that others
// could do there is done there.
type world struct {
	*storagetest.Memory
	logs [2]partition
	hook func() // nil: nothing happens in between

	pins, released int
	last           *pin
	calls          []string // pin, history, tail
	err            map[string]error
}

type partition struct {
	records   []watermark.Record // what will ever be appended
	end       int                // what has been appended
	written   int                // rows, revokes and windows below are in history
	committed int                // toMongo's offset
}

func newWorld() *world {
	return &world{Memory: storagetest.NewMemory(), err: make(map[string]error)}
}

func partitionOf(c watermark.ConversationID) int { return int(c[len(c)-1]) % 2 }

// script adds a record that append will append.
func (w *world) script(c watermark.ConversationID, events ...watermark.Event) {
	p := &w.logs[partitionOf(c)]
	n := int64(len(p.records))
	p.records = append(p.records, watermark.Record{
		Conversation: c, Events: events, Offset: n,
		Inputs: []watermark.Origin{{Partition: watermark.Partition{TopicID: "in"}, Offset: 10 * n}},
	})
}

func (w *world) append(partition, n int) {
	p := &w.logs[partition]
	p.end = min(p.end+n, len(p.records))
}

func (w *world) appendAll() {
	for i := range w.logs {
		w.append(i, len(w.logs[i].records))
	}
}

var errCrash = errors.New("crash")

// project lets toMongo take n records. It dies after the given step, before its
// offset moves; "" after nothing, any other word never.
func (w *world) project(t testing.TB, partition, n int, dies storagetest.Step) {
	p := &w.logs[partition]
	batch := p.records[p.committed:min(p.committed+n, p.end)]
	if len(batch) == 0 {
		return
	}
	w.Fail = func(s storagetest.Step) error {
		if s == dies {
			return errCrash
		}
		return nil
	}
	_, err := w.Memory.Write(context.WithoutCancel(t.Context()), changeOf(batch))
	w.Fail = nil
	switch {
	case err == nil:
		p.committed += len(batch)
	case !errors.Is(err, errCrash):
		t.Fatal(err)
	}
}

// writeAhead lets toMongo write the next n records without their bounds and
// marks, which wait in its memory. Its offset stays, and it may die any time.
func (w *world) writeAhead(t testing.TB, partition, n int) {
	p := &w.logs[partition]
	p.written = max(p.written, p.committed)
	batch := p.records[p.written:min(p.written+n, p.end)]
	c := changeOf(batch)
	c.Conversations, c.Members = nil, nil
	for _, rec := range batch {
		for _, e := range rec.Events {
			if e, ok := e.(watermark.WindowChanged); ok {
				e.Member.ChangedAt = rec.Offset + 1
				c.Members = append(c.Members, watermark.MemberRow{Conversation: rec.Conversation, Member: e.Member})
			}
		}
	}
	if _, err := w.Memory.Write(context.WithoutCancel(t.Context()), c); err != nil {
		t.Fatal(err)
	}
	p.written += len(batch)
}

// retain deletes what is below the minimum.
func (w *world) retain(t testing.TB, c watermark.ConversationID, limit int) {
	if _, err := w.Memory.DeleteBelow(context.WithoutCancel(t.Context()), c, watermark.MaxSeq, limit); err != nil {
		t.Fatal(err)
	}
}

func changeOf(batch []watermark.Record) (c watermark.Change) {
	states := make(map[watermark.ConversationID]*watermark.State)
	for _, rec := range batch {
		s := states[rec.Conversation]
		if s == nil {
			s = watermark.NewState(rec.Conversation)
			states[rec.Conversation] = s
		}
		s.Apply(rec)
		for _, e := range rec.Events {
			switch e := e.(type) {
			case watermark.MessagesSequenced:
				for _, m := range e.Messages {
					c.Rows = append(c.Rows, watermark.Row{Conversation: rec.Conversation, Message: m})
				}
			case watermark.Revoked:
				e.At = rec.Offset + 1
				c.Revokes = append(c.Revokes, watermark.RevokedRow{Conversation: rec.Conversation, Revoked: e})
			}
		}
	}
	for id, s := range states {
		c.Conversations = append(c.Conversations, s.Conversation)
		for _, m := range s.Members {
			c.Members = append(c.Members, watermark.MemberRow{Conversation: id, Member: m})
		}
	}
	return c
}

// fold gives the state that the first end records of c's partition make.
func (w *world) fold(c watermark.ConversationID, from, end int) *watermark.State {
	s := watermark.NewState(c)
	for _, rec := range w.logs[partitionOf(c)].records[from:end] {
		if rec.Conversation == c {
			s.Apply(rec)
		}
	}
	return s
}

func (w *world) ends() (out [2]int) {
	for i := range w.logs {
		out[i] = w.logs[i].end
	}
	return out
}

// step is what each outside call does first and last.
func (w *world) step(name string) error {
	w.calls = append(w.calls, name)
	if w.hook != nil {
		w.hook()
	}
	return w.err[name]
}

func (w *world) States(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error) {
	if err := w.step("history"); err != nil {
		return nil, err
	}
	return w.Memory.States(ctx, wants)
}

func (w *world) Messages(ctx context.Context, c watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error) {
	if err := w.step("history"); err != nil {
		return nil, err
	}
	return w.Memory.Messages(ctx, c, in, limit)
}

func (w *world) MembershipsOf(ctx context.Context, u watermark.UserID, after watermark.ConversationID, limit int) ([]watermark.MemberRow, error) {
	if err := w.step("history"); err != nil {
		return nil, err
	}
	return w.Memory.MembershipsOf(ctx, u, after, limit)
}

func (w *world) Conversations(ctx context.Context, ids []watermark.ConversationID) ([]watermark.Conversation, error) {
	if err := w.step("history"); err != nil {
		return nil, err
	}
	return w.Memory.Conversations(ctx, ids)
}

func (w *world) Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.Peeked, error) {
	if err := w.step("history"); err != nil {
		return nil, err
	}
	return w.Memory.Peek(ctx, peeks)
}

// pin holds the log from the committed offsets on.
type pin struct {
	w    *world
	from [2]int
	held map[int]bool
	// seen is what the latest States read up to.
	seen [2]int
	// ends is what the latest Ends told.
	ends [2]int
}

func (w *world) pin(partitions ...int) (*pin, error) {
	if err := w.step("pin"); err != nil {
		return nil, err
	}
	w.pins++
	p := &pin{w: w, held: make(map[int]bool)}
	for _, n := range partitions {
		p.held[n], p.from[n] = true, w.logs[n].committed
	}
	w.last = p
	return p, nil
}

func (w *world) pinOf(_ context.Context, convs []watermark.ConversationID) (truth.Pin, error) {
	var held []int
	for _, c := range convs {
		held = append(held, partitionOf(c))
	}
	return w.pin(held...)
}

func (w *world) pinAll(context.Context) (truth.Pin, error) { return w.pin(0, 1) }

func (w *world) truth(t testing.TB, chunk int) (*truth.Truth, func() *pin) {
	tr, err := truth.New(truth.Config{History: w, Pin: w.pinOf, PinAll: w.pinAll, Chunk: chunk, Log: "log"})
	if err != nil {
		t.Fatal(err)
	}
	return tr, func() *pin { return w.last }
}

func (p *pin) tail(c watermark.ConversationID) []watermark.Record {
	n := partitionOf(c)
	if !p.held[n] {
		panic("a partition was asked for that is not pinned: " + string(c))
	}
	return p.w.logs[n].records[p.from[n]:p.w.logs[n].end]
}

func (p *pin) States(_ context.Context, convs []watermark.ConversationID) (map[watermark.ConversationID]*watermark.State, error) {
	if err := p.w.step("tail"); err != nil {
		return nil, err
	}
	p.seen = p.w.ends()
	out := make(map[watermark.ConversationID]*watermark.State)
	for _, c := range convs {
		for _, rec := range p.tail(c) {
			if rec.Conversation == c {
				n := partitionOf(c)
				out[c] = p.w.fold(c, p.from[n], p.seen[n])
				break
			}
		}
	}
	return out, nil
}

func (p *pin) MembersOf(_ context.Context, u watermark.UserID) (out []watermark.ConversationID, err error) {
	if err := p.w.step("tail"); err != nil {
		return nil, err
	}
	seen := make(map[watermark.ConversationID]bool)
	for n := range p.w.logs {
		for _, rec := range p.w.logs[n].records[p.from[n]:p.w.logs[n].end] {
			if seen[rec.Conversation] {
				continue
			}
			seen[rec.Conversation] = true
			if _, ok := p.w.fold(rec.Conversation, p.from[n], p.w.logs[n].end).Members[u]; ok {
				out = append(out, rec.Conversation)
			}
		}
	}
	return out, nil
}

func (p *pin) Messages(_ context.Context, c watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error) {
	if err := p.w.step("tail"); err != nil {
		return nil, err
	}
	rows := rowsOf(c, p.tail(c), in)
	return rows[:min(limit, len(rows))], nil
}

func (p *pin) Revokes(_ context.Context, c watermark.ConversationID, in watermark.Interval) (map[watermark.Seq]watermark.Revoked, error) {
	if err := p.w.step("tail"); err != nil {
		return nil, err
	}
	return revokesOf(c, p.tail(c), in), nil
}

func (p *pin) Ends(context.Context) ([]int64, error) {
	if err := p.w.step("tail"); err != nil {
		return nil, err
	}
	p.ends = p.w.ends()
	return []int64{int64(p.ends[0]), int64(p.ends[1])}, nil
}

func (p *pin) Partition(c watermark.ConversationID) int32 { return int32(partitionOf(c)) }

func (p *pin) Peek(_ context.Context, peeks []watermark.Peek) ([]watermark.TailPeek, error) {
	if err := p.w.step("tail"); err != nil {
		return nil, err
	}
	out := make([]watermark.TailPeek, len(peeks))
	for i, a := range peeks {
		tail := p.tail(a.Conversation)
		for _, m := range rowsOf(a.Conversation, tail, whole) {
			if m.Seq == a.Last {
				out[i].Last = &m
			}
			if slices.Contains(m.Mentions, a.User) && a.Mentions.Contains(m.Seq) {
				out[i].Mentions = append(out[i].Mentions, m.Seq)
			}
		}
		out[i].Revokes = revokesOf(a.Conversation, tail, whole)
	}
	return out, nil
}

func (p *pin) Release() { p.w.released++ }

// rowsOf gives the messages of a stretch of the log, ascending, the first at
// each seq.
func rowsOf(c watermark.ConversationID, records []watermark.Record, in watermark.Interval) (out []watermark.Message) {
	found := make(map[watermark.Seq]watermark.Message)
	var top watermark.Seq
	for _, rec := range records {
		for _, e := range rec.Events {
			ms, ok := e.(watermark.MessagesSequenced)
			if !ok || rec.Conversation != c {
				continue
			}
			for _, m := range ms.Messages {
				if _, ok := found[m.Seq]; !ok && in.Contains(m.Seq) {
					found[m.Seq] = m
					top = max(top, m.Seq)
				}
			}
		}
	}
	for s := watermark.Seq(1); s <= top; s++ {
		if m, ok := found[s]; ok {
			out = append(out, m)
		}
	}
	return out
}

func revokesOf(c watermark.ConversationID, records []watermark.Record, in watermark.Interval) map[watermark.Seq]watermark.Revoked {
	out := make(map[watermark.Seq]watermark.Revoked)
	for _, rec := range records {
		for _, e := range rec.Events {
			if r, ok := e.(watermark.Revoked); ok && rec.Conversation == c && in.Contains(r.Seq) {
				if _, ok := out[r.Seq]; !ok {
					r.At = rec.Offset + 1
					out[r.Seq] = r
				}
			}
		}
	}
	return out
}
