package pipeline_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestTailLength(t *testing.T) {
	l := newTailLog(t, 2)
	ids := map[int32]watermark.ConversationID{}
	for _, id := range []watermark.ConversationID{"group:a", "group:b", "group:c", "group:d", "group:e"} {
		ids[l.partition(id)] = id
	}
	if len(ids) != 2 {
		t.Fatal("the ids do not reach both partitions")
	}
	for range 5 {
		l.add(ids[0], tailRun(1))
		l.add(ids[1], tailRun(1))
	}
	l.commit(1, 3)
	tl, err := pipeline.NewTailLength(pipeline.TailLengthConfig{Config: l.config, Group: tailGroup, Every: 5 * time.Millisecond, Stale: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if n, known := tl.Records(0); known {
		t.Errorf("%d records before the first look", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tl.Run(ctx) }()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	await := func(partition int32, want int64, wantKnown bool) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for {
			n, known := tl.Records(partition)
			if n == want && known == wantKnown {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("partition %d: %d, %v, want %d, %v", partition, n, known, want, wantKnown)
			}
			<-poll.C
		}
	}
	await(0, 5, true) // nothing was ever committed: all of it
	await(1, 2, true)
	await(7, 0, false)
	l.commit(0, 4)
	l.add(ids[1], tailRun(2))
	await(0, 1, true)
	await(1, 3, true)

	// An answer does not count for ever.
	l.cluster.Fault(kfake.Fault{Keys: tailKeys(keyListOffsets), Err: kerr.NotLeaderForPartition, Count: -1})
	await(0, 0, false)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
