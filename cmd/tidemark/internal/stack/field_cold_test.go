package stack_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

// onePartition has all conversations share a partition.
func onePartition(c *config.Config) { c.Kafka.Partitions = 1 }

// hideCommitted keeps everybody from learning what is in history, so that no
// tail can be pinned and no cold conversation loaded.
func (r *rig) hideCommitted() (show func()) {
	var hidden atomic.Bool
	hidden.Store(true)
	r.emb.Cluster.Kafka().Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: r.topic("tidemark-tomongo"), Err: kerr.CoordinatorLoadInProgress, Count: -1,
		When: func(kmsg.Request) bool { return hidden.Load() },
	})
	return func() { hidden.Store(false) }
}

// readiness gives what a role says about itself, in one line.
func (r *rig) readiness(role stack.Role) string {
	report, _ := r.roles[role].stack.Health().Report()
	var out []string
	for _, why := range report {
		if why != "" {
			out = append(out, why)
		}
	}
	return strings.Join(out, "; ")
}

// TestColdConversationsHoldNobodyUp: what cannot be loaded waits by itself, is
// seen in readiness, survives its worker, and ends in its place.
func TestColdConversationsHoldNobodyUp(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(map[bool]string{false: "TheWorkerStays", true: "TheWorkerGoes"}[restart], func(t *testing.T) {
			t.Parallel()
			r := startAll(t, onePartition)
			const warm, cold = "group:warm", "group:cold"
			wl, wids := numbered(warm, "A", "w", 9)
			cl, cids := numbered(cold, "A", "c", 9)
			r.produce(warm, wl[:3]...)
			r.produce(cold, cl[:3]...)
			r.settle()
			r.forget(cold)
			show := r.hideCommitted()
			for i := 3; i < 6; i++ {
				r.produce(cold, cl[i])
				r.produce(warm, wl[i])
			}
			r.eventually("the warm one goes on", func() error {
				// A batch that is under way for longer than Redis is waited for makes it cold
				// for that long, and then it is unavailable, too: on a busy machine.
				page := r.pull("B", &tidemarkv1.PullRange{Conversation: warm, Begin: 1, End: 100, Num: 100})
				if n := len(page.GetMessages()); n != 6 {
					return fmt.Errorf("%d messages, %v", n, page.GetError())
				}
				return nil
			})
			r.eventually("readiness names what waits", func() error {
				if why := r.readiness(stack.ToRedis); !strings.Contains(why, "cold_load: 3 records of 1 conversations are parked") {
					return fmt.Errorf("readiness: %q", why)
				}
				return nil
			})
			if n := r.metric(stack.ToRedis, "tidemark_toredis_waiting_partitions", "reason", "cold_load"); n != 1 {
				t.Errorf("%v partitions wait for cold loads", n)
			}
			page := r.pull("B", &tidemarkv1.PullRange{Conversation: cold, Begin: 1, End: 9})
			if e := page.GetError(); e.GetCode() != connect.CodeUnavailable.String() || e.GetRetryAfterMs() <= 0 {
				t.Errorf("the cold one is answered with %v", page)
			}
			if restart {
				r.stop(stack.ToRedis)
				show()
				r.start(stack.ToRedis)
			}
			show()
			for i := 6; i < 9; i++ {
				r.produce(cold, cl[i])
				r.produce(warm, wl[i])
			}
			r.settle()
			r.eventually("readiness is back", func() error {
				if why := r.readiness(stack.ToRedis); why != "" {
					return fmt.Errorf("readiness: %q", why)
				}
				return nil
			})
			msgs := auditConversations(r, warm, cold)
			wantIDs(t, msgs[warm], wids...)
			wantIDs(t, msgs[cold], cids...)
			if letters := r.deadLetters(); len(letters) > 0 {
				t.Errorf("dead letters: %v", letters)
			}
		})
	}
}

