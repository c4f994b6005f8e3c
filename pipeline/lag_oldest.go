package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
)

const (
	// oldestKept is how long what was read of a record is believed. Within it a
	// group that stands still costs one read; after it a topic that was made
	// anew, with another record at the same offset, is noticed.
	oldestKept = 5 * time.Minute
	// oldestReads is how many batches without a record are passed over. More of
	// them in a row have no reason.
	oldestReads = 64
)

type oldestKey struct {
	GroupTopic
	partition int32
}

// oldest is the first record at or above an offset.
type oldest struct {
	asked  int64     // the offset that was asked for
	offset int64     // where the record stands; the end of the log when there is none
	time   time.Time // zero: there is none, or it has just been deleted
	read   time.Time // when it was
}

// oldestOf gives the first record of a partition from offset on, below end. One
// batch is read for it, more only where batches hold nothing but the marks of
// transactions, which no consumer ever sees: a group never commits past such
// marks at the end of a log, and is not behind for it.
func (o *Offsets) oldestOf(ctx context.Context, client sarama.Client, gt GroupTopic, partition int32, offset, end int64) (oldest, error) {
	key := oldestKey{gt, partition}
	if have, ok := o.kept(key, offset); ok {
		return have, nil
	}
	out := oldest{asked: offset, offset: offset, read: time.Now()}
	for range oldestReads {
		var f fetched
		err := tailTries(ctx, 3, func() (err error) {
			f, err = fetchRecords(client, gt.Topic, partition, out.offset, 1)
			return err
		})
		switch {
		case errors.Is(err, sarama.ErrOffsetOutOfRange):
			return out, nil // retention was faster: the next look tells
		case err != nil:
			return out, sortError(err)
		case len(f.records) > 0:
			out.offset, out.time = f.records[0].Offset, f.records[0].Time
			o.keep(key, out)
			return out, nil
		case f.next <= out.offset:
			return out, nil // not there yet: the leader has just changed
		}
		if out.offset = f.next; out.offset >= end {
			out.offset = end
			return out, nil
		}
	}
	return out, nil
}

func (o *Offsets) kept(key oldestKey, offset int64) (oldest, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	have, ok := o.oldest[key]
	return have, ok && have.asked == offset && time.Since(have.read) < oldestKept
}

func (o *Offsets) keep(key oldestKey, found oldest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.oldest[key] = found
}
