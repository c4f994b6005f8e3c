//go:build real

package stack_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

// trips takes conversations through rounds of messages, with something done to
// Redis in between, and looks at what everybody sees.
type trips struct {
	*rig
	convs []string
	sent  int64
}

// round sends ten more messages in each conversation, and waits for them.
func (r *trips) round() {
	r.t.Helper()
	r.publish()
	r.settle()
	r.check()
}

func (r *trips) publish() {
	r.t.Helper()
	const each = 10
	for _, c := range r.convs {
		lines, _ := numbered(c, "A", "m", int(r.sent)+each)
		r.produce(c, lines[r.sent:]...)
	}
	r.sent += each
}

func (r *trips) check() {
	r.t.Helper()
	for _, c := range r.convs {
		_, want := numbered(c, "A", "m", int(r.sent))
		msgs := r.pullAll("A", c, 1, r.sent)
		wantSeqs(r.t, msgs, 1, r.sent)
		ids := make([]string, len(msgs))
		for i, m := range msgs {
			ids[i] = m.GetClientMessageId()
		}
		if !slices.Equal(ids, want) {
			r.t.Errorf("%s: messages %v, want %v", c, ids, want)
		}
		if w := r.marks("A", c); w.GetMaxSeq() != r.sent || w.GetRepairNumber() != 0 {
			r.t.Errorf("%s: %v, want max %d and no repair", c, w, r.sent)
		}
	}
}

// audit compares what was logged with what is served, also with Redis empty.
func (r *trips) audit() {
	r.t.Helper()
	for c, got := range auditConversations(r.rig, r.convs...) {
		_, want := numbered(c, "A", "m", int(r.sent))
		wantIDs(r.t, got, want...)
	}
}

// loads gives how many conversations toRedis has loaded so far.
func (r *trips) loads() float64 { return r.total(stack.ToRedis, "tidemark_toredis_cold_loads_total") }

// colder runs do, then a round, and expects that every conversation was loaded
// again, or that none was.
func (r *trips) colder(what string, all bool, do func()) {
	r.t.Helper()
	before := r.loads()
	do()
	r.round()
	want := 0
	if all {
		want = len(r.convs)
	}
	if got := r.loads() - before; got != float64(want) {
		r.t.Errorf("%s: %v conversations were loaded again, want %d", what, got, want)
	}
}

func redisAt(t testing.TB, address string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: address, DisableIdentity: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// info gives a field of INFO replication.
func info(ctx context.Context, c *redis.Client, field string) (string, error) {
	text, err := c.Info(ctx, "replication").Result()
	if err != nil {
		return "", err
	}
	for l := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), field+":"); ok {
			return v, nil
		}
	}
	return "", fmt.Errorf("no %s in %q", field, text)
}

// TestReal_FailoverThereAndBack promotes the replica and then the first master
// again, which must not take for its own what it wrote before.
func TestReal_FailoverThereAndBack(t *testing.T) {
	own := ownServices(t, "--sentinel")
	at := own.addresses("TIDEMARK_TEST_REDIS_SENTINEL")
	r := &trips{rig: startAll(t, func(c *config.Config) { c.Redis.Addresses, c.Redis.Master = at, "tidemark" }), convs: []string{"group:t1", "group:t2", "single:A:B"}}
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: at[0], DisableIdentity: true})
	t.Cleanup(func() { _ = sentinel.Close() })
	master := func() string {
		host, err := sentinel.GetMasterAddrByName(r.ctx(), "tidemark").Result()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(host, ":")
	}
	failover := func() {
		t.Helper()
		old := master()
		r.eventually("a failover begins", func() error { return sentinel.Failover(r.ctx(), "tidemark").Err() })
		r.eventually("the other one is the master", func() error {
			if master() == old {
				return errors.New("it is the old one")
			}
			return nil
		})
		// Only then can there be a way back.
		c := redisAt(t, old)
		r.eventually("the old one follows", func() error {
			if link, err := info(r.ctx(), c, "master_link_status"); err != nil || link != "up" {
				return fmt.Errorf("link %q, %w", link, err)
			}
			return nil
		})
	}
	first := master()
	r.colder("the first round", true, func() {})
	r.colder("nothing happened", false, func() {})
	r.colder("failover", true, failover)
	r.colder("failover back", true, failover)
	if now := master(); now != first {
		t.Errorf("the master is %s and was %s at first", now, first)
	}
	r.colder("nothing happened", false, func() {})
	r.audit()
}

