package bench_test

import (
	"math"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
)

// The four moments are the ends of the quarters, and of the last points there is
// always one.
func TestMemoryIsToldOverTime(t *testing.T) {
	var points []bench.Point
	for i := range 10 {
		points = append(points, bench.Point{Memory: map[string]int64{"roles": int64(i+1) * 1e6, "redis": 5e6}})
	}
	if got, want := bench.MemoryText(points), "MB after each quarter: redis 5, 5, 5, 5; roles 2, 5, 7, 10"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := bench.MemoryText(points[:3]); got != "" {
		t.Errorf("of three points: %q", got)
	}
}

// History comes in steps of five seconds and is behind on purpose, neither of which
// is less throughput; the slower of log and history is what went through, and
// what was made up for is no more than the rate.
func TestThroughputLeavesOutWhatHistoryIsBehindOnPurpose(t *testing.T) {
	const rate, from, to = 1000, 5000, 45_000
	points := func(log, history func(second int64) int64) (out []bench.Point) {
		for second := int64(1); second <= 50; second++ {
			out = append(out, bench.Point{Second: float64(second), Intended: min(second*rate, to), Sequenced: log(second), Persisted: history(second)})
		}
		return out
	}
	even := func(rate int64) func(int64) int64 {
		return func(second int64) int64 { return min(second*rate, to) }
	}
	steps := func(phase int64) func(int64) int64 {
		return func(second int64) int64 { return max(0, (second-phase)/5*5*rate) }
	}
	for name, c := range map[string]struct {
		points []bench.Point
		want   float64
	}{
		"both at once":          {points(even(1000), even(1000)), 1000},
		"history in steps":      {points(even(1000), steps(0)), 1000},
		"steps of other times":  {points(even(1000), steps(3)), 1000},
		"history at half of it": {points(even(1000), even(500)), 500},
		"the log at half of it": {points(even(500), even(1000)), 500},
		"more than was sent":    {points(even(1000), func(s int64) int64 { return s * s * 30 }), 1000},
		"nothing in history":    {points(even(1000), func(int64) int64 { return 0 }), 0},
	} {
		got, ok := bench.Throughput(c.points, from, to, rate)
		if !ok || math.Abs(got-c.want) > 0.02*rate || got > rate {
			t.Errorf("%s: %g a second (%v), want %g", name, got, ok, c.want)
		}
	}
	if got, ok := bench.Throughput(points(even(1000), even(1000))[:9], from, to, rate); ok {
		t.Errorf("of five points: %g", got)
	}
}
