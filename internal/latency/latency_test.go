package latency_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/latency"
)

func TestReached(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := latency.New(reg, "tidemark_test_seconds", "For a test.")
	now := time.UnixMilli(1_700_000_000_000)
	for _, sent := range []int64{
		now.UnixMilli() - 1500,
		now.UnixMilli() + 60_000, // a clock that is ahead
		0,                        // a record without a time
		-1,
	} {
		m.Reached(sent, now)
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d families, %v", len(families), err)
	}
	h := families[0].GetMetric()[0].GetHistogram()
	if h.GetSampleCount() != 2 || h.GetSampleSum() != 1.5 {
		t.Errorf("%d messages of %v s, want 2 of 1.5", h.GetSampleCount(), h.GetSampleSum())
	}
	if len(h.GetBucket()) == 0 || len(h.GetPositiveSpan()) == 0 {
		t.Error("there must be classic and native buckets")
	}
}
