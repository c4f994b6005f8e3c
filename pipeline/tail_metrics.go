package pipeline

import "github.com/prometheus/client_golang/prometheus"

type tailMetrics struct {
	partitions  prometheus.Gauge
	segments    prometheus.Gauge
	records     prometheus.Gauge
	cacheBytes  prometheus.Gauge
	bytes       prometheus.Gauge
	waiting     prometheus.Gauge
	folded      prometheus.Counter
	undecodable prometheus.Counter
	rereads     prometheus.Counter
	voided      prometheus.Counter
	catchUp     prometheus.Observer
	failures    *prometheus.CounterVec
}

func newTailMetrics(reg prometheus.Registerer) *tailMetrics {
	seconds := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	return &tailMetrics{
		partitions:  gauges(reg, "tidemark_pipeline_tail_partitions", "Partitions of the sequenced log of which a view is held.").WithLabelValues(),
		segments:    gauges(reg, "tidemark_pipeline_tail_segments", "Segments held by all views of the tail.").WithLabelValues(),
		records:     gauges(reg, "tidemark_pipeline_tail_records", "Folded records held by all views of the tail.").WithLabelValues(),
		cacheBytes:  gauges(reg, "tidemark_pipeline_tail_cache_bytes", "Estimated bytes of messages that the tail keeps at hand.").WithLabelValues(),
		bytes:       gauges(reg, "tidemark_pipeline_tail_bytes", "Estimated bytes that all views of the tail hold, without message bodies.").WithLabelValues(),
		waiting:     gauges(reg, "tidemark_pipeline_tail_waiting_partitions", "Partitions whose tail cannot be read on now, by reason (memory: the views of all partitions are at their bound, and are read in turn).", "reason").WithLabelValues("memory"),
		folded:      counters(reg, "tidemark_pipeline_tail_folded_records_total", "Records folded into views of the tail.").WithLabelValues(),
		undecodable: counters(reg, "tidemark_pipeline_tail_undecodable_records_total", "Records of the sequenced log that the tail could not decode and passed over.").WithLabelValues(),
		rereads:     counters(reg, "tidemark_pipeline_tail_rereads_total", "Fetches of records whose messages the tail no longer kept.").WithLabelValues(),
		voided:      counters(reg, "tidemark_pipeline_tail_voided_pins_total", "Pins that were held too long and gave way.").WithLabelValues(),
		catchUp:     histograms(reg, "tidemark_pipeline_tail_catch_up_seconds", "Time that a request waited for a view to reach the end of the log.", seconds).WithLabelValues(),
		failures:    counters(reg, "tidemark_pipeline_tail_failures_total", "Requests to the tail that failed, by reason.", "reason"),
	}
}
