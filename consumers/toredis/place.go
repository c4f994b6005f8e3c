package toredis

import (
	"context"
	"fmt"

	"github.com/tidemark-im/tidemark/watermark"
)

// placesAnOffset is how many batches may end at one offset before their numbers
// run into those of the next: records that were parked make batches of their
// own.
const placesAnOffset = 1 << 10

// openPlace begins where the owner before has ended. Otherwise what it had parked
// would be decided under numbers that are settled, and be told too early.
func (s *Stage) openPlace(ctx context.Context, topicID string) error {
	if s.place.Partition.TopicID == topicID {
		return nil
	}
	p := watermark.Place{Partition: watermark.Partition{TopicID: topicID, Number: s.partition}}
	number, err := s.cfg.Allocator.Settle(ctx, p)
	if err != nil {
		return fmt.Errorf("toredis: %w", err)
	}
	p.Number = number
	s.place = p
	return nil
}

// nextPlace gives the place of the batch that ends below next. Numbers come from
// offsets, so that they go on rising where Redis has forgotten them, and each is
// above what is settled.
func (s *Stage) nextPlace(next int64) watermark.Place {
	p := s.place
	p.Number = max(next*placesAnOffset, p.Number+1)
	return p
}

func (s *Stage) settlePlace(ctx context.Context, p watermark.Place) error {
	number, err := s.cfg.Allocator.Settle(ctx, p)
	if err != nil {
		return err
	}
	s.place.Number = max(s.place.Number, p.Number, number)
	return nil
}
