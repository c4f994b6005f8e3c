package stack_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// TestWhatNoLogHasIsNotServed keeps a batch from the log after it was decided.
// Readers are told of it when the log has it: a Redis that is lost before that
// takes nothing back.
func TestWhatNoLogHasIsNotServed(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	const c = "single:A:B"
	lines, ids := numbered(c, "A", "m", 8)
	r.produce(c, lines[:5]...)
	r.settle()
	if w := r.marks("A", c); w.GetMaxSeq() != 5 || w.GetReadSeq() != 5 {
		t.Fatalf("at first: %v", w)
	}
	decided := r.metric(stack.ToRedis, "tidemark_seqalloc_outcomes_total")
	release := r.holdProduce(wire.TopicSequenced)
	r.produce(c, lines[5:]...)
	r.eventually("the batch is decided", func() error {
		if n := r.metric(stack.ToRedis, "tidemark_seqalloc_outcomes_total"); n <= decided {
			return fmt.Errorf("%v outcomes, as before", n)
		}
		return nil
	})
	check := func(when string, max int64) {
		t.Helper()
		w := r.marks("A", c)
		if w.GetMaxSeq() != max || w.GetReadSeq() != max {
			t.Errorf("%s: %v, want %d", when, w, max)
		}
		wantSeqs(t, r.pullAll("B", c, 1, 100), 1, max)
	}
	check("while the log has five", 5)
	r.flush()
	check("and Redis is lost", 5)
	release()
	r.settle()
	check("when the log has them", 8)
	wantIDs(t, auditConversation(r, c), ids...)
}

// holdProduce has Kafka hang up on whoever produces to a topic, until it is
// released.
func (r *rig) holdProduce(topic string) (release func()) {
	kafka, free := r.emb.Cluster.Kafka(), make(chan struct{})
	kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-free:
			return nil, nil, false
		default:
		}
		kafka.KeepControl()
		if slices.ContainsFunc(req.(*kmsg.ProduceRequest).Topics, func(t kmsg.ProduceRequestTopic) bool { return t.Topic == topic }) {
			return nil, kerr.NetworkException, true
		}
		return nil, nil, false
	})
	return func() { close(free) }
}
