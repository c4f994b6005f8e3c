package syncapi

import (
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/watermark"
)

// UserLimits bounds what one user may ask of a process. They hold for callers
// who are authenticated and no administrators. Zero fields do not limit.
type UserLimits struct {
	// Requests is how many calls a second, on average.
	Requests float64
	// Burst is how many calls at once after a pause. 0: a second's.
	Burst float64
	// Bytes is how much of answers a second, on average. It is counted when an
	// answer is made, so one answer may go beyond it, and the next call waits.
	Bytes float64
	// BytesBurst is how much after a pause. 0: a second's.
	BytesBurst float64
	// InFlight is how many calls may be served at the same time.
	InFlight int
}

// usersKept is how many users' allowances are remembered. Whoever is forgotten
// was quiet for longer than as many others were not.
const usersKept = 100_000

// limiter holds the calls that are served, and users' allowances.
type limiter struct {
	cfg     UserLimits
	total   int
	now     func() time.Time
	limited *prometheus.CounterVec

	mu     sync.Mutex
	users  *simplelru.LRU[watermark.UserID, *allowance]
	flying map[watermark.UserID]int // at most total
	served int
}

// allowance is what a user may ask for now.
type allowance struct{ requests, bytes bucket }

func newLimiter(cfg Config, m *metrics) *limiter {
	users, err := simplelru.NewLRU[watermark.UserID, *allowance](usersKept, nil)
	if err != nil {
		panic(err) // only for a size below 1
	}
	for _, r := range []string{reasonBusy, reasonInFlight, reasonRequests, reasonBytes} {
		m.limited.WithLabelValues(r)
	}
	return &limiter{
		cfg: cfg.UserLimits, total: cfg.MaxInFlight, now: cfg.Now, limited: m.limited,
		users: users, flying: make(map[watermark.UserID]int),
	}
}

// enter takes one of the process's places; release gives it back.
func (l *limiter) enter() (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.served >= l.total {
		return nil, l.refuse(reasonBusy, "too many calls are being served", retryAfter)
	}
	l.served++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.served--
	}, nil
}

// take counts a call of user; release tells that it is served. A call that is
// refused costs the user nothing.
func (l *limiter) take(user watermark.UserID) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cfg.InFlight > 0 && l.flying[user] >= l.cfg.InFlight {
		return nil, l.refuse(reasonInFlight, "too many calls of this user are being served", retryAfter)
	}
	a := l.filledLocked(user)
	if l.cfg.Bytes > 0 && a.bytes.level <= 0 {
		return nil, l.refuse(reasonBytes, "this user was sent too much", a.bytes.until(1, l.cfg.Bytes))
	}
	if l.cfg.Requests > 0 {
		if a.requests.level < 1 {
			return nil, l.refuse(reasonRequests, "too many calls of this user", a.requests.until(1, l.cfg.Requests))
		}
		a.requests.level--
	}
	l.flying[user]++
	return func() { l.land(user) }, nil
}

func (l *limiter) land(user watermark.UserID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying[user]--; l.flying[user] <= 0 {
		delete(l.flying, user)
	}
}

// spend counts n bytes of an answer.
func (l *limiter) spend(user watermark.UserID, n int) {
	if l.cfg.Bytes <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.filledLocked(user).bytes.level -= float64(n)
}

func (l *limiter) filledLocked(user watermark.UserID) *allowance {
	now := l.now()
	a, ok := l.users.Get(user)
	if !ok {
		a = new(allowance)
		l.users.Add(user, a)
	}
	a.requests.fill(now, l.cfg.Requests, l.cfg.Burst)
	a.bytes.fill(now, l.cfg.Bytes, l.cfg.BytesBurst)
	return a
}

func (l *limiter) refuse(reason, text string, retry time.Duration) error {
	l.limited.WithLabelValues(reason).Inc()
	return &refusal{code: connect.CodeResourceExhausted, reason: reason, text: text, retry: retry}
}

// bucket is a token bucket that may be in debt, since what an answer weighs is
// known when it is made. Its zero value is full.
type bucket struct {
	level float64
	at    time.Time
}

func (b *bucket) fill(now time.Time, rate, burst float64) {
	if burst <= 0 {
		burst = rate
	}
	burst = max(burst, 1)
	if b.at.IsZero() {
		b.level, b.at = burst, now
		return
	}
	// A clock that was set back gives nothing and takes nothing.
	b.level = min(burst, b.level+rate*max(now.Sub(b.at).Seconds(), 0))
	b.at = now
}

// until tells how long it takes to reach level.
func (b *bucket) until(level, rate float64) time.Duration {
	const most = time.Hour // a debt that long is as good as any
	seconds := (level - b.level) / rate
	if seconds > most.Seconds() {
		return most
	}
	return max(time.Duration(seconds*float64(time.Second)), time.Millisecond)
}