// TestReal_FirstReplicaAttached: Redis begins another replication history when
// its first replica comes. What is warm is loaded again for that, and no more.
func TestReal_FirstReplicaAttached(t *testing.T) {
	own, second := ownServices(t, "--redis"), ownServices(t, "--redis")
	at := own.addresses("TIDEMARK_TEST_REDIS")
	r := &trips{rig: startAll(t, func(c *config.Config) { c.Redis.Addresses = at }), convs: []string{"group:t1", "single:A:B"}}
	r.colder("the first round", true, func() {})
	host, port, _ := strings.Cut(at[0], ":")
	replica := redisAt(t, second.addresses("TIDEMARK_TEST_REDIS")[0])
	master := redisAt(t, at[0])
	r.colder("a replica was attached", true, func() {
		was, err := info(r.ctx(), master, "master_replid")
		if err != nil {
			t.Fatal(err)
		}
		if err := replica.ReplicaOf(r.ctx(), host, port).Err(); err != nil {
			t.Fatal(err)
		}
		r.eventually("it follows", func() error {
			if link, err := info(r.ctx(), replica, "master_link_status"); err != nil || link != "up" {
				return fmt.Errorf("link %q, %w", link, err)
			}
			return nil
		})
		if now, err := info(r.ctx(), master, "master_replid"); err != nil || now == was {
			t.Fatalf("replication id %s as before (%v): the test shows nothing", now, err)
		}
	})
	r.colder("nothing happened", false, func() {})
	r.audit()
}

// TestReal_SlotMovedThereAndBack moves the slot of a conversation to another
// master and back, with messages under way in the middle of both moves.
func TestReal_SlotMovedThereAndBack(t *testing.T) {
	own := ownServices(t, "--redis-cluster")
	at := own.addresses("TIDEMARK_TEST_REDIS_CLUSTER")
	r := &trips{rig: startAll(t, func(c *config.Config) { c.Redis.Addresses = at }), convs: []string{"group:t1"}}
	nodes := map[string]*redis.Client{} // by id
	var ids []string
	for _, a := range at {
		c := redisAt(t, a)
		id, err := c.Do(r.ctx(), "cluster", "myid").Text()
		if err != nil {
			t.Fatal(err)
		}
		nodes[id] = c
		ids = append(ids, id)
	}
	slot, err := nodes[ids[0]].ClusterKeySlot(r.ctx(), "{group:t1}").Result()
	if err != nil {
		t.Fatal(err)
	}
	r.colder("the first round", true, func() {})
	from := slices.IndexFunc(ids, func(id string) bool {
		n, err := nodes[id].ClusterCountKeysInSlot(r.ctx(), int(slot)).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
	here, there := ids[from], ids[(from+1)%len(ids)]
	do := func(id string, args ...any) {
		t.Helper()
		if err := nodes[id].Do(r.ctx(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	move := func(from, to string) {
		t.Helper()
		do(to, "cluster", "setslot", slot, "importing", from)
		do(from, "cluster", "setslot", slot, "migrating", to)
		addr, port, _ := strings.Cut(nodes[to].Options().Addr, ":")
		for half := 0; ; half++ {
			keys, err := nodes[from].ClusterGetKeysInSlot(r.ctx(), int(slot), 2).Result()
			if err != nil {
				t.Fatal(err)
			}
			if len(keys) == 0 {
				break
			}
			p, err := strconv.Atoi(port)
			if err != nil {
				t.Fatal(err)
			}
			args := []any{"migrate", addr, p, "", 0, 10_000, "keys"}
			for _, k := range keys {
				args = append(args, k)
			}
			do(from, args...)
			if half == 0 {
				r.publish() // finds a part of its keys here and a part there
				r.eventually("toRedis meets a slot on its way", func() error {
					if why := r.readiness(stack.ToRedis); !strings.Contains(why, "redis_tryagain") {
						return fmt.Errorf("it is not waiting: %q", why)
					}
					return nil
				})
			}
		}
		for _, id := range []string{to, from} {
			do(id, "cluster", "setslot", slot, "node", to)
		}
		for id := range nodes {
			if id != to && id != from {
				do(id, "cluster", "setslot", slot, "node", to)
			}
		}
	}
	r.colder("the slot moved", true, func() { move(here, there) })
	r.colder("the slot moved back", true, func() { move(there, here) })
	r.colder("nothing happened", false, func() {})
	r.audit()
}
