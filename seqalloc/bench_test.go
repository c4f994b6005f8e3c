package seqalloc_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkMalloc decides rounds of 500 messages, b of each conversation, and
// reports messages per second. It runs on the Redis that redisEnv names, else
// on the embedded one. Of a real one it also tells what a message costs the
// server: inside of the script calls, and processor time in all.
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
	script, all := cost(b, x)
	rounds := 0
	for b.Loop() {
		rounds++
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
	if x.server == nil {
		script2, all2 := cost(b, x)
		b.ReportMetric((script2-script)/float64(rounds*round), "script-us/msg")
		b.ReportMetric((all2-all)/float64(rounds*round), "redis-us/msg")
	}
}

// cost gives how many microseconds a real Redis spent in script calls, and in
// all, since it was started.
func cost(b *testing.B, x *fixture) (script, all float64) {
	b.Helper()
	if x.server != nil {
		return 0, 0
	}
	text, err := x.client.Info(b.Context(), "commandstats", "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "cmdstat_evalsha":
			_, rest, _ = strings.Cut(rest, "usec=")
			rest, _, _ = strings.Cut(rest, ",")
			script, err = strconv.ParseFloat(rest, 64)
		case "used_cpu_user", "used_cpu_sys":
			var seconds float64
			seconds, err = strconv.ParseFloat(rest, 64)
			all += 1e6 * seconds
		}
		if err != nil {
			b.Fatalf("%q: %v", line, err)
		}
	}
	return script, all
}
