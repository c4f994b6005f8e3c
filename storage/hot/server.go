package hot

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
)

// CheckServer checks, on every master, that Redis never evicts keys: a
// conversation of which some keys are gone would look warm and be wrong. The
// error is Fatal and says what to set; one that may heal is Transient. A server
// that does not tell about its memory (an embedded one) is accepted.
func (h *Hot) CheckServer(ctx context.Context) (err error) {
	defer h.observe("check_server", &err)()
	if c, ok := h.redis.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
			return checkMemory(ctx, m, "Redis at "+m.Options().Addr)
		})
	}
	return checkMemory(ctx, h.redis, "Redis")
}

// checkMemory asks INFO and not CONFIG: the scripts need INFO in any case,
// while hosted servers often forbid CONFIG.
func checkMemory(ctx context.Context, c redis.Cmdable, server string) error {
	text, err := c.Info(ctx, "memory").Result()
	if err != nil {
		err = keyspace.Classify(err)
		if fault.ReasonOf(err) == keyspace.ReasonScript {
			return nil // the server does not know the command or the section
		}
		return fmt.Errorf("ask %s for its memory settings: %w", server, err)
	}
	limit, policy := infoField(text, "maxmemory"), infoField(text, "maxmemory_policy")
	if limit == "" || limit == "0" || policy == "" || policy == "noeviction" {
		return nil
	}
	return fault.New(fault.Fatal, "redis_eviction", fmt.Errorf(
		"%s may evict keys: maxmemory-policy is %s with maxmemory %s, it must be noeviction; run CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration",
		server, policy, limit))
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
