package pipeline

import (
	"errors"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// register registers c, or gives the one that stands there already: a process
// has several groups and producers, which share a registerer and differ by a
// label. It panics, as promauto does, when another metric has the name.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	if err == nil {
		return c
	}
	if have, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if c, ok := have.ExistingCollector.(C); ok {
			return c
		}
	}
	panic(err)
}

func counters(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func gauges(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.GaugeVec {
	return register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

func histograms(reg prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
}

type producerMetrics struct {
	records     *prometheus.CounterVec
	bytes       *prometheus.CounterVec
	retries     *prometheus.CounterVec
	inFlight    *prometheus.GaugeVec
	waits       *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
}

func newProducerMetrics(reg prometheus.Registerer, topics Topics) *producerMetrics {
	m := &producerMetrics{
		deadLetters: counters(reg, "tidemark_pipeline_dead_letters_total", "Records set aside, by the topic that they stood in and by reason.", "topic", "reason"),
		records:     counters(reg, "tidemark_pipeline_appended_records_total", "Records that Kafka acknowledged.", "topic"),
		bytes:       counters(reg, "tidemark_pipeline_appended_bytes_total", "Bytes of key, value and headers that Kafka acknowledged.", "topic"),
		retries:     counters(reg, "tidemark_pipeline_append_retries_total", "Records that failed to be appended and are sent again, by reason.", "topic", "reason"),
		inFlight:    gauges(reg, "tidemark_pipeline_append_in_flight_records", "Records sent and not yet answered.", "client"),
		waits:       counters(reg, "tidemark_pipeline_append_metadata_waits_total", "Times that a producer waited because no broker told it a leader.", "client"),
	}
	// What never was must show as 0, or the first one is no increase.
	for _, topic := range []string{topics.ToRedis, topics.Sequenced} {
		for _, reason := range append(wire.DeadLetterReasons(), otherReason) {
			m.deadLetters.WithLabelValues(topic, reason)
		}
	}
	return m
}

// otherReason keeps a label bounded.
const otherReason = "other"

// setAside counts a dead letter that Kafka has acknowledged, whichever stage
// wrote it. What else stands in that topic says what was done about one.
func (m *producerMetrics) setAside(out *wire.Out) {
	topic, reason, ok := wire.DeadLetterCause(out)
	if !ok {
		return
	}
	if !slices.Contains(wire.DeadLetterReasons(), reason) {
		reason = otherReason
	}
	m.deadLetters.WithLabelValues(topic, reason).Inc()
}

type groupMetrics struct {
	records    prometheus.Counter
	batches    prometheus.Counter
	batchSize  prometheus.Observer
	handle     prometheus.Observer
	flush      prometheus.Observer
	lastFlush  prometheus.Gauge
	retries    *prometheus.CounterVec
	partitions prometheus.Gauge
	errs       *prometheus.CounterVec
	moved      *prometheus.CounterVec
}

// stuckCollector shows the stuck partitions of all groups of a registerer, as
// they are when it is asked.
type stuckCollector struct {
	seconds, partitions *prometheus.Desc

	mu     sync.Mutex
	groups map[string]*status
}

func newStuckCollector() *stuckCollector {
	return &stuckCollector{
		seconds: prometheus.NewDesc("tidemark_pipeline_stuck_seconds",
			"For how long a claimed partition has not moved, by why its last attempt failed; none when it moves.",
			[]string{"stage", "topic", "partition", "reason"}, nil),
		partitions: prometheus.NewDesc("tidemark_pipeline_stuck_partitions", "Claimed partitions that do not move.", []string{"stage"}, nil),
		groups:     make(map[string]*status),
	}
}

func (c *stuckCollector) add(stage string, s *status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[stage] = s
}

// Describe implements prometheus.Collector.
func (c *stuckCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.seconds; ch <- c.partitions }

// Collect implements prometheus.Collector.
func (c *stuckCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for stage, s := range c.groups {
		n := 0
		for _, p := range s.state().Partitions {
			if p.Stuck != "" {
				n++
				ch <- prometheus.MustNewConstMetric(c.seconds, prometheus.GaugeValue, p.For.Seconds(), stage, p.Topic, strconv.Itoa(int(p.Partition)), p.Reason)
			}
		}
		ch <- prometheus.MustNewConstMetric(c.partitions, prometheus.GaugeValue, float64(n), stage)
	}
}

func newGroupMetrics(reg prometheus.Registerer, stage string) *groupMetrics {
	l := prometheus.Labels{"stage": stage}
	seconds := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	return &groupMetrics{
		records:    counters(reg, "tidemark_pipeline_handled_records_total", "Records that a stage has handled.", "stage").With(l),
		batches:    counters(reg, "tidemark_pipeline_handled_batches_total", "Batches that a stage has handled.", "stage").With(l),
		batchSize:  histograms(reg, "tidemark_pipeline_batch_records", "Records per handled batch.", []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}, "stage").With(l),
		handle:     histograms(reg, "tidemark_pipeline_handle_seconds", "Time of one attempt to handle a batch, good or bad.", seconds, "stage").With(l),
		flush:      histograms(reg, "tidemark_pipeline_flush_seconds", "Time of one attempt to flush a stage, good or bad.", seconds, "stage").With(l),
		lastFlush:  gauges(reg, "tidemark_pipeline_last_flush_timestamp_seconds", "When a stage was last flushed with success, in seconds since 1970; 0: not yet.", "stage").With(l),
		retries:    counters(reg, "tidemark_pipeline_retries_total", "Failed attempts of a stage that are repeated in place, by reason.", "stage", "reason").MustCurryWith(l),
		partitions: gauges(reg, "tidemark_pipeline_claimed_partitions", "Partitions claimed by this process.", "stage").With(l),
		errs:       counters(reg, "tidemark_pipeline_consumer_errors_total", "Errors of the group's connection, by reason.", "stage", "reason").MustCurryWith(l),
		moved:      counters(reg, "tidemark_pipeline_moved_offsets_total", "Offsets that were lost and moved because an operator said so, by reason.", "stage", "reason").MustCurryWith(l),
	}
}
