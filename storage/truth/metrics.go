package truth

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/internal/fault"
)

type metrics struct {
	conversations prometheus.Counter
	seconds       *prometheus.HistogramVec
	errors        *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		conversations: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_truth_conversations_total",
			Help: "Cold conversations loaded from history and tail.",
		}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidemark_truth_read_seconds",
			Help:    "Time of one read of history and tail, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"op"}),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_truth_errors_total",
			Help: "Reads of history and tail that failed, by operation and class.",
		}, []string{"op", "class"}),
	}
}

// observe counts one call; deferred with the address of its error.
func (m *metrics) observe(op string, start time.Time, err *error) {
	m.seconds.WithLabelValues(op).Observe(time.Since(start).Seconds())
	if *err != nil {
		m.errors.WithLabelValues(op, fault.ClassOf(*err).String()).Inc()
	}
}
