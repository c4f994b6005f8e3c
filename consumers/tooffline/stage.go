package tooffline

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// roomWait is how long Handle waits for room before it says that there is
	// none, so that a partition that is given up is not held.
	roomWait = time.Second
	// recordsPerPending bounds the records that wait behind the lowest that is not
	// done with, as a multiple of MaxPending. Of those that are done with only the
	// offset is kept, so they cost less.
	recordsPerPending = 10
)

// Stage is one claim of one partition.
type Stage struct {
	w        *Worker
	log      *slog.Logger
	cancel   context.CancelFunc
	routines sync.WaitGroup
	wake     chan struct{} // something may be due sooner
	room     chan struct{} // something was done with

	mu      sync.Mutex
	next    int64      // records below were taken
	records []*tracked // those above durable, ascending
	notes   map[key]*note
	queue   queue
	items   int // messages times users in memory
	flying  int // notes under way
	fatal   error
}

// Handle takes records, ascending by offset, and gives the offset below which
// everything is done with. It may be called again with records that it has
// taken.
func (s *Stage) Handle(ctx context.Context, records []wire.Record) (durable int64, err error) {
	for i := range records {
		r := &records[i]
		if s.taken(r.Offset) {
			continue
		}
		o, err := wire.DecodeOffline(*r)
		if err != nil {
			return s.durable(), fmt.Errorf("tooffline: %w", err)
		}
		if err := s.await(ctx); err != nil {
			return s.durable(), err
		}
		s.take(r, &o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durableLocked(), s.fatal
}

// Flush gives the offset below which everything is done with. While the process
// drains it waits for the attempts under way.
func (s *Stage) Flush(ctx context.Context) (durable int64, err error) {
	for s.w.isDraining() && s.underWay() > 0 {
		select {
		case <-s.room:
		case <-ctx.Done():
			return s.durable(), nil // what is not done with is read again
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durableLocked(), s.fatal
}

// Close breaks off what is under way and waits for it. What was not done with
// is read again.
func (s *Stage) Close() error {
	s.cancel()
	s.routines.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.metrics.pending.Sub(float64(s.items))
	s.items, s.notes, s.queue, s.records = 0, nil, nil, nil
	return nil
}

func (s *Stage) taken(offset int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return offset < s.next
}

func (s *Stage) underWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flying
}

func (s *Stage) durable() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durableLocked()
}

func (s *Stage) durableLocked() int64 {
	done := 0
	for done < len(s.records) && s.records[done].left == 0 {
		s.records[done] = nil
		done++
	}
	s.records = s.records[done:]
	if len(s.records) > 0 {
		return s.records[0].Offset
	}
	return s.next
}

// await waits until there is room for another record.
func (s *Stage) await(ctx context.Context) error {
	timer := time.NewTimer(roomWait)
	defer timer.Stop()
	for {
		s.mu.Lock()
		items, records, fatal := s.items, len(s.records), s.fatal
		s.mu.Unlock()
		if fatal != nil {
			return fatal
		}
		if items < s.w.cfg.MaxPending && records < recordsPerPending*s.w.cfg.MaxPending {
			return nil
		}
		select {
		case <-s.room:
		case <-ctx.Done():
			return fmt.Errorf("tooffline: wait for endpoint %s: %w", s.w.cfg.Endpoint, ctx.Err())
		case <-timer.C:
			s.hurry()
			return fault.New(fault.Transient, "backlog", fmt.Errorf(
				"tooffline: endpoint %s has %d notifications to take before more are read (%d records wait for the lowest)",
				s.w.cfg.Endpoint, items, records))
		}
	}
}

// hurry ends what holds up the whole partition: the notifications of the lowest
// record that failed before, and would wait for another try while nothing else
// has room any more, are tried now and for the last time. While the endpoint as
// a whole is away that would help nobody.
func (s *Stage) hurry() {
	if s.w.hold() > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.durableLocked()
	if len(s.records) == 0 {
		return
	}
	lowest := s.records[0]
	for _, n := range s.notes {
		// One that is under way comes back, and is found here the next time.
		if n.at >= 0 && n.tries > 0 && slices.Contains(n.parts, lowest) {
			n.hurried, n.due = true, time.Now()
			heap.Fix(&s.queue, n.at)
		}
	}
	poke(s.wake)
}

// take makes notes of a record.
func (s *Stage) take(r *wire.Record, o *wire.Offline) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = r.Offset + 1
	if only, ok := r.Header(wire.HeaderEndpoint); ok && string(only) != s.w.cfg.Endpoint {
		return
	}
	t := &tracked{Record: *r, left: len(o.Users)}
	if traces := wire.TracesOf(r); len(traces) > 0 {
		t.trace = traces[0]
	}
	t.Key, t.Value, t.Headers = nil, nil, replayHeaders(r) // which would keep all of what was fetched with it
	if o.RecordTime.IsZero() {
		o.RecordTime = r.Time
	}
	mentioned := make(map[watermark.UserID]bool, len(o.Mentions))
	for _, u := range o.Mentions {
		mentioned[u] = true
	}
	users := o.Users
	o.Users, o.Mentions = nil, nil
	s.records = append(s.records, t)
	s.items += len(users)
	s.w.metrics.pending.Add(float64(len(users)))
	now := time.Now()
	for _, u := range users {
		s.noteLocked(key{o.Conversation, u}, now).add(o, mentioned[u], t)
	}
	poke(s.wake)
}

// replayHeaders keeps what a dead letter that was replayed says of its past, so
// that the tries of its next one are counted on.
func replayHeaders(r *wire.Record) []wire.Header {
	if v, ok := r.Header(wire.HeaderReplay); ok {
		return []wire.Header{{Key: wire.HeaderReplay, Value: bytes.Clone(v)}}
	}
	return nil
}

// noteLocked gives the note that takes the next message for k.
func (s *Stage) noteLocked(k key, now time.Time) *note {
	n := s.notes[k]
	if n == nil {
		n = &note{key: k, made: now, due: now.Add(s.w.cfg.Delay)}
		s.notes[k] = n
		heap.Push(&s.queue, n)
		return n
	}
	s.w.metrics.collapsed.Inc()
	if n.at >= 0 {
		return n
	}
	if n.next == nil {
		n.next = &note{key: k, at: -1, made: now, due: now.Add(s.w.cfg.Delay)}
	}
	return n.next
}

// dispatch begins attempts as they fall due.
func (s *Stage) dispatch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := s.wait()
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-s.wake:
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case s.w.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		// Others may have failed, or n have grown, while the slot was waited for.
		n := s.pop()
		if n == nil {
			<-s.w.slots
			continue
		}
		s.routines.Go(func() {
			defer func() { <-s.w.slots }()
			s.attempt(ctx, n)
		})
	}
}

