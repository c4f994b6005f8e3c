package hot

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
)

// settled knows how far the batches of each partition stand in the sequenced
// log. What it knows stays true, so it asks only about what is newer.
type settled struct {
	wait time.Duration

	mu   sync.Mutex
	upTo map[string]int64 // by keyspace.PlaceName
}

// place is the last batch that a conversation was in; the zero value: none.
type place struct {
	name   string
	number int64
}

// parsePlace reads what malloc.lua leaves in a meta.
func parsePlace(text string) (place, error) {
	if text == "" {
		return place{}, nil
	}
	i := strings.LastIndexByte(text, '|')
	if i < 0 {
		return place{}, fmt.Errorf("%w: place %.40q", errReply, text)
	}
	n, err := strconv.ParseInt(text[i+1:], 10, 64)
	if err != nil {
		return place{}, fmt.Errorf("%w: place %.40q", errReply, text)
	}
	return place{text[:i], n}, nil
}

// has tells whether a batch is known to stand in the log.
func (s *settled) has(p place) bool {
	if p.number == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.number <= s.upTo[p.name]
}

// learn asks Redis how far the partitions are. One that it has lost is as far as
// it was known to be: an append that was acknowledged stays so.
func (h *Hot) learn(ctx context.Context) error {
	scores, err := h.redis.ZRangeWithScores(ctx, h.space.SettledKey(), 0, -1).Result()
	if err != nil {
		return fmt.Errorf("settled batches: %w", keyspace.Classify(err))
	}
	s := &h.settled
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upTo == nil {
		s.upTo = make(map[string]int64, len(scores))
	}
	for _, z := range scores {
		name, _ := z.Member.(string)
		s.upTo[name] = max(s.upTo[name], int64(z.Score))
	}
	return nil
}
