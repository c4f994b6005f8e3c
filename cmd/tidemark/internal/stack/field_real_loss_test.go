//go:build real

package stack_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// TestReal_L1_ProduceFailsAfterAllocation kills Kafka while toRedis has given out
// seqs that it has not appended yet.
func TestReal_L1_ProduceFailsAfterAllocation(t *testing.T) {
	own := ownServices(t, "--kafka")
	r := startAll(t, func(c *config.Config) { c.Kafka.Brokers = own.addresses("TIDEMARK_TEST_KAFKA") })
	const g, rounds, each = "group:l1", 3, 2000
	lines, ids := numbered(g, "A", "m", rounds*each)
	for n := 0; n < len(lines); n += each {
		decided := r.total(stack.ToRedis, "tidemark_seqalloc_outcomes_total")
		appended := make(chan error, 1)
		go func() { appended <- r.producer.Append(r.ctx(), r.outs(g, lines[n:n+each]...)) }()
		r.eventually("a batch is sequenced", func() error {
			if r.total(stack.ToRedis, "tidemark_seqalloc_outcomes_total") == decided {
				return fmt.Errorf("there are %v outcomes, as before", decided)
			}
			return nil
		})
		own.signal("kafka-1/1", syscall.SIGKILL)
		own.start()
		if err := <-appended; err != nil {
			t.Fatal(err)
		}
		r.settle()
	}
	if n := r.total(stack.ToRedis, "tidemark_pipeline_append_retries_total") + r.total(stack.ToRedis, "tidemark_pipeline_append_metadata_waits_total"); n == 0 {
		t.Error("no append has failed: the broker died at the wrong times")
	}
	if seq := r.send(g, "A", "last"); seq != rounds*each+1 {
		t.Errorf("the next message has seq %d, want %d", seq, rounds*each+1)
	}
	wantIDs(t, auditConversation(r, g), append(ids, "last")...)
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters: %v", letters)
	}
}

// TestReal_L4_KilledOverAndOver kills toRedis and toMongo with SIGKILL at any
// moment under load. Where exactly they die between two effects is told on the
// embedded servers, which can be stopped there.
func TestReal_L4_KilledOverAndOver(t *testing.T) {
	r := newRig(t, nil)
	r.start(stack.Sync)
	convs := []string{"group:l4-1", "group:l4-2", "group:l4-3", "single:A:B"}
	const rounds, each = 4, 250
	rnd := rand.New(rand.NewPCG(4, rounds))
	anywhere := func() { <-time.After(time.Duration(rnd.IntN(150)) * time.Millisecond) }
	want := map[string][]string{}
	for range rounds {
		group, topic := r.topic("tidemark-"+string(stack.ToRedis)), r.topic(wire.TopicToRedis)
		before, err := r.offsets.Committed(r.ctx(), group, topic)
		if err != nil {
			t.Fatal(err)
		}
		sequencer, writer := r.spawn(stack.ToRedis), r.spawn(stack.ToMongo)
		for _, c := range convs {
			lines, ids := numbered(c, "A", fmt.Sprint("r", len(want[c]), "-"), each)
			r.produce(c, lines...)
			want[c] = append(want[c], ids...)
		}
		r.eventually("toRedis goes on", func() error {
			now, err := r.offsets.Committed(r.ctx(), group, topic)
			if err == nil && sumOf(now) <= sumOf(before) {
				err = fmt.Errorf("committed is %v, as before", now)
			}
			return err
		})
		anywhere()
		sequencer.kill()
		anywhere()
		writer.kill()
	}
	r.start(stack.ToRedis, stack.ToMongo)
	r.settle()
	for c, got := range auditConversations(r, convs...) {
		wantIDs(t, got, want[c]...)
	}
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters: %v", letters)
	}
}

func sumOf(offsets map[int32]int64) (sum int64) {
	for _, o := range offsets {
		sum += max(o, 0)
	}
	return sum
}

// TestReal_O3_EachBrokenServiceMovesACounter kills each service once.
func TestReal_O3_EachBrokenServiceMovesACounter(t *testing.T) {
	own := ownServices(t, "--kafka", "--redis", "--mongo")
	r := startAll(t, func(c *config.Config) {
		c.Kafka.Brokers, c.Redis.Addresses = own.addresses("TIDEMARK_TEST_KAFKA"), own.addresses("TIDEMARK_TEST_REDIS")
		c.History.URI, c.History.Timeout = own.env["TIDEMARK_TEST_MONGO"], 2*time.Second
	})
	r.countsOf(1000)
	for _, s := range []struct {
		name, folder string
		counters     []string
	}{
		{"redis", "redis", []string{"toredis:tidemark_pipeline_retries_total", "sync:tidemark_hot_errors_total"}},
		{"history", "mongo", []string{"tomongo:tidemark_pipeline_retries_total", "tomongo:tidemark_history_errors_total"}},
		{"kafka", "kafka-1/1", []string{"toredis:tidemark_pipeline_consumer_errors_total", "tomongo:tidemark_pipeline_consumer_errors_total"}},
	} {
		r.brokenIsCounted(s.name, func() (mend func()) {
			own.signal(s.folder, syscall.SIGKILL)
			return own.start
		}, s.counters...)
		r.settle()
	}
	r.countsOf(1003)
}
