package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// A service that cannot be reached is waited for, and the operator's port says
// so before anything runs.
func TestReadinessSaysWhatIsWaitedFor(t *testing.T) {
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := emb.Cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	for what, sets := range map[string][]string{
		"kafka":   {"kafka.brokers=127.0.0.1:1"},
		"redis":   {"redis.addresses=127.0.0.1:1"},
		"history": {"history.backend=mongodb", "history.uri=mongodb://bob:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=300"},
	} {
		t.Run(what, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			admin := ln.Addr().String()
			ln.Close()
			args := []string{
				"run", "sync", "--set", "kafka.brokers=" + emb.Config.Kafka.Brokers[0], "--set", "kafka.create_topics=true",
				"--set", "sync.listen=127.0.0.1:0", "--set", "history.path=", "--set", "redis.addresses=" + emb.Cluster.RedisAddr(),
				"--set", "admin.listen=" + admin,
			}
			for _, s := range sets {
				args = append(args, "--set", s)
			}
			run := start(t, args...)
			run.awaitIn(run.errOut, what+" is not reachable, trying again")
			defer http.DefaultClient.CloseIdleConnections()
			res, err := http.Get("http://" + admin + "/readyz")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "waiting for "+what) {
				t.Errorf("%s: %s", res.Status, text)
			}
			run.stop()
			if said := run.errOut.String(); !strings.Contains(said, "127.0.0.1:1") || strings.Contains(said, "hunter2") {
				t.Errorf("it does not say where, or shows a secret:\n%s", said)
			}
		})
	}
}

// What does not heal by waiting ends the process, in one line without secrets.
func TestStartSaysWhatIsWrong(t *testing.T) {
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := emb.Cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	guarded := emb.Cluster.Redis()
	guarded.RequireUserAuth("alice", "topsecret")
	base := []string{
		"run", "sync", "--set", "kafka.brokers=" + emb.Config.Kafka.Brokers[0], "--set", "kafka.create_topics=true", "--set", "admin.listen=",
		"--set", "sync.listen=127.0.0.1:0", "--set", "history.path=", "--set", "redis.addresses=" + guarded.Addr(),
		"--set", "redis.username=alice", "--set", "redis.password=topsecret",
	}
	for name, tt := range map[string]struct {
		sets []string
		says []string
	}{
		"topics are missing":      {[]string{"kafka.create_topics=false", "kafka.topic_prefix=nowhere."}, []string{"topic nowhere.toRedis is missing: create it"}},
		"kafka is not encrypted":  {[]string{"kafka.tls.enabled=true"}, []string{"kafka at 127.0.0.1:", "kafka.tls.enabled off"}},
		"redis, wrong password":   {[]string{"redis.password=hunter2"}, []string{"redis at [127.0.0.1:", "WRONGPASS"}},
		"redis, no password":      {[]string{"redis.username=", "redis.password="}, []string{"redis at [127.0.0.1:", "NOAUTH"}},
		"history has no folder":   {[]string{"history.path=/nowhere/at/all/history.db"}, []string{"history: ", "/nowhere/at/all"}},
		"a certificate is absent": {[]string{"redis.tls.enabled=true", "redis.tls.ca=/nowhere/ca.pem"}, []string{"redis.tls: read ca: open /nowhere/ca.pem"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := base
			for _, s := range tt.sets {
				args = append(args[:len(args):len(args)], "--set", s)
			}
			r := start(t, args...).wait()
			if r.code != exitFailed {
				t.Errorf("exit code %d", r.code)
			}
			wantSays(t, r.errOut, append(tt.says, "tidemark: cannot start sync: ")...)
			for _, secret := range []string{"topsecret", "hunter2"} {
				if strings.Contains(r.errOut, secret) {
					t.Errorf("it shows a secret:\n%s", r.errOut)
				}
			}
		})
	}
}
