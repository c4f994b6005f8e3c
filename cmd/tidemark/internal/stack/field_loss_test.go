package stack_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestField_L1_ProduceFailsAfterAllocation(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	// What the driver repeats by itself, what it gives back, and a connection
	// that breaks.
	for i, code := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownServerError, kerr.KafkaStorageError, nil} {
		g := fmt.Sprint("group:g", i)
		failed := r.refuseProduce(wire.TopicSequenced, 3, code)
		lines, ids := numbered(g, "A", "m", 10)
		r.produce(g, lines...)
		r.settle()
		if n := failed.Load(); n != 3 {
			t.Fatalf("%v: %d appends failed, want 3", code, n)
		}
		if seq := r.send(g, "A", "m11"); seq != 11 {
			t.Errorf("%v: the next message has seq %d, want 11", code, seq)
		}
		wantIDs(t, auditConversation(r, g), append(ids, "m11")...)
	}
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters: %v", letters)
	}
}

// refuseProduce makes Kafka refuse the next n requests that produce to a topic;
// without a code it hangs up instead. The counter tells how many it refused.
func (r *rig) refuseProduce(topic string, n int32, code *kerr.Error) *atomic.Int32 {
	var failed atomic.Int32
	kafka := r.emb.Cluster.Kafka()
	kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		kafka.KeepControl()
		produce := req.(*kmsg.ProduceRequest)
		if !slices.ContainsFunc(produce.Topics, func(t kmsg.ProduceRequestTopic) bool { return t.Topic == topic }) || failed.Load() == n {
			return nil, nil, false
		}
		failed.Add(1)
		if code == nil {
			return nil, kerr.NetworkException, true
		}
		resp := produce.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range produce.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	return &failed
}

func TestField_L2_RedisDownWhileMessagesArrive(t *testing.T) {
	for name, fault := range map[string]struct{ begin, end func(r *rig) }{
		"AndBackAsItWas": {
			func(r *rig) { r.emb.Cluster.Redis().Close() },
			func(r *rig) { r.restartRedis() },
		},
		"AndBackEmpty": {
			func(r *rig) { r.emb.Cluster.Redis().Close() },
			func(r *rig) { r.flush(); r.restartRedis() },
		},
		"Loading": {
			func(r *rig) {
				r.emb.Cluster.Redis().SetError("LOADING Redis is loading the dataset in memory")
			},
			func(r *rig) { r.emb.Cluster.Redis().SetError("") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startAll(t, nil)
			const g = "group:g1"
			const attempts = "tidemark_pipeline_handle_seconds"
			before := r.metric(stack.ToRedis, attempts)
			fault.begin(r)
			lines, ids := numbered(g, "A", "m", 5)
			r.produce(g, lines...)
			// Some two and a half seconds, with pauses that double from 20 ms.
			r.eventually("the worker waits", func() error {
				if n := r.metric(stack.ToRedis, attempts) - before; n < 8 {
					return fmt.Errorf("%v attempts", n)
				}
				return nil
			})
			if n := r.metric(stack.ToRedis, "tidemark_pipeline_stuck_partitions"); n != 1 {
				t.Errorf("%v partitions are stuck, want 1", n)
			}
			fault.end(r)
			r.settle()
			if letters := r.deadLetters(); len(letters) > 0 {
				t.Errorf("dead letters: %v", letters)
			}
			wantIDs(t, auditConversation(r, g), ids...)
		})
	}
}

func (r *rig) restartRedis() {
	r.t.Helper()
	if err := r.emb.Cluster.Redis().Restart(); err != nil {
		r.t.Fatal(err)
	}
}

func TestField_L3_HistoryRefusesABatch(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(map[bool]string{false: "ThenTakesIt", true: "AndTheWorkerStops"}[restart], func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			lock := r.historyLock()
			r.start(stack.Roles()...)
			const g = "group:g1"
			lines, ids := numbered(g, "A", "m", 9)
			r.produce(g, lines[:3]...)
			r.settle()
			unlock := lock()
			r.produce(g, lines[3:6]...)
			r.eventually("history refuses", func() error {
				if n := r.metric(stack.ToMongo, "tidemark_pipeline_stuck_partitions"); n != 1 {
					return fmt.Errorf("%v partitions are stuck", n)
				}
				return nil
			})
			if restart {
				r.stop(stack.ToMongo)
			}
			r.produce(g, lines[6:]...)
			if err := r.offsetsReach(stack.ToRedis, r.topic(wire.TopicToRedis)); err != nil {
				t.Fatal(err)
			}
			// Nothing of it is missed meanwhile.
			r.flush()
			wantSeqs(t, r.pullAll("B", g, 1, 100), 1, 9)
			unlock()
			if restart {
				r.start(stack.ToMongo)
			}
			r.settle()
			wantIDs(t, auditConversation(r, g), ids...)
			if letters := r.deadLetters(); len(letters) > 0 {
				t.Errorf("dead letters: %v", letters)
			}
		})
	}
}

