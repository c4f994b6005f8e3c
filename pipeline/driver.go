package pipeline

import (
	"sync"
	"time"

	"github.com/IBM/sarama"
	metrics "github.com/rcrowley/go-metrics"
)

// maxUnpacked bounds what one compressed batch may become in memory. It is four
// times the largest record that a Config allows: no batch of such records is
// larger, and a single record that is still below it can be read, refused by its
// stage and set aside. Without a bound a megabyte of zstd becomes 30 GiB.
const maxUnpacked = 128 << 20

// boundUnpacking sets the bound, which the driver has one of for all of the
// process.
var boundUnpacking = sync.OnceFunc(func() { sarama.MaxDecompressedBatchSize = maxUnpacked })

// foreverish is longer than any process lives, and short enough to be added to
// a time.
const foreverish = 10 * 365 * 24 * time.Hour

// patience makes the driver wait for metadata as long as it takes, and lets go
// of it at once when the producer gives up. sarama asks for the pause before
// each retry and compares it with Metadata.Timeout: a pause that is beyond it
// ends the retries. So the waiting itself happens here, where it can be
// interrupted.
//
// Before the first connection stands nobody waits: connecting is repeated by
// Append, which reports why.
type patience struct {
	gaveUp    chan struct{}
	once      sync.Once
	connected func() bool
	waited    func()
}

func (p *patience) giveUp() { p.once.Do(func() { close(p.gaveUp) }) }

func (p *patience) backoff(retries, _ int) time.Duration {
	if !p.connected() {
		return 2 * foreverish
	}
	p.waited()
	timer := time.NewTimer(min(time.Duration(1+retries/8)*250*time.Millisecond, 2*time.Second))
	defer timer.Stop()
	select {
	case <-p.gaveUp:
		return 2 * foreverish
	case <-timer.C:
		return 0
	}
}

func produceBackoff(retries, _ int) time.Duration {
	return min(20*time.Millisecond<<min(max(retries-1, 0), 10), time.Second)
}

// placed is what a produced message carries in its Metadata.
type placed interface {
	// place is the partition that was asked for, -1: by key.
	place() int32
}

// partitioner takes the partition that a record names, else the one that the
// Java client would choose for its key.
type partitioner struct {
	byKey sarama.Partitioner
}

func newPartitioner(topic string) sarama.Partitioner {
	return partitioner{sarama.NewMurmur2Partitioner(topic)}
}

func (p partitioner) Partition(m *sarama.ProducerMessage, n int32) (int32, error) {
	if s, ok := m.Metadata.(placed); ok && s.place() >= 0 {
		return s.place(), nil
	}
	return p.byKey.Partition(m, n)
}

// RequiresConsistency makes the driver count all partitions, also those that
// have no leader now: a key must not move because a broker is down.
func (p partitioner) RequiresConsistency() bool { return true }

// quietRegistry swallows sarama's own metrics, by giving out instruments that
// do nothing.
type quietRegistry struct{}

func (quietRegistry) Each(func(string, any))            {}
func (quietRegistry) Get(string) any                    { return nil }
func (quietRegistry) GetAll() map[string]map[string]any { return nil }
func (quietRegistry) Register(string, any) error        { return nil }
func (quietRegistry) RunHealthchecks()                  {}
func (quietRegistry) Unregister(string)                 {}
func (quietRegistry) UnregisterAll()                    {}
func (quietRegistry) GetOrRegister(_ string, make any) any {
	switch make.(type) {
	case func() metrics.Meter:
		return metrics.NilMeter{}
	case func() metrics.Histogram:
		return metrics.NilHistogram{}
	case func() metrics.Counter:
		return metrics.NilCounter{}
	case func() metrics.Gauge:
		return metrics.NilGauge{}
	default:
		return make
	}
}
