package tooffline

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	finished  *prometheus.CounterVec
	attempts  *prometheus.CounterVec
	collapsed prometheus.Counter
	lookups   prometheus.Counter
	gone      prometheus.Counter
	pending   prometheus.Gauge
	breaker   prometheus.Gauge
	seconds   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, endpoint string) *metrics {
	if reg != nil {
		reg = prometheus.WrapRegistererWith(prometheus.Labels{"endpoint": endpoint}, reg)
	}
	f := promauto.With(reg)
	return &metrics{
		finished: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_tooffline_notifications_total",
			Help: "Notifications that are done with, by outcome (delivered, dead_letter, read, muted, revoked, not_visible, old, no_device).",
		}, []string{"outcome"}),
		attempts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_tooffline_attempts_total",
			Help: "Attempts to deliver, by result (ok, retry, refused).",
		}, []string{"result"}),
		collapsed: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tooffline_collapsed_total",
			Help: "Messages that joined a notification which was waiting already.",
		}),
		lookups: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tooffline_lookup_errors_total",
			Help: "Notifications put off because the state of the user could not be read.",
		}),
		gone: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tooffline_devices_gone_total",
			Help: "Device tokens that the endpoint said are not good any more.",
		}),
		pending: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_tooffline_pending",
			Help: "Messages times users that wait or are under way.",
		}),
		breaker: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_tooffline_circuit_open",
			Help: "1 while no attempts are made because those before failed.",
		}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "tidemark_tooffline_attempt_seconds",
			Help:    "How long an attempt took.",
			Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
}
