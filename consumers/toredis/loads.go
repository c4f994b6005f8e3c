package toredis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// Pauses between two reads of the truth when the first has failed: the second
// value is the longest. Each is shortened at random by up to a half, so that
// the partitions of a deployment do not ask together.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// ask is what one conversation needs of the truth.
type ask struct {
	want watermark.Want
	// token is that of the warm-up that the load is for: a new one, which it
	// shall fill, or the one that stands, when members are all that is missing.
	token   string
	members bool
	why     string
	// resequences is how many resequence commands were there to cause it.
	resequences int
}

// load is one read of the truth, in a goroutine of its own: history may take
// its time, and warm conversations must not wait for it.
type load struct {
	asks   []ask
	done   chan struct{} // closed when the rest is filled in
	states []*watermark.State
	err    error
	panic  any
}

// loads is the one read of the truth that may be under way for a partition, and
// when the next one may begin.
type loads struct {
	current  *load
	cancel   context.CancelFunc // of current
	routines sync.WaitGroup

	failures int
	retryAt  time.Time
	// slow says that the last load failed or took more than the patience there
	// is: the next one is not waited for.
	slow bool
}

// may tells whether a load may begin.
func (l *loads) may(now time.Time) bool {
	return l.current == nil && !now.Before(l.retryAt)
}

// finished tells whether there is a load that came to its end.
func (l *loads) finished() bool {
	if l.current == nil {
		return false
	}
	select {
	case <-l.current.done:
		return true
	default:
		return false
	}
}

// begin reads the truth of asks. It outlives the call that began it, up to
// timeout, and ends with close.
func (l *loads) begin(ctx context.Context, truth Truth, asks []ask, timeout time.Duration) {
	ctx, l.cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), timeout, errLoadTimeout)
	x := &load{asks: asks, done: make(chan struct{})}
	l.current = x
	wants := make([]watermark.Want, len(asks))
	for i := range asks {
		wants[i] = asks[i].want
	}
	l.routines.Go(func() {
		defer close(x.done)
		defer func() {
			if v := recover(); v != nil {
				x.panic = fmt.Sprintf("%v\n%s", v, debug.Stack())
			}
		}()
		x.states, x.err = truth.Load(ctx, wants)
		if x.err != nil && errors.Is(context.Cause(ctx), errLoadTimeout) {
			x.err = fault.New(fault.Transient, reasonLoadTimeout, fmt.Errorf("%w after %s: %w", errLoadTimeout, timeout, x.err))
		}
	})
}

const reasonLoadTimeout = "load_timeout"

var errLoadTimeout = errors.New("the truth took too long to read")

// await waits for the load under way, at most for patience, and tells whether
// it came to its end.
func (l *loads) await(ctx context.Context, patience time.Duration) bool {
	if l.current == nil {
		return false
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-l.current.done:
		return true
	case <-ctx.Done():
	case <-timer.C:
		l.slow = true
	}
	return false
}

// take gives the load that is finished; another one may begin then.
func (l *loads) take() *load {
	x := l.current
	l.cancel()
	l.current, l.cancel = nil, nil
	if x.panic != nil {
		panic(x.panic) // the runner's recover is the one that there is
	}
	return x
}

func (l *loads) failed(now time.Time) {
	pause := min(firstPause<<min(l.failures, 10), longestPause)
	pause -= rand.N(pause / 2)
	l.failures++
	l.retryAt, l.slow = now.Add(pause), true
}

func (l *loads) worked() { l.failures, l.retryAt, l.slow = 0, time.Time{}, false }

// close ends the load under way and waits for it.
func (l *loads) close() {
	if l.cancel != nil {
		l.cancel()
	}
	l.routines.Wait()
}

// load gets what the script was missing of lots, and tells whether it is there
// now. Where it is not, the lots have to wait: a load is under way already, or
// takes too long, or the last one failed and the pause after it is not over.
// Nothing of a conversation is cleared in Redis before a load for it begins.
func (s *Stage) load(ctx context.Context, lots []*lot) (loaded bool, err error) {
	if !s.loads.may(s.cfg.Now()) {
		return false, nil
	}
	asks, err := s.begin(ctx, lots)
	if err != nil {
		return false, err
	}
	s.loads.begin(ctx, s.cfg.Truth, asks, s.cfg.LoadTimeout)
	if s.loads.slow || !s.loads.await(ctx, s.cfg.Patience) {
		return false, nil
	}
	if loaded, err = s.collect(ctx); !loaded || err != nil {
		return false, err
	}
	for i, l := range lots {
		l.unlearned.by(asks[i])
	}
	return true, nil
}

