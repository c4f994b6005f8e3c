//go:build real

package stack_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// TestReal_O1_RedisCluster takes 200 conversations through the whole path on
// three masters, and loses all of Redis in between.
func TestReal_O1_RedisCluster(t *testing.T) {
	r := startAll(t, func(c *config.Config) {
		c.Redis.Addresses = strings.Split(setting(t, "TIDEMARK_TEST_REDIS_CLUSTER"), ",")
	})
	var convs []string
	for i := range 200 {
		convs = append(convs, fmt.Sprintf("single:ann:u%03d", i))
	}
	peer := func(conv string) string { return conv[len("single:ann:"):] }
	round := func(first int) {
		t.Helper()
		for _, c := range convs {
			var lines []string
			for n := first; n < first+3; n++ {
				lines = append(lines, line(c, peer(c), fmt.Sprint("m", n), "text"))
			}
			r.produce(c, lines...)
		}
		r.settle()
		for _, c := range convs {
			if res := r.read("ann", c, int64(first)); res.GetReadSeq() != int64(first) {
				t.Errorf("%s: read to %d, want %d", c, res.GetReadSeq(), first)
			}
		}
	}
	check := func(n int64, unread int64) {
		t.Helper()
		for _, c := range convs {
			if w := r.marks("ann", c); w.GetMaxSeq() != n || w.GetUnread() != unread {
				t.Errorf("%s: %v, want max %d and unread %d", c, w, n, unread)
			}
			wantSeqs(t, r.pullAll("ann", c, 1, n), 1, n)
		}
	}
	round(1)
	check(3, 2)
	r.settle()
	r.flush()
	check(3, 2)
	round(4)
	check(6, 2)
}

// TestReal_S2_CounterRolledBack puts a conversation's keys back to what they
// were three messages ago.
func TestReal_S2_CounterRolledBack(t *testing.T) {
	own := ownServices(t, "--redis")
	for _, v := range []struct {
		name    string
		between func(*rig)
		repairs bool
	}{
		{"a_NewIncarnation", func(r *rig) {
			own.signal("redis", syscall.SIGTERM)
			r.eventually("Redis has ended", func() error {
				c, err := net.Dial("tcp", r.emb.Config.Redis.Addresses[0])
				if err != nil {
					return nil
				}
				return errors.Join(errors.New("it listens"), c.Close())
			})
			own.start()
		}, false},
		{"b_WorkerAlive", func(*rig) {}, false},
		{"c_WorkerRestarted", func(r *rig) { r.restart(stack.ToRedis) }, true},
	} {
		t.Run(v.name, func(t *testing.T) {
			r := startAll(t, func(c *config.Config) { c.Redis.Addresses = own.addresses("TIDEMARK_TEST_REDIS") })
			const c = "single:A:B"
			lines, ids := numbered(c, "A", "m", 13)
			r.produce(c, lines[:9]...)
			r.settle()
			back := r.dumped(c)
			r.produce(c, lines[9:12]...)
			r.settle()
			r.forget(c)
			back()
			v.between(r)
			r.produce(c, lines[12])
			r.eventually("m13 is at seq 13", func() error {
				page := r.pull("A", &tidemarkv1.PullRange{Conversation: c, Begin: 13, End: 13})
				if len(page.GetMessages()) != 1 || page.GetMessages()[0].GetClientMessageId() != "m13" {
					return fmt.Errorf("page = %v", page)
				}
				return nil
			})
			r.settle()
			if w := r.marks("A", c); w.GetMaxSeq() != 13 || (w.GetRepairNumber() > 0) != v.repairs {
				t.Errorf("in the end: %v, repaired should be %v", w, v.repairs)
			}
			wantIDs(t, auditConversations(r, c)[c], ids...)
		})
	}
}

