package toredis

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/internal/latency"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

type metrics struct {
	inputs        *prometheus.CounterVec
	refused       *prometheus.CounterVec
	coldLoads     *prometheus.CounterVec
	memberLoads   prometheus.Counter
	misrouted     prometheus.Counter
	forwarded     prometheus.Counter
	forged        prometheus.Counter
	appended      prometheus.Counter
	conversations prometheus.Histogram
	parkedTotal   prometheus.Counter
	loadFailures  *prometheus.CounterVec
	pauses        prometheus.Counter
	warmsDropped  prometheus.Counter
	sequenced     *latency.Meter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		sequenced: latency.New(reg, "tidemark_toredis_sequenced_seconds", "Time from a message's record, as its producer gave it, until the sequenced log has acknowledged the message with its seq."),
		inputs: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_toredis_inputs_total",
			Help: "Inputs that are done, by kind (message, command) and verdict.",
		}, []string{"kind", "verdict"}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_toredis_refused_inputs_total",
			Help: "Inputs that were refused or could not be decoded, by reason.",
		}, []string{"reason"}),
		coldLoads: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_toredis_cold_loads_total",
			Help: "Conversations that were loaded from history and tail, by why Redis could not be believed.",
		}, []string{"why"}),
		memberLoads: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_member_loads_total",
			Help: "Members of warm conversations that were loaded because Redis did not know them.",
		}),
		misrouted: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_misrouted_records_total",
			Help: "Records that stood on another partition than their conversation's.",
		}),
		forwarded: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_forwarded_records_total",
			Help: "Records that arrived by way of another partition and were decided here.",
		}),
		forged: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_forged_origins_total",
			Help: "Records that named another place as where they came from, which holds something else: they counted at their own.",
		}),
		appended: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_appended_records_total",
			Help: "Records acknowledged by the sequenced log.",
		}),
		conversations: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "tidemark_toredis_batch_conversations",
			Help:    "Conversations in one batch.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500},
		}),
		parkedTotal: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_parked_inputs_total",
			Help: "Records that were parked because their conversations could not be loaded at once.",
		}),
		loadFailures: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_toredis_load_failures_total",
			Help: "Reads of history and tail for cold conversations that failed, by reason.",
		}, []string{"reason"}),
		pauses: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_pauses_total",
			Help: "Times a partition paused because history was too far behind the sequenced log.",
		}),
		warmsDropped: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_dropped_warms_total",
			Help: "Commands to make a conversation warm that were left out, because it could not be loaded.",
		}),
	}
}

// gauges gives a function that registers a gauge which is asked at each scrape.
func gauges(reg prometheus.Registerer) func(name, help string, labels prometheus.Labels, value func() float64) {
	f := promauto.With(reg)
	return func(name, help string, labels prometheus.Labels, value func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
	}
}

func verdictWord(v watermark.Verdict) string {
	switch v {
	case watermark.Accepted:
		return "accepted"
	case watermark.Again:
		return "again"
	case watermark.Resent:
		return "resent"
	case watermark.Known:
		return "known"
	default:
		return "refused"
	}
}

func kindWord(in *watermark.Input) string {
	if in.Act == watermark.ActSend {
		return "message"
	}
	return "command"
}

// whyWord keeps the label bounded, whatever the allocator says.
func whyWord(why string) string {
	switch why {
	case "absent", "incarnation", "warming", "token", "floor", "counter", whyResequence:
		return why
	default:
		return "other"
	}
}

// reasonWord does the same for reasons.
func reasonWord(reason string) string {
	if slices.Contains(wire.DeadLetterReasons(), reason) {
		return reason
	}
	return "other"
}
