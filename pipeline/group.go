package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/cenkalti/backoff/v5"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Defaults of a GroupConfig.
const (
	DefaultMaxBatch     = 500
	DefaultMaxBytes     = 4 << 20
	DefaultFlushEvery   = time.Second
	DefaultDrainTimeout = 15 * time.Second
	DefaultStuckAfter   = 10 * time.Second
)

// Stage is the logic that a partition's records go through. One is made for
// each claim, and called by one goroutine at a time.
//
// An error says by its fault class what becomes of the records: Transient, the
// same call is repeated; Poison, the batch is halved until the record is found
// and set aside; Fatal, the group stops. So Handle may be called again with
// records that it has seen, all or some, alone or with others, and must come to
// the same effect. A record that was set aside is not seen again.
//
// A stage that implements io.Closer is closed when its claim ends.
type Stage interface {
	// Handle takes records in log order. All offsets below durable are safe to
	// mark, which may lag behind; it never exceeds the last offset seen plus 1.
	Handle(ctx context.Context, batch []wire.Record) (durable int64, err error)
	// Flush makes durable what Handle left. It is called while durable lags,
	// every FlushEvery, after FlushIdle, and when the partition is given up.
	Flush(ctx context.Context) (durable int64, err error)
}

// Claim is a partition that this process reads now.
type Claim struct {
	Topic     string
	TopicID   string
	Partition int32
	// Committed is the offset that reading begins at; -1: nothing was ever
	// committed, it begins at the log's start.
	Committed int64
}

// GroupConfig configures a Group.
type GroupConfig struct {
	Config
	// Group is Kafka's name of the consumer group, and the label "stage" of its
	// metrics. Needed.
	Group string
	// Topic is read. Needed.
	Topic string
	// NewStage makes the logic for a claim. Its errors are dealt with as those
	// of Handle; Poison makes no sense and is fatal. Needed.
	NewStage func(ctx context.Context, c Claim) (Stage, error)
	// DeadLetters takes poison records, to the topic Config.Topics().DeadLetter.
	// Needed. It is not closed by the group.
	DeadLetters Appender
	// History, where set, is asked whether topic and history are those that the
	// offsets belong to. Nil: only Kafka is.
	History History
	// Projects tells that the group is the one that brings the topic into
	// History, which then must have all that is committed.
	Projects bool
	// Origins tells that the stage knows what it has handled by topic id,
	// partition and offset, so that it would take a new record at an offset that
	// the log gave out before for the old one.
	Origins bool
	// OnLost says what to do where the group cannot read on. Empty: LostStop.
	OnLost OnLost
	// MaxBatch bounds the records of one Handle. 0: DefaultMaxBatch.
	MaxBatch int
	// MaxBytes bounds their bytes, save that one record always fits.
	// 0: DefaultMaxBytes.
	MaxBytes int
	// FetchEvery is the least time between two fetches while records come; what
	// comes meanwhile shares a batch. A record that comes after a pause waits for
	// nothing. At most 100 ms. 0: DefaultFetchEvery.
	FetchEvery time.Duration
	// FlushEvery is how long durable may lag before Flush is called.
	// 0: DefaultFlushEvery.
	FlushEvery time.Duration
	// FlushIdle is how long nothing may come while durable lags before Flush is
	// called all the same, and as long again for each thousand records that wait.
	// 0, or more than FlushEvery: FlushEvery alone counts.
	FlushIdle time.Duration
	// DrainTimeout bounds finishing the batch at hand and the last flush when a
	// partition is given up. At most 5 min. 0: DefaultDrainTimeout.
	DrainTimeout time.Duration
	// StuckAfter is how long one attempt may take before the partition counts
	// as stuck. 0: DefaultStuckAfter.
	StuckAfter time.Duration

	topicEvery, session time.Duration // set by tests
}

// Appender is what the runner needs of a Producer.
type Appender interface {
	Append(ctx context.Context, outs []wire.Out) error
}

// Validate reports every fault of c at once.
func (c GroupConfig) Validate() error {
	errs := []error{c.Config.Validate()}
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("group %q: %s", c.Group, what))
		}
	}
	need(c.Group != "", "its name is needed")
	need(topicName.MatchString(c.Topic), fmt.Sprintf("topic %q is not a topic's name", c.Topic))
	need(c.NewStage != nil, "NewStage is needed")
	need(c.DeadLetters != nil, "DeadLetters is needed")
	need(!c.Projects || c.History != nil, "Projects needs History")
	need(slices.Contains([]OnLost{"", LostStop, LostEarliest, LostLatest}, c.OnLost), fmt.Sprintf("OnLost %q is none of stop, earliest, latest", c.OnLost))
	need(c.MaxBatch >= 0 && c.MaxBatch <= 100_000, "MaxBatch must be from 0 to 100,000")
	need(c.MaxBytes >= 0 && c.MaxBytes <= 64<<20, "MaxBytes must be from 0 to 64 MiB")
	need(c.FetchEvery >= 0 && c.FetchEvery <= 100*time.Millisecond, "FetchEvery must be from 0 to 100 ms")
	need(c.FlushEvery >= 0, "FlushEvery is negative")
	need(c.FlushIdle >= 0, "FlushIdle is negative")
	need(c.DrainTimeout >= 0 && c.DrainTimeout <= 5*time.Minute, "DrainTimeout must be from 0 to 5 min")
	need(c.StuckAfter >= 0, "StuckAfter is negative")
	return errors.Join(errs...)
}