// dumped takes the keys of a conversation as they are, and gives what puts them
// back.
func (r *rig) dumped(conv string) (back func()) {
	r.t.Helper()
	client := redis.NewClient(&redis.Options{Addr: r.emb.Config.Redis.Addresses[0]})
	r.t.Cleanup(func() { _ = client.Close() })
	keys, err := client.Keys(r.ctx(), r.emb.Config.Redis.Prefix+"tm:{"+conv+"}*").Result()
	if err != nil || len(keys) == 0 {
		r.t.Fatalf("keys of %s: %v, %v", conv, keys, err)
	}
	dumps := map[string]string{}
	for _, k := range keys {
		if dumps[k], err = client.Dump(r.ctx(), k).Result(); err != nil {
			r.t.Fatal(err)
		}
	}
	return func() {
		r.t.Helper()
		for k, d := range dumps {
			if err := client.RestoreReplace(r.ctx(), k, time.Hour, d).Err(); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// TestReal_PushGoesThroughEveryRedis delivers from a push worker in one process
// to a device at a gateway in another, over each kind of Redis, in order.
func TestReal_PushGoesThroughEveryRedis(t *testing.T) {
	own := ownServices(t, "--sentinel")
	for name, change := range map[string]func(*config.Config){
		"single": func(*config.Config) {},
		"cluster": func(c *config.Config) {
			c.Redis.Addresses = strings.Split(setting(t, "TIDEMARK_TEST_REDIS_CLUSTER"), ",")
		},
		"sentinel": func(c *config.Config) {
			c.Redis.Addresses, c.Redis.Master = own.addresses("TIDEMARK_TEST_REDIS_SENTINEL"), "tidemark"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *config.Config) { change(c); c.Gateway.Redis = true })
			r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
			r.open(stack.Gateway, stack.Gateway)
			r.open(stack.ToPush, stack.ToPush)
			a := r.connect("A", r.roles[stack.Gateway].stack.GatewayURL())
			const n = 60
			lines, _ := numbered("single:A:B", "B", "m", n)
			r.produce("single:A:B", lines...)
			var want []string
			for i := 1; i <= n; i++ {
				want = append(want, fmt.Sprint(i, " m", i))
			}
			r.awaitPushed(a, want...) // in order
		})
	}
}

// TestReal_L2_RedisKilled kills Redis under a burst.
func TestReal_L2_RedisKilled(t *testing.T) {
	own := ownServices(t, "--redis")
	r := startAll(t, func(c *config.Config) { c.Redis.Addresses = own.addresses("TIDEMARK_TEST_REDIS") })
	const c = "single:A:B"
	lines, ids := numbered(c, "B", "m", 25)
	r.produce(c, lines[:10]...)
	r.settle()
	for n := 10; n < 25; n += 5 {
		own.signal("redis", syscall.SIGKILL)
		r.produce(c, lines[n:n+5]...)
		<-time.After(3 * time.Second) // the length of the outage is the case
		own.start()
		r.settle()
	}
	wantSeqs(t, r.pullAll("A", c, 1, 100), 1, 25)
	wantIDs(t, auditConversations(r, c)[c], ids...)
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters: %v", letters)
	}
}

