package embedded

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

type metrics struct {
	rows      *prometheus.CounterVec
	conflicts prometheus.Counter
	deleted   prometheus.Counter
	queries   *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	errors    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		rows: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_embedded_rows_total",
			Help: "Message rows that were to be inserted, by what became of them.",
		}, []string{"fate"}),
		conflicts: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_embedded_member_conflicts_total",
			Help: "Member states whose version stood there already with another window.",
		}),
		deleted: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_embedded_deleted_rows_total",
			Help: "Message rows of which retention took the content.",
		}),
		queries: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_embedded_queries_total",
			Help: "Statements that read for more than one row, by operation.",
		}, []string{"op"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidemark_embedded_call_seconds",
			Help:    "Time of one call, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}, []string{"op"}),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_embedded_errors_total",
			Help: "Calls that failed, by operation, class and reason.",
		}, []string{"op", "class", "reason"}),
	}
	for f := range fates {
		m.rows.WithLabelValues(fates[f])
	}
	return m
}

var fates = map[watermark.Fate]string{
	watermark.Inserted: "inserted",
	watermark.Replay:   "replay",
	watermark.Conflict: "conflict",
	watermark.Retired:  "retired",
}

// done counts one call and gives its error a class; deferred with the address
// of the error.
func (m *metrics) done(op string, start time.Time, err *error) {
	m.seconds.WithLabelValues(op).Observe(time.Since(start).Seconds())
	if *err != nil {
		*err = sorted(*err)
		m.errors.WithLabelValues(op, fault.ClassOf(*err).String(), fault.ReasonOf(*err)).Inc()
	}
}

func (m *metrics) written(w watermark.Written) {
	for _, f := range w.Rows {
		m.rows.WithLabelValues(fates[f]).Inc()
	}
	m.conflicts.Add(float64(len(w.MemberConflicts)))
}
