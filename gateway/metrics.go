package gateway

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	connections prometheus.Gauge
	disconnects *prometheus.CounterVec
	refused     prometheus.Counter
	events      *prometheus.CounterVec
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
			Help: "Connections that ended, by kind: slow, shutdown, closed, expired, limit, other.",
		}, []string{"kind"}),
		refused: f.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_gateway_refused_connections_total",
			Help: "Connections that were refused at the connect frame.",
		}),
		events: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_gateway_events_total",
			Help: "Events handed to the broker, one for each user, by outcome.",
		}, []string{"outcome"}),
	}
}
