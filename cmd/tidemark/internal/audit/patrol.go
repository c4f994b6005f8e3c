package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// restBetween is the least time from the beginning of one pass to that of
	// the next: where there is little to audit it need not be audited all the
	// time.
	restBetween = time.Minute
	// The pause after an error, which doubles with each.
	firstPause, longestPause = time.Second, time.Minute
)

// Patrol is the audit that never ends: it goes through all conversations at the
// rate of its Config, over and over, and never reads the log. It changes
// nothing unless its Config has a Mender.
//
// The first pass begins somewhere, so that a process that is restarted often
// does not look at the same conversations each time. An error of a source makes
// it unready and is waited out; the batch is begun again.
type Patrol struct {
	auditor *Auditor
	log     *slog.Logger
	began   time.Time

	mu     sync.Mutex
	failed error     // guarded by mu; nil: the last batch went well
	passed time.Time // guarded by mu
}

// NewPatrol checks cfg and gives a Patrol.
func NewPatrol(cfg Config) (*Patrol, error) {
	cfg.Log, cfg.Progress = nil, nil
	p := &Patrol{began: time.Now(), failed: errors.New("it has not begun")}
	next := cfg.Found
	cfg.Found = func(f Finding) {
		p.log.Error("audit finding", "kind", f.Kind, "conversation", f.Conversation, "seq", f.Seq, "user", f.User,
			"detail", f.Detail, "mended", f.Mended, "step", f.Step)
		if next != nil {
			next(f)
		}
	}
	a, err := New(cfg)
	if err != nil {
		return nil, err
	}
	p.auditor, p.log, p.passed = a, a.cfg.Logger, p.began
	a.metrics.passAge(p.age)
	return p, nil
}

// Ready tells why the patrol does not get on, nil when it does.
func (p *Patrol) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *Patrol) age() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.passed).Seconds()
}

// Run patrols until ctx ends, and returns nil then.
func (p *Patrol) Run(ctx context.Context) error {
	start := somewhere()
	for ctx.Err() == nil {
		began := time.Now()
		// From start to the end, and from the beginning to start: one pass.
		p.walk(ctx, start, "")
		if start != "" {
			p.walk(ctx, "", start)
		}
		start = ""
		if ctx.Err() != nil {
			break
		}
		p.pass()
		pause(ctx, restBetween-time.Since(began))
	}
	return nil
}

// somewhere gives a place among the ids that there can be.
func somewhere() watermark.ConversationID {
	kind := "group:"
	if rand.IntN(2) == 0 {
		kind = "single:"
	}
	return watermark.ConversationID(fmt.Sprintf("%s%c", kind, 'A'+rand.IntN('z'-'A'+1)))
}

func (p *Patrol) pass() {
	p.auditor.metrics.passes.Inc()
	rep := p.auditor.snapshot()
	p.log.Info("audit pass", "conversations", rep.Conversations, "messages", rep.Messages, "findings", rep.Found(), "undecided", rep.Undecided)
	p.auditor.reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed = time.Now()
}

// walk looks at the conversations above after, up to the last one not above
// end; "" is the end of all.
func (p *Patrol) walk(ctx context.Context, after, end watermark.ConversationID) {
	wait := firstPause
	for ctx.Err() == nil {
		next, err := p.step(ctx, after, end)
		if ctx.Err() != nil {
			return
		}
		p.tell(err)
		if err != nil {
			p.auditor.metrics.errors.Inc()
			pause(ctx, wait)
			wait = min(2*wait, longestPause)
			continue
		}
		wait = firstPause
		if next == "" {
			return
		}
		after = next
	}
}

// step looks at one batch and gives the last id of it; "" when there is none.
func (p *Patrol) step(ctx context.Context, after, end watermark.ConversationID) (watermark.ConversationID, error) {
	a := p.auditor
	ids, err := a.cfg.History.ConversationsAfter(ctx, after, batchConversations)
	if err != nil {
		return "", fmt.Errorf("list conversations: %w", err)
	}
	for i, id := range ids {
		if end != "" && id > end {
			ids = ids[:i]
			break
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	err = a.lookAt(ctx, ids)
	if err == nil {
		err = a.settleAll(ctx)
	}
	if err != nil {
		// What was suspected before the error is found again.
		a.drop()
		return "", err
	}
	return ids[len(ids)-1], a.pace.wait(ctx, len(ids))
}

func (a *Auditor) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue, a.bytes = nil, 0
}

func (p *Patrol) tell(err error) {
	p.mu.Lock()
	was := p.failed
	p.failed = err
	p.mu.Unlock()
	if err != nil && was == nil {
		p.log.Warn("the audit cannot go on, trying again", "error", err)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
