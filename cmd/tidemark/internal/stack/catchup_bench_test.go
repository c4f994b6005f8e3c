//go:build unix

package stack_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// BenchmarkCatchUp measures what a failover of Redis costs: many conversations
// are warm, Redis is promoted (or flushed, where it is the embedded one), and
// each of them gets one message at once. What is reported is the time until all
// of these are sequenced and committed, what was read from history for it, the
// processor time of the whole process (all workers, Kafka and history; not
// Redis), and memory above that before the failover.
//
// TIDEMARK_BENCH_CONVERSATIONS gives the number of conversations, 500 when
// nobody says; TIDEMARK_TEST_REDIS the address of a Redis to be promoted, which
// should serve nobody else. Kafka and history (SQLite) are embedded.
func BenchmarkCatchUp(b *testing.B) {
	conversations, err := strconv.Atoi(cmp.Or(os.Getenv("TIDEMARK_BENCH_CONVERSATIONS"), "500"))
	if err != nil || conversations < 1 {
		b.Fatalf("TIDEMARK_BENCH_CONVERSATIONS must be a number from 1 on: %v", err)
	}
	addr := os.Getenv("TIDEMARK_TEST_REDIS")
	r := newRig(b, func(c *config.Config) {
		c.ToMongo.FlushInterval = time.Second
		if addr != "" {
			c.Redis.Addresses, c.Redis.Incarnation = strings.Split(addr, ","), ""
			c.Redis.Prefix = "bench" + strings.ToLower(rand.Text()) + "."
		}
	})
	r.start(stack.ToRedis, stack.ToMongo)
	const seeded = 3
	for i := range seeded {
		r.oneEach(conversations, fmt.Sprint("seed", i))
	}
	r.within(stack.ToRedis, wire.TopicToRedis)
	r.within(stack.ToMongo, wire.TopicSequenced)

	var heapMB, queries, loads, cpu float64
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		r.within(stack.ToMongo, wire.TopicSequenced)
		before := heapMBNow(true)
		count := func(name string) float64 { return r.metricOr0(stack.ToRedis, name) }
		hadQueries, hadLoads := count("tidemark_embedded_queries_total"), count("tidemark_toredis_cold_loads_total")
		promote(b, r, addr)
		hadCPU := processorTime(b)
		b.StartTimer()
		stop := make(chan struct{})
		peak := make(chan float64)
		go func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			high := 0.0
			for {
				high = max(high, heapMBNow(false))
				select {
				case <-tick.C:
				case <-stop:
					peak <- high
					return
				}
			}
		}()
		r.oneEach(conversations, fmt.Sprint("after", n))
		r.within(stack.ToRedis, wire.TopicToRedis)
		b.StopTimer()
		cpu += processorTime(b) - hadCPU
		close(stop)
		heapMB = max(heapMB, <-peak-before)
		queries += count("tidemark_embedded_queries_total") - hadQueries
		loads += count("tidemark_toredis_cold_loads_total") - hadLoads
		// A few may be loaded and not counted, where Redis answers too late.
		if got := count("tidemark_toredis_cold_loads_total") - hadLoads; got < 0.9*float64(conversations) {
			b.Fatalf("%v cold loads for %d conversations: the failover has no effect", got, conversations)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(conversations)*float64(b.N)/b.Elapsed().Seconds(), "conversations/s")
	b.ReportMetric(queries/float64(b.N), "history-queries/op")
	b.ReportMetric(loads/float64(b.N), "loads/op")
	b.ReportMetric(cpu/float64(b.N), "cpu-s/op")
	b.ReportMetric(heapMB, "heap-MB")
}

// processorTime gives the seconds of processor time that the process has used.
func processorTime(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(syscall.TimevalToNsec(u.Utime) + syscall.TimevalToNsec(u.Stime)).Seconds()
}

// oneEach puts one message into each of n conversations.
func (r *rig) oneEach(n int, id string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Minute)
	defer cancel()
	for from := 0; from < n; from += 1000 {
		var outs []wire.Out
		for i := from; i < min(from+1000, n); i++ {
			conv := fmt.Sprint("group:g", i)
			outs = append(outs, wire.Out{
				Topic: r.topic(wire.TopicToRedis), Partition: -1, Key: conv,
				Value: []byte(line(conv, fmt.Sprint("u", i%7), id, "a text of some length, as people write them to one another")),
			})
		}
		if err := r.producer.Append(ctx, outs); err != nil {
			r.t.Fatal(err)
		}
	}
}

// promote makes Redis one that was promoted just now, with all that it held.
func promote(b *testing.B, r *rig, addr string) {
	b.Helper()
	if addr == "" {
		r.emb.Cluster.FlushRedis()
		return
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	ctx := b.Context()
	if err := client.ReplicaOf(ctx, "127.0.0.1", "1").Err(); err != nil {
		b.Fatal(err)
	}
	if err := client.ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		b.Fatal(err)
	}
}

// heapMBNow gives megabytes: those that are reachable after a collection, or all
// that are in use at this moment.
func heapMBNow(collect bool) float64 {
	if collect {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}
