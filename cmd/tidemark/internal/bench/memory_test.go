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

// History is behind on purpose, which is no less throughput; the slower of the two
// is what went through.
func TestThroughputLeavesOutWhatHistoryIsBehindOnPurpose(t *testing.T) {
	points := func(log, history func(second int64) int64) (out []bench.Point) {
		for second := range int64(40) {
			out = append(out, bench.Point{Second: float64(second + 1), Sequenced: log(second + 1), Persisted: history(second + 1)})
		}
		return out
	}
	even := func(rate int64) func(int64) int64 {
		return func(second int64) int64 { return min(second*rate, 20_000) }
	}
	late := func(second int64) int64 { return even(1000)(max(second-5, 0)) }
	for name, c := range map[string]struct {
		points []bench.Point
		want   float64
	}{
		"both at once":            {points(even(1000), even(1000)), 1000},
		"history 5 s later":       {points(even(1000), late), 1000},
		"history at half of it":   {points(even(1000), even(500)), 500},
		"the log at half of it":   {points(even(500), even(500)), 500},
		"faster than can be told": {[]bench.Point{{Second: 1, Sequenced: 5000, Persisted: 5000}, {Second: 1, Sequenced: 20_000, Persisted: 20_000}}, 15_000_000},
	} {
		if got := bench.Throughput(c.points, 5000, 20_000); math.Abs(got-c.want) > c.want/1000 {
			t.Errorf("%s: %g a second, want %g", name, got, c.want)
		}
	}
}
