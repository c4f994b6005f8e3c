//go:build real

package stack_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/storage/history"
)

// setting gives an environment variable. A service that is not there is a
// failure: a test that passes itself over proves nothing.
func setting(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf(`%s is not set; eval "$(deploy/local/up --kafka --redis --redis-cluster --mongo)"`, name)
	}
	return v
}

// onServices moves a rig to the Kafka, the Redis and the MongoDB that the
// environment names, with topics, groups, keys and a database of its own. Tests that reach into the embedded
// servers are not for it.
func onServices(t testing.TB, c *config.Config) {
	t.Helper()
	c.Kafka.Brokers = strings.Split(setting(t, "TIDEMARK_TEST_KAFKA"), ",")
	c.Kafka.TopicPrefix = "t" + strings.ToLower(rand.Text()) + "."
	c.Redis.Addresses = strings.Split(setting(t, "TIDEMARK_TEST_REDIS"), ",")
	c.Redis.Prefix = c.Kafka.TopicPrefix
	c.Redis.Incarnation = ""
	c.History.Backend, c.History.Path, c.History.URI = "mongodb", "", setting(t, "TIDEMARK_TEST_MONGO")
	c.History.Database = "tidemark_" + strings.Trim(c.Kafka.TopicPrefix, ".")
	cfg := *c
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(deleteTopics(ctx, cfg), deleteKeys(ctx, cfg, ""), dropDatabase(ctx, cfg)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}

// deleteTopics deletes the topics of a rig, as far as they were made.
func deleteTopics(ctx context.Context, c config.Config) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Kafka.Brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = int32(patience.Milliseconds())
	for _, name := range []string{wire.TopicToRedis, wire.TopicSequenced, wire.TopicDeadLetter} {
		t := kmsg.NewDeleteTopicsRequestTopic()
		t.Topic = new(c.Kafka.TopicPrefix + name)
		req.Topics, req.TopicNames = append(req.Topics, t), append(req.TopicNames, *t.Topic)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return err
		}
	}
	return nil
}

// deleteKeys deletes the keys of a rig that contain a text, at one moment, as
// FLUSHALL and expiry do: Redis never loses the half of a conversation.
func deleteKeys(ctx context.Context, c config.Config, text string) error {
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: c.Redis.Addresses, MasterName: c.Redis.Master})
	defer client.Close()
	one := func(ctx context.Context, node *redis.Client) error {
		return node.Eval(ctx, `
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  if string.find(key, ARGV[2], 1, true) then redis.call('DEL', key) end
end
return 0`, nil, c.Redis.Prefix, text).Err()
	}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, one)
	}
	return one(ctx, client.(*redis.Client))
}

func dropDatabase(ctx context.Context, c config.Config) error {
	client, err := mongo.Connect(options.Client().ApplyURI(c.History.URI))
	if err != nil {
		return err
	}
	return errors.Join(client.Database(c.History.Database).Drop(ctx), client.Disconnect(ctx))
}

// history opens the history beside its writer.
func (r *rig) history() *history.Store {
	r.t.Helper()
	c := r.emb.Config.History
	h, err := history.New(history.Config{URI: c.URI, Database: c.Database, Timeout: c.Timeout})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := h.Close(context.WithoutCancel(r.t.Context())); err != nil {
			r.t.Error(err)
		}
	})
	return h
}

// historyLock gives what makes every write to history fail. toMongo, and only
// toMongo, reaches history through a relay, whose connections it cuts.
func (r *rig) historyLock() (lock func() (unlock func())) {
	r.t.Helper()
	uri, err := url.Parse(r.emb.Config.History.URI)
	if err != nil {
		r.t.Fatal(err)
	}
	between := startRelay(r.t, uri.Host)
	uri.Host = between.addr()
	r.onOpen = func(role stack.Role, c *config.Config) {
		if role == stack.ToMongo {
			c.History.URI, c.History.Timeout = uri.String(), time.Second
		}
	}
	return func() func() {
		between.cut(true)
		return func() { between.cut(false) }
	}
}

// relay passes connections on to a server until it is cut.
type relay struct {
	listener net.Listener
	to       string
	done     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

func startRelay(t testing.TB, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, to: to, conns: map[net.Conn]struct{}{}}
	r.done.Go(r.accept)
	t.Cleanup(func() {
		l.Close()
		r.cut(true)
		r.done.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", r.to)
		if err != nil {
			from.Close()
			continue
		}
		if !r.add(from, to) {
			continue
		}
		for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
			r.done.Go(func() {
				_, _ = io.Copy(way[0], way[1]) // it ends when either side is closed
				from.Close()
				to.Close()
			})
		}
	}
}

// add keeps connections to cut, or closes them while the relay is cut.
func (r *relay) add(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		if r.closed {
			c.Close()
		} else {
			r.conns[c] = struct{}{}
		}
	}
	return !r.closed
}

// cut closes all connections, and every new one until it is called with false.
func (r *relay) cut(closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = closed
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
}

// forget deletes every Redis key of a conversation.
func (r *rig) forget(conv string) {
	r.t.Helper()
	if err := deleteKeys(r.ctx(), r.emb.Config, "{"+conv+"}"); err != nil {
		r.t.Fatal(err)
	}
}

// flush deletes every key of the rig: others work beside it on the same server.
func (r *rig) flush() {
	r.t.Helper()
	if err := deleteKeys(r.ctx(), r.emb.Config, ""); err != nil {
		r.t.Fatal(err)
	}
}

// gatewayClients is how many devices see a gateway die.
const gatewayClients = 1000
