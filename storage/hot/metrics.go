package hot

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/internal/fault"
)

type metrics struct {
	calls       *prometheus.HistogramVec
	errors      *prometheus.CounterVec
	views       *prometheus.CounterVec
	merges      *prometheus.CounterVec
	messages    prometheus.Counter
	undecodable prometheus.Counter

	memoryUsed, memoryLimit, eviction *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		calls: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidemark_hot_call_seconds",
			Help:    "Time of calls to the hot store, all their round trips included.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 4, 8),
		}, []string{"call"}),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_hot_errors_total",
			Help: "Calls to the hot store that failed, by the class of their error.",
		}, []string{"call", "class"}),
		views: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_hot_views_total",
			Help: "Views read, by whether the conversation was warm, partial (a member unknown), or why it was cold.",
		}, []string{"outcome"}),
		merges: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_hot_merges_total",
			Help: "Loads of members handed in for warm conversations, by outcome; stale ones were not taken over.",
		}, []string{"outcome"}),
		messages: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_hot_messages_total",
			Help: "Messages and tombstones served from hot logs.",
		}),
		undecodable: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_hot_undecodable_entries_total",
			Help: "Entries of hot logs that could not be decoded and were left to history.",
		}),
		memoryUsed: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tidemark_hot_memory_used_bytes",
			Help: "Memory that Redis uses, by master, as a process with the role toredis sees it. Absent while it cannot be asked.",
		}, []string{"server"}),
		memoryLimit: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tidemark_hot_memory_limit_bytes",
			Help: "maxmemory of Redis, by master; 0: it has none. Absent while it cannot be asked.",
		}, []string{"server"}),
		eviction: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tidemark_hot_eviction_policy",
			Help: "1, with the maxmemory-policy of Redis, by master. It must be noeviction.",
		}, []string{"server", "policy"}),
	}
}

// observe times a call and counts its failure; the function it returns is
// deferred with err pointing to the call's result.
func (h *Hot) observe(call string, err *error) func() {
	start := time.Now()
	return func() {
		h.metrics.calls.WithLabelValues(call).Observe(time.Since(start).Seconds())
		if *err != nil {
			h.metrics.errors.WithLabelValues(call, fault.ClassOf(*err).String()).Inc()
		}
	}
}
