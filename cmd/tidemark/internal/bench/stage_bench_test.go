//go:build unix

package bench_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
)

// BenchmarkStage hands each stage batches of 500 messages, b of a conversation;
// an operation is a batch. Redis and history answer without a network, so it is
// the stage itself that is measured. Making the batches takes about as long as the
// stage does, so it tells its processor time without that.
func BenchmarkStage(b *testing.B) {
	for _, stage := range []string{"toredis", "tomongo", "topush"} {
		for _, per := range []int{1, 10} {
			b.Run(fmt.Sprintf("%s/b=%d", stage, per), func(b *testing.B) {
				cfg := bench.StageConfig{Stage: stage, PerConversation: per, Batch: 500, Batches: b.N, Partitions: 1, Size: 300, Now: stopped}
				if stage != "tomongo" {
					cfg.Redis, _ = answering(b)
				}
				handle, _, err := bench.Feed(b.Context(), cfg)
				if err != nil {
					b.Fatal(err)
				}
				before := processorTime(b)
				b.ReportAllocs()
				b.ResetTimer()
				if err := handle(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
