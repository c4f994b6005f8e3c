package pipeline_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
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

// hoarder is a stage where everything waits for a flush.
type hoarder struct {
	end     int64
	flushed chan time.Time
}

func (h *hoarder) Handle(_ context.Context, records []wire.Record) (int64, error) {
	h.end = records[len(records)-1].Offset + 1
	return 0, nil
}

func (h *hoarder) Flush(context.Context) (int64, error) {
	h.flushed <- time.Now()
	return h.end, nil
}

// What waits is counted in records since the last flush, wherever the log begins.
func TestWhatWaitsForAnIdleFlushIsCounted(t *testing.T) {
	const begins, idle = 1_000_000, 250 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		g, err := pipeline.NewGroup(pipeline.GroupConfig{
			Config: pipeline.Config{Brokers: []string{"127.0.0.1:1"}}, Group: "g", Topic: "t", MaxBatch: 400,
			FlushEvery: time.Hour, FlushIdle: idle, DeadLetters: struct{ pipeline.Appender }{}, // there are none
			NewStage: func(context.Context, pipeline.Claim) (pipeline.Stage, error) { return nil, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		h, messages, done := &hoarder{flushed: make(chan time.Time, 100)}, make(chan *sarama.ConsumerMessage), make(chan error)
		go func() { done <- pipeline.FeedForTest(t.Context(), g, h, begins, messages) }()
		next := int64(begins)
		for _, c := range []struct {
			records int
			want    time.Duration
		}{{1, idle}, {2500, 3 * idle}, {1, idle}, {1000, 2 * idle}} {
			for range c.records {
				messages <- &sarama.ConsumerMessage{Topic: "t", Offset: next}
				next++
			}
			synctest.Wait()
			last := time.Now()
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := len(h.flushed); n != 1 {
				t.Fatalf("%d records: flushed %d times", c.records, n)
			}
			if got := (<-h.flushed).Sub(last); got != c.want {
				t.Errorf("%d records: flushed after %s, want %s", c.records, got, c.want)
			}
		}
		close(messages)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
