package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// tailMemory is what all views of a process may hold together. A reader asks for
// room before it fetches. Where there is none the readers stand in line, and the
// one whose turn it is takes what it needs from the other views: it waits for
// nobody who waits for it, so they cannot block one another.
//
// Locks are taken in this order: Tail.mu, tailMemory.mu, tailView.mu. Views tell
// what they hold by an atomic number, and take no lock of this type.
type tailMemory struct {
	limit   int64
	grace   time.Duration // how long a complete view that is pinned is left alone
	metrics *tailMetrics

	used atomic.Int64 // held by views, and granted to readers that have not folded yet

	mu    sync.Mutex
	views []*tailView
	line  []*tailView // whose readers found no room; the first has its turn
	since time.Time   // when that turn began
}

func newTailMemory(limit int64, grace time.Duration, m *tailMetrics) *tailMemory {
	return &tailMemory{limit: limit, grace: grace, metrics: m}
}

func errTailMemory(format string, args ...any) error {
	return fault.New(fault.Transient, ReasonTailMemory, fmt.Errorf("%w: "+format, append([]any{ErrTailMemory}, args...)...))
}

func errTailAlone(partition int32, limit int64) error {
	return fault.New(fault.Transient, ReasonTailAlone, fmt.Errorf("%w: that of partition %d takes more than %d bytes by itself", ErrTailMemory, partition, limit))
}

func (m *tailMemory) add(v *tailView) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.views = append(m.views, v)
}

func (m *tailMemory) remove(v *tailView) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.views = slices.DeleteFunc(m.views, func(x *tailView) bool { return x == v })
	m.leaveLocked(v)
}

// grow tells that a view holds n bytes more, or less. It may be called under the
// view's lock.
func (m *tailMemory) grow(n int64) {
	m.used.Add(n)
	m.metrics.bytes.Add(float64(n))
}

// tailPoll is how often a reader in line looks.
const tailPoll = 20 * time.Millisecond

// room waits until v may hold n bytes more, which are granted until release. It
// fails when v will never have room, with ReasonTailAlone, and when nobody waits
// for v or ctx has ended.
func (m *tailMemory) room(ctx context.Context, v *tailView, n int64) (release func(), err error) {
	for {
		granted, err := m.try(v, n, time.Now())
		if granted {
			return func() { m.used.Add(-n) }, nil
		}
		if fault.ReasonOf(err) == ReasonTailAlone || !v.failed(err) || !tailSleep(ctx, tailPoll) {
			return nil, err
		}
	}
}

// done ends the turn of a reader, or its place in line.
func (m *tailMemory) done(v *tailView) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaveLocked(v)
}

func (m *tailMemory) leaveLocked(v *tailView) {
	if len(m.line) > 0 && m.line[0] == v {
		m.since = time.Now()
	}
	m.line = slices.DeleteFunc(m.line, func(x *tailView) bool { return x == v })
	m.metrics.waiting.Set(float64(len(m.line)))
}

func (m *tailMemory) try(v *tailView, n int64, now time.Time) (granted bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := v.held()
	if held+n > m.limit {
		m.leaveLocked(v)
		return false, errTailAlone(v.partition, m.limit)
	}
	first := len(m.line) == 0 || m.line[0] == v
	if first && m.fits(n) {
		m.used.Add(n)
		return true, nil
	}
	if !slices.Contains(m.line, v) {
		if len(m.line) == 0 {
			m.since = now
		}
		m.line = append(m.line, v)
		m.metrics.waiting.Set(float64(len(m.line)))
	}
	if m.line[0] == v {
		m.takeLocked(v, n, now)
		if m.fits(n) {
			m.used.Add(n)
			return true, nil
		}
	}
	return false, errTailMemory("partition %d waits, %d of %d bytes are in use", v.partition, m.used.Load(), m.limit)
}

func (m *tailMemory) fits(n int64) bool { return m.used.Load()+n <= m.limit }

// takeLocked gives up other views until v has room for n bytes: those that
// nobody has pinned, those that wait in line themselves, and after a while also
// those that are complete and pinned, by whoever is reading history meanwhile.
func (m *tailMemory) takeLocked(v *tailView, n int64, now time.Time) {
	late := now.Sub(m.since) >= m.grace
	for _, which := range []func(x *tailView) bool{
		(*tailView).unused,
		func(x *tailView) bool { return slices.Contains(m.line, x) },
		func(*tailView) bool { return late },
	} {
		for _, x := range m.views {
			if m.fits(n) {
				return
			}
			if x != v && x.held() > 0 && which(x) {
				x.giveUp(errTailMemory("the view of partition %d made room for that of %d", x.partition, v.partition))
			}
		}
	}
}
