// Package tooffline is the logic that tells absent users of messages: it takes
// the records of one partition of toOfflinePush and hands notifications to one
// endpoint, a webhook or a vendor of device notifications. Each endpoint has a
// Worker and a consumer group of its own, so that one that hangs holds up its
// own offsets and nothing else: what it cannot take stays in Kafka.
//
// It promises:
//   - At least once: an offset is durable only when each user of it and of all
//     earlier records was told, needed not to be told, or stands in the dead
//     letters. A notification has the same id at every attempt, and after a
//     restart where it stands for the same messages.
//   - Messages of one conversation become one notification of a user: those that
//     come within Delay, and those that come while an earlier one waits or is
//     under way. There is one attempt at a time for a user and a conversation.
//   - The state of the user is looked at right before an attempt. Nobody is told
//     of what they have read, may not see any more, or was revoked; of muted
//     conversations only where they are mentioned, and not even then where the
//     attribute says "all".
//   - Attempts are bounded in time and number, at once and in all; pauses between
//     them double, with jitter, and are never shorter than what the endpoint asks
//     for. While the circuit is open no attempt is made, which costs no tries.
//   - After the last try a notification goes to the dead letters, as a record
//     for its user and endpoint alone, which can be replayed.
//   - Memory is bounded by MaxPending messages times users of a partition, each
//     with texts of at most 3 KiB that all users of a record share, and by the
//     offsets of ten times as many records that wait for the lowest. Beyond it
//     Handle takes no more: an error of class Transient. What failed before and
//     is the lowest then gets one more attempt and goes to the dead letters,
//     unless the endpoint as a whole is away: one device that is to be left alone
//     for an hour keeps nobody else waiting.
//
// It does not promise order between conversations, nor that a device shows
// something once: an attempt whose answer was lost is made again, with its id.
// A user may come online while it is being notified.
//
// A Worker is safe for concurrent use. A Stage is one claim of one partition;
// its methods are for one goroutine. It has goroutines of its own, which Close
// ends. Errors of a Sender are told from those of the store and of Kafka: only
// the former cost tries.
package tooffline

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// MutedAll as the value of the attribute "muted" silences mentions too.
const MutedAll = "all"

// probeEvery is how often is looked whether an endpoint on probation has
// answered.
const probeEvery = 50 * time.Millisecond

// Worker is one endpoint; it holds what its partitions share.
type Worker struct {
	cfg     Config
	metrics *metrics
	slots   chan struct{} // one is held during each attempt
	breaker circuitbreaker.CircuitBreaker[any]

	mu       sync.Mutex
	flying   int       // attempts under way
	quiet    time.Time // the endpoint asked to be left alone until then
	draining bool
}

// New checks cfg. All its faults are reported together.
func New(cfg Config) (*Worker, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	w := &Worker{cfg: cfg, metrics: newMetrics(cfg.Registerer, cfg.Endpoint), slots: make(chan struct{}, cfg.Concurrency)}
	w.breaker = circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(uint(cfg.BreakerAfter)).
		WithDelay(cfg.BreakerPause).
		WithSuccessThreshold(1).
		OnStateChanged(w.changed).
		Build()
	return w, nil
}

func (w *Worker) changed(e circuitbreaker.StateChangedEvent) {
	open := 0.0
	if e.NewState != circuitbreaker.ClosedState {
		open = 1
	}
	w.metrics.breaker.Set(open)
	switch {
	case e.NewState == circuitbreaker.ClosedState:
		w.cfg.Logger.Info("endpoint works again", "endpoint", w.cfg.Endpoint)
	case e.OldState == circuitbreaker.ClosedState:
		w.cfg.Logger.Warn("endpoint fails, circuit opened", "endpoint", w.cfg.Endpoint, "pause", w.cfg.BreakerPause)
	}
}

// Drain says that the process is to end: no attempt begins any more, and the
// last Flush waits for those under way.
func (w *Worker) Drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.draining = true
}

func (w *Worker) isDraining() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draining
}

// hold gives how long no attempt should begin.
func (w *Worker) hold() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := max(time.Until(w.quiet), w.breaker.RemainingDelay())
	if wait <= 0 && !w.breaker.IsClosed() && w.flying > 0 {
		return probeEvery
	}
	return max(wait, 0)
}

// hush leaves the endpoint alone for a while.
func (w *Worker) hush(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if until := time.Now().Add(d); until.After(w.quiet) {
		w.quiet = until
	}
}

func (w *Worker) fly(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flying += n
}

// Stage gives the stage of a fresh claim of a partition. What it does ends with
// ctx, or with Close.
func (w *Worker) Stage(ctx context.Context, partition int32) (*Stage, error) {
	if partition < 0 {
		return nil, fault.New(fault.Fatal, "partitions", fmt.Errorf("tooffline: partition %d", partition))
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Stage{
		w: w, cancel: cancel, notes: make(map[key]*note), wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
		log: w.cfg.Logger.With(slog.String("endpoint", w.cfg.Endpoint), slog.Int("partition", int(partition))),
	}
	s.routines.Go(func() { s.dispatch(ctx) })
	return s, nil
}

// silent tells why a user is not told of n; empty: it is.
func silent(n *note, st *Standing) string {
	visible := st.Member.Visible(st.Conversation.Min, max(st.Conversation.Max, n.last))
	muted := st.Member.Attributes[watermark.AttributeMuted]
	switch {
	case st.Revoked:
		return "revoked"
	case !visible.Contains(n.last):
		return "not_visible"
	case n.last <= st.Member.Read:
		return "read"
	case muted == MutedAll, muted != "" && !n.mentioned:
		return "muted"
	}
	return ""
}
