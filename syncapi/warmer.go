package syncapi

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// How often a conversation must be read from the truth before its owner is
// asked to make it warm, and how often it is asked at most. A device that goes
// through ten thousand idle conversations must not fill Redis with them.
const (
	warmReads   = 3                     // cold reads of one conversation
	warmWithin  = time.Minute           // within this time
	warmAgain   = time.Minute           // and not asked again before
	warmListing = 20                    // cold conversations of one call; a call about more is a listing, which says nothing of any of them
	warmKnown   = 10_000                // conversations whose reads are counted
	warmQueue   = 256                   // conversations that wait to be asked for
	warmEvery   = 20 * time.Millisecond // between two commands of this process
)

// warmer asks owners to make conversations warm that are read often while they
// are cold. It is a favour to readers: what has no place in the queue, and what
// cannot be appended, is left out and counted.
type warmer struct {
	append  func(ctx context.Context, c *v1.Command) error
	now     func() time.Time
	metrics *metrics
	log     *slog.Logger
	faults  throttle
	queue   chan watermark.ConversationID

	mu   sync.Mutex
	seen *simplelru.LRU[watermark.ConversationID, *coldReads]
}

// coldReads are those of one conversation, guarded by the warmer's lock.
type coldReads struct {
	n     int
	since time.Time // of the first of them
	asked time.Time // when the owner was asked last
}

func newWarmer(log Log, now func() time.Time, m *metrics, logger *slog.Logger) (*warmer, error) {
	seen, err := simplelru.NewLRU[watermark.ConversationID, *coldReads](warmKnown, nil)
	if err != nil {
		return nil, fmt.Errorf("cold reads: %w", err)
	}
	return &warmer{
		append: log.AppendCommand, now: now, metrics: m, log: logger,
		queue: make(chan watermark.ConversationID, warmQueue), seen: seen,
	}, nil
}

// read takes note of conversations that one call read from the truth. It never
// waits.
func (w *warmer) read(cold []watermark.ConversationID) {
	if len(cold) > warmListing {
		return
	}
	for _, id := range cold {
		if !w.due(id) {
			continue
		}
		select {
		case w.queue <- id:
		default:
			w.metrics.warms.WithLabelValues("dropped").Inc()
		}
	}
}

// due counts a cold read, and tells whether the owner is to be asked now.
func (w *warmer) due(id watermark.ConversationID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	r, ok := w.seen.Get(id)
	if !ok {
		r = &coldReads{}
		w.seen.Add(id, r)
	}
	if r.n == 0 || now.Sub(r.since) > warmWithin {
		r.n, r.since = 0, now
	}
	r.n++
	if r.n < warmReads || (!r.asked.IsZero() && now.Sub(r.asked) < warmAgain) {
		return false
	}
	r.n, r.asked = 0, now
	return true
}

// run appends the commands until ctx is done.
func (w *warmer) run(ctx context.Context) {
	pace := time.NewTicker(warmEvery)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-w.queue:
			w.ask(ctx, id)
		}
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
	}
}

func (w *warmer) ask(ctx context.Context, id watermark.ConversationID) {
	err := w.append(ctx, &v1.Command{Conversation: string(id), Kind: &v1.Command_Warm{Warm: &v1.WarmCommand{}}})
	if err == nil {
		w.metrics.warms.WithLabelValues("asked").Inc()
		return
	}
	w.metrics.warms.WithLabelValues("error").Inc()
	if ctx.Err() == nil && w.faults.allow(w.now()) {
		w.log.Warn("an owner cannot be asked to make a conversation warm", "conversation", id, "error", err)
	}
}
