package bench_test

import (
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
