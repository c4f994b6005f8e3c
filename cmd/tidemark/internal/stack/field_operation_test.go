package stack_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// TestField_O3_EachBrokenServiceMovesACounter: what an operator is paged by.
func TestField_O3_EachBrokenServiceMovesACounter(t *testing.T) {
	r := newRig(t, nil)
	lock := r.historyLock()
	r.start(stack.Roles()...)
	r.countsOf(1000)

	r.brokenIsCounted("redis", func() (mend func()) {
		r.emb.Cluster.Redis().SetError("LOADING Redis is loading the dataset in memory")
		return func() { r.emb.Cluster.Redis().SetError("") }
	}, "toredis:tidemark_pipeline_retries_total", "sync:tidemark_hot_errors_total")
	r.brokenIsCounted("history", lock, "tomongo:tidemark_pipeline_retries_total", "tomongo:tidemark_embedded_errors_total")
	r.brokenIsCounted("kafka", func() (mend func()) {
		kafka, broken := r.emb.Cluster.Kafka(), make(chan struct{})
		for _, key := range []kmsg.Key{kmsg.Produce, kmsg.Fetch} {
			kafka.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
				select {
				case <-broken:
					return nil, nil, false
				default:
					kafka.KeepControl()
					return nil, kerr.NetworkException, true
				}
			})
		}
		return func() { close(broken) }
	}, "toredis:tidemark_pipeline_consumer_errors_total", "tomongo:tidemark_pipeline_consumer_errors_total")
	r.settle()
	r.countsOf(1003)
}

// countsOf sends what is missing of n messages, and says what the success
// counters say of them.
func (r *rig) countsOf(n int) {
	r.t.Helper()
	const convs = 10
	sent := r.messages
	for c := range convs {
		conv := fmt.Sprint("group:o3-", c)
		var lines []string
		for i := sent; i < n; i++ {
			if i%convs == c {
				lines = append(lines, line(conv, "A", fmt.Sprint("m", i), "text"))
			}
		}
		if len(lines) > 0 {
			r.produce(conv, lines...)
		}
	}
	r.messages = max(r.messages, n)
	r.settle()
	for _, c := range []struct {
		role   stack.Role
		name   string
		labels []string
	}{
		{stack.ToRedis, "tidemark_toredis_inputs_total", []string{"kind", "message", "verdict", "accepted"}},
		{stack.ToMongo, "tidemark_tomongo_rows_total", []string{"fate", "inserted"}},
		{stack.ToPush, "tidemark_topush_events_total", []string{"kind", "message"}},
	} {
		if got := r.metric(c.role, c.name, c.labels...); got != float64(n) {
			r.t.Errorf("%s %s%v = %v, want %d", c.role, c.name, c.labels, got, n)
		}
	}
}

// brokenIsCounted breaks a service while a message arrives and somebody asks:
// each counter, written role:name, moves within ten seconds.
func (r *rig) brokenIsCounted(what string, breakIt func() (mend func()), counters ...string) {
	r.t.Helper()
	value := func(counter string) float64 {
		role, name, _ := strings.Cut(counter, ":")
		return r.total(stack.Role(role), name)
	}
	before := map[string]float64{}
	for _, c := range counters {
		before[c] = value(c)
	}
	mend := breakIt()
	began := time.Now()
	produced := make(chan error, 1)
	go func() {
		const conv = "group:o3-0"
		produced <- r.producer.Append(r.ctx(), r.outs(conv, line(conv, "A", fmt.Sprint("m-", what), "text")))
	}()
	r.messages++
	for _, c := range counters {
		r.eventually(fmt.Sprintf("%s is broken and %s moves", what, c), func() error {
			// Whatever the answer is, it is asked for.
			_, _ = r.svc.GetWatermarks(r.ctx(), &tidemarkv1.GetWatermarksRequest{User: "A", Conversations: []string{"group:o3-0"}})
			if value(c) <= before[c] {
				return fmt.Errorf("it stands at %v", before[c])
			}
			return nil
		})
	}
	if d := time.Since(began); d > 10*time.Second {
		r.t.Errorf("%s: the counters took %v", what, d)
	}
	mend()
	if err := <-produced; err != nil {
		r.t.Errorf("%s: %v", what, err)
	}
}
