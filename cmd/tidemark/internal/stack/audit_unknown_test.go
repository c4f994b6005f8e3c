//go:build !real

package stack_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// A conversation that only Redis has is found among those that history has, and
// nothing else is.
func TestAuditFindsWhatOnlyRedisHas(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.ToRedis, stack.ToMongo, stack.Sync)
	const known, copied = "group:known", "group:copied"
	r.send(known, "A", "1")
	r.send(known, "A", "2")
	r.settle()
	client := redis.NewClient(&redis.Options{Addr: r.emb.Cluster.RedisAddr()})
	defer client.Close()
	prefix := r.emb.Config.Redis.Prefix
	keys, err := client.Keys(r.ctx(), prefix+"tm:{"+known+"}*").Result()
	if err != nil || len(keys) < 3 {
		t.Fatalf("keys %q: %v", keys, err)
	}
	for _, k := range keys {
		if err := client.Copy(r.ctx(), k, strings.Replace(k, known, copied, 1), 0, true).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var found []audit.Finding
	rep, err := r.roles[stack.ToMongo].stack.Audit(r.ctx(), stack.AuditConfig{Found: func(f audit.Finding) { found = append(found, f) }}, audit.Scope{})
	if err != nil || len(found) == 0 || rep.Conversations != 2 {
		t.Fatalf("found %v, %+v, %v", found, rep, err)
	}
	for _, f := range found {
		if f.Conversation != copied || f.Kind != audit.NeverAppended && f.Kind != audit.ChangeNeverAppended {
			t.Errorf("found %+v", f)
		}
	}
}