// offsetsReach waits until a worker has committed all of its topic.
func (r *rig) offsetsReach(role stack.Role, topic string) error {
	ends, err := r.offsets.Ends(r.ctx(), topic)
	if err != nil {
		return err
	}
	return r.offsets.AwaitCommitted(r.ctx(), r.topic("tidemark-"+string(role)), topic, ends)
}

func TestField_L5_PoisonIsSetAside(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	const g = "group:g1"
	place := wire.PartitionOf(g, r.emb.Config.Kafka.Partitions)
	poison := []struct{ reason, value string }{
		{"undecodable", "\xff\xff"},
		{"undecodable", `{"conversation":`},
		{"invalid", `{}`},
		{"invalid", line("group:g1:x", "A", "x", "a bad conversation")},
		{"invalid", line(g, "A B", "x", "a bad sender")},
		{"too_large", line(g, "A", "x", strings.Repeat("x", 65<<10))},
	}
	good, ids := numbered(g, "A", "m", 3*len(poison))
	for i, p := range poison {
		r.produce(g, append([]string{p.value}, good[3*i:3*i+3]...)...)
		r.settle()
		letters := r.deadLetters()
		if len(letters) != i+1 {
			t.Fatalf("after %q: %d dead letters, want %d", short(p.value), len(letters), i+1)
		}
		j := slices.IndexFunc(letters, func(d wire.DeadLetter) bool { return d.Record.Offset == int64(4*i) })
		if j < 0 {
			t.Fatalf("no dead letter has the offset of %q: %v", short(p.value), letters)
		}
		d := letters[j]
		if d.Record.Topic != r.topic(wire.TopicToRedis) || d.Record.Partition != place || d.Reason != p.reason || d.Cause == "" || string(d.Record.Value) != p.value {
			t.Errorf("dead letter of %q: %s/%d reason %s cause %q", short(p.value), d.Record.Topic, d.Record.Partition, d.Reason, d.Cause)
		}
	}
	for role, run := range r.roles {
		if report, ready := run.stack.Health().Report(); !ready {
			t.Errorf("%s is not ready: %v", role, report)
		}
	}
	wantIDs(t, auditConversation(r, g), ids...)
}

func TestField_L7_RestartedPushWorkerReplaysNothing(t *testing.T) {
	const c = "single:A:B"
	var want []string
	for i := 1; i <= 11; i++ {
		want = append(want, fmt.Sprint(i, " m", i))
	}
	lines, _ := numbered(c, "B", "m", 10)

	t.Run("GatewayStays", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, func(c *config.Config) { c.Gateway.Redis = true })
		r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
		r.open(stack.Gateway, stack.Gateway)
		r.open(stack.ToPush, stack.ToPush)
		a := r.connect("A", r.roles[stack.Gateway].stack.GatewayURL())
		r.produce(c, lines...)
		r.awaitPushed(a, want[:10]...)
		r.stop(stack.ToPush)
		r.open(stack.ToPush, stack.ToPush)
		r.settle()
		r.send(c, "B", "m11")
		r.awaitPushed(a, want...)
		r.settle()
		r.awaitPushed(a, want...)
	})

	t.Run("GatewayGoesToo", func(t *testing.T) {
		t.Parallel()
		r := startAll(t, nil)
		run := r.roles[stack.ToPush].stack
		// The device comes back to the address that it knows.
		r.emb.Config.Gateway.Listen = strings.Split(run.GatewayURL(), "/")[2]
		var mu sync.Mutex
		var got []string
		dev, err := client.New(client.Config{
			User: "A", Device: "d1", Service: r.svc, Logger: testLogger(t),
			Live: &client.WebSocket{URL: run.GatewayURL(), User: "A", Device: "d1"},
			OnMessage: func(_ context.Context, u client.Update) error {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprint(u.Message.GetSeq(), " ", u.Message.GetClientMessageId()))
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- dev.Run(ctx) }()
		has := func(n int) {
			t.Helper()
			r.eventually("messages on the device", func() error {
				mu.Lock()
				defer mu.Unlock()
				if len(got) < n {
					return fmt.Errorf("%v", got)
				}
				return nil
			})
		}
		r.produce(c, lines...)
		has(10)
		r.restart(stack.ToPush)
		r.settle()
		r.send(c, "B", "m11")
		has(11)
		r.settle()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("messages on the device (-want +got):\n%s", diff)
		}
	})
}

// lateFlush has toMongo keep watermarks in memory for as long as it can.
func lateFlush(c *config.Config) {
	c.ToMongo.WriteInterval = 0
	c.ToMongo.FlushInterval, c.ToMongo.FlushIdle, c.ToMongo.FlushMarks = time.Hour, time.Hour, 100_000
}

// readers marks three messages of g read as 500 users.
func (r *rig) readers(g string) []watermark.UserID {
	r.t.Helper()
	users := make([]watermark.UserID, 500)
	svc := r.syncClient()
	var eg errgroup.Group
	eg.SetLimit(32)
	for i := range users {
		u := fmt.Sprint("u", i)
		users[i] = watermark.UserID(u)
		eg.Go(func() error {
			_, err := svc.SetReadSeq(r.ctx(), &tidemarkv1.SetReadSeqRequest{User: u, Conversation: g, ReadSeq: 3})
			return err
		})
	}
	if err := eg.Wait(); err != nil {
		r.t.Fatal(err)
	}
	return users
}

