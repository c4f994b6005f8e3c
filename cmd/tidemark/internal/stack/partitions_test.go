package stack_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// TestPartitionsAreAddedToADrainedDeployment follows the runbook: producers stop,
// workers catch up and stop, both topics grow alike, all start again. A
// conversation that moves to another partition goes on at the seq where it was,
// knows its resends, and devices learn of what comes.
func TestPartitionsAreAddedToADrainedDeployment(t *testing.T) {
	for _, name := range []string{"Redis kept", "Redis empty"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startAll(t, nil)
			const talks = 24
			conv := func(i int) string { return fmt.Sprint("group:p", i) }
			for i := range talks {
				r.join(conv(i), "bob", 0)
				r.say(conv(i), "ann", 1, int64(i%4+3))
				r.read("bob", conv(i), 2)
			}
			r.settle()
			d := newLister("bob")
			d.sync(r, 0)

			r.stop(stack.Roles()...)
			before, after := r.grow(2)
			r.start(stack.Roles()...)
			if name == "Redis empty" {
				r.flush()
			}
			moved := 0
			for i := range talks {
				if wire.PartitionOf(conv(i), before) != wire.PartitionOf(conv(i), after) {
					moved++
				}
				if w := r.marks("bob", conv(i)); w.GetReadSeq() != 2 || w.GetMaxSeq() != int64(i%4+3) {
					t.Errorf("%s after the move: %v", conv(i), w)
				}
				if seq := r.send(conv(i), "ann", "m1"); seq != 1 {
					t.Errorf("%s: a resend of what stood at 1 stands at %d", conv(i), seq)
				}
				if seq := r.send(conv(i), "ann", "next"); seq != int64(i%4+4) {
					t.Errorf("%s: the next message stands at %d", conv(i), seq)
				}
			}
			if moved == 0 || moved == talks {
				t.Fatalf("%d of %d conversations moved, so nothing is compared", moved, talks)
			}
			r.settle()
			d.sync(r, 0)
			for i := range talks {
				if w := d.entries[conv(i)].GetWatermarks(); w.GetMaxSeq() != int64(i%4+4) {
					t.Errorf("the list has %s as %v", conv(i), w)
				}
			}
			// And from then on with each change.
			for _, i := range []int{0, 1, 2, 3} {
				r.send(conv(i), "ann", "last")
				r.settle()
				d.sync(r, 0)
				if w := d.entries[conv(i)].GetWatermarks(); w.GetMaxSeq() != int64(i%4+5) {
					t.Errorf("the list has %s as %v", conv(i), w)
				}
			}
			for c, msgs := range auditConversations(r, conv(0), conv(1), conv(2), conv(3)) {
				if last := msgs[len(msgs)-1]; last.ClientID != "last" {
					t.Errorf("%s ends with %v", c, last)
				}
			}
			if l := r.deadLetters(); len(l) > 0 {
				t.Errorf("dead letters %v", l)
			}
		})
	}
}

// TestHistoryMovesToAnotherKafka follows the runbook, too: a drained history goes
// on with topics that are new and a Redis that is empty. Nobody is served less,
// resends are known, and devices hear of everything.
func TestHistoryMovesToAnotherKafka(t *testing.T) {
	r := startAll(t, nil)
	const talks = 8
	conv := func(i int) string { return fmt.Sprint("group:r", i) }
	for i := range talks {
		r.join(conv(i), "bob", 0)
		r.say(conv(i), "ann", 1, 5)
		r.read("bob", conv(i), 2)
	}
	r.settle()
	d := newLister("bob")
	d.sync(r, 0)
	r.stop(stack.Roles()...)

	r.emb.Config.Kafka.TopicPrefix += "elsewhere-"
	r.emb.Config.Kafka.OnLostOffsets = "earliest"
	kafka, err := stack.Kafka(r.emb.Config, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pipeline.EnsureTopics(r.ctx(), pipeline.TopicsConfig{Config: kafka, Create: true, Partitions: r.emb.Config.Kafka.Partitions}); err != nil {
		t.Fatal(err)
	}
	r.reopen(kafka)
	r.flush()
	r.start(stack.Roles()...)
	for i := range talks {
		if w := r.marks("bob", conv(i)); w.GetReadSeq() != 2 || w.GetMaxSeq() != 5 {
			t.Errorf("%s after the move: %v", conv(i), w)
		}
		if seq := r.send(conv(i), "ann", "m1"); seq != 1 {
			t.Errorf("%s: a resend of what stood at 1 stands at %d", conv(i), seq)
		}
	}
	d.sync(r, 0)
	if !d.full {
		t.Error("a version of the old log was believed")
	}
	for i := range talks {
		if seq := r.send(conv(i), "ann", "next"); seq != 6 {
			t.Errorf("%s: the next message stands at %d", conv(i), seq)
		}
		r.settle()
		d.sync(r, 0)
		if w := d.entries[conv(i)].GetWatermarks(); w.GetMaxSeq() != 6 || d.full {
			t.Errorf("the list has %s as %v, all of it told %t", conv(i), w, d.full)
		}
		wantSeqs(t, r.pullAll("bob", conv(i), 1, 1<<62), 1, 6)
	}
	if l := r.deadLetters(); len(l) > 0 {
		t.Errorf("dead letters %v", l)
	}
}

// grow multiplies the partitions of both topics by n, and lets the producers of
// the test know.
func (r *rig) grow(n int32) (before, after int32) {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.emb.Config.Kafka.Brokers...))
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	before = r.emb.Config.Kafka.Partitions
	after = before * n
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis = 30_000
	for _, name := range []string{wire.TopicToRedis, wire.TopicSequenced} {
		topic := kmsg.NewCreatePartitionsRequestTopic()
		topic.Topic, topic.Count = r.topic(name), after
		req.Topics = append(req.Topics, topic)
	}
	res, err := req.RequestWith(r.ctx(), client)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, t := range res.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			r.t.Fatal(err)
		}
	}
	kafka, err := stack.Kafka(r.emb.Config, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	// A broker knows of it a moment later, and a client that is open already with
	// its next look at the topics.
	r.eventually("the new partitions", func() error {
		if err := r.offsets.Close(); err != nil {
			return err
		}
		if r.offsets, err = pipeline.NewOffsets(pipeline.OffsetsConfig{Config: kafka}); err != nil {
			return err
		}
		ends, err := r.offsets.Ends(r.ctx(), r.topic(wire.TopicSequenced))
		if err == nil && len(ends) != int(after) {
			err = fmt.Errorf("%d partitions", len(ends))
		}
		return err
	})
	r.reopen(kafka)
	r.emb.Config.Kafka.Partitions = after
	return before, after
}

// reopen gives the test itself clients that look at the topics anew.
func (r *rig) reopen(kafka pipeline.Config) {
	r.t.Helper()
	if err := errors.Join(r.producer.Close(r.ctx()), r.offsets.Close()); err != nil {
		r.t.Fatal(err)
	}
	var err error
	if r.producer, err = pipeline.NewProducer(pipeline.ProducerConfig{Config: kafka, Topic: r.topic(wire.TopicToRedis)}); err != nil {
		r.t.Fatal(err)
	}
	if r.offsets, err = pipeline.NewOffsets(pipeline.OffsetsConfig{Config: kafka}); err != nil {
		r.t.Fatal(err)
	}
}
