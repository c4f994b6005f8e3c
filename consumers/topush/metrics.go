package topush

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/internal/latency"
	"github.com/tidemark-im/tidemark/watermark"
)

type metrics struct {
	events     *prometheus.CounterVec
	skipped    *prometheus.CounterVec
	recipients prometheus.Counter
	loads      prometheus.Counter
	cached     prometheus.Gauge
	crowds     *prometheus.CounterVec
	lane       prometheus.Gauge
	failures   prometheus.Counter
	pushed     *latency.Meter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		pushed: latency.New(reg, "tidemark_topush_pushed_seconds", "Time from a message's record, as its producer gave it, until the message is handed off for delivery."),
		events: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_topush_events_total",
			Help: "Events handed off, by kind.",
		}, []string{"kind"}),
		skipped: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_topush_skipped_events_total",
			Help: "Records and messages that were not handed off, by reason (replay, old, undecodable, overrun: the conversation is busier than it can be handed off, and its members are told to pull).",
		}, []string{"reason"}),
		recipients: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_topush_recipients_total",
			Help: "Users, and crowds of users, to whom events were handed off.",
		}),
		loads: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_topush_roster_loads_total",
			Help: "Conversations whose members were loaded.",
		}),
		cached: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_topush_cached_members",
			Help: "Members in memory.",
		}),
		crowds: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_topush_crowds_total",
			Help: "Conversations that became crowds, ceased to be ones, or were enlisted again (risen, fallen, renewed).",
		}, []string{"change"}),
		lane: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_topush_lane_conversations",
			Help: "Conversations whose pushes cost so much that they wait out of the way of the others.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_topush_lane_failures_total",
			Help: "Attempts to hand off what waits there that failed and are repeated.",
		}),
	}
}

func kindWord(e watermark.Event) string {
	switch e.(type) {
	case watermark.MessagesSequenced:
		return "message"
	case watermark.WindowChanged:
		return "window"
	case watermark.Revoked:
		return "revoke"
	case watermark.ReadAdvanced:
		return "read"
	case watermark.MinSeqRaised:
		return "min_seq"
	case watermark.PolicyChanged:
		return "policy"
	default:
		return "repaired"
	}
}
