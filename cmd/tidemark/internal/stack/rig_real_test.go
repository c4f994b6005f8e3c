//go:build real

package stack_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// setting gives an environment variable. A service that is not there is a
// failure: a test that passes itself over proves nothing.
func setting(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf(`%s is not set; eval "$(deploy/local/up --kafka --redis --redis-cluster)"`, name)
	}
	return v
}

// onServices moves a rig to the Kafka and the Redis that the environment names,
// with topics, groups and keys of its own. Tests that reach into the embedded
// servers are not for it.
func onServices(t testing.TB, c *config.Config) {
	t.Helper()
	c.Kafka.Brokers = strings.Split(setting(t, "TIDEMARK_TEST_KAFKA"), ",")
	c.Kafka.TopicPrefix = "t" + strings.ToLower(rand.Text()) + "."
	c.Redis.Addresses = strings.Split(setting(t, "TIDEMARK_TEST_REDIS"), ",")
	c.Redis.Prefix = c.Kafka.TopicPrefix
	c.Redis.Incarnation = ""
	cfg := *c
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(deleteTopics(ctx, cfg), deleteKeys(ctx, cfg, "")); err != nil {
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
