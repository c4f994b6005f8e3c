// Package latency measures how long a message has been under way: from the time
// of its record, as its producer gave it, to a point that it has just reached.
//
// The clock of the producer counts. One that is ahead measures as 0, one that
// is behind makes all of its messages late. A record without a time is not
// measured, and neither is a message that passes a point a second time: that is
// for the caller to tell.
package latency

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Meter is a histogram of times to one point. It is safe for concurrent use.
type Meter struct{ h prometheus.Histogram }

// New registers a meter. It has classic buckets, from 1 ms to 65 s, which every
// server understands, and native ones, 10 % wide, for those that ask for them.
// A nil reg: it is kept and not shown.
func New(reg prometheus.Registerer, name, help string) *Meter {
	return &Meter{promauto.With(reg).NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help,
		Buckets:                         prometheus.ExponentialBuckets(0.001, 2, 17),
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	})}
}

// Reached notes that a message whose record is of sent, in milliseconds since
// 1970, is there now. 0 or less: the record had no time.
func (m *Meter) Reached(sent int64, now time.Time) { m.Traced(sent, now, "") }

// Traced is Reached, with the id of the message's trace as exemplar. Empty: it
// has none.
func (m *Meter) Traced(sent int64, now time.Time, traceID string) {
	if sent <= 0 {
		return
	}
	took := max(now.Sub(time.UnixMilli(sent)), 0).Seconds()
	if e, ok := m.h.(prometheus.ExemplarObserver); ok && traceID != "" {
		e.ObserveWithExemplar(took, prometheus.Labels{"trace_id": traceID})
		return
	}
	m.h.Observe(took)
}
