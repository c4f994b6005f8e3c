package history

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

type metrics struct {
	rows      *prometheus.CounterVec
	conflicts prometheus.Counter
	deleted   prometheus.Counter
	races     prometheus.Counter
	commands  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	errors    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		rows: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_history_rows_total",
			Help: "Message rows that were to be inserted, by what became of them.",
		}, []string{"fate"}),
		conflicts: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_history_member_conflicts_total",
			Help: "Member states whose version stood there already with another window.",
		}),
		deleted: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_history_deleted_rows_total",
			Help: "Message rows of which retention took the content.",
		}),
		races: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_history_races_total",
			Help: "Updates that were done again because another writer was faster.",
		}),
		commands: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_history_commands_total",
			Help: "Commands that were sent to the server, by name.",
		}, []string{"command"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidemark_history_call_seconds",
			Help:    "Time of one call, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}, []string{"op"}),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_history_errors_total",
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

// counted are the commands with a label of their own.
var counted = map[string]bool{"find": true, "getMore": true, "insert": true, "update": true, "delete": true}

// monitor counts what the driver sends, its own repetitions included.
func (m *metrics) monitor() *event.CommandMonitor {
	return &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		name := e.CommandName
		if !counted[name] {
			name = "other"
		}
		m.commands.WithLabelValues(name).Inc()
	}}
}

// done counts one call and gives its error a class; deferred with the address
// of the error.
func (s *Store) done(op string, start time.Time, err *error) {
	s.metrics.seconds.WithLabelValues(op).Observe(time.Since(start).Seconds())
	if *err != nil {
		*err = s.sorted(*err)
		s.metrics.errors.WithLabelValues(op, fault.ClassOf(*err).String(), fault.ReasonOf(*err)).Inc()
	}
}

func (m *metrics) written(w watermark.Written) {
	for _, f := range w.Rows {
		m.rows.WithLabelValues(fates[f]).Inc()
	}
	m.conflicts.Add(float64(len(w.MemberConflicts)))
}
