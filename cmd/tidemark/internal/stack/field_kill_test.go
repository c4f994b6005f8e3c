//go:build unix

package stack_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// TestField_L4_KilledBetweenTwoEffects kills a worker after one effect of a
// batch is durable and before the next one is. Redis stands, or is lost as well.
func TestField_L4_KilledBetweenTwoEffects(t *testing.T) {
	for _, v := range []struct {
		name string
		role stack.Role
		// arm makes the next batch fatal; the channel tells that its child is gone,
		// or stands still and may be killed.
		arm func(*rig, *child) <-chan struct{}
	}{
		{"toRedis_ScriptAndProduce", stack.ToRedis, func(r *rig, c *child) <-chan struct{} {
			return r.onProduce(wire.TopicSequenced, func() (answer bool) { c.signal(syscall.SIGKILL); return false })
		}},
		{"toRedis_ProduceAndMark", stack.ToRedis, func(r *rig, c *child) <-chan struct{} {
			// The answer is never read: the child stands still until it is killed.
			return r.onProduce(wire.TopicSequenced, func() (answer bool) { c.signal(syscall.SIGSTOP); return true })
		}},
		{"toRedis_MarkAndCommit", stack.ToRedis, func(r *rig, c *child) <-chan struct{} {
			return r.onCommit(stack.ToRedis, func() { c.signal(syscall.SIGKILL) })
		}},
		{"toMongo_InsertAndFlush", stack.ToMongo, func(r *rig, c *child) <-chan struct{} {
			return r.onRow(armed, func() { c.signal(syscall.SIGKILL) })
		}},
		{"toMongo_FlushAndCommit", stack.ToMongo, func(r *rig, c *child) <-chan struct{} {
			return r.onCommit(stack.ToMongo, func() { c.signal(syscall.SIGKILL) })
		}},
	} {
		for _, lost := range []bool{false, true} {
			if lost && v.role != stack.ToRedis {
				continue // toMongo keeps nothing there that it reads again
			}
			t.Run(v.name+map[bool]string{true: "_RedisLost"}[lost], func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(c *config.Config) {
					if v.name == "toMongo_InsertAndFlush" {
						lateFlush(c)
					}
				})
				r.start(slices.DeleteFunc([]stack.Role{stack.Sync, stack.ToRedis, stack.ToMongo}, func(x stack.Role) bool { return x == v.role })...)
				doomed := r.spawn(v.role)
				lines, ids := numbered(armed, "A", "m", 30)
				r.produce(armed, lines[:10]...)
				if err := r.offsetsReach(stack.ToRedis, r.topic(wire.TopicToRedis)); err != nil {
					t.Fatal(err)
				}
				if v.role == stack.ToMongo {
					r.read("B", armed, 5)
				}
				died := v.arm(r, doomed)
				r.produce(armed, lines[10:20]...)
				select {
				case <-died:
				case <-r.ctx().Done():
					t.Fatal("the child has not come to the place where it dies")
				}
				doomed.kill()
				if lost {
					r.flush()
				}
				r.emb.Config.ToMongo = config.Default().ToMongo
				r.start(v.role)
				r.produce(armed, lines[15:30]...) // five of them once more
				r.settle()
				wantIDs(t, auditConversation(r, armed), ids...)
				wantSeqs(t, r.pullAll("B", armed, 1, 100), 1, 30)
				if v.role == stack.ToMongo {
					if m := r.members(armed, []watermark.UserID{"B"}); len(m) != 1 || m[0].Read != 5 {
						t.Errorf("history has %v, want B's mark at 5", m)
					}
				}
				if letters := r.deadLetters(); len(letters) > 0 {
					t.Errorf("dead letters: %v", letters)
				}
			})
		}
	}
}

// armed is the conversation of the batch that kills.
const armed = "group:armed"

// onProduce calls f once, when the next request that produces to a topic has
// come and before it takes effect. It takes effect only if f says so; otherwise
// the connection ends.
func (r *rig) onProduce(topic string, f func() (effect bool)) <-chan struct{} {
	done := make(chan struct{})
	var once atomic.Bool
	kafka := r.emb.Cluster.Kafka()
	kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		produce := req.(*kmsg.ProduceRequest)
		if !slices.ContainsFunc(produce.Topics, func(t kmsg.ProduceRequestTopic) bool { return t.Topic == topic }) {
			kafka.KeepControl()
			return nil, nil, false
		}
		if once.Swap(true) {
			return nil, nil, false
		}
		effect := f()
		close(done)
		return nil, kerr.NetworkException, !effect
	})
	return done
}

// onCommit calls f once, when a worker's next commit of offsets has come; it
// does not take effect.
func (r *rig) onCommit(role stack.Role, f func()) <-chan struct{} {
	done := make(chan struct{})
	var once atomic.Bool
	kafka := r.emb.Cluster.Kafka()
	kafka.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if req.(*kmsg.OffsetCommitRequest).Group != r.topic("tidemark-"+string(role)) {
			kafka.KeepControl()
			return nil, nil, false
		}
		if once.Swap(true) {
			return nil, nil, false
		}
		f()
		close(done)
		return nil, kerr.NetworkException, true
	})
	return done
}

// onRow calls f once, when history has got a row of a conversation that it did
// not have.
func (r *rig) onRow(conv watermark.ConversationID, f func()) <-chan struct{} {
	h, done := r.history(), make(chan struct{})
	last := func() (watermark.Seq, error) { // the maximum is written later
		rows, err := h.Messages(r.ctx(), conv, watermark.Interval{First: 1, Last: watermark.MaxSeq}, watermark.MaxPage)
		if err != nil || len(rows) == 0 {
			return 0, err
		}
		return rows[len(rows)-1].Seq, nil
	}
	var before watermark.Seq
	r.eventually("the first rows", func() (err error) {
		if before, err = last(); err == nil && before == 0 {
			err = fmt.Errorf("there are none")
		}
		return err
	})
	go func() {
		defer close(done)
		for r.t.Context().Err() == nil {
			if now, err := last(); err == nil && now > before {
				f()
				return
			}
		}
	}()
	return done
}
