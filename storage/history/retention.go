package history

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// DeleteBelow takes the content of at most limit rows that are below both seq
// and the conversation's minimum, and gives how many it met: fewer than limit
// means that none is left. A limit above watermark.MaxPage counts as
// watermark.MaxPage.
//
// Rows within the last DedupeHorizon lose their content but keep their key and
// hash, unseen by Messages, until the conversation has moved on: a producer's
// resend must be recognised that long.
func (s *Store) DeleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (deleted int, err error) {
	defer s.done("delete", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return 0, nil
	}
	if deleted, err = s.deleteBelow(ctx, conv, seq, limit); err != nil {
		return 0, fmt.Errorf("delete below %s/%d: %w", conv, seq, err)
	}
	s.metrics.deleted.Add(float64(deleted))
	return deleted, nil
}

func (s *Store) deleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (int, error) {
	found, err := s.conversations(ctx, []watermark.ConversationID{conv})
	if err != nil {
		return 0, err
	}
	below, horizon := min(seq, found[conv].Min), found[conv].Max-watermark.DedupeHorizon
	filter, some := seqRange(conv, watermark.Interval{First: 0, Last: below - 1})
	if !some {
		return 0, nil
	}
	due := bson.E{Key: "$or", Value: bson.A{
		bson.D{{Key: "s", Value: bson.D{{Key: "$lte", Value: int64(horizon)}}}},
		bson.D{absent("gone")},
	}}
	opts := options.Find().SetSort(byID).SetLimit(int64(limit)).SetBatchSize(int32(limit)).
		SetProjection(bson.D{{Key: "s", Value: 1}})
	var seqs []watermark.Seq
	err = each(ctx, s.messages.newest, append(filter, due), opts, func(d *messageDoc) error {
		seqs = append(seqs, watermark.Seq(d.Seq))
		return nil
	})
	if err != nil || len(seqs) == 0 {
		return 0, err
	}
	// They are the lowest, so between the first and the last there are no others
	// that are due. What is removed comes before what is emptied.
	first, last := seqs[0], seqs[len(seqs)-1]
	if first <= horizon {
		filter, _ := seqRange(conv, watermark.Interval{First: first, Last: min(last, horizon)})
		if _, err := s.messages.DeleteMany(ctx, filter); err != nil {
			return 0, fmt.Errorf("remove: %w", err)
		}
	}
	if last > horizon {
		filter, _ := seqRange(conv, watermark.Interval{First: max(first, horizon+1), Last: last})
		update := bson.D{{Key: "$set", Value: bson.D{{Key: "gone", Value: true}}}, {Key: "$unset", Value: content}}
		if _, err := s.messages.UpdateMany(ctx, append(filter, absent("gone")), update); err != nil {
			return 0, fmt.Errorf("empty: %w", err)
		}
	}
	return len(seqs), nil
}