// TestATakenOverWarmConversationIsNotLoaded: after a rebalance with everything
// warm the first message of each conversation costs one script call, and
// neither history nor the tail is asked for anything.
func TestATakenOverWarmConversationIsNotLoaded(t *testing.T) {
	t.Parallel()
	const conversations = 40
	r := newRig(t, onePartition)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	send := func(id string) {
		for i := range conversations {
			c := fmt.Sprint("group:g", i)
			r.produce(c, line(c, "A", id, "text"))
		}
		r.settle()
	}
	send("1")
	if n := r.metric(stack.ToRedis, "tidemark_toredis_cold_loads_total"); n != conversations {
		t.Errorf("%v cold loads at first, want %d: what is counted here shows nothing", n, conversations)
	}
	r.restart(stack.ToRedis)
	send("2")
	for _, name := range []string{
		"tidemark_toredis_cold_loads_total", "tidemark_toredis_member_loads_total", "tidemark_toredis_parked_inputs_total",
		"tidemark_truth_conversations_total", "tidemark_truth_read_seconds", "tidemark_pipeline_tail_folded_records_total",
	} {
		if n := r.metricOr0(stack.ToRedis, name); n != 0 {
			t.Errorf("%s is %v after a rebalance with everything warm", name, n)
		}
	}
	if n := r.metric(stack.ToRedis, "tidemark_seqalloc_calls_total"); n > conversations {
		t.Errorf("%v script calls for %d messages of as many conversations", n, conversations)
	}
	for i := range conversations {
		if w := r.marks("A", fmt.Sprint("group:g", i)); w.GetMaxSeq() != 2 {
			t.Errorf("%v", w)
		}
	}
}

// metricOr0 is metric for one that may never have moved.
func (r *rig) metricOr0(role stack.Role, name string) float64 {
	r.t.Helper()
	families, err := r.roles[role].registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return r.metric(role, name)
		}
	}
	return 0
}

// TestReadingOftenMakesWarm: a conversation that is read again and again after
// Redis forgot it becomes warm by itself, without a message.
func TestReadingOftenMakesWarm(t *testing.T) {
	t.Parallel()
	r := startAll(t, nil)
	const c = "group:g1"
	lines, _ := numbered(c, "A", "m", 5)
	r.produce(c, lines...)
	r.settle()
	r.flush()
	r.eventually("it is warm", func() error {
		wantSeqs(t, r.pullAll("B", c, 1, 5), 1, 5)
		if n := r.metricOr0(stack.ToRedis, "tidemark_toredis_cold_loads_total"); n < 2 {
			return fmt.Errorf("%v cold loads", n)
		}
		if n := r.metric(stack.Sync, "tidemark_syncapi_views_total", "temperature", "warm"); n == 0 {
			return fmt.Errorf("no warm view")
		}
		return nil
	})
	if n := len(r.log(c)); n == 0 {
		t.Error("no log")
	}
	if !slices.Equal(idsIn(auditConversation(r, c)), []string{"m1", "m2", "m3", "m4", "m5"}) {
		t.Error("messages changed")
	}
}

func idsIn(msgs []said) []string {
	var out []string
	for _, m := range msgs {
		out = append(out, m.ClientID)
	}
	return out
}

// TestOverloadIsBounded: producers are faster than history for a long time.
// toRedis pauses by the length of the tail, what comes stands in its topic, and
// readiness says so; in the end all is there, in order.
func TestOverloadIsBounded(t *testing.T) {
	const limit, conversations, more = 200, 400, 300
	r := newRig(t, func(c *config.Config) {
		onePartition(c)
		c.ToRedis.MaxTail = limit
	})
	lock := r.historyLock()
	r.start(stack.Roles()...)
	const g = "group:g1"
	lines, ids := numbered(g, "A", "m", more)
	r.produce(g, lines[0])
	r.settle()
	unlock := lock()
	defer unlock()
	// One record each, however they are batched.
	for i := range conversations {
		c := fmt.Sprint("group:other", i)
		r.produce(c, line(c, "A", "1", "text"))
	}
	// The length of the tail is looked at once a second.
	r.eventually("the tail is known to be too long", func() error {
		if n := r.metric(stack.ToRedis, "tidemark_pipeline_tail_length_records"); n <= limit {
			return fmt.Errorf("%v records", n)
		}
		return nil
	})
	r.produce(g, lines[1:]...)
	r.eventually("it pauses, and says so", func() error {
		if !r.readinessHas(stack.ToRedis, "tail_too_long") || r.metric(stack.ToRedis, "tidemark_toredis_waiting_partitions", "reason", "tail_too_long") != 1 {
			return fmt.Errorf("readiness: %q", r.readiness(stack.ToRedis))
		}
		return nil
	})
	if w := r.marksIfAny("B", g); w.GetMaxSeq() != 1 {
		t.Errorf("%d messages are sequenced, want 1: the rest stands on toRedis", w.GetMaxSeq())
	}
	unlock()
	r.settle()
	wantIDs(t, auditConversation(r, g), ids...)
	r.eventually("readiness is back", func() error {
		if why := r.readiness(stack.ToRedis); why != "" {
			return fmt.Errorf("readiness: %q", why)
		}
		return nil
	})
}

func (r *rig) readinessHas(role stack.Role, what string) bool {
	return strings.Contains(r.readiness(role), what)
}
