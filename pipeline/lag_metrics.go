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

// LagMonitor shows the lag of groups as metrics. It looks from outside, so that
// what it shows is right also where a partition is idle, and where nobody reads
// for the group. A scrape is answered from the
// last look and never waits for Kafka; when a look fails, its values vanish
// instead of growing stale, and a counter moves.
type LagMonitor struct {
	conf     LagMonitorConfig
	log      *slog.Logger
	offsets  *Offsets
	failures *prometheus.CounterVec
	last     *lagCollector

	mu  sync.Mutex
	why map[GroupTopic]error // why the last look failed, or that there was none
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
	m := &LagMonitor{
		conf:     conf,
		log:      conf.logger(),
		offsets:  offsets,
		failures: counters(conf.Registerer, "tidemark_pipeline_lag_failures_total", "Looks at a group's lag that failed, by reason.", "reason"),
		last:     register(conf.Registerer, newLagCollector()),
		why:      make(map[GroupTopic]error),
	}
	for _, gt := range conf.Groups {
		m.why[gt] = errNotLooked
	}
	return m, nil
}

var errNotLooked = errors.New("not looked at yet")

// Ready returns nil when the last look at every group succeeded, else why not.
func (m *LagMonitor) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, gt := range m.conf.Groups {
		if err := m.why[gt]; err != nil {
			errs = append(errs, fmt.Errorf("lag of group %s: %w", gt.Group, err))
		}
	}
	return errors.Join(errs...)
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
	var members int
	if err == nil {
		members, err = m.offsets.Members(ctx, gt.Group)
	}
	m.mu.Lock()
	m.why[gt] = err
	m.mu.Unlock()
	if err == nil {
		m.last.set(gt, looked{lag, members})
		return nil
	}
	m.last.forget([]GroupTopic{gt})
	if ctx.Err() == nil {
		m.failures.WithLabelValues(fault.ReasonOf(err)).Inc()
		m.log.Warn("cannot look at the lag", "group", gt.Group, "topic", gt.Topic, "error", err)
	}
	return err
}

// looked is what a look at a group gave.
type looked struct {
	lag     []PartitionLag
	members int
}

// lagCollector shows the last look. The age grows between two looks by itself.
type lagCollector struct {
	records, age, lost, used, headroom, members *prometheus.Desc

	mu     sync.Mutex
	groups map[GroupTopic]looked
}

func newLagCollector() *lagCollector {
	labels := []string{"group", "topic", "partition"}
	return &lagCollector{
		records:  prometheus.NewDesc("tidemark_pipeline_lag_records", "Records that a group has not processed.", labels, nil),
		age:      prometheus.NewDesc("tidemark_pipeline_lag_seconds", "Age of the oldest record that a group has not processed; 0 when there is none.", labels, nil),
		lost:     prometheus.NewDesc("tidemark_pipeline_lag_lost_records", "Offsets that the log gave up before a group had processed them.", labels, nil),
		used:     prometheus.NewDesc("tidemark_pipeline_lag_retention_ratio", "Part of the topic's retention.ms that the oldest unprocessed record has used; at 1 it is deleted unread.", labels, nil),
		headroom: prometheus.NewDesc("tidemark_pipeline_lag_headroom_seconds", "Time until retention.ms deletes the oldest record that a group has not processed; all of retention.ms when there is none. Absent where records are kept for ever.", labels, nil),
		members:  prometheus.NewDesc("tidemark_pipeline_group_members", "Members of a consumer group; one that was killed counts until its session is over.", []string{"group"}, nil),
		groups:   make(map[GroupTopic]looked),
	}
}

// Describe implements prometheus.Collector.
func (c *lagCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.records
	ch <- c.age
	ch <- c.lost
	ch <- c.used
	ch <- c.headroom
	ch <- c.members
}

// Collect implements prometheus.Collector.
func (c *lagCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for gt, l := range c.groups {
		ch <- prometheus.MustNewConstMetric(c.members, prometheus.GaugeValue, float64(l.members), gt.Group)
		for i := range l.lag {
			c.partition(ch, &l.lag[i], now)
		}
	}
}

func (c *lagCollector) partition(ch chan<- prometheus.Metric, l *PartitionLag, now time.Time) {
	labels := []string{l.Group, l.Topic, strconv.Itoa(int(l.Partition))}
	show := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	show(c.records, float64(l.Records))
	show(c.age, l.Age(now).Seconds())
	show(c.lost, float64(l.Lost))
	show(c.used, l.RetentionUsed(now))
	if left, ok := l.Headroom(now); ok {
		show(c.headroom, left.Seconds())
	}
}

func (c *lagCollector) set(gt GroupTopic, l looked) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[gt] = l
}

func (c *lagCollector) forget(groups []GroupTopic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, gt := range groups {
		delete(c.groups, gt)
	}
}
