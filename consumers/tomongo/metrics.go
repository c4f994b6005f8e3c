package tomongo

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/internal/latency"
	"github.com/tidemark-im/tidemark/watermark"
)

type metrics struct {
	rows     *prometheus.CounterVec
	advances prometheus.Counter
	flushes  *prometheus.CounterVec
	flushed  prometheus.Counter
	pending  prometheus.Gauge

	flushedConvs prometheus.Counter
	pendingConvs prometheus.Gauge

	oldest    *oldest
	persisted *latency.Meter
	conflicts *prometheus.CounterVec
	deleted   prometheus.Counter
	hotErrors prometheus.Counter
	poison    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, now func() time.Time) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		oldest:    &oldest{now: now, since: make(map[*Stage]time.Time)},
		persisted: latency.New(reg, "tidemark_tomongo_persisted_seconds", "Time from a message's record, as its producer gave it, until the message stands in history."),
		rows: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_tomongo_rows_total",
			Help: "Message rows handed to history, by what became of them.",
		}, []string{"fate"}),
		advances: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tomongo_advances_total",
			Help: "Watermark advances taken from the sequenced log.",
		}),
		flushes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_tomongo_flushes_total",
			Help: "Writes of what is coalesced, by reason (count, size, time, idle).",
		}, []string{"reason"}),
		flushed: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tomongo_flushed_members_total",
			Help: "Coalesced watermarks written; against the advances it gives the ratio of coalescing.",
		}),
		pending: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_tomongo_pending_members",
			Help: "Coalesced watermarks that are not written yet.",
		}),
		flushedConvs: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tomongo_flushed_conversations_total",
			Help: "Coalesced bounds of conversations written.",
		}),
		pendingConvs: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_tomongo_pending_conversations",
			Help: "Coalesced bounds of conversations that are not written yet.",
		}),
		conflicts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_tomongo_conflicts_total",
			Help: "Events that found another one in their place and were handed back to the owner, by kind (message, member).",
		}, []string{"kind"}),
		deleted: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tomongo_deleted_rows_total",
			Help: "Message rows deleted below a raised minimum.",
		}),
		hotErrors: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tomongo_hot_errors_total",
			Help: "Flushes whose watermarks could not be merged into Redis.",
		}),
		poison: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tomongo_poison_records_total",
			Help: "Records of the sequenced log that could not be decoded and went to the dead letters.",
		}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tidemark_tomongo_pending_age_seconds",
		Help: "Age of the oldest watermark or bound that is not written yet; 0 when there is none.",
	}, m.oldest.age)
	// What never was must show as 0, or the first one is no increase.
	for _, reason := range []string{reasonCount, reasonSize, reasonTime, reasonIdle} {
		m.flushes.WithLabelValues(reason)
	}
	for _, fate := range []watermark.Fate{watermark.Inserted, watermark.Replay, watermark.Conflict, watermark.Retired} {
		m.rows.WithLabelValues(fateWord(fate))
	}
	for _, kind := range []string{"message", "member"} {
		m.conflicts.WithLabelValues(kind)
	}
	return m
}

// oldest knows since when each stage has had something pending.
type oldest struct {
	now func() time.Time

	mu    sync.Mutex
	since map[*Stage]time.Time // guarded by mu
}

// set says since when s has had something pending; zero: it has nothing.
func (o *oldest) set(s *Stage, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if since.IsZero() {
		delete(o.since, s)
		return
	}
	o.since[s] = since
}

func (o *oldest) age() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var age time.Duration
	now := o.now()
	for _, since := range o.since {
		age = max(age, now.Sub(since))
	}
	return age.Seconds()
}

// written counts what became of rows, and how long the new ones took.
func (m *metrics) written(rows []watermark.Row, fates []watermark.Fate, now time.Time) {
	for i, f := range fates {
		m.rows.WithLabelValues(fateWord(f)).Inc()
		if f == watermark.Inserted {
			m.persisted.Reached(rows[i].Message.RecordTime, now)
		}
	}
}

func fateWord(f watermark.Fate) string {
	switch f {
	case watermark.Inserted:
		return "inserted"
	case watermark.Replay:
		return "replay"
	case watermark.Conflict:
		return "conflict"
	default:
		return "retired"
	}
}
