package hot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
)

// NeverEvicts is the one maxmemory-policy under which Redis keeps what it was
// given: a full server then refuses writes, and the partitions wait.
const NeverEvicts = "noeviction"

// Memory is what a master says of its memory.
type Memory struct {
	// Server is its address; "master" behind Sentinel, where it changes.
	Server string
	// Used and Limit are bytes; a Limit of 0 is none. Both are -1 where the server
	// does not tell (an embedded one).
	Used, Limit int64
	// Policy is its maxmemory-policy; empty where it does not tell.
	Policy string
}

// Memory asks every master, by address. An error is Transient.
//
// It asks INFO and not CONFIG: the scripts need INFO in any case, while hosted
// servers often forbid CONFIG.
func (h *Hot) Memory(ctx context.Context) (out []Memory, err error) {
	defer h.observe("memory", &err)()
	cluster, ok := h.redis.(*redis.ClusterClient)
	if !ok {
		one, err := memoryOf(ctx, h.redis, serverName(h.redis))
		return []Memory{one}, err
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
		one, err := memoryOf(ctx, m, m.Options().Addr)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		out = append(out, one)
		return nil
	})
	slices.SortFunc(out, func(a, b Memory) int { return cmp.Compare(a.Server, b.Server) })
	return out, keyspace.Classify(err) // the driver's own has no class
}

// serverName is the address of a single server. The driver has none for the
// master behind Sentinel.
func serverName(c redis.UniversalClient) string {
	if one, ok := c.(*redis.Client); ok && strings.Contains(one.Options().Addr, ":") {
		return one.Options().Addr
	}
	return "master"
}

func memoryOf(ctx context.Context, c redis.Cmdable, server string) (Memory, error) {
	m := Memory{Server: server, Used: -1, Limit: -1}
	text, err := c.Info(ctx, "memory").Result()
	if err != nil {
		err = keyspace.Classify(err)
		if fault.ReasonOf(err) == keyspace.ReasonScript {
			return m, nil // the server does not know the command or the section
		}
		return m, fmt.Errorf("ask Redis at %s for its memory: %w", server, err)
	}
	m.Policy = infoField(text, "maxmemory_policy")
	used, err1 := strconv.ParseInt(infoField(text, "used_memory"), 10, 64)
	limit, err2 := strconv.ParseInt(infoField(text, "maxmemory"), 10, 64)
	if err1 == nil && err2 == nil && used >= 0 && limit >= 0 {
		m.Used, m.Limit = used, limit
	}
	return m, nil
}

// infoField finds a field in the answer of INFO.
func infoField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// CheckServer checks, on every master, that Redis never evicts keys: a
// conversation of which some keys are gone would look warm and be wrong. A
// policy that evicts is refused without a maxmemory too, since it would bite on
// the day that one is set. The error is Fatal and says what to set; one that may
// heal is Transient. A server that does not tell about its memory is accepted.
func (h *Hot) CheckServer(ctx context.Context) error {
	all, err := h.Memory(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range all {
		if m.Policy != "" && m.Policy != NeverEvicts {
			errs = append(errs, fmt.Errorf(
				"the Redis at %s may evict keys: maxmemory-policy is %s with maxmemory %d, it must be noeviction; run CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration",
				m.Server, m.Policy, max(m.Limit, 0)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fault.New(fault.Fatal, "redis_eviction", err)
	}
	return nil
}

// WatchMemory shows what Memory says every so often, until ctx ends. While a
// server cannot be asked its figures are absent, not stale.
func (h *Hot) WatchMemory(ctx context.Context, every time.Duration) error {
	if every <= 0 {
		return fault.New(fault.Fatal, "config", fmt.Errorf("hot: memory every %s", every))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var shown map[string]Memory
	for {
		now := make(map[string]Memory)
		all, err := h.Memory(ctx)
		if err == nil { // else it is counted, and the roles say it
			for _, m := range all {
				now[m.Server] = m
			}
		}
		h.metrics.showMemory(shown, now)
		shown = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			h.metrics.showMemory(shown, nil)
			return nil
		}
	}
}

// showMemory shows now in the place of shown. What stays is never absent in
// between, whenever it is scraped.
func (m *metrics) showMemory(shown, now map[string]Memory) {
	for server, x := range now {
		if x.Used >= 0 {
			m.memoryUsed.WithLabelValues(server).Set(float64(x.Used))
			m.memoryLimit.WithLabelValues(server).Set(float64(x.Limit))
		}
		if x.Policy != "" {
			m.eviction.WithLabelValues(server, x.Policy).Set(1)
		}
	}
	for server, old := range shown {
		x, ok := now[server]
		if !ok || x.Used < 0 {
			m.memoryUsed.DeleteLabelValues(server)
			m.memoryLimit.DeleteLabelValues(server)
		}
		if !ok || x.Policy != old.Policy {
			m.eviction.DeleteLabelValues(server, old.Policy)
		}
	}
}