// TestReal_L6_BrokerAway keeps Kafka away at the start and under load.
func TestReal_L6_BrokerAway(t *testing.T) {
	own := ownServices(t, "--kafka")
	r := newRig(t, func(c *config.Config) { c.Kafka.Brokers = own.addresses("TIDEMARK_TEST_KAFKA") })
	own.signal("kafka-1/1", syscall.SIGKILL)
	back := make(chan struct{})
	go func() {
		defer close(back)
		<-time.After(15 * time.Second)
		own.start()
	}()
	r.start(stack.Roles()...)
	<-back

	convs := []string{"group:l6-1", "group:l6-2", "group:l6-3"}
	const each = 300
	var load sync.WaitGroup
	for _, c := range convs {
		lines, _ := numbered(c, "A", "m", each)
		r.produce(c, lines[:5]...)
		r.settle()
		load.Go(func() {
			for _, l := range lines[5:] {
				out := wire.Out{Topic: r.topic(wire.TopicToRedis), Partition: -1, Key: c, Value: []byte(l)}
				if err := r.producer.Append(r.t.Context(), []wire.Out{out}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	r.eventually("messages arrive", func() error {
		if w := r.marksIfAny("A", convs[0]); w.GetMaxSeq() < 20 {
			return fmt.Errorf("max = %d", w.GetMaxSeq())
		}
		return nil
	})
	own.signal("kafka-1/1", syscall.SIGKILL)
	for _, role := range []stack.Role{stack.ToRedis, stack.ToMongo, stack.ToPush} {
		r.eventually("readiness of "+string(role)+" is red", func() error {
			if report, ready := r.roles[role].stack.Health().Report(); ready {
				return fmt.Errorf("it is green: %v", report)
			}
			return nil
		})
	}
	<-time.After(10 * time.Second) // the length of the outage is the case
	own.start()
	load.Wait()
	r.settle()
	for _, role := range []stack.Role{stack.ToRedis, stack.ToMongo, stack.ToPush} {
		r.eventually("readiness of "+string(role)+" is green", func() error {
			if report, ready := r.roles[role].stack.Health().Report(); !ready {
				return fmt.Errorf("it is red: %v", report)
			}
			return nil
		})
	}
	for _, c := range convs {
		_, ids := numbered(c, "A", "m", each)
		wantSeqs(t, r.pullAll("A", c, 1, each), 1, each)
		wantIDs(t, auditConversations(r, c)[c], ids...)
	}
}

// TestReal_SentinelFailover lets Sentinel promote a replica that lags behind.
func TestReal_SentinelFailover(t *testing.T) {
	own := ownServices(t, "--sentinel")
	r := startAll(t, func(c *config.Config) {
		c.Redis.Addresses, c.Redis.Master = own.addresses("TIDEMARK_TEST_REDIS_SENTINEL"), "tidemark"
	})
	convs := []string{"group:f1", "group:f2", "group:f3", "single:A:B"}
	const each = 120
	lines, ids := map[string][]string{}, map[string][]string{}
	for _, c := range convs {
		lines[c], ids[c] = numbered(c, "A", "m", each)
		r.produce(c, lines[c][:40]...)
	}
	r.settle()
	// The replica stands still while more is sequenced, and becomes master
	// without it.
	own.signal("sentinel/replica", syscall.SIGSTOP)
	for _, c := range convs {
		r.produce(c, lines[c][40:80]...)
	}
	r.settle()
	own.signal("sentinel/master", syscall.SIGKILL)
	for _, c := range convs {
		r.produce(c, lines[c][80:]...)
	}
	own.signal("sentinel/replica", syscall.SIGCONT)
	r.settle()
	for _, c := range convs {
		wantSeqs(t, r.pullAll("A", c, 1, each), 1, each)
	}
	for c, got := range auditConversations(r, convs...) {
		wantIDs(t, got, ids[c]...)
	}
	if seq := r.send(convs[0], "A", "m60"); seq != 60 {
		t.Errorf("a resend of m60 has seq %d", seq)
	}
}

// TestReal_O2_WhatIsWrongIsSaid: each wrong setting is one clear line.
func TestReal_O2_WhatIsWrongIsSaid(t *testing.T) {
	redisAt := setting(t, "TIDEMARK_TEST_REDIS")
	for _, tt := range []struct {
		name   string
		change func(*config.Config)
		says   []string
	}{
		{"topics are missing", func(c *config.Config) { c.Kafka.TopicPrefix = "nowhere." }, []string{"nowhere.toRedis is missing"}},
		{"kafka wants credentials", func(c *config.Config) {
			c.Kafka.Brokers = []string{setting(t, "TIDEMARK_TEST_KAFKA_SECURE")}
			c.Kafka.TLS = config.TLS{Enabled: true, CA: setting(t, "TIDEMARK_TEST_KAFKA_SECURE_CA")}
			c.Kafka.SASL = config.SASL{Mechanism: "SCRAM-SHA-512", User: "tidemark", Password: "hunter2"}
		}, []string{"kafka", "uthentication"}},
		{"redis has no such user", func(c *config.Config) { c.Redis.Username, c.Redis.Password = "nobody", "hunter2" }, []string{"redis", redisAt}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			cfg := r.emb.Config
			cfg.Kafka.CreateTopics = false
			tt.change(&cfg)
			began := time.Now()
			s, err := stack.Open(r.ctx(), stack.Config{Config: cfg, Roles: []stack.Role{stack.ToRedis}, Logger: testLogger(t)})
			if err == nil {
				t.Fatal(errors.Join(errors.New("it opened"), s.Close()))
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			t.Log(err)
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it does not say %q: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Error("it shows the password")
			}
		})
	}
}
