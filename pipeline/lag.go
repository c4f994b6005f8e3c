package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// lagParallel is how many partitions are asked about at once.
const lagParallel = 16

// GroupTopic names a consumer group and a topic that it reads.
type GroupTopic struct {
	Group, Topic string
}

// PartitionLag is how far a group is behind on one partition.
type PartitionLag struct {
	Group     string
	Topic     string
	Partition int32
	// Committed is the offset that the group reads next, -1 when it has never
	// committed one.
	Committed int64
	// Start and End are the log's: the first offset that is left, and the one
	// that the next record gets.
	Start, End int64
	// Records is how many offsets stand before the group's end, from the oldest
	// record that it has not processed on. Marks of transactions behind the last
	// record are none.
	Records int64
	// Lost is how many offsets the log gave up before the group had them.
	Lost int64
	// Oldest is the time of the oldest record that is not processed; zero when
	// there is none.
	Oldest time.Time
	// Retention is how long the topic keeps records; 0: for ever, or Kafka does
	// not tell.
	Retention time.Duration
}

// Age is how long the oldest unprocessed record has waited at now; 0 when there
// is none, or when its time lies ahead.
func (l *PartitionLag) Age(now time.Time) time.Duration {
	if l.Oldest.IsZero() {
		return 0
	}
	return max(now.Sub(l.Oldest), 0)
}

// Headroom is how long retention leaves the oldest unprocessed record at now:
// when it is used up, the record is deleted unread, as far as time decides.
// Where none waits it is all of the retention. It is false when the topic keeps
// records for ever, or Kafka does not tell.
func (l *PartitionLag) Headroom(now time.Time) (time.Duration, bool) {
	if l.Retention <= 0 {
		return 0, false
	}
	return max(l.Retention-l.Age(now), 0), true
}

// RetentionUsed is how much of the topic's retention the oldest unprocessed
// record has used at now: at 1 it is deleted, as far as time decides. It is 0
// when there is none, or no limit.
func (l *PartitionLag) RetentionUsed(now time.Time) float64 {
	if l.Retention <= 0 {
		return 0
	}
	return l.Age(now).Seconds() / l.Retention.Seconds()
}

// OffsetsConfig says where to look at offsets.
type OffsetsConfig struct {
	Config
	// Poll is how often AwaitCommitted looks. 0: 50 ms.
	Poll time.Duration
}

// Offsets answers questions about committed offsets, ends and lag. It connects
// with the first question and holds no goroutine of its own, but the driver's.
type Offsets struct {
	conf OffsetsConfig

	mu     sync.Mutex
	client sarama.Client // nil: not connected
	closed bool
	// oldest keeps what was read of records, one for each partition of a group.
	oldest map[oldestKey]oldest // guarded by mu
}

// NewOffsets checks conf and starts nothing.
func NewOffsets(conf OffsetsConfig) (*Offsets, error) {
	err := conf.Validate()
	if conf.Poll < 0 {
		err = errors.Join(err, fmt.Errorf("offsets poll: %s is negative", conf.Poll))
	}
	if err != nil {
		return nil, err
	}
	if conf.Poll == 0 {
		conf.Poll = 50 * time.Millisecond
	}
	return &Offsets{conf: conf, oldest: make(map[oldestKey]oldest)}, nil
}

// Close breaks the connections. Questions asked afterwards fail.
func (o *Offsets) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.client == nil {
		return nil
	}
	err := o.client.Close()
	o.client = nil
	return err
}

var errOffsetsClosed = fault.New(fault.Transient, "closed", errors.New("offsets are closed"))

// connected gives the client. Who comes while another one dials waits for it:
// dialling is bounded by the driver's own limits.
func (o *Offsets) connected() (sarama.Client, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, errOffsetsClosed
	}
	if o.client == nil {
		client, err := dialReader(o.conf.Config)
		if err != nil {
			return nil, err
		}
		o.client = client
	}
	return o.client, nil
}

// Committed gives what group has committed on each partition of topic, -1 where
// it has not.
func (o *Offsets) Committed(ctx context.Context, group, topic string) (map[int32]int64, error) {
	client, partitions, err := o.partitions(topic)
	if err != nil {
		return nil, err
	}
	var out map[int32]int64
	err = tailTries(ctx, 3, func() (err error) {
		out, err = committedOffsets(client, group, topic, partitions)
		return err
	})
	return out, sortError(err)
}

// Ends gives the end of each partition of topic: the offset that the next
// record gets.
func (o *Offsets) Ends(ctx context.Context, topic string) (map[int32]int64, error) {
	client, partitions, err := o.partitions(topic)
	if err != nil {
		return nil, err
	}
	return o.listed(ctx, client, topic, partitions, sarama.OffsetNewest)
}

// AwaitCommitted waits until group has committed at least the given offsets of
// topic, as Ends gives them, or ctx is done; then the error tells what is
// missing.
func (o *Offsets) AwaitCommitted(ctx context.Context, group, topic string, offsets map[int32]int64) error {
	var last error
	for {
		committed, err := o.Committed(ctx, group, topic)
		if fault.ClassOf(err) == fault.Fatal {
			return err
		}
		if err == nil {
			if err = missing(committed, offsets); err == nil {
				return nil
			}
		}
		last = err
		if !tailSleep(ctx, o.conf.Poll) {
			return fmt.Errorf("wait for group %s on %s: %w: %w", group, topic, ctx.Err(), last)
		}
	}
}

// missing tells which offsets are not committed yet.
func missing(committed, offsets map[int32]int64) error {
	var behind []string
	for p, want := range offsets {
		if got, ok := committed[p]; want > 0 && (!ok || got < want) {
			behind = append(behind, fmt.Sprintf("%d: %d of %d", p, max(got, 0), want))
		}
	}
	if len(behind) == 0 {
		return nil
	}
	slices.Sort(behind)
	return fmt.Errorf("not committed yet: %s", strings.Join(behind, ", "))
}

