package syncapi

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/tidemark-im/tidemark/watermark"
)

const (
	pollFast    = 2 * time.Millisecond   // for who waits since just now
	pollSlow    = 20 * time.Millisecond  // for who waits long
	pollFault   = 200 * time.Millisecond // after Redis failed
	pollTimeout = 2 * time.Second        // for one round trip
	pollBatch   = 1000                   // keys of one round trip
)

var (
	errNoAnswer = errors.New("no answer in time")
	errStopping = errors.New("the service is stopping")
)

// answers is the part of Hot that the poller needs.
type answers interface {
	Answers(ctx context.Context, keys []watermark.AnswerKey) ([]*watermark.Answer, error)
}

// poller fetches the answers of owners for all waiting calls of the process, in
// shared round trips: every waiter is due after 2 ms at first and after a tenth
// of its age later, at most 20 ms, so that a lone call is answered at once and
// a crowd that waits for a slow owner costs little.
type poller struct {
	hot     answers
	node    string
	limit   int
	metrics *metrics
	log     *slog.Logger
	calls   atomic.Uint64
	faults  throttle
	wake    chan struct{} // holds one token

	mu      sync.Mutex
	due     waiters // a heap, the next due first
	stopped bool
}

type waiter struct {
	key   watermark.AnswerKey
	born  time.Time
	next  time.Time
	index int // in the heap; -1: not there
	done  bool
	// answer receives once, or is closed when the service stops.
	answer chan watermark.Answer
}

func newPoller(hot answers, node string, limit int, m *metrics, log *slog.Logger) *poller {
	return &poller{hot: hot, node: node, limit: limit, metrics: m, log: log, wake: make(chan struct{}, 1)}
}

// caller gives the name under which one call waits. Each call has its own, so
// that one that repeats an op or a client message id is told what became of
// itself, not of the one before.
func (p *poller) caller() string {
	return p.node + "." + strconv.FormatUint(p.calls.Add(1), 36)
}

// enter begins to wait for the answer under key. It must be called before the
// record is appended, so that a crowd is refused while nothing has happened
// yet. leave must follow.
func (p *poller) enter(key watermark.AnswerKey) (*waiter, error) {
	now := time.Now()
	w := &waiter{key: key, born: now, next: now.Add(pollFast), index: -1, answer: make(chan watermark.Answer, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.stopped:
		return nil, unavailable(reasonStopping, "the service is stopping")
	case len(p.due) >= p.limit:
		return nil, &refusal{
			code: connect.CodeResourceExhausted, reason: reasonWaitingCalls,
			text: "too many calls wait for an answer", retry: retryAfter,
		}
	}
	heap.Push(&p.due, w)
	p.metrics.waiting.Set(float64(len(p.due)))
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return w, nil
}

func (p *poller) leave(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(w)
}

// endLocked takes w out for good.
func (p *poller) endLocked(w *waiter) {
	w.done = true
	if w.index >= 0 {
		heap.Remove(&p.due, w.index)
	}
	p.metrics.waiting.Set(float64(len(p.due)))
}

// wait gives the answer, errNoAnswer after timeout, errStopping, or ctx's error.
func (p *poller) wait(ctx context.Context, w *waiter, timeout time.Duration) (watermark.Answer, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case a, ok := <-w.answer:
		if !ok {
			return watermark.Answer{}, errStopping
		}
		return a, nil
	case <-timer.C:
		return watermark.Answer{}, errNoAnswer
	case <-ctx.Done():
		return watermark.Answer{}, ctx.Err()
	}
}

// run polls until ctx is done, then sends every waiter away.
func (p *poller) run(ctx context.Context) {
	defer p.stop()
	for ctx.Err() == nil {
		batch, pause := p.take(time.Now())
		if len(batch) > 0 {
			p.poll(ctx, batch)
			continue
		}
		if !p.sleep(ctx, pause) {
			return
		}
	}
}

// sleep waits for pause, 0 meaning until somebody enters. It is false when ctx
// is done.
func (p *poller) sleep(ctx context.Context, pause time.Duration) bool {
	var tick <-chan time.Time
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		tick = timer.C
	}
	select {
	case <-tick:
	case <-p.wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// take gives the waiters that are due and schedules them anew; pause is how
// long nobody is when there are none, 0 when nobody waits at all.
func (p *poller) take(now time.Time) (batch []*waiter, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.due) > 0 && len(batch) < pollBatch {
		w := p.due[0]
		if w.next.After(now) {
			pause = w.next.Sub(now)
			break
		}
		w.next = now.Add(min(max(now.Sub(w.born)/10, pollFast), pollSlow))
		heap.Fix(&p.due, 0)
		batch = append(batch, w)
	}
	return batch, pause
}

func (p *poller) poll(ctx context.Context, batch []*waiter) {
	keys := make([]watermark.AnswerKey, len(batch))
	for i, w := range batch {
		keys[i] = w.key
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	got, err := p.hot.Answers(ctx, keys)
	if err != nil {
		p.metrics.polls.WithLabelValues("error").Inc()
		if p.faults.allow(time.Now()) {
			p.log.Warn("answers of owners cannot be fetched", "waiting", len(batch), "error", err)
		}
		p.delay(batch)
		return
	}
	p.metrics.polls.WithLabelValues("ok").Inc()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, w := range batch {
		if i < len(got) && got[i] != nil && !w.done {
			w.answer <- *got[i]
			p.endLocked(w)
		}
	}
}

// delay leaves Redis alone for a while: the waiters keep waiting.
func (p *poller) delay(batch []*waiter) {
	next := time.Now().Add(pollFault)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range batch {
		if w.index >= 0 {
			w.next = next
			heap.Fix(&p.due, w.index)
		}
	}
}

func (p *poller) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for len(p.due) > 0 {
		w := p.due[0]
		p.endLocked(w)
		close(w.answer)
	}
}

// waiters is a heap by next.
type waiters []*waiter

func (h waiters) Len() int           { return len(h) }
func (h waiters) Less(i, j int) bool { return h[i].next.Before(h[j].next) }
func (h waiters) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *waiters) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *waiters) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.index = -1
	return w
}
