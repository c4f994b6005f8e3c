package tomongo

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/watermark"
)

type metrics struct {
	rows      *prometheus.CounterVec
	advances  prometheus.Counter
	flushes   *prometheus.CounterVec
	flushed   prometheus.Counter
	pending   prometheus.Gauge
	conflicts *prometheus.CounterVec
	deleted   prometheus.Counter
	hotErrors prometheus.Counter
	poison    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
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
			Help: "Writes of coalesced watermarks, by reason (count, time, idle).",
		}, []string{"reason"}),
		flushed: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_tomongo_flushed_members_total",
			Help: "Coalesced watermarks written; against the advances it gives the ratio of coalescing.",
		}),
		pending: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_tomongo_pending_members",
			Help: "Coalesced watermarks that are not written yet.",
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
