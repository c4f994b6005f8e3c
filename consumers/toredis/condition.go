package toredis

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// slowAfter is how long a step may take, or records may be parked while nothing
// has failed yet, before it counts as waiting.
const slowAfter = 5 * time.Second

// What a partition may wait for; labels of a metric, and words in readiness.
const (
	waitColdLoad    = "cold_load"       // records are parked: the truth of their conversations cannot be had
	waitParkingFull = reasonParkingFull // and there is no room for more
	waitTail        = reasonTailTooLong // history is too far behind the sequenced log
	waitAppend      = "append"          // Kafka takes long to acknowledge
)

var waits = []string{waitColdLoad, waitParkingFull, waitTail, waitAppend}

// condition is what a partition waits for: written by its stage, read by
// whoever asks.
type condition struct {
	partition int32

	mu       sync.Mutex
	parked   int // records
	bytes    int
	convs    int
	since    time.Time // when the oldest waiting began
	cause    string    // why the last load failed; empty: it did not
	crammed  time.Time // since when there is no room; zero: there is
	paused   time.Time // since when the tail is too long; zero: it is not
	tail     int64
	appends  string    // topic that is being appended to
	appendAt time.Time // and since when
}

func (c *condition) holds(p *parked, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parked == 0 || p.records() == 0 {
		c.since = now
	}
	c.parked, c.bytes, c.convs = p.records(), p.bytes, len(p.pens)
}

// failing takes note of a load that failed, and tells whether that is new.
func (c *condition) failing(reason string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.cause != reason
	if c.parked == 0 {
		c.since = now
	}
	c.cause = reason
	return news
}

// healed takes note of a load that worked, and tells whether that is new.
func (c *condition) healed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.cause != ""
	c.cause = ""
	return news
}

func (c *condition) why() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.cause, "slow")
}

func (c *condition) full(full bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since(&c.crammed, full, now)
}

func (c *condition) pausing(paused bool, tail int64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since(&c.paused, paused, now)
	c.tail = tail
}

func since(at *time.Time, on bool, now time.Time) {
	switch {
	case !on:
		*at = time.Time{}
	case at.IsZero():
		*at = now
	}
}

// appending takes note of an append that begins; empty: it has ended.
func (c *condition) appending(topic string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.appends, c.appendAt = topic, now
}

// reasons gives what the partition waits for, with a text for each.
func (c *condition) reasons(now time.Time) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]string)
	if c.parked > 0 && (c.cause != "" || now.Sub(c.since) >= slowAfter) {
		out[waitColdLoad] = fmt.Sprintf("%d records of %d conversations are parked for %s, as these cannot be loaded: %s",
			c.parked, c.convs, now.Sub(c.since).Round(time.Second), cmp.Or(c.cause, "slow"))
	}
	if !c.crammed.IsZero() {
		out[waitParkingFull] = fmt.Sprintf("no room to park more for %s", now.Sub(c.crammed).Round(time.Second))
	}
	if !c.paused.IsZero() {
		out[waitTail] = fmt.Sprintf("paused for %s: history is %d records behind", now.Sub(c.paused).Round(time.Second), c.tail)
	}
	if c.appends != "" && now.Sub(c.appendAt) >= slowAfter {
		out[waitAppend] = fmt.Sprintf("append to %s takes %s", c.appends, now.Sub(c.appendAt).Round(time.Second))
	}
	return out
}

// conditions are those of all stages there are.
type conditions struct {
	now func() time.Time

	mu  sync.Mutex
	all map[*condition]struct{}
}

func newConditions(now func() time.Time) *conditions {
	return &conditions{now: now, all: make(map[*condition]struct{})}
}

func (cs *conditions) add(partition int32) *condition {
	c := &condition{partition: partition}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.all[c] = struct{}{}
	return c
}

func (cs *conditions) drop(c *condition) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.all, c)
}

func (cs *conditions) list() []*condition {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	out := make([]*condition, 0, len(cs.all))
	for c := range cs.all {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *condition) int { return cmp.Compare(a.partition, b.partition) })
	return out
}

// ready gives an error that names each partition that waits, and why.
func (cs *conditions) ready() error {
	var errs []error
	now := cs.now()
	for _, c := range cs.list() {
		reasons := c.reasons(now)
		for _, w := range waits {
			if text, ok := reasons[w]; ok {
				errs = append(errs, fmt.Errorf("partition %d: %s: %s", c.partition, w, text))
			}
		}
	}
	return errors.Join(errs...)
}

// sum adds up a number over all stages.
func (cs *conditions) sum(of func(c *condition) int) float64 {
	n := 0
	for _, c := range cs.list() {
		c.mu.Lock()
		n += of(c)
		c.mu.Unlock()
	}
	return float64(n)
}

// register shows the conditions as metrics, as they are at each scrape.
func (cs *conditions) register(reg prometheus.Registerer) {
	f := gauges(reg)
	for _, w := range waits {
		f("tidemark_toredis_waiting_partitions", "Partitions that hold records back, by reason.", prometheus.Labels{"reason": w}, func() float64 {
			n, now := 0, cs.now()
			for _, c := range cs.list() {
				if _, ok := c.reasons(now)[w]; ok {
					n++
				}
			}
			return float64(n)
		})
	}
	f("tidemark_toredis_parked_records", "Records that are parked until their conversations can be loaded.", nil,
		func() float64 { return cs.sum(func(c *condition) int { return c.parked }) })
	f("tidemark_toredis_parked_bytes", "Bytes of the records that are parked.", nil,
		func() float64 { return cs.sum(func(c *condition) int { return c.bytes }) })
	f("tidemark_toredis_parked_conversations", "Conversations whose records are parked.", nil,
		func() float64 { return cs.sum(func(c *condition) int { return c.convs }) })
}
