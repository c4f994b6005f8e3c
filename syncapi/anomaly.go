package syncapi

import (
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/tidemark-im/tidemark/watermark"
)

const (
	anomalyEmpty  = "empty"  // no messages, nothing cut off, and yet not the end
	anomalyRepeat = "repeat" // the same caller asks the same range again and again
	anomalyGap    = "gap"    // a row is nowhere
	anomalyAhead  = "ahead"  // the caller knows a seq that the conversation does not have
	anomalyShrank = "shrank" // what could be seen when the call began could not when it ended

	repeatWithin = time.Minute
	repeatTimes  = 3
	repeatKept   = 4096 // ranges remembered
)

// asked is a range as somebody asked for it.
type asked struct {
	user watermark.UserID
	conv watermark.ConversationID
	watermark.PageRequest
}

type askedSince struct {
	since time.Time
	times int
}

// anomalies counts what a client that pages soundly on a sound store never
// meets, since its loops would otherwise only be seen as load. Each kind has at
// most one line a second, which names all that "tidemark pull" needs to ask the
// same again.
type anomalies struct {
	now     func() time.Time
	log     *slog.Logger
	metrics *metrics
	lines   map[string]*throttle // by kind

	mu    sync.Mutex
	asked *simplelru.LRU[asked, askedSince]
}

func newAnomalies(now func() time.Time, log *slog.Logger, m *metrics) *anomalies {
	lru, err := simplelru.NewLRU[asked, askedSince](repeatKept, nil)
	if err != nil {
		panic(err) // only for a size below 1
	}
	lines := map[string]*throttle{}
	for _, kind := range []string{anomalyEmpty, anomalyRepeat, anomalyGap, anomalyAhead, anomalyShrank} {
		m.anomalies.WithLabelValues(kind)
		lines[kind] = new(throttle)
	}
	return &anomalies{now: now, log: log, metrics: m, lines: lines, asked: lru}
}

func (a *anomalies) found(kind string, k asked) {
	a.metrics.anomalies.WithLabelValues(kind).Inc()
	if !a.lines[kind].allow(a.now()) {
		return
	}
	order, keep := "asc", "end"
	if k.Order == watermark.Desc {
		order = "desc"
	}
	if k.Keep == watermark.NearBegin {
		keep = "begin"
	}
	a.log.Warn("page anomaly", "kind", kind, "conversation", k.conv, "user", k.user, "begin", k.Begin, "end", k.End,
		"num", max(k.Num, 0), "order", order, "keep", keep)
}

// ask takes note that k was asked for.
func (a *anomalies) ask(k asked) {
	if a.again(k) >= repeatTimes {
		a.found(anomalyRepeat, k)
	}
}

func (a *anomalies) again(k asked) int {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.asked.Get(k)
	if !ok || now.Sub(s.since) > repeatWithin {
		s = askedSince{since: now}
	}
	s.times++
	a.asked.Add(k, s)
	return s.times
}
