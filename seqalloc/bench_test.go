package seqalloc_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkMalloc decides rounds of 500 messages, b of each conversation, and
// reports messages per second. It runs on the Redis that redisEnv names, else
// on the embedded one.
func BenchmarkMalloc(b *testing.B) {
	for _, per := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("b=%d", per), func(b *testing.B) { benchmarkMalloc(b, per) })
	}
}

func benchmarkMalloc(b *testing.B, per int) {
	var x *fixture
	if addr := os.Getenv(redisEnv); addr != "" {
		x = realRedis(b, addr)
	} else {
		x = embedded(b)
	}
	const round = 500
	convs := make([]watermark.ConversationID, round/per)
	for i := range convs {
		convs[i] = watermark.GroupOf(fmt.Sprint("g", i))
	}
	tokens, err := x.Begin(b.Context(), convs)
	if err != nil {
		b.Fatal(err)
	}
	loaded := make([]seqalloc.Loaded, len(convs))
	for i, c := range convs {
		loaded[i] = seqalloc.Loaded{Token: tokens[i], State: &watermark.State{Conversation: watermark.Conversation{ID: c}, Complete: true}}
	}
	if _, err := x.Install(b.Context(), loaded); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		batches := make([]watermark.Batch, len(convs))
		for i, c := range convs {
			batches[i] = watermark.Batch{Conversation: c, Inputs: x.sends("alice", per)}
		}
		allocs, err := x.Malloc(b.Context(), batches)
		if err != nil || allocs[0].Temperature != watermark.Warm {
			b.Fatalf("%v, %+v", err, allocs[0])
		}
	}
	b.ReportMetric(float64(b.N*round)/b.Elapsed().Seconds(), "msg/s")
}
