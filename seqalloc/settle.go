package seqalloc

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// Settle says that everything which batches up to a place have decided stands
// in the sequenced log. Until then readers are not told of it: Redis may lose it
// while no log has it, and what was served would be taken back until the same
// inputs are decided again.
//
// It only rises, so a late call of an earlier owner changes nothing. It gives the
// number that stands then; the number 0 only asks.
func (a *Allocator) Settle(ctx context.Context, p watermark.Place) (number int64, err error) {
	key, name := a.space.SettledKey(), keyspace.PlaceName(p.Partition)
	pipe := a.redis.Pipeline()
	pipe.ZAddGT(ctx, key, redis.Z{Score: float64(p.Number), Member: name})
	stands := pipe.ZScore(ctx, key, name)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, fmt.Errorf("settle batch %d of %s: %w", p.Number, name, keyspace.Classify(err))
	}
	return int64(stands.Val()), nil
}
