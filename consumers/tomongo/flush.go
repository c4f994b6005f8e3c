package tomongo

import (
	"context"
	"fmt"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// Reasons of a flush.
const (
	reasonCount = "count" // FlushMarks advances
	reasonSize  = "size"  // maxPending entries
	reasonTime  = "time"  // FlushEvery since the first pending one
	reasonIdle  = "idle"  // the runner asked: nothing comes, or the partition is given back
)

const (
	// maxPending bounds the conversations and members that are pending in a
	// partition, some 300 bytes each. Where so many are different, waiting longer
	// would not make them fewer.
	maxPending = 50_000
	// maxUnraised bounds the marks that wait for Redis to come back.
	maxUnraised = 10_000
	// hotPause is how long Redis is left alone after an error, so that its
	// time-outs do not slow history down flush by flush.
	hotPause = time.Second
)

// due says why what is pending must be written now; empty: it need not be.
func (s *Stage) due() string {
	switch {
	case s.pending.empty():
		return ""
	case s.pending.advances >= s.cfg.FlushMarks:
		return reasonCount
	case s.pending.size() >= maxPending:
		return reasonSize
	case s.cfg.Now().Sub(s.pending.since) >= s.cfg.FlushEvery:
		return reasonTime
	}
	return ""
}

// flush writes what is pending, and that everything below end is in history,
// then shows the marks to Redis.
func (s *Stage) flush(ctx context.Context, reason string, end int64) error {
	if !s.piece.empty() {
		if err := s.write(ctx); err != nil {
			return err
		}
	}
	if s.pending.empty() && s.at.next >= end {
		return s.raise(ctx)
	}
	c := watermark.Change{Members: s.pending.rows(), Conversations: s.pending.conversations(), Positions: s.at.upTo(end)}
	if _, err := s.cfg.History.Write(ctx, c); err != nil {
		return fmt.Errorf("tomongo: flush %d watermarks and %d conversations: %w", len(c.Members), len(c.Conversations), err)
	}
	s.at.written(c.Positions)
	for i := range c.Members {
		k := memberKey{c.Members[i].Conversation, c.Members[i].Member.User}
		if _, ok := s.pending.told[k]; ok {
			s.unraised.note(k, &c.Members[i].Member)
		}
	}
	s.pending.clear()
	s.metrics.flushes.WithLabelValues(reason).Inc()
	s.metrics.flushed.Add(float64(len(c.Members)))
	s.metrics.flushedConvs.Add(float64(len(c.Conversations)))
	s.showPending()
	return s.raise(ctx)
}

// unraised are flushed marks that Redis has not taken.
type unraised map[memberKey]watermark.Member

// note takes over the marks of m that Redis has.
func (u unraised) note(k memberKey, m *watermark.Member) {
	if m.Read == 0 && m.Receipt == 0 {
		return
	}
	old := u[k]
	u[k] = watermark.Member{User: k.user, Read: max(old.Read, m.Read), Receipt: max(old.Receipt, m.Receipt)}
}

func (u unraised) rows() []watermark.MemberRow {
	out := make([]watermark.MemberRow, 0, len(u))
	for k, m := range u {
		out = append(out, watermark.MemberRow{Conversation: k.conv, Member: m})
	}
	sortMembers(out)
	return out
}

// raise merges what was flushed into Redis. Only a fatal error ends it: see
// the package comment.
func (s *Stage) raise(ctx context.Context) error {
	now := s.cfg.Now()
	if len(s.unraised) == 0 || now.Before(s.hotPaused) {
		s.bound()
		return nil
	}
	err := s.cfg.Hot.RaiseReads(ctx, s.unraised.rows())
	switch {
	case err == nil:
		clear(s.unraised)
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
	if len(s.unraised) > maxUnraised {
		clear(s.unraised)
	}
}