// begin makes the cold ones of lots warming, and gives what to load.
func (s *Stage) begin(ctx context.Context, lots []*lot) ([]ask, error) {
	asks := make([]ask, len(lots))
	var ids []watermark.ConversationID
	for i, l := range lots {
		id := l.batch.Conversation
		asks[i] = ask{why: l.alloc.Why, resequences: l.resequences}
		if l.alloc.Temperature == watermark.Partial {
			asks[i].members, asks[i].token = true, l.alloc.Token
			asks[i].want = watermark.Want{Conversation: id, Users: l.alloc.Unknown}
			continue
		}
		asks[i].want = watermark.Want{Conversation: id, Users: users(&l.batch), Sent: true}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return asks, nil
	}
	tokens, err := s.cfg.Allocator.Begin(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("toredis: begin %d conversations: %w", len(ids), err)
	}
	if err := counted("tokens", len(tokens), len(ids)); err != nil {
		return nil, err
	}
	for i := range asks {
		if !asks[i].members {
			asks[i].token, tokens = tokens[0], tokens[1:]
		}
	}
	return asks, nil
}

// collect takes the load that is finished, and tells Redis what it brought.
// loaded is false when it failed for now.
func (s *Stage) collect(ctx context.Context) (loaded bool, err error) {
	x := s.loads.take()
	if x.err == nil {
		x.err = counted("states", len(x.states), len(x.asks))
	}
	if x.err != nil {
		err := fmt.Errorf("toredis: load %d conversations: %w", len(x.asks), x.err)
		if fault.ClassOf(err) != fault.Transient {
			return false, err
		}
		s.loadFailed(ctx, err)
		return false, nil
	}
	var colds []watermark.Loaded
	var members []watermark.MemberLoad
	for i, a := range x.asks {
		if a.members {
			members = append(members, memberLoad(a, x.states[i]))
			continue
		}
		if err := s.checkFloor(a.want.Conversation, x.states[i]); err != nil {
			return false, err
		}
		s.raiseFloor(a.want.Conversation, x.states[i].Max)
		colds = append(colds, watermark.Loaded{Token: a.token, State: introduced(x.states[i], a.want.Users)})
	}
	// One whose token no longer stands shows as cold or partial in the next
	// round: somebody else began in between.
	if len(colds) > 0 {
		if _, err := s.cfg.Allocator.Install(ctx, colds); err != nil {
			return false, fmt.Errorf("toredis: install %d conversations: %w", len(colds), err)
		}
	}
	if len(members) > 0 {
		if _, err := s.cfg.Members.MergeMembers(ctx, members); err != nil {
			return false, fmt.Errorf("toredis: merge members of %d conversations: %w", len(members), err)
		}
	}
	s.loadWorked(ctx, x)
	return true, nil
}

func (s *Stage) loadFailed(ctx context.Context, err error) {
	s.loads.failed(s.cfg.Now())
	reason := fault.ReasonOf(err)
	s.metrics.loadFailures.WithLabelValues(reason).Inc()
	if s.condition.failing(reason, s.cfg.Now()) {
		s.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "cold conversations cannot be loaded, their records are parked",
			slog.Int("partition", int(s.partition)), slog.String("reason", reason), slog.Any("err", err))
	}
}

func (s *Stage) loadWorked(ctx context.Context, x *load) {
	s.loads.worked()
	if s.condition.healed() {
		s.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "cold conversations are loaded again", slog.Int("partition", int(s.partition)))
	}
	for _, a := range x.asks {
		if a.members {
			s.metrics.memberLoads.Add(float64(len(a.want.Users)))
			continue
		}
		s.metrics.coldLoads.WithLabelValues(whyWord(a.why)).Inc()
		s.parked.loaded(a)
	}
}
