package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// runner takes one partition's records through its stage. All of it runs in the
// goroutine of the claim.
type runner struct {
	g        *Group
	claim    Claim
	client   sarama.Client
	stage    Stage
	messages <-chan *sarama.ConsumerMessage
	held     *sarama.ConsumerMessage // taken from messages, too large for the last batch
	mark     func(offset int64)
	log      *slog.Logger
	status   *partitionStatus

	next    int64  // what was handled ends below it
	durable int64  // as the stage said
	marked  int64  // never above what is durable
	aside   []gone // dead letters above marked, ascending
	waiting int64  // records since durable lags; offsets have gaps, and a log need not begin at 0
	lagging time.Time
	busy    time.Time // when the last batch or flush ended
}

// gone is a record that went to the dead letters. It may be marked when
// everything that the stage saw before it is durable.
type gone struct {
	offset int64
	after  int64
}

// errReleased says that the claim ended while something was being retried.
var errReleased = errors.New("partition released")

// run returns an error only when the group has to stop. alive ends with the
// claim, work some time after it.
func (r *runner) run(alive, work context.Context) error {
	err := r.attempt(alive, work, "begin", func(ctx context.Context) (err error) {
		if err := r.g.verify(ctx, r.client, r.claim); err != nil {
			return sortError(err)
		}
		r.stage, err = r.g.cfg.NewStage(ctx, r.claim)
		return err
	})
	switch {
	case errors.Is(err, errReleased):
		return nil
	case err != nil:
		return fatal(err)
	}
	err = r.feed(alive, work)
	if err == nil {
		err = r.finish(work)
	}
	return errors.Join(err, closeStage(r.stage))
}

// feed takes what is there, as long as the claim lives.
func (r *runner) feed(alive, work context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if !r.lagging.IsZero() {
			timer.Reset(time.Until(r.flushAt()))
			due = timer.C
		}
		first := r.held
		r.held = nil
		if first == nil {
			select {
			case <-alive.Done():
				return nil
			case m, ok := <-r.messages:
				if !ok {
					return nil
				}
				first = m
			case <-due:
			}
		}
		if first != nil && alive.Err() != nil {
			return nil
		}
		if first != nil {
			batch := r.take(first)
			r.waiting += int64(len(batch))
			end := r.traced(batch)
			err := r.handle(alive, work, batch)
			r.busy = time.Now()
			end(err)
			if err != nil {
				return unlessReleased(err)
			}
		}
		if !r.lagging.IsZero() && !time.Now().Before(r.flushAt()) {
			if err := r.flush(alive, work); err != nil {
				return unlessReleased(err)
			}
		}
	}
}

// flushAt is when Flush is due while durable lags.
func (r *runner) flushAt() time.Time {
	return flushAt(r.lagging, r.busy, r.waiting, r.g.cfg.FlushEvery, r.g.cfg.FlushIdle)
}

// idleRecords is for how many records that wait to be flushed FlushIdle is waited
// once more. The work of an idle flush so stays in proportion to the pause before
// it: without that a partition that gets its records in large batches, since the
// stage before it is behind, flushed in each pause between two of them, and what
// that cost put the stage before it further behind.
const idleRecords = 1000

// flushAt is when Flush is due where behind records wait for it, durable has lagged
// since lagging, and the last batch ended at busy.
func flushAt(lagging, busy time.Time, behind int64, every, idle time.Duration) time.Time {
	at := lagging.Add(every)
	if idle == 0 || behind/idleRecords >= int64(every/idle) {
		return at
	}
	if pause := busy.Add(idle * time.Duration(1+behind/idleRecords)); pause.Before(at) {
		return pause
	}
	return at
}

func unlessReleased(err error) error {
	if errors.Is(err, errReleased) {
		return nil
	}
	return err
}

// finish flushes what is left and marks it, for the commit that follows. What
// does not succeed in time is read again by the next owner.
func (r *runner) finish(work context.Context) error {
	err := r.flush(work, work)
	if errors.Is(err, errReleased) {
		r.log.Warn("partition released without its last flush", "marked", r.marked, "handled", r.next, "err", err)
		return nil
	}
	return err
}

// take collects a batch from what the driver has at hand, and never waits.
func (r *runner) take(first *sarama.ConsumerMessage) []wire.Record {
	batch := append(make([]wire.Record, 0, min(1+len(r.messages), r.g.cfg.MaxBatch)), r.record(first))
	size := bytesOf(first)
	for len(batch) < r.g.cfg.MaxBatch {
		select {
		case m, ok := <-r.messages:
			if !ok {
				return batch
			}
			if size += bytesOf(m); size > r.g.cfg.MaxBytes {
				r.held = m
				return batch
			}
			batch = append(batch, r.record(m))
		default:
			return batch
		}
	}
	return batch
}