func (c GroupConfig) withDefaults() GroupConfig {
	c.MaxBatch = cmp.Or(c.MaxBatch, DefaultMaxBatch)
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.FetchEvery = cmp.Or(c.FetchEvery, DefaultFetchEvery)
	c.FlushEvery = cmp.Or(c.FlushEvery, DefaultFlushEvery)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, DefaultDrainTimeout)
	c.StuckAfter = cmp.Or(c.StuckAfter, DefaultStuckAfter)
	c.topicEvery = cmp.Or(c.topicEvery, topicEvery)
	return c
}

// Group feeds the partitions of a topic that Kafka assigns to this process to
// stages.
type Group struct {
	cfg     GroupConfig
	log     *slog.Logger
	metrics *groupMetrics
	status  status

	mu      sync.Mutex
	topicID string
	client  sarama.Client           // of the run under way
	fail    context.CancelCauseFunc // ends it
}

// NewGroup checks cfg and starts nothing.
func NewGroup(cfg GroupConfig) (*Group, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	g := &Group{
		cfg:     cfg,
		log:     cfg.logger().With("stage", cfg.Group, "topic", cfg.Topic),
		metrics: newGroupMetrics(cfg.Registerer, cfg.Group),
	}
	g.status.init(cfg.StuckAfter)
	register(cfg.Registerer, newStuckCollector()).add(cfg.Group, &g.status)
	return g, nil
}

// Run reads until ctx ends, then finishes the batches at hand, flushes the
// stages and commits, and returns nil. Anything else that it returns is a
// reason to end the process: an error of class Fatal, or what could not be
// drained in time. Errors that may heal are waited for without end.
//
// One call at a time.
func (g *Group) Run(ctx context.Context) error {
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	g.status.failed(nil)
	g.mu.Lock()
	g.fail = fail
	g.mu.Unlock()
	defer g.status.left(errors.New("stopped"))

	err := g.run(run)
	if cause := context.Cause(run); ctx.Err() == nil && cause != nil {
		// Everything after it is its consequence.
		return fmt.Errorf("group %s: %w", g.cfg.Group, cause)
	}
	if err != nil {
		return fmt.Errorf("group %s: %w", g.cfg.Group, err)
	}
	// A fatal error may have come while ctx was ending.
	if err := g.status.fatal(); err != nil {
		return fmt.Errorf("group %s: %w", g.cfg.Group, err)
	}
	return nil
}

// stop ends the run with a fatal error; the first one counts.
func (g *Group) stop(err error) {
	g.status.failed(err)
	g.mu.Lock()
	fail := g.fail
	g.mu.Unlock()
	fail(err)
}

func (g *Group) run(ctx context.Context) error {
	client, members, err := g.connect(ctx)
	if err != nil || client == nil {
		return err
	}
	g.mu.Lock()
	g.client = client
	g.mu.Unlock()

	var routines sync.WaitGroup
	routines.Go(func() {
		for err := range members.Errors() {
			g.driverError(err)
		}
	})

	// sarama may sit in a join that waits for the other members. When that
	// outlasts the drain, its connections are cut.
	consumed := make(chan struct{})
	cut := make(chan struct{})
	routines.Go(func() {
		select {
		case <-consumed:
			return
		case <-ctx.Done():
		}
		timer := time.NewTimer(g.cfg.DrainTimeout + abandonGrace)
		defer timer.Stop()
		select {
		case <-consumed:
		case <-timer.C:
			close(cut)
			_ = client.Close()
		}
	})

	watched, unwatch := context.WithCancel(ctx)
	routines.Go(func() { g.watchTopic(watched, client, g.cfg.topicEvery) })

	err = g.consume(ctx, client, members)
	unwatch()
	close(consumed)
	// Close leaves the group, so that others take over at once. What it reports
	// no longer matters: the offsets were committed with the session's end.
	_ = members.Close()
	if !client.Closed() {
		_ = client.Close()
	}
	routines.Wait()
	select {
	case <-cut:
		return errors.Join(err, fmt.Errorf("not drained within %v", g.cfg.DrainTimeout+abandonGrace))
	default:
		return err
	}
}

