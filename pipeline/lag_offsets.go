package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// noOffset stands for "the group has never committed".
const noOffset = -1

// fetchVersion is the newest Fetch that the driver speaks; every version that
// Config allows has it.
const fetchVersion = 12

// commit is what a group has committed on a partition.
type commit struct {
	offset   int64
	metadata string // the topic's id, where a runner committed
}

// committedOffsets gives what a group has committed; noOffset where it has not.
func committedOffsets(client sarama.Client, group, topic string, partitions []int32) (map[int32]int64, error) {
	commits, err := commitsOf(client, group, topic, partitions)
	if err != nil {
		return nil, err
	}
	out := make(map[int32]int64, len(commits))
	for p, c := range commits {
		out[p] = c.offset
	}
	return out, nil
}

// commitsOf asks group's coordinator, in one request.
func commitsOf(client sarama.Client, group, topic string, partitions []int32) (map[int32]commit, error) {
	coordinator, err := client.Coordinator(group)
	if err != nil {
		return nil, fmt.Errorf("find coordinator of group %s: %w", group, err)
	}
	req := sarama.NewOffsetFetchRequest(client.Config().Version, group, map[string][]int32{topic: partitions})
	resp, err := coordinator.FetchOffset(req)
	if err == nil {
		if code := resp.GroupError(); code != sarama.ErrNoError && code != sarama.ErrGroupIDNotFound {
			err = code
		}
	}
	if err != nil {
		_ = client.RefreshCoordinator(group) // the next attempt tells whether that helped
		return nil, fmt.Errorf("fetch committed offsets of group %s: %w", group, err)
	}
	out := make(map[int32]commit, len(partitions))
	for _, p := range partitions {
		block := resp.GetBlock(topic, p) // absent too when there is no such group
		switch {
		case block == nil:
			out[p] = commit{offset: noOffset}
		case block.Err != sarama.ErrNoError:
			return nil, fmt.Errorf("fetch committed offset of group %s on %s/%d: %w", group, topic, p, block.Err)
		default:
			out[p] = commit{max(block.Offset, noOffset), block.Metadata}
		}
	}
	return out, nil
}

// commitVersion is the newest OffsetCommit that the driver speaks; every version
// that Config allows has it.
const commitVersion = 8

// commitFor commits on behalf of a group that has no members; otherwise Kafka
// refuses.
func commitFor(client sarama.Client, group, topic, metadata string, offsets map[int32]int64) error {
	coordinator, err := client.Coordinator(group)
	if err != nil {
		return fmt.Errorf("find coordinator of group %s: %w", group, err)
	}
	req := &sarama.OffsetCommitRequest{Version: commitVersion, ConsumerGroup: group, ConsumerGroupGeneration: sarama.GroupGenerationUndefined}
	for p, offset := range offsets {
		req.AddBlock(topic, p, offset, 0, metadata)
	}
	resp, err := coordinator.CommitOffset(req)
	if err != nil {
		_ = client.RefreshCoordinator(group) // the next attempt tells whether that helped
		return fmt.Errorf("commit offsets of group %s: %w", group, err)
	}
	for p := range offsets {
		if code, ok := resp.Errors[topic][p]; !ok {
			return fmt.Errorf("commit offset of group %s on %s/%d: %w", group, topic, p, sarama.ErrIncompleteResponse)
		} else if code != sarama.ErrNoError {
			return fmt.Errorf("commit offset of group %s on %s/%d: %w", group, topic, p, code)
		}
	}
	return nil
}

// listedOffset asks the partition's leader for an offset: sarama.OffsetNewest
// is where the next record goes, sarama.OffsetOldest the first that is left.
//
// The request is of a version (5 or above) at which a new leader refuses to
// tell an end that it cannot vouch for yet, instead of an old one. A fetch's
// high water mark has no such guard, so it must not be used as an end.
func listedOffset(client sarama.Client, topic string, partition int32, which int64) (int64, error) {
	off, err := client.GetOffset(topic, partition, which)
	if err != nil {
		return 0, fmt.Errorf("list offsets of %s/%d: %w", topic, partition, err)
	}
	return off, nil
}

// fetched is what one fetch gave.
type fetched struct {
	records []wire.Record // those at or above the offset that was asked for
	next    int64         // where to read on
}

// fetchRecords reads what stands on a partition from offset on, at most about
// maxBytes but at least one batch when there is one. It never waits for more:
// the answer to a fetch that waits holds up all later requests on the same
// connection.
func fetchRecords(client sarama.Client, topic string, partition int32, offset int64, maxBytes int32) (fetched, error) {
	f := fetched{next: offset}
	leader, epoch, err := client.LeaderAndEpoch(topic, partition)
	if err != nil {
		return f, fmt.Errorf("find leader of %s/%d: %w", topic, partition, err)
	}
	// No fetch session is wanted: epoch -1 says so.
	req := &sarama.FetchRequest{Version: fetchVersion, MinBytes: 1, MaxBytes: maxBytes, SessionEpoch: -1}
	req.AddBlock(topic, partition, offset, maxBytes, epoch)
	resp, err := leader.Fetch(req)
	if err == nil {
		err = fetchError(resp, topic, partition)
	} else {
		_ = leader.Close() // a broken connection is not used again
	}
	if err != nil {
		if !errors.Is(err, sarama.ErrOffsetOutOfRange) {
			_ = client.RefreshMetadata(topic) // the next attempt tells whether that helped
		}
		return f, fmt.Errorf("fetch %s/%d at %d: %w", topic, partition, offset, err)
	}
	for _, set := range resp.GetBlock(topic, partition).RecordsSet {
		b := set.RecordBatch
		if b == nil || b.PartialTrailingRecord {
			continue
		}
		f.next = max(f.next, b.LastOffset()+1)
		if b.Control {
			continue
		}
		for _, r := range b.Records {
			if at := b.FirstOffset + r.OffsetDelta; at >= offset {
				f.records = append(f.records, wireRecord(topic, partition, at, b, r))
			}
		}
	}
	return f, nil
}

func fetchError(resp *sarama.FetchResponse, topic string, partition int32) error {
	if code := sarama.KError(resp.ErrorCode); code != sarama.ErrNoError {
		return code
	}
	block := resp.GetBlock(topic, partition)
	if block == nil {
		return sarama.ErrIncompleteResponse
	}
	if block.Err != sarama.ErrNoError {
		return block.Err
	}
	return nil
}

func wireRecord(topic string, partition int32, offset int64, b *sarama.RecordBatch, r *sarama.Record) wire.Record {
	at := b.FirstTimestamp.Add(r.TimestampDelta)
	if b.LogAppendTime {
		at = b.MaxTimestamp
	}
	out := wire.Record{Topic: topic, Partition: partition, Offset: offset, Time: at, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, wire.Header{Key: string(h.Key), Value: h.Value})
	}
	return out
}

// tailTries runs f up to n times, with growing pauses, while ctx lives.
func tailTries(ctx context.Context, n int, f func() error) error {
	pause := 50 * time.Millisecond
	for {
		err := f()
		if n--; err == nil || n <= 0 || errors.Is(err, sarama.ErrClosedClient) {
			return err
		}
		if !tailSleep(ctx, pause) {
			return err
		}
		pause *= 2
	}
}

// tailSleep waits; it is false when ctx ended first.
func tailSleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