// members gives a conversation's members as history alone has them.
func (r *rig) members(g string, users []watermark.UserID) []watermark.Member {
	r.t.Helper()
	m, err := r.history().Members(r.ctx(), watermark.ConversationID(g), users)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func (r *rig) wantAllRead(g string, users []watermark.UserID) {
	r.t.Helper()
	n := 0
	for _, m := range r.members(g, users) {
		if m.Read == 3 {
			n++
		}
	}
	if n != len(users) {
		r.t.Errorf("history has %d marks, want %d", n, len(users))
	}
	r.flush()
	for _, u := range []watermark.UserID{users[0], users[len(users)-1]} {
		if w := r.marks(string(u), g); w.GetReadSeq() != 3 {
			r.t.Errorf("watermarks of %s: %v", u, w)
		}
	}
}

func TestField_L8_UnflushedWatermarksSurviveAStop(t *testing.T) {
	t.Parallel()
	r := newRig(t, lateFlush)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const g = "group:g1"
	lines, _ := numbered(g, "A", "m", 3)
	r.produce(g, lines...)
	r.eventually("three messages", func() error {
		if w, err := r.svc.GetWatermarks(r.ctx(), &tidemarkv1.GetWatermarksRequest{User: "A", Conversations: []string{g}}); err != nil || w.GetWatermarks()[0].GetMaxSeq() != 3 {
			return fmt.Errorf("%v, %v", w, err)
		}
		return nil
	})
	users := r.readers(g)
	r.eventually("all marks wait in memory", func() error {
		if n := r.metric(stack.ToMongo, "tidemark_tomongo_pending_members"); n != 501 { // and the sender's
			return fmt.Errorf("%v are pending", n)
		}
		return nil
	})
	if m := r.members(g, users); len(m) > 0 {
		t.Fatalf("%d members are in history before the stop", len(m))
	}
	r.stop(stack.ToMongo)
	if err := r.offsetsReach(stack.ToMongo, r.topic(wire.TopicSequenced)); err != nil {
		t.Errorf("what was flushed is not committed: %v", err)
	}
	r.wantAllRead(g, users)
}

func TestField_L8_UnflushedWatermarksSurviveAKill(t *testing.T) {
	t.Parallel()
	r := newRig(t, lateFlush)
	r.start(stack.Sync, stack.ToRedis)
	doomed := r.spawn(stack.ToMongo)
	const g = "group:g1"
	lines, _ := numbered(g, "A", "m", 4)
	r.produce(g, lines[:3]...)
	if err := r.offsetsReach(stack.ToRedis, r.topic(wire.TopicToRedis)); err != nil {
		t.Fatal(err)
	}
	users := r.readers(g)
	// The child has seen the marks when it has written what follows them.
	r.produce(g, lines[3])
	h := r.history()
	r.eventually("the child writes", func() error {
		m, err := h.Messages(r.ctx(), g, watermark.Interval{First: 4, Last: 4}, 1)
		if err == nil && len(m) == 0 {
			err = fmt.Errorf("no message 4")
		}
		return err
	})
	// A commit carries every partition's mark: when this one is committed, a mark
	// that was set too early on the readers' partition is committed as well. What
	// cannot be decoded leaves nothing to wait for.
	other := r.elsewhere(g)
	if err := r.producer.Append(r.ctx(), []wire.Out{{Topic: r.topic(wire.TopicSequenced), Partition: -1, Key: other, Value: []byte{0xff}}}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the child commits", func() error {
		committed, err := r.offsets.Committed(r.ctx(), r.topic("tidemark-"+string(stack.ToMongo)), r.topic(wire.TopicSequenced))
		if place := wire.PartitionOf(other, r.emb.Config.Kafka.Partitions); err == nil && committed[place] < 1 {
			err = fmt.Errorf("committed is %v", committed)
		}
		return err
	})
	doomed.kill()
	if m := r.members(g, users); len(m) > 0 {
		t.Fatalf("%d members are in history before the kill", len(m))
	}
	r.emb.Config.ToMongo = config.Default().ToMongo
	r.start(stack.ToMongo)
	r.settle()
	r.wantAllRead(g, users)
	// An audit of the log would stop at what cannot be decoded.
	if got := r.pullAll("A", g, 1, 4); len(got) != 4 {
		t.Errorf("%d messages, want 4", len(got))
	}
}

// elsewhere names a group on another partition than conv's.
func (r *rig) elsewhere(conv string) string {
	n := r.emb.Config.Kafka.Partitions
	for i := 0; ; i++ {
		if g := fmt.Sprint("group:elsewhere", i); wire.PartitionOf(g, n) != wire.PartitionOf(conv, n) {
			return g
		}
	}
}
