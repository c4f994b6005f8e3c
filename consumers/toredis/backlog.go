package toredis

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tidemark-im/tidemark/internal/fault"
)

const reasonTailTooLong = "tail_too_long"

// resumeAt gives the length of the tail at which a paused partition goes on.
func resumeAt(limit int64) int64 { return limit - limit/4 }

// pause tells whether the partition waits because history is too far behind:
// what is not sequenced stands in the toRedis topic, where it is safe, while a
// tail that grows on would take memory and time of whoever loads a cold
// conversation, until nobody can. A length that cannot be told changes nothing.
func (s *Stage) pause(ctx context.Context) error {
	if s.cfg.Tail == nil {
		return nil
	}
	records, known := s.cfg.Tail(s.partition)
	was := s.paused
	switch {
	case !known:
	case records > s.cfg.MaxTail:
		s.paused = true
	case records <= resumeAt(s.cfg.MaxTail):
		s.paused = false
	}
	if known {
		s.condition.pausing(s.paused, records, s.cfg.Now())
	}
	if s.paused != was {
		what := "partition goes on, history has caught up"
		if s.paused {
			what = "partition pauses, history is too far behind"
			s.metrics.pauses.Inc()
		}
		s.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, what, slog.Int("partition", int(s.partition)), slog.Int64("tail", records))
	}
	if !s.paused {
		return nil
	}
	return fault.New(fault.Transient, reasonTailTooLong, fmt.Errorf(
		"toredis: the sequenced log has more than %d records of partition %d that history may lack: waiting until there are at most %d",
		s.cfg.MaxTail, s.partition, resumeAt(s.cfg.MaxTail)))
}
