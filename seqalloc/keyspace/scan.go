package keyspace

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/watermark"
)

// scanKeys is about how many keys Redis looks at for one page.
const scanKeys = 1000

// Conversations gives the conversations that have a meta, believed or not, page
// by page and one master after the other. One may come twice, and one that is
// made or deleted meanwhile may come or not. After an error it ends.
func (r *Runner) Conversations(ctx context.Context, space Space) iter.Seq2[[]watermark.ConversationID, error] {
	return func(yield func([]watermark.ConversationID, error) bool) {
		masters, err := r.masters(ctx)
		if err != nil {
			yield(nil, fmt.Errorf("scan: %w", Classify(err)))
			return
		}
		before, after := space.Prefix+keyStart, keyEnd+string(Meta)
		for _, m := range masters {
			for cursor := uint64(0); ; {
				keys, next, err := m.Scan(ctx, cursor, quoted(before)+"*"+quoted(after), scanKeys).Result()
				if err != nil {
					yield(nil, fmt.Errorf("scan: %w", Classify(err)))
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

func (r *Runner) masters(ctx context.Context) ([]redis.Cmdable, error) {
	cluster, ok := r.client.(*redis.ClusterClient)
	if !ok {
		return []redis.Cmdable{r.client}, nil
	}
	var mu sync.Mutex
	var out []redis.Cmdable
	err := cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, c)
		return nil
	})
	return out, err
}
