package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2/server"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// infoMemory answers INFO in the place of an embedded server.
func infoMemory(used, limit, policy string) server.Hook {
	return func(c *server.Peer, cmd string, _ ...string) bool {
		if !strings.EqualFold(cmd, "info") {
			return false
		}
		c.WriteBulk("# Memory\r\nused_memory:" + used + "\r\nmaxmemory:" + limit + "\r\nmaxmemory_policy:" + policy + "\r\n")
		return true
	}
}

// TestConfigCheckTriesEverything: each fault by its name, without secrets, and
// nothing is changed.
func TestConfigCheckTriesEverything(t *testing.T) {
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := emb.Cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	file := filepath.Join(dir, "history.db")
	good := []string{
		"config", "check", "--timeout", "20s",
		"--set", "kafka.brokers=" + emb.Config.Kafka.Brokers[0], "--set", "redis.addresses=" + emb.Cluster.RedisAddr(),
		"--set", "history.path=" + file, "--set", "kafka.partitions=2",
	}
	with := func(sets ...string) result {
		args := good[:len(good):len(good)]
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		return tidemark(t, "", args...)
	}
	// Nobody has made the topics.
	if r := with(); r.code != exitFailed || !strings.Contains(r.errOut, "tidemark: kafka: topic toRedis is missing") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	r := with("kafka.create_topics=true")
	if r.code != exitOK || r.errOut != "" {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	wantSays(t, r.out, "are made at the first start", "is made at the first start", "evicts nothing", "callers are not authenticated")
	if _, err := os.Stat(file); err == nil {
		t.Error("it made the file of history")
	}
	if got := tidemark(t, "", "topics", "check", "--set", "kafka.brokers="+emb.Config.Kafka.Brokers[0]); got.code == exitOK {
		t.Error("it made the topics")
	}
	if r := tidemark(t, "", "topics", "create", "--set", "kafka.brokers="+emb.Config.Kafka.Brokers[0], "--set", "kafka.partitions=2"); r.code != exitOK {
		t.Fatal(r.errOut)
	}
	wantSays(t, with().out, "2 partitions, 1 replicas")

	// What a server says of its memory; the embedded one says nothing.
	emb.Cluster.Redis().Server().SetPreHook(infoMemory("900", "1000", "noeviction"))
	wantSays(t, with().out, "evicts nothing; ", "0.0 MiB of its maxmemory of 0.0 MiB are used")
	emb.Cluster.Redis().Server().SetPreHook(infoMemory("1048576", "4194304", "noeviction"))
	wantSays(t, with().out, "uses 1.0 MiB of 4.0 MiB")
	emb.Cluster.Redis().Server().SetPreHook(infoMemory("900", "0", "noeviction"))
	wantSays(t, with().out, "it has no maxmemory")
	emb.Cluster.Redis().Server().SetPreHook(infoMemory("900", "0", "volatile-lru"))
	if r := with(); r.code != exitFailed || !strings.Contains(r.errOut, "CONFIG SET maxmemory-policy noeviction") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	emb.Cluster.Redis().Server().SetPreHook(nil)

	// Everything is wrong, and each says so.
	emb.Cluster.Redis().RequireUserAuth("alice", "topsecret")
	r = with("redis.username=alice", "redis.password=hunter2", "history.path="+filepath.Join(dir, "nowhere", "history.db"),
		"kafka.topic_prefix=other-", "auth.jwks_file=/nowhere/keys.json", "sync.tls.cert=/nowhere/tls.crt", "sync.tls.key=/nowhere/tls.key")
	if r.code != exitFailed {
		t.Errorf("exit code %d", r.code)
	}
	wantSays(t, r.errOut, "tidemark: kafka: topic other-toRedis is missing", "tidemark: redis: ", "WRONGPASS", "tidemark: history: ",
		"tidemark: auth: ", "/nowhere/keys.json", "tidemark: certificates: sync.tls: ")
	if strings.Contains(r.out+r.errOut, "hunter2") {
		t.Errorf("it shows a secret:\n%s%s", r.out, r.errOut)
	}
	lines := objects[checkLine](t, tidemark(t, "", append(good, "-o", "json")...).out)
	if len(lines) != 5 || !lines[0].OK || lines[1].OK || lines[1].Name != "redis" || lines[1].Error == "" {
		t.Errorf("got %+v", lines)
	}
}