func bytesOf(m *sarama.ConsumerMessage) int {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

func (r *runner) record(m *sarama.ConsumerMessage) wire.Record {
	rec := wire.Record{
		Topic: m.Topic, TopicID: r.claim.TopicID, Partition: m.Partition, Offset: m.Offset,
		Time: m.Timestamp, Key: m.Key, Value: m.Value,
	}
	if len(m.Headers) > 0 {
		rec.Headers = make([]wire.Header, 0, len(m.Headers))
	}
	for _, h := range m.Headers {
		rec.Headers = append(rec.Headers, wire.Header{Key: string(h.Key), Value: h.Value})
	}
	return rec
}

// handle takes batch through the stage, halving it to find a poison record.
func (r *runner) handle(alive, work context.Context, batch []wire.Record) error {
	began, tries := time.Now(), 0
	err := r.attempt(alive, work, "handle", func(ctx context.Context) error {
		tries++
		start := time.Now()
		durable, err := r.stage.Handle(ctx, batch)
		r.g.metrics.handle.Observe(time.Since(start).Seconds())
		if err != nil {
			return err
		}
		return r.handled(batch, durable)
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errReleased):
		return err
	case fault.ClassOf(err) != fault.Poison:
		return fatal(err)
	case len(batch) > 1:
		half := len(batch) / 2
		if err := r.handle(alive, work, batch[:half]); err != nil {
			return err
		}
		return r.handle(alive, work, batch[half:])
	}
	letter := wire.DeadLetter{
		Record: batch[0], Reason: fault.ReasonOf(err), Cause: err.Error(),
		First: began, Last: time.Now(), Tries: tries,
	}
	return r.setAside(alive, work, letter)
}

// handled takes note of a batch that the stage has taken.
func (r *runner) handled(batch []wire.Record, durable int64) error {
	next := batch[len(batch)-1].Offset + 1
	r.next = max(r.next, next)
	r.g.metrics.batches.Inc()
	r.g.metrics.records.Add(float64(len(batch)))
	r.g.metrics.batchSize.Observe(float64(len(batch)))
	return r.settled(durable)
}

// settled marks what the stage says is durable, and the dead letters that
// follow it.
func (r *runner) settled(durable int64) error {
	if durable > r.next {
		// Marking it would skip records that nobody has seen.
		return fault.New(fault.Fatal, ReasonContract, fmt.Errorf("stage says that offset %d is durable, but was given none above %d", durable-1, r.next-1))
	}
	r.durable = max(r.durable, durable)
	mark := r.durable
	for len(r.aside) > 0 && r.aside[0].after <= mark {
		mark = max(mark, r.aside[0].offset+1)
		r.aside = r.aside[1:]
	}
	if mark > r.marked {
		r.marked = mark
		r.mark(mark)
	}
	switch {
	case r.marked >= r.next:
		r.lagging, r.waiting = time.Time{}, 0
	case r.lagging.IsZero():
		r.lagging = time.Now()
	}
	r.status.progress(r.next, r.marked)
	return nil
}

// flush calls Stage.Flush until it succeeds or until ends.
func (r *runner) flush(until, work context.Context) error {
	err := r.attempt(until, work, "flush", func(ctx context.Context) error {
		start := time.Now()
		durable, err := r.stage.Flush(ctx)
		r.g.metrics.flush.Observe(time.Since(start).Seconds())
		if err != nil {
			return err
		}
		r.g.metrics.lastFlush.SetToCurrentTime()
		r.lagging, r.busy = time.Time{}, time.Now() // the next one is due after a whole FlushEvery or FlushIdle
		return r.settled(durable)
	})
	if err == nil || errors.Is(err, errReleased) {
		return err
	}
	return fatal(err)
}

// fatal gives a poison error that belongs to no record the class that it has.
func fatal(err error) error {
	if fault.ClassOf(err) == fault.Poison {
		return fault.New(fault.Fatal, fault.ReasonOf(err), err)
	}
	return err
}

// setAside writes a poison record to the dead letters, then goes on behind it.
func (r *runner) setAside(alive, work context.Context, d wire.DeadLetter) error {
	err := r.attempt(alive, work, "dead letter", func(ctx context.Context) error {
		err := r.append(ctx, d)
		if err == nil || fault.ClassOf(err) != fault.Poison {
			return err
		}
		// Kafka does not take it as it is. What tells where it stands is small.
		d = d.WithoutContent(err)
		return r.append(ctx, d)
	})
	if errors.Is(err, errReleased) {
		return err
	}
	if err != nil {
		return fatal(fmt.Errorf("dead letter of offset %d: %w", d.Record.Offset, err))
	}
	log := r.log
	if traces := wire.TracesOf(&d.Record); len(traces) > 0 {
		log = log.With("trace_id", traces[0].TraceID())
	}
	log.Error("record set aside", "offset", d.Record.Offset, "key", string(d.Record.Key), "reason", d.Reason, "cause", d.Cause)
	r.aside = append(r.aside, gone{offset: d.Record.Offset, after: r.next})
	r.next = max(r.next, d.Record.Offset+1)
	return r.settled(r.durable)
}

func (r *runner) append(ctx context.Context, d wire.DeadLetter) error {
	out, err := wire.EncodeDeadLetter(d)
	if err != nil {
		return err
	}
	out.Topic = r.g.cfg.Topics().DeadLetter
	return r.g.cfg.DeadLetters.Append(ctx, []wire.Out{out})
}

// attempt calls f until it succeeds, fails for good, or until ends; then it
// returns errReleased. f gets work, which outlives the claim.
func (r *runner) attempt(until, work context.Context, what string, f func(context.Context) error) error {
	pauses := waits(20*time.Millisecond, 5*time.Second)
	defer r.status.done()
	for tries := 1; ; tries++ {
		r.status.begin(what)
		err := guarded(func() error { return f(work) })
		if err == nil || fault.ClassOf(err) != fault.Transient {
			return err
		}
		if until.Err() != nil {
			return fmt.Errorf("%w: %s: %w", errReleased, what, err)
		}
		reason := fault.ReasonOf(err)
		r.g.metrics.retries.WithLabelValues(reason).Inc()
		r.status.failing(what, reason)
		if loud(tries) {
			r.log.Warn("stage failed, trying again in place", "act", what, "tries", tries, "reason", reason, "next", r.next, "err", err)
		}
		sleep(until, pauses.NextBackOff())
		if until.Err() != nil {
			return fmt.Errorf("%w: %s: %w", errReleased, what, err)
		}
	}
}