// Lag tells how far the groups are behind, for every partition of their topics,
// in the order of groups and of partitions. The time of the oldest unprocessed
// record is read from the record itself.
func (o *Offsets) Lag(ctx context.Context, groups ...GroupTopic) ([]PartitionLag, error) {
	var out []PartitionLag
	for _, gt := range groups {
		lag, err := o.lag(ctx, gt)
		if err != nil {
			return nil, fmt.Errorf("lag of group %s on %s: %w", gt.Group, gt.Topic, err)
		}
		out = append(out, lag...)
	}
	return out, nil
}

func (o *Offsets) lag(ctx context.Context, gt GroupTopic) ([]PartitionLag, error) {
	client, partitions, err := o.partitions(gt.Topic)
	if err != nil {
		return nil, err
	}
	// Committed offsets first: ends asked later are never below them, so a lag
	// is never negative.
	committed, err := o.Committed(ctx, gt.Group, gt.Topic)
	if err != nil {
		return nil, err
	}
	starts, err := o.listed(ctx, client, gt.Topic, partitions, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	ends, err := o.listed(ctx, client, gt.Topic, partitions, sarama.OffsetNewest)
	if err != nil {
		return nil, err
	}
	retention, err := o.retention(client, gt.Topic)
	if err != nil {
		return nil, err
	}
	out := make([]PartitionLag, len(partitions))
	err = eachOf(partitions, func(i int, p int32) error {
		l := &out[i]
		*l = PartitionLag{Group: gt.Group, Topic: gt.Topic, Partition: p, Committed: committed[p], Start: starts[p], End: ends[p], Retention: retention}
		at := l.Start
		if l.Committed != noOffset {
			at = max(l.Committed, l.Start)
			l.Lost = max(l.Start-l.Committed, 0)
		}
		l.Records = max(l.End-at, 0)
		if l.Records == 0 {
			return nil
		}
		found, err := o.oldestOf(ctx, client, gt, p, at, l.End)
		l.Oldest, l.Records = found.time, max(l.End-found.offset, 0)
		return err
	})
	return out, err
}

// Members tells how many members a group has: processes that read for it, or
// that Kafka has not given up yet. A group that never was has none.
func (o *Offsets) Members(ctx context.Context, group string) (int, error) {
	client, err := o.connected()
	if err != nil {
		return 0, err
	}
	admin, err := sarama.NewClusterAdminFromClient(client) // closing it would close the client
	if err != nil {
		return 0, sortError(fmt.Errorf("describe group %s: %w", group, err))
	}
	n := 0
	err = tailTries(ctx, 3, func() error {
		described, err := admin.DescribeConsumerGroups([]string{group})
		if err != nil {
			_ = client.RefreshCoordinator(group) // the next attempt tells whether that helped
			return err
		}
		for _, d := range described {
			if d.Err != sarama.ErrNoError {
				_ = client.RefreshCoordinator(group)
				return d.Err
			}
			n = len(d.Members)
		}
		return nil
	})
	if err != nil {
		return 0, sortError(fmt.Errorf("describe group %s: %w", group, err))
	}
	return n, nil
}

// retention asks how long the topic keeps records. Not to be allowed to know is
// no reason not to show the rest.
func (o *Offsets) retention(client sarama.Client, topic string) (time.Duration, error) {
	const setting = "retention.ms"
	admin, err := sarama.NewClusterAdminFromClient(client) // closing it would close the client
	if err != nil {
		return 0, sortError(fmt.Errorf("describe topic %s: %w", topic, err))
	}
	results, err := admin.DescribeConfigs([]*sarama.ConfigResource{{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{setting}}}, sarama.DescribeConfigsOptions{})
	if err != nil {
		return 0, sortError(fmt.Errorf("describe topic %s: %w", topic, err))
	}
	var entries []sarama.ConfigEntry
	for _, r := range results {
		switch err := sarama.KError(r.ErrorCode); err {
		case sarama.ErrNoError:
			entries = append(entries, r.Configs...)
		case sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed:
			return 0, nil
		default:
			return 0, sortError(fmt.Errorf("describe topic %s: %w", topic, err))
		}
	}
	for _, e := range entries {
		if ms, err := strconv.ParseInt(e.Value, 10, 64); e.Name == setting && err == nil && ms > 0 {
			return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond, nil
		}
	}
	return 0, nil
}

func (o *Offsets) partitions(topic string) (sarama.Client, []int32, error) {
	client, err := o.connected()
	if err != nil {
		return nil, nil, err
	}
	partitions, err := client.Partitions(topic)
	if err != nil {
		return nil, nil, sortError(fmt.Errorf("look up topic %s: %w", topic, err))
	}
	return client, partitions, nil
}

func (o *Offsets) listed(ctx context.Context, client sarama.Client, topic string, partitions []int32, which int64) (map[int32]int64, error) {
	offsets := make([]int64, len(partitions))
	err := eachOf(partitions, func(i int, p int32) error {
		return sortError(tailTries(ctx, 3, func() (err error) {
			offsets[i], err = listedOffset(client, topic, p, which)
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	out := make(map[int32]int64, len(partitions))
	for i, p := range partitions {
		out[p] = offsets[i]
	}
	return out, nil
}

// eachOf runs f for every partition, some at once.
func eachOf(partitions []int32, f func(i int, partition int32) error) error {
	var g errgroup.Group
	g.SetLimit(lagParallel)
	for i, p := range partitions {
		g.Go(func() error { return f(i, p) })
	}
	return g.Wait()
}
