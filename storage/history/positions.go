package history

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// positionDoc says how far history has a partition of a topic.
type positionDoc struct {
	Key       string `bson:"_id"`
	Topic     string `bson:"t"`
	TopicID   string `bson:"id"`
	Partition int32  `bson:"p"`
	Next      int64  `bson:"n"`
}

// positionKey gives the _id: neither a topic's name nor an id of Kafka has a
// slash.
func positionKey(p *watermark.Position) string {
	return fmt.Sprintf("%s/%s/%d", p.Topic, p.TopicID, p.Number)
}

// writePositions raises positions. A late writer takes nothing back.
func (s *Store) writePositions(ctx context.Context, ps []watermark.Position) error {
	highest := make(map[string]watermark.Position, len(ps))
	for _, p := range ps {
		k := positionKey(&p)
		if old, ok := highest[k]; !ok || old.Next < p.Next {
			highest[k] = p
		}
	}
	models := make([]mongo.WriteModel, 0, len(highest))
	keys := make([]string, 0, len(highest))
	for k := range highest {
		keys = append(keys, k)
	}
	byKey(keys, func(k string) string { return k })
	for _, k := range keys {
		p := highest[k]
		models = append(models, mongo.NewUpdateOneModel().SetUpsert(true).SetFilter(bson.D{{Key: "_id", Value: k}}).SetUpdate(bson.D{
			{Key: "$max", Value: bson.D{{Key: "n", Value: p.Next}}},
			{Key: "$setOnInsert", Value: bson.D{{Key: "t", Value: p.Topic}, {Key: "id", Value: p.TopicID}, {Key: "p", Value: p.Number}}},
		}))
	}
	return s.upserts(ctx, s.positions.Collection, models)
}

// Positions gives how far history has each partition of each topic that it
// knows.
func (s *Store) Positions(ctx context.Context) (out []watermark.Position, err error) {
	defer s.done("positions", time.Now(), &err)
	err = each(ctx, s.positions.newest, bson.D{}, options.Find().SetBatchSize(chunk), func(d *positionDoc) error {
		out = append(out, watermark.Position{
			Topic: d.Topic, Partition: watermark.Partition{TopicID: d.TopicID, Number: d.Partition}, Next: d.Next,
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read positions: %w", err)
	}
	return out, nil
}
