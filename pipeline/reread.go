package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Reread gives each those of the records at offsets, ascending, of a partition
// that stand there, in order. It tells where the log began when it was last
// asked: what stood below is gone. Records are held for the length of one fetch,
// of about 64 KiB or one batch, and lack their topic's id.
func (o *Offsets) Reread(ctx context.Context, topic string, partition int32, offsets []int64, each func(wire.Record)) (start int64, err error) {
	client, err := o.connected()
	if err != nil {
		return 0, err
	}
	edges := func() (from, to int64, err error) {
		for i, which := range []int64{sarama.OffsetOldest, sarama.OffsetNewest} {
			off, err := o.listed(ctx, client, topic, []int32{partition}, which)
			if err != nil {
				return 0, 0, err
			}
			if i == 0 {
				from = off[partition]
			}
			to = off[partition]
		}
		return from, to, nil
	}
	start, end, err := edges()
	moved := 0
	for err == nil && len(offsets) > 0 {
		if offsets[0] < start || offsets[0] >= end {
			offsets = offsets[1:]
			continue
		}
		var f fetched
		err = tailTries(ctx, 3, func() (err error) {
			if f, err = fetchRecords(client, topic, partition, offsets[0], rereadBytes); err == nil && f.next <= offsets[0] {
				err = errNoRecords
			}
			return err
		})
		if moved++; errors.Is(err, sarama.ErrOffsetOutOfRange) && moved <= 3 {
			start, end, err = edges() // retention was faster
			continue
		}
		if err != nil {
			break
		}
		moved = 0
		for _, r := range f.records {
			if _, wanted := slices.BinarySearch(offsets, r.Offset); wanted {
				each(r)
			}
		}
		n, _ := slices.BinarySearch(offsets, f.next)
		offsets = offsets[n:]
	}
	if err != nil {
		return 0, sortError(fmt.Errorf("read back %s/%d: %w", topic, partition, err))
	}
	return start, nil
}
