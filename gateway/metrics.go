package gateway

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	connections prometheus.Gauge
	disconnects *prometheus.CounterVec
	refused     prometheus.Counter
	published   *prometheus.CounterVec
	transient   *prometheus.CounterVec
	crowds      prometheus.Gauge
	checks      prometheus.Counter
	hints       prometheus.Counter
	overfull    prometheus.Counter
	failures    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		connections: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_gateway_connections",
			Help: "Devices connected to this node now.",
		}),
		disconnects: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_gateway_disconnects_total",
			Help: "Connections that ended, by kind: slow, shutdown, closed, expired, limit, administrator, other.",
		}, []string{"kind"}),
		refused: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_gateway_refused_connections_total",
			Help: "Connections that were refused at the connect frame.",
		}),
		published: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_gateway_events_total",
			Help: "Events handed to the broker, one for each user, and one for each crowd, by outcome.",
		}, []string{"outcome"}),
		transient: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_gateway_transient_total",
			Help: "Transient events that devices sent, by outcome: ok, refused, limited, error.",
		}, []string{"outcome"}),
		crowds: f.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_gateway_crowds",
			Help: "Large conversations that users connected to this node are in.",
		}),
		checks: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_gateway_crowd_checks_total",
			Help: "Times that the members of a crowd were read again: at its first event here, and when a change of a window was lost on the way.",
		}),
		hints: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_gateway_crowd_hints_total",
			Help: "Times that devices of a crowd were told to pull, since more came than may wait while members are read.",
		}),
		overfull: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_gateway_overfull_total",
			Help: "Times that a connection was found in as many crowds as it may be in; those beyond reach it by pulling.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_gateway_failures_total",
			Help: "Reads of members and crowds, and writes of presence, that failed and are tried again.",
		}),
	}
}
