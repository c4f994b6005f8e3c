package seqalloc

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tidemark-im/tidemark/watermark"
)

type metrics struct {
	calls    *prometheus.CounterVec
	outcomes *prometheus.CounterVec
	installs *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_seqalloc_calls_total",
			Help: "Batches handed to the script, by what it made of them: warm, partial, error, or why the conversation is cold.",
		}, []string{"result"}),
		outcomes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_seqalloc_outcomes_total",
			Help: "Inputs decided, by verdict.",
		}, []string{"verdict"}),
		installs: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_seqalloc_installs_total",
			Help: "Cold loads brought to an end, by result: installed, or outrun by another one.",
		}, []string{"result"}),
	}
}

func (m *metrics) count(a *watermark.Allocation) {
	switch a.Temperature {
	case watermark.Cold:
		m.calls.WithLabelValues(a.Why).Inc()
		return
	case watermark.Partial:
		m.calls.WithLabelValues("partial").Inc()
		return
	}
	m.calls.WithLabelValues("warm").Inc()
	var n [len(verdictWords)]int
	for i := range a.Outcomes {
		n[a.Outcomes[i].Verdict]++
	}
	for v, k := range n {
		if k > 0 {
			m.outcomes.WithLabelValues(verdictWords[v]).Add(float64(k))
		}
	}
}

// verdictWords are the verdicts as metric labels, by their number.
var verdictWords = [...]string{
	watermark.Accepted: "accepted", watermark.Again: "again", watermark.Resent: "resent",
	watermark.Known: "known", watermark.Refused: "refused",
}

func installResult(ok bool) string {
	if ok {
		return "installed"
	}
	return "outrun"
}
