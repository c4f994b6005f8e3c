package pipeline_test

import (
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/pipeline"
)

// A partition flushes soon after its last record, and the later the more waits,
// up to the time that it would anyway. See idleRecords.
func TestTheMoreWaitsTheLaterAnIdleFlush(t *testing.T) {
	lagging := time.Unix(1000, 0)
	busy := lagging.Add(time.Second)
	for name, c := range map[string]struct {
		behind      int64
		every, idle time.Duration
		want        time.Duration // after lagging
	}{
		"few wait":                       {1, 10 * time.Second, time.Second / 4, 1250 * time.Millisecond},
		"nearly a thousand":              {999, 10 * time.Second, time.Second / 4, 1250 * time.Millisecond},
		"a batch of two thousand":        {2000, 10 * time.Second, time.Second / 4, 1750 * time.Millisecond},
		"ten thousand":                   {10_000, 10 * time.Second, time.Second / 4, 3750 * time.Millisecond},
		"the end is in sight":            {36_000, 10 * time.Second, time.Second / 4, 10 * time.Second},
		"a whole partition":              {1 << 62, 10 * time.Second, time.Second / 4, 10 * time.Second},
		"idle is longer than every":      {1, time.Second / 2, time.Hour, time.Second / 2},
		"no idle flush":                  {1, 10 * time.Second, 0, 10 * time.Second},
		"the last batch came long after": {1, 2 * time.Second, 3 * time.Second / 2, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if got := pipeline.FlushAt(lagging, busy, c.behind, c.every, c.idle).Sub(lagging); got != c.want {
				t.Errorf("flushes after %s, want %s", got, c.want)
			}
		})
	}
}
