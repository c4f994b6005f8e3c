package syncapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	calls     *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	views     *prometheus.CounterVec
	rows      *prometheus.CounterVec
	anomalies *prometheus.CounterVec
	marks     prometheus.Counter
	appends   *prometheus.CounterVec
	merges    *prometheus.CounterVec
	warms     *prometheus.CounterVec
	waiting   prometheus.Gauge
	polls     *prometheus.CounterVec
	limited   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_calls_total",
			Help: "Calls by method and Connect code.",
		}, []string{"method", "code"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidemark_syncapi_call_seconds",
			Help:    "Time from a call's arrival to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"method"}),
		views: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_views_total",
			Help: "Views that Redis was asked for, by what it had: warm, cold, partial.",
		}, []string{"temperature"}),
		rows: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_rows_total",
			Help: "Messages read for Pull, by source: hot, truth.",
		}, []string{"source"}),
		anomalies: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_is_end_anomalies_total",
			Help: "Pages that should be rare, by kind: empty (no messages, not the end), repeat (the same range asked again and again), gap (a row is nowhere), ahead (the caller knows a seq that the conversation does not have), shrank (less could be seen at the end of the call than at its beginning).",
		}, []string{"kind"}),
		marks: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_syncapi_marks_total",
			Help: "Marks taken to be appended.",
		}),
		appends: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_mark_appends_total",
			Help: "Records of marks, by outcome: ok, error.",
		}, []string{"outcome"}),
		merges: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_member_merges_total",
			Help: "Conversations of which Redis was told members that it did not know, by outcome: ok, stale, error.",
		}, []string{"outcome"}),
		warms: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_warms_total",
			Help: "Conversations that are read often while cold, by what became of asking their owner: asked, dropped, error.",
		}, []string{"outcome"}),
		waiting: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_syncapi_waiting_calls",
			Help: "Calls that wait for an owner's answer.",
		}),
		polls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_answer_polls_total",
			Help: "Round trips to Redis for answers of owners, by outcome: ok, error.",
		}, []string{"outcome"}),
		limited: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_syncapi_limited_calls_total",
			Help: "Calls refused by a limit, by which: requests, bytes and in_flight (of their user), busy (of the process).",
		}, []string{"limit"}),
	}
}