// wait gives how long nothing is due.
func (s *Stage) wait() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 || s.fatal != nil || s.w.isDraining() {
		return time.Hour
	}
	return max(time.Until(s.queue[0].due), s.w.hold())
}

// pop takes the note that is due, if there is one and it may be attempted.
func (s *Stage) pop() *note {
	if s.wait() > 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return nil
	}
	s.flying++
	s.w.fly(1)
	return heap.Pop(&s.queue).(*note)
}

// put lets a note that was under way wait again.
func (s *Stage) put(n *note, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.next != nil {
		n.join(n.next)
		n.next = nil
	}
	n.due = time.Now().Add(pause)
	heap.Push(&s.queue, n)
	s.landLocked()
}

// finish is the end of a note.
func (s *Stage) finish(n *note, outcome string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.metrics.finished.WithLabelValues(outcome).Inc()
	for _, t := range n.parts {
		t.left--
	}
	s.items -= len(n.parts)
	s.w.metrics.pending.Sub(float64(len(n.parts)))
	if n.next == nil {
		delete(s.notes, n.key)
	} else {
		s.notes[n.key] = n.next
		heap.Push(&s.queue, n.next)
	}
	s.landLocked()
}

func (s *Stage) landLocked() {
	s.flying--
	s.w.fly(-1)
	poke(s.room)
	poke(s.wake)
}

// stop keeps a fatal error for the runner.
func (s *Stage) stop(n *note, err error) {
	s.mu.Lock()
	if s.fatal == nil {
		s.fatal = err
	}
	s.mu.Unlock()
	s.put(n, 0)
}

// poke wakes whoever waits on c, now or next.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
