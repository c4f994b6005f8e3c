package tomongo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// Reasons of a flush.
const (
	reasonCount = "count" // FlushMarks advances
	reasonTime  = "time"  // FlushEvery since the first pending one
	reasonIdle  = "idle"  // the runner asked: nothing comes, or the partition is given back
)

const (
	// maxUnraised bounds the marks that wait for Redis to come back.
	maxUnraised = 10_000
	// hotPause is how long Redis is left alone after an error, so that its
	// time-outs do not slow history down flush by flush.
	hotPause = time.Second
)

// marks coalesces watermarks, one member for each (conversation, user).
type marks struct {
	members map[member]watermark.Member
	// told are those of them that a read mark of the log was of. What a sender's
	// own message raised needs no telling: the script that gave the message its
	// seq has raised it in Redis, before any log had it.
	told     map[member]struct{}
	advances int       // since the last flush
	since    time.Time // of the first of them
	seen     int       // size at the last call of grown
}

type member struct {
	conv watermark.ConversationID
	user watermark.UserID
}

func newMarks() *marks {
	return &marks{members: make(map[member]watermark.Member), told: make(map[member]struct{})}
}

func (m *marks) empty() bool { return len(m.members) == 0 }

// merge takes over the marks of o, not its windows.
func (m *marks) merge(conv watermark.ConversationID, o watermark.Member) {
	k := member{conv, o.User}
	old, ok := m.members[k]
	if !ok {
		old = watermark.Member{User: o.User}
	}
	old.Merge(watermark.Member{User: o.User, Read: o.Read, Receipt: o.Receipt, Own: o.Own, ChangedAt: o.ChangedAt})
	m.members[k] = old
}

// note takes note of whose marks rec tells, and counts what it asks to raise.
func (m *marks) note(rec watermark.Record) (advances int) {
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.MessagesSequenced:
			advances += len(e.Messages)
		case watermark.ReadAdvanced:
			m.told[member{rec.Conversation, e.User}] = struct{}{}
			advances++
		}
	}
	return advances
}

func (m *marks) advanced(n int, now time.Time) {
	if m.since.IsZero() && !m.empty() {
		m.since = now
	}
	m.advances += n
}

// grown gives how much the size changed since it was asked last.
func (m *marks) grown() int {
	d := len(m.members) - m.seen
	m.seen = len(m.members)
	return d
}

func (m *marks) clear() {
	clear(m.members)
	clear(m.told)
	m.advances, m.since = 0, time.Time{}
}

// rows gives the marks sorted by key: stores that touch the same keys from two
// connections in different order deadlock.
func (m *marks) rows() []watermark.MemberRow {
	out := make([]watermark.MemberRow, 0, len(m.members))
	for k, v := range m.members {
		out = append(out, watermark.MemberRow{Conversation: k.conv, Member: v})
	}
	slices.SortFunc(out, func(a, b watermark.MemberRow) int {
		return cmp.Or(cmp.Compare(a.Conversation, b.Conversation), cmp.Compare(a.Member.User, b.Member.User))
	})
	return out
}

// due says why the marks must be written now; empty: they need not be.
func (s *Stage) due() string {
	switch {
	case s.marks.empty():
		return ""
	case s.marks.advances >= s.cfg.FlushMarks:
		return reasonCount
	case s.cfg.Now().Sub(s.marks.since) >= s.cfg.FlushEvery:
		return reasonTime
	}
	return ""
}

// flush writes the pending marks, and that everything below end is in history,
// then shows the marks to Redis.
func (s *Stage) flush(ctx context.Context, reason string, end int64) error {
	if s.marks.empty() && s.at.next >= end {
		return s.raise(ctx)
	}
	rows := s.marks.rows()
	c := watermark.Change{Members: rows, Positions: s.at.upTo(end)}
	if _, err := s.cfg.History.Write(ctx, c); err != nil {
		return fmt.Errorf("tomongo: flush %d watermarks: %w", len(rows), err)
	}
	s.at.written(c.Positions)
	for k := range s.marks.told {
		if m := s.marks.members[k]; m.Read > 0 || m.Receipt > 0 {
			s.unraised.merge(k.conv, m)
		}
	}
	s.marks.clear()
	s.metrics.flushes.WithLabelValues(reason).Inc()
	s.metrics.flushed.Add(float64(len(rows)))
	s.showPending()
	return s.raise(ctx)
}

// raise merges what was flushed into Redis. Only a fatal error ends it: see
// the package comment.
func (s *Stage) raise(ctx context.Context) error {
	now := s.cfg.Now()
	if s.unraised.empty() || now.Before(s.hotPaused) {
		s.bound()
		return nil
	}
	err := s.cfg.Hot.RaiseReads(ctx, s.unraised.rows())
	switch {
	case err == nil:
		s.unraised.clear()
		return nil
	case fault.ClassOf(err) == fault.Fatal:
		return fmt.Errorf("tomongo: raise watermarks in redis: %w", err)
	}
	s.metrics.hotErrors.Inc()
	s.hotPaused = now.Add(hotPause)
	s.bound()
	return nil
}

// bound lets go of marks that Redis has not taken for too long.
func (s *Stage) bound() {
	if len(s.unraised.members) > maxUnraised {
		s.unraised.clear()
	}
}
