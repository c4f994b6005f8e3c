package audit

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// scanKeys is about how many keys Redis looks at for one page.
const scanKeys = 1000

// Conversations implements Redis: by the keys of their metas, one master after
// the other.
func (s Server) Conversations(ctx context.Context) iter.Seq2[[]watermark.ConversationID, error] {
	return func(yield func([]watermark.ConversationID, error) bool) {
		masters, err := s.masters(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		// The id is what is left of a key without what goes before and after it.
		before, after, _ := strings.Cut(s.Space.Key("*", keyspace.Meta), "*")
		for _, m := range masters {
			for cursor := uint64(0); ; {
				keys, next, err := m.Scan(ctx, cursor, quoted(before)+"*"+quoted(after), scanKeys).Result()
				if err != nil {
					yield(nil, fmt.Errorf("scan: %w", keyspace.Classify(err)))
					return
				}
				ids := make([]watermark.ConversationID, 0, len(keys))
				for _, k := range keys {
					ids = append(ids, watermark.ConversationID(strings.TrimSuffix(strings.TrimPrefix(k, before), after)))
				}
				if len(ids) > 0 && !yield(ids, nil) {
					return
				}
				if cursor = next; cursor == 0 {
					break
				}
			}
		}
	}
}

// quoted takes what a pattern means by some characters from them.
func quoted(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(s)
}

func (s Server) masters(ctx context.Context) ([]redis.Cmdable, error) {
	cluster, ok := s.Client.(*redis.ClusterClient)
	if !ok {
		return []redis.Cmdable{s.Client}, nil
	}
	var mu sync.Mutex
	var out []redis.Cmdable
	err := cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("masters: %w", keyspace.Classify(err))
	}
	return out, nil
}

// unknown looks at the conversations that Redis holds and history has nothing of.
func (a *Auditor) unknown(ctx context.Context) error {
	if a.cfg.Redis == nil {
		return nil
	}
	for page, err := range a.cfg.Redis.Conversations(ctx) {
		if err != nil {
			return fmt.Errorf("conversations of redis: %w", err)
		}
		slices.Sort(page)
		for part := range slices.Chunk(slices.Compact(page), batchConversations) {
			convs, err := a.conversations(ctx, part)
			if err != nil {
				return err
			}
			var ids []watermark.ConversationID
			for i := range convs {
				if !convs[i].Exists() {
					ids = append(ids, part[i])
				}
			}
			if len(ids) == 0 {
				continue
			}
			if err := a.lookAt(ctx, ids); err != nil {
				return err
			}
		}
	}
	return nil
}