// connect waits for the cluster. Without an error and without a client, ctx
// ended.
func (g *Group) connect(ctx context.Context) (sarama.Client, sarama.ConsumerGroup, error) {
	conf, err := g.cfg.consumerConfig()
	if err != nil {
		return nil, nil, fault.New(fault.Fatal, ReasonConfig, err)
	}
	pace(conf, g.cfg.FetchEvery)
	// A full channel is a full batch. It must not be small: sarama drops errors
	// for which its channel, of the same size, has no room.
	conf.ChannelBufferSize = max(g.cfg.MaxBatch, 256)
	if g.cfg.session > 0 {
		conf.Consumer.Group.Session.Timeout, conf.Consumer.Group.Heartbeat.Interval = g.cfg.session, g.cfg.session/4
	}
	conf.Consumer.Group.Rebalance.Timeout = g.cfg.DrainTimeout + 15*time.Second
	pauses := waits(100*time.Millisecond, 5*time.Second)
	for ctx.Err() == nil {
		client, err := sarama.NewClient(g.cfg.Brokers, conf)
		if err == nil {
			var members sarama.ConsumerGroup
			if members, err = sarama.NewConsumerGroupFromClient(g.cfg.Group, client); err == nil {
				return client, members, nil
			}
			_ = client.Close()
		}
		if err := g.later(ctx, pauses, fmt.Errorf("connect to kafka: %w", err)); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// consume is sarama's loop: each round is one membership.
func (g *Group) consume(ctx context.Context, client sarama.Client, members sarama.ConsumerGroup) error {
	pauses := waits(100*time.Millisecond, 5*time.Second)
	for first := true; ctx.Err() == nil; {
		began := time.Now()
		err := g.resume(ctx, client, first)
		if err == nil {
			first = false
			err = members.Consume(ctx, []string{g.cfg.Topic}, &handler{g})
		}
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = errors.New("membership ended")
		}
		g.status.left(err)
		// A membership that stood for a while is not a failing one.
		if time.Since(began) > 30*time.Second {
			pauses.Reset()
		}
		if err := g.later(ctx, pauses, err); err != nil {
			return err
		}
	}
	return nil
}

// later waits after an error that may heal and returns one that may not.
func (g *Group) later(ctx context.Context, pauses *backoff.ExponentialBackOff, err error) error {
	err = sortError(err)
	if fault.ClassOf(err) == fault.Fatal {
		return err
	}
	reason := fault.ReasonOf(err)
	g.metrics.errs.WithLabelValues(reason).Inc()
	g.log.Warn("consumer group is not running, trying again", "reason", reason, "err", err)
	g.status.left(err)
	sleep(ctx, pauses.NextBackOff())
	return nil
}

// driverError sorts what sarama reports beside its calls.
func (g *Group) driverError(err error) {
	where, ok := errors.AsType[*sarama.ConsumerError](err)
	if ok && errors.Is(err, sarama.ErrOffsetOutOfRange) {
		g.stop(g.outOfRange(where.Topic, where.Partition))
		return
	}
	err = sortError(err)
	if fault.ReasonOf(err) == ReasonBatchTooLarge {
		err = g.tooLarge(err)
	}
	if fault.ClassOf(err) == fault.Fatal {
		g.stop(err)
		return
	}
	reason := fault.ReasonOf(err)
	g.metrics.errs.WithLabelValues(reason).Inc()
	// Each partition reports the same outage every second or so.
	if g.status.troubled(reason) {
		g.log.Warn("kafka error, the driver tries again", "reason", reason, "err", err)
	}
}

// outOfRange tells what an operator needs to know to decide: what the group
// committed and what the log holds.
func (g *Group) outOfRange(topic string, partition int32) error {
	g.mu.Lock()
	client, id := g.client, g.topicID
	g.mu.Unlock()
	places, err := g.places(client, []int32{partition})
	if err == nil {
		if l := g.cfg.judge(places[0], id, nil); l != nil {
			return g.cfg.lost(id, []Lost{*l}).fatal()
		}
	}
	// What was read and not yet committed is beyond the log's end.
	return fault.New(fault.Fatal, ReasonAboveEnd, fmt.Errorf(
		"group %s read further in topic %s partition %d than the log goes (committed and log: %+v, %v): "+
			"the log lost its last records, see docs/runbook.md#%s: %w",
		g.cfg.Group, topic, partition, places, err, ReasonAboveEnd, sarama.ErrOffsetOutOfRange))
}

// tooLarge finds the batch that cannot be unpacked. The driver reports it for
// every partition that it fetches from the same broker.
func (g *Group) tooLarge(err error) error {
	g.mu.Lock()
	client := g.client
	g.mu.Unlock()
	for _, p := range g.State().Partitions {
		for offset := p.Next; ; {
			f, ferr := fetchRecords(client, p.Topic, p.Partition, offset, 1)
			if errors.Is(ferr, sarama.ErrDecompressedBatchTooLarge) {
				return fault.New(fault.Fatal, ReasonBatchTooLarge, fmt.Errorf(
					"topic %s partition %d offset %d: the batch there can be neither read nor set aside, see docs/runbook.md#%s: %w",
					p.Topic, p.Partition, offset, ReasonBatchTooLarge, ferr))
			}
			if ferr != nil || f.next == offset {
				break
			}
			offset = f.next
		}
	}
	return err
}

// waits gives pauses that double, with jitter, without end.
func waits(first, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = first
	b.MaxInterval = longest
	b.Multiplier = 2
	b.RandomizationFactor = 0.2
	b.Reset()
	return b
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
