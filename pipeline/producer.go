package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/sync/semaphore"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// everyone is the weight of the producer's gate: an ordinary Append takes 1 of
// it, a record that must travel alone all.
const everyone = 1 << 30

// abandonGrace is how long Close waits for the driver to let go of what it was
// told to abandon.
const abandonGrace = 5 * time.Second

// ProducerConfig configures a Producer.
type ProducerConfig struct {
	Config
	// Topic takes the records that name none. Empty: such a record is an error
	// of class Fatal.
	Topic string
}

// Producer appends records to topics. Many calls of Append share the driver's
// batches. It connects with the first Append.
type Producer struct {
	cfg      ProducerConfig
	log      *slog.Logger
	metrics  *producerMetrics
	client   string
	patience *patience
	gate     *semaphore.Weighted
	up       atomic.Bool
	appends  sync.WaitGroup // calls of Append under way
	routines sync.WaitGroup // goroutines of this package

	mu     sync.Mutex
	async  sarama.AsyncProducer // nil: not connected
	dial   *dial                // nil: nobody is connecting
	closed bool                 // no call of Append may begin
	gone   bool                 // and none is left
}

// NewProducer checks cfg and starts nothing.
func NewProducer(cfg ProducerConfig) (*Producer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Producer{
		cfg:     cfg,
		log:     cfg.logger(),
		metrics: newProducerMetrics(cfg.Registerer, cfg.Topics()),
		gate:    semaphore.NewWeighted(everyone),
		client:  cfg.clientID(),
	}
	waits := p.metrics.waits.WithLabelValues(p.client)
	p.patience = &patience{gaveUp: make(chan struct{}), connected: p.up.Load, waited: waits.Inc}
	return p, nil
}

// Append sends outs and returns when every one is acknowledged. Records of one
// topic and key are written in the order of outs: each is sent when the one
// before it is acknowledged. Records without a key have no order.
//
// What fails is sent again, with growing pauses up to five seconds, for as long
// as ctx lives. Returned are only: the end of ctx, ErrClosed, an error of class
// Fatal, and one of class Poison that wraps a *RejectedError for each record
// that Kafka will never take. After a Poison error the rejected records and the
// later ones of their keys are not written, all others are. After any other
// error it is unknown which were.
func (p *Producer) Append(ctx context.Context, outs []wire.Out) error {
	if len(outs) == 0 {
		return nil
	}
	outs, err := p.checked(ctx, outs)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return fault.New(fault.Transient, "closed", ErrClosed)
	}
	p.appends.Add(1)
	p.mu.Unlock()
	defer p.appends.Done()

	async, err := p.connect(ctx, outs)
	if err != nil {
		return err
	}
	if err := p.gate.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("append to %s: %w", outs[0].Topic, err)
	}
	a := newAppending(p, async, outs)
	err = a.run(ctx)
	p.gate.Release(1)
	if err != nil || len(a.suspects) == 0 {
		return err
	}
	return a.runAlone(ctx)
}

// checked gives outs with their topics. It finds the records that exceed
// MaxRecordBytes, before anything is sent.
func (p *Producer) checked(ctx context.Context, outs []wire.Out) ([]wire.Out, error) {
	outs = slices.Clone(outs)
	var errs []error
	for i := range outs {
		o := &outs[i]
		o.Topic = cmp.Or(o.Topic, p.cfg.Topic)
		if o.Topic == "" {
			return nil, fault.New(fault.Fatal, ReasonContract, fmt.Errorf("append record %d (key %q): it names no topic", i, o.Key))
		}
		limit := p.cfg.maxRecordBytes()
		if o.Topic == p.cfg.Topics().DeadLetter {
			limit += deadLetterExtra
		}
		inject(ctx, o, limit)
		if size := sizeOf(o); size > limit {
			errs = append(errs, reject(i, o, ReasonTooLarge, fmt.Errorf("record has %d bytes, at most %d are allowed", size, limit)))
		}
	}
	return outs, errors.Join(errs...)
}

// sizeOf is never less than what sarama compares with MaxMessageBytes.
func sizeOf(o *wire.Out) int {
	const record, header = 64, 16
	n := record + len(o.Key) + len(o.Value)
	for _, h := range o.Headers {
		n += header + len(h.Key) + len(h.Value)
	}
	return n
}

func reject(i int, o *wire.Out, reason string, err error) error {
	return fault.New(fault.Poison, reason, &RejectedError{Index: i, Topic: o.Topic, Key: o.Key, Err: err})
}

// dial is one attempt to connect, shared by all who wait for it.
type dial struct {
	done chan struct{}
	err  error // set before done is closed
}

