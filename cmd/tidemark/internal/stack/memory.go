package stack

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/storage/hot"
)

const (
	// memoryEvery is how often Redis is asked for its memory.
	memoryEvery = 10 * time.Second
	// memoryHigh is the part of its maxmemory above which Redis has too little
	// left; docs/runbook.md and the alert TidemarkRedisMemory have the same.
	memoryHigh = 0.75
)

// memoryPart shows what Redis has left. The owners of conversations do, since
// there is always one: it is they who fill it, and who wait when it is full.
func (s *Stack) memoryPart() *part {
	return newPart("memory of redis", func(ctx context.Context) error { return s.hot.WatchMemory(ctx, memoryEvery) })
}

// warnOfMemory says once, at the start, what an alert would say later.
func (s *Stack) warnOfMemory(all []hot.Memory) {
	for _, m := range all {
		if why := shortOf(m); why != "" {
			s.cfg.Logger.Warn("redis is short of memory", slog.String("server", m.Server), slog.String("why", why))
		}
	}
}

// shortOf says what is wrong with the memory of a server that evicts nothing;
// empty: nothing, or it does not tell.
func shortOf(m hot.Memory) string {
	switch {
	case m.Limit == 0:
		return "it has no maxmemory, so the machine may run out of memory and end it; set one"
	case m.Limit > 0 && float64(m.Used) > memoryHigh*float64(m.Limit):
		return fmt.Sprintf("%s of its maxmemory of %s are used; a full server refuses writes and messages wait", bytesOf(m.Used), bytesOf(m.Limit))
	}
	return ""
}

// describeMemory is a line about all masters.
func describeMemory(all []hot.Memory) string {
	said := []string{"answers, and evicts nothing"}
	for _, m := range all {
		switch why := shortOf(m); {
		case why != "":
			said = append(said, m.Server+": "+why)
		case m.Limit > 0:
			said = append(said, fmt.Sprintf("%s uses %s of %s", m.Server, bytesOf(m.Used), bytesOf(m.Limit)))
		}
	}
	return strings.Join(said, "; ")
}

func bytesOf(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
