package toredis

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/watermark"
)

type metrics struct {
	inputs        *prometheus.CounterVec
	refused       *prometheus.CounterVec
	coldLoads     *prometheus.CounterVec
	memberLoads   prometheus.Counter
	misrouted     prometheus.Counter
	forwarded     prometheus.Counter
	appended      prometheus.Counter
	conversations prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		inputs: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_toredis_inputs_total",
			Help: "Inputs that are done, by kind (message, command) and verdict.",
		}, []string{"kind", "verdict"}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_toredis_refused_total",
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
			Name: "tidemark_toredis_misrouted_total",
			Help: "Records that stood on another partition than their conversation's.",
		}),
		forwarded: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_toredis_forwarded_total",
			Help: "Records that arrived by way of another partition and were decided here.",
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
	case "absent", "incarnation", "warming", "floor", "counter", whyResequence:
		return why
	default:
		return "other"
	}
}

// reasonWord does the same for reasons.
func reasonWord(reason string) string {
	switch reason {
	case watermark.ReasonNotMember, watermark.ReasonNotParticipant, watermark.ReasonIDReused,
		watermark.ReasonNoSuchSeq, watermark.ReasonWindowFull, watermark.ReasonAttributesFull, watermark.ReasonSeqsExhausted,
		watermark.ReasonUndecodable, watermark.ReasonInvalid, watermark.ReasonTooLarge,
		watermark.ReasonWrongPartition:
		return reason
	default:
		return "other"
	}
}