// connect gives the connected driver, connecting for as long as ctx lives.
func (p *Producer) connect(ctx context.Context, outs []wire.Out) (sarama.AsyncProducer, error) {
	for tries := 1; ; tries++ {
		p.mu.Lock()
		if p.async != nil {
			defer p.mu.Unlock()
			return p.async, nil
		}
		d := p.dial
		if d == nil {
			d = &dial{done: make(chan struct{})}
			p.dial = d
			topics := topicsOf(outs)
			p.routines.Go(func() { p.dialOnce(d, topics) })
		}
		p.mu.Unlock()

		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to kafka: %w", ctx.Err())
		case <-p.patience.gaveUp:
			return nil, fault.New(fault.Transient, "closed", ErrClosed)
		}
		if d.err == nil {
			continue
		}
		if fault.ClassOf(d.err) == fault.Fatal {
			return nil, d.err
		}
		p.metrics.retries.WithLabelValues(outs[0].Topic, fault.ReasonOf(d.err)).Inc()
		if loud(tries) {
			p.log.Warn("kafka cannot be reached, trying again", "tries", tries, "reason", fault.ReasonOf(d.err), "err", d.err)
		}
		if err := p.pause(ctx, tries); err != nil {
			return nil, fmt.Errorf("connect to kafka: %w", errors.Join(err, d.err))
		}
	}
}

func (p *Producer) dialOnce(d *dial, topics []string) {
	async, client, err := p.open(topics)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dial = nil
	d.err = err
	if err == nil {
		p.routines.Go(func() { p.deliver(async, client) })
		if p.gone {
			async.AsyncClose() // whoever wanted it did not wait for it
		} else {
			p.async = async
			p.up.Store(true)
		}
	}
	close(d.done)
}

// open connects a client of its own and fetches a producer id.
func (p *Producer) open(topics []string) (sarama.AsyncProducer, sarama.Client, error) {
	conf, err := p.cfg.producerConfig(p.patience)
	if err != nil {
		return nil, nil, fault.New(fault.Fatal, ReasonConfig, err)
	}
	client, err := sarama.NewClient(p.cfg.Brokers, conf)
	if err != nil {
		return nil, nil, sortError(fmt.Errorf("connect to kafka: %w", err))
	}
	// Without this the first producer id is asked of the first address of the
	// list, again and again, also when that broker is dead.
	if err := client.RefreshMetadata(topics...); err != nil {
		_ = client.Close()
		return nil, nil, sortError(fmt.Errorf("ask kafka for topics %v: %w", topics, err))
	}
	async, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		_ = client.Close()
		return nil, nil, sortError(fmt.Errorf("ask kafka for a producer id: %w", err))
	}
	return async, client, nil
}

func topicsOf(outs []wire.Out) []string {
	seen := make(map[string]bool, 1)
	var out []string
	for i := range outs {
		if t := outs[i].Topic; !seen[t] {
			seen[t] = true
			out = append(out, t)
		}
	}
	return out
}

// deliver hands each answer of the driver to the Append that waits for it. No
// hand-over blocks: a call's channel has room for all its records.
func (p *Producer) deliver(async sarama.AsyncProducer, client sarama.Client) {
	successes, errs := async.Successes(), async.Errors()
	for successes != nil || errs != nil {
		select {
		case m, ok := <-successes:
			if !ok {
				successes = nil
				continue
			}
			answer(m, nil)
		case e, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			answer(e.Msg, e.Err)
		}
	}
	_ = client.Close()
}

func answer(m *sarama.ProducerMessage, err error) {
	if s, ok := m.Metadata.(*sending); ok {
		s.answers <- result{s, err}
	}
}

func (p *Producer) pause(ctx context.Context, tries int) error {
	timer := time.NewTimer(appendBackoff(tries))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.patience.gaveUp:
		return ErrClosed
	}
}

// Close lets the calls under way finish, each with its acknowledgements, until
// ctx ends; what is left then is abandoned and its Append returns ErrClosed. It
// returns an error when something was abandoned or the driver does not let go.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()

	idle := make(chan struct{})
	go func() { p.appends.Wait(); close(idle) }()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = fmt.Errorf("close producer: records are not acknowledged: %w", ctx.Err())
	}
	p.patience.giveUp()
	<-idle

	p.mu.Lock()
	p.gone = true
	if p.async != nil {
		p.async.AsyncClose()
	}
	p.mu.Unlock()
	gone := make(chan struct{})
	go func() { p.routines.Wait(); close(gone) }()
	timer := time.NewTimer(abandonGrace)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
		err = errors.Join(err, errors.New("close producer: the driver does not let go of its connections"))
	}
	return err
}
