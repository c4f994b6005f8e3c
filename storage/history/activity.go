package history

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// ActivityOf gives the conversations above after in which user has a member row,
// by id, at most limit, each with the time of its latest message; 0 where the
// conversation was never written. It takes one query of members, which the index
// by user answers, and one of conversations for every 500.
func (s *Store) ActivityOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) (out []watermark.Activity, err error) {
	defer s.done("activity", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	filter := bson.D{{Key: "u", Value: user}, {Key: "c", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: afterIDs}}}}
	opts := options.Find().SetSort(bson.D{{Key: "c", Value: 1}}).SetLimit(int64(limit)).SetBatchSize(int32(limit)).
		SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "c", Value: 1}})
	err = each(ctx, s.members.Collection, filter, opts, func(d *memberDoc) error {
		out = append(out, watermark.Activity{Conversation: watermark.ConversationID(d.Conv)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	times := make(map[watermark.ConversationID]int64, len(out))
	for part := range slices.Chunk(out, chunk) {
		ids := make([]watermark.ConversationID, len(part))
		for i, a := range part {
			ids[i] = a.Conversation
		}
		opts := options.Find().SetBatchSize(chunk).SetProjection(bson.D{{Key: "lt", Value: 1}})
		err := each(ctx, s.convs.Collection, in("_id", ids), opts, func(d *convDoc) error {
			times[watermark.ConversationID(d.ID)] = d.LastTime
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read conversations: %w", err)
		}
	}
	for i := range out {
		out[i].LastTime = times[out[i].Conversation]
	}
	return out, nil
}
