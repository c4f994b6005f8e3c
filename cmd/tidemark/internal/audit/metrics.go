package audit

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// What became of a suspicion.
const (
	outcomeCleared   = "cleared"
	outcomeConfirmed = "confirmed"
	outcomeUndecided = "undecided"
)

type metrics struct {
	findings      *prometheus.CounterVec
	suspicions    *prometheus.CounterVec
	conversations prometheus.Counter
	rows          prometheus.Counter
	passes        prometheus.Counter
	errors        prometheus.Counter
	registry      promauto.Factory
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		registry: f,
		findings: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_audit_findings_total", Help: "Faults that an audit found, each time that it found them, by kind.",
		}, []string{"kind"}),
		suspicions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_audit_suspicions_total", Help: "Second looks of an audit, by outcome.",
		}, []string{"outcome"}),
		conversations: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_audit_conversations_total", Help: "Conversations that an audit looked at.",
		}),
		rows: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_audit_rows_total", Help: "Rows of history that an audit looked at.",
		}),
		passes: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_audit_passes_total", Help: "Times that an audit that never ends has been through all conversations.",
		}),
		errors: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_audit_errors_total", Help: "Times that an audit that never ends had to begin a batch again.",
		}),
	}
	// A kind that never was must show as 0, or its first finding is no increase.
	for _, k := range Kinds() {
		m.findings.WithLabelValues(string(k))
	}
	for _, o := range []string{outcomeCleared, outcomeConfirmed, outcomeUndecided} {
		m.suspicions.WithLabelValues(o)
	}
	return m
}

// passAge shows how long ago the last pass through everything ended.
func (m *metrics) passAge(age func() float64) {
	m.registry.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tidemark_audit_pass_age_seconds", Help: "Time since an audit that never ends was last through all conversations; since its start when it never was.",
	}, age)
}
