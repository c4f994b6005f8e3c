package pipeline_test

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkTailFold reads a tail from the broker and folds it, as the first cold
// load of a process does. The environment variable TIDEMARK_BENCH_RECORDS gives
// its length, 100,000 when nobody says; a hundredth as many conversations share
// it. heap-MB is what the view holds afterwards.
func BenchmarkTailFold(b *testing.B) {
	records, err := strconv.Atoi(cmp.Or(os.Getenv("TIDEMARK_BENCH_RECORDS"), "100000"))
	if err != nil || records < 1000 {
		b.Fatalf("TIDEMARK_BENCH_RECORDS must be a number from 1000 on: %v", err)
	}
	conversations := records / 100
	l := newTailLog(b, 1)
	next := make(map[watermark.ConversationID]watermark.Seq)
	for done := 0; done < records; done += 1000 {
		var recs []watermark.Record
		for i := range min(1000, records-done) {
			id := watermark.GroupOf(fmt.Sprintf("b%d", (done+i)%conversations))
			next[id]++
			recs = append(recs, watermark.Record{Conversation: id, Events: []watermark.Event{tailRun(next[id])}})
		}
		l.addAll(recs...)
	}
	l.forget()
	ids := make([]watermark.ConversationID, 0, conversations)
	for id := range next {
		ids = append(ids, id)
	}
	var held float64
	for b.Loop() {
		before := heap()
		u := l.tail(func(c *pipeline.TailConfig) { c.Patience = 5 * time.Minute })
		p := u.pin(ids[0])
		got, err := p.States(b.Context(), ids[:1])
		if err != nil || len(got) != 1 {
			b.Fatal(len(got), err)
		}
		b.StopTimer()
		held = max(held, heap()-before)
		b.ReportMetric(u.metric("tidemark_pipeline_tail_bytes")/1e6, "reckoned-MB")
		got, err = p.States(b.Context(), ids)
		if err != nil || len(got) != conversations || got[ids[0]].Max < watermark.Seq(records/conversations) {
			b.Fatal(len(got), err)
		}
		p.Release()
		u.stop()
		b.StartTimer()
	}
	b.ReportMetric(float64(records)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(held, "heap-MB")
}

// heap gives the megabytes that are reachable.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}
