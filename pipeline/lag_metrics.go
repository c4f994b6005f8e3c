package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// LagMonitorConfig says whose lag to show.
type LagMonitorConfig struct {
	Config
	// Groups are the groups with their topics. At least one.
	Groups []GroupTopic
	// Every is how often Kafka is asked. 0: 10 s.
	Every time.Duration
}

// LagMonitor shows the lag of groups as metrics. A scrape is answered from the
// last look and never waits for Kafka; when a look fails, its values vanish
// instead of growing stale, and a counter moves.
type LagMonitor struct {
	conf     LagMonitorConfig
	log      *slog.Logger
	offsets  *Offsets
	failures *prometheus.CounterVec
	last     *lagCollector
}

// NewLagMonitor checks conf and registers the metrics.
func NewLagMonitor(conf LagMonitorConfig) (*LagMonitor, error) {
	var errs []error
	if len(conf.Groups) == 0 {
		errs = append(errs, errors.New("lag groups: at least one is needed"))
	}
	for _, gt := range conf.Groups {
		if gt.Group == "" || gt.Topic == "" {
			errs = append(errs, fmt.Errorf("lag group %q on topic %q: neither may be empty", gt.Group, gt.Topic))
		}
	}
	if conf.Every < 0 {
		errs = append(errs, fmt.Errorf("lag every: %s is negative", conf.Every))
	}
	offsets, err := NewOffsets(OffsetsConfig{Config: conf.Config})
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	conf.Every = cmp.Or(conf.Every, 10*time.Second)
	return &LagMonitor{
		conf:     conf,
		log:      conf.logger(),
		offsets:  offsets,
		failures: counters(conf.Registerer, "tidemark_pipeline_lag_failures_total", "Looks at a group's lag that failed, by reason.", "reason"),
		last:     register(conf.Registerer, newLagCollector()),
	}, nil
}

// Run looks at the lag until ctx is done. It returns an error only when that
// does not heal.
func (m *LagMonitor) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, m.offsets.Close()) }()
	defer m.last.forget(m.conf.Groups)
	for {
		for _, gt := range m.conf.Groups {
			if err := m.look(ctx, gt); fault.ClassOf(err) == fault.Fatal {
				return err
			}
		}
		if !tailSleep(ctx, m.conf.Every) {
			return nil
		}
	}
}

func (m *LagMonitor) look(ctx context.Context, gt GroupTopic) error {
	lag, err := m.offsets.Lag(ctx, gt)
	if err == nil {
		m.last.set(gt, lag)
		return nil
	}
	m.last.forget([]GroupTopic{gt})
	if ctx.Err() == nil {
		m.failures.WithLabelValues(fault.ReasonOf(err)).Inc()
		m.log.Warn("cannot look at the lag", "group", gt.Group, "topic", gt.Topic, "error", err)
	}
	return err
}

// lagCollector shows the last look. The age grows between two looks by itself.
type lagCollector struct {
	records, age, lost, used *prometheus.Desc

	mu  sync.Mutex
	lag map[GroupTopic][]PartitionLag
}

func newLagCollector() *lagCollector {
	labels := []string{"group", "topic", "partition"}
	return &lagCollector{
		records: prometheus.NewDesc("tidemark_pipeline_lag_records", "Records that a group has not processed.", labels, nil),
		age:     prometheus.NewDesc("tidemark_pipeline_lag_seconds", "Age of the oldest record that a group has not processed; 0 when there is none.", labels, nil),
		lost:    prometheus.NewDesc("tidemark_pipeline_lag_lost_records", "Offsets that the log gave up before a group had processed them.", labels, nil),
		used:    prometheus.NewDesc("tidemark_pipeline_lag_retention_ratio", "Part of the topic's retention.ms that the oldest unprocessed record has used; at 1 it is deleted unread. Alarm at 0.5.", labels, nil),
		lag:     make(map[GroupTopic][]PartitionLag),
	}
}

// Describe implements prometheus.Collector.
func (c *lagCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.records
	ch <- c.age
	ch <- c.lost
	ch <- c.used
}

// Collect implements prometheus.Collector.
func (c *lagCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, lag := range c.lag {
		for i := range lag {
			l := &lag[i]
			labels := []string{l.Group, l.Topic, strconv.Itoa(int(l.Partition))}
			ch <- prometheus.MustNewConstMetric(c.records, prometheus.GaugeValue, float64(l.Records), labels...)
			ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, l.Age(now).Seconds(), labels...)
			ch <- prometheus.MustNewConstMetric(c.lost, prometheus.GaugeValue, float64(l.Lost), labels...)
			ch <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, l.RetentionUsed(now), labels...)
		}
	}
}

func (c *lagCollector) set(gt GroupTopic, lag []PartitionLag) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag[gt] = lag
}

func (c *lagCollector) forget(groups []GroupTopic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, gt := range groups {
		delete(c.lag, gt)
	}
}
