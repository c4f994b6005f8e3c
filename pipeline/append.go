package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// sending is one record on its way. At most one message of it is with the
// driver at a time, so its answers fit into the channel's room for it.
type sending struct {
	out     *wire.Out
	index   int
	key     line
	tries   int
	refused error // the driver's last refusal of class Poison
	answers chan<- result
}

func (s *sending) place() int32 { return s.out.Partition }

type result struct {
	s   *sending
	err error
}

// line names records that are written one after the other.
type line struct{ topic, key string }

// appending is one call of Append.
type appending struct {
	p        *Producer
	async    sarama.AsyncProducer
	answers  chan result
	lines    map[line][]*sending // what waits behind the first of each key
	order    []line              // as the keys first appeared
	inFlight int
	again    []*sending // failed, to be sent after the pause
	suspects []*sending // refused, perhaps for a neighbour's fault
}

func newAppending(p *Producer, async sarama.AsyncProducer, outs []wire.Out) *appending {
	a := &appending{p: p, async: async, answers: make(chan result, len(outs)), lines: make(map[line][]*sending)}
	for i := range outs {
		s := &sending{out: &outs[i], index: i, key: line{outs[i].Topic, outs[i].Key}, answers: a.answers}
		if _, ok := a.lines[s.key]; !ok {
			a.order = append(a.order, s.key)
		}
		a.lines[s.key] = append(a.lines[s.key], s)
	}
	return a
}

// run sends everything, and leaves what was refused in suspects, with what
// waits behind it in lines.
func (a *appending) run(ctx context.Context) error {
	defer func() { a.gauge().Sub(float64(a.inFlight)) }()
	for _, k := range a.order {
		waiting := a.lines[k]
		first := waiting
		if k.key != "" {
			first = waiting[:1]
		}
		a.lines[k] = waiting[len(first):]
		for _, s := range first {
			if err := a.send(ctx, s); err != nil {
				return err
			}
		}
	}
	return a.settle(ctx)
}

// settle waits until everything that was sent, and what follows from it, is
// acknowledged or refused.
func (a *appending) settle(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	var due <-chan time.Time
	for a.inFlight > 0 || len(a.again) > 0 {
		if due == nil && len(a.again) > 0 {
			pause.Reset(appendBackoff(a.again[0].tries))
			due = pause.C
		}
		select {
		case r := <-a.answers:
			if err := a.answered(ctx, r); err != nil {
				return err
			}
		case <-due:
			due = nil
			again := a.again
			a.again = nil
			for _, s := range again {
				if err := a.send(ctx, s); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return a.unknown(ctx.Err())
		case <-a.p.patience.gaveUp:
			return a.unknown(ErrClosed)
		}
	}
	return nil
}

func (a *appending) gauge() prometheus.Gauge {
	return a.p.metrics.inFlight.WithLabelValues(a.p.client)
}

func (a *appending) unknown(err error) error {
	return sortError(fmt.Errorf("append: %d records are not acknowledged: %w", a.inFlight+len(a.again), err))
}

func (a *appending) send(ctx context.Context, s *sending) error {
	s.tries++
	// A message is new for each try: sarama may still look at an old one.
	m := &sarama.ProducerMessage{Topic: s.out.Topic, Value: sarama.ByteEncoder(s.out.Value), Timestamp: s.out.Time, Metadata: s}
	if s.out.Key != "" {
		m.Key = sarama.StringEncoder(s.out.Key)
	}
	for _, h := range s.out.Headers {
		m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
	}
	select {
	case a.async.Input() <- m:
		a.inFlight++
		a.gauge().Inc()
		return nil
	case <-ctx.Done():
		return a.unknown(ctx.Err())
	case <-a.p.patience.gaveUp:
		return a.unknown(ErrClosed)
	}
}

// answered deals with one answer of the driver.
func (a *appending) answered(ctx context.Context, r result) error {
	a.inFlight--
	a.gauge().Dec()
	topic := r.s.out.Topic
	if r.err == nil {
		a.p.metrics.records.WithLabelValues(topic).Inc()
		a.p.metrics.bytes.WithLabelValues(topic).Add(float64(len(r.s.out.Key) + len(r.s.out.Value)))
		if topic == a.p.cfg.Topics().DeadLetter {
			a.p.metrics.setAside(r.s.out)
		}
		if next := a.lines[r.s.key]; len(next) > 0 {
			a.lines[r.s.key] = next[1:]
			return a.send(ctx, next[0])
		}
		return nil
	}
	switch class, reason := classify(r.err); class {
	case fault.Fatal:
		return fault.New(fault.Fatal, reason, fmt.Errorf("append to %s: %w", topic, r.err))
	case fault.Poison:
		// Kafka refuses whole batches, so this may be a neighbour's fault. The
		// record is tried alone, when everything else is through.
		r.s.refused = fault.New(class, reason, r.err)
		a.suspects = append(a.suspects, r.s)
	default:
		a.p.metrics.retries.WithLabelValues(topic, reason).Inc()
		if loud(r.s.tries) {
			a.p.log.Warn("append failed, sending again", "topic", topic, "key", r.s.out.Key, "tries", r.s.tries, "reason", reason, "err", r.err)
		}
		a.again = append(a.again, r.s)
	}
	return nil
}

// runAlone sends the suspects, and what waits behind them, one at a time and
// with nobody else's records in their batch, so that a refusal names the one
// that is meant.
func (a *appending) runAlone(ctx context.Context) error {
	if err := a.p.gate.Acquire(ctx, everyone); err != nil {
		return a.unknown(err)
	}
	defer a.p.gate.Release(everyone)
	defer func() { a.gauge().Sub(float64(a.inFlight)) }()
	suspects := a.suspects
	var rejected []error
	for _, s := range suspects {
		behind := a.lines[s.key]
		delete(a.lines, s.key)
		for _, s := range append([]*sending{s}, behind...) {
			a.suspects = nil
			if err := a.send(ctx, s); err != nil {
				return err
			}
			if err := a.settle(ctx); err != nil {
				return err
			}
			if len(a.suspects) > 0 {
				// Refused alone. What waits behind it must not overtake it.
				rejected = append(rejected, reject(s.index, s.out, fault.ReasonOf(s.refused), s.refused))
				break
			}
		}
	}
	return errors.Join(rejected...)
}

// appendBackoff is the pause after the n-th failure: from 50 ms to 5 s, with a
// fifth of jitter so that many callers do not come back at once.
func appendBackoff(tries int) time.Duration {
	d := min(50*time.Millisecond<<min(max(tries-1, 0), 8), 5*time.Second)
	return d + rand.N(d/5)
}

// loud tells which failures of one thing are logged: the 1st, 2nd, 4th, 8th,
// 16th, and then each 16th.
func loud(tries int) bool { return tries&(tries-1) == 0 || tries%16 == 0 }
