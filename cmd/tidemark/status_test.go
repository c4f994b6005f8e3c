package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/telemetry"
)

func TestStatusOfARunningProcess(t *testing.T) {
	d := startDev(t)
	admin := d.admin
	wantSays(t, d.ok("status", "--admin", admin), "ready  sync toredis tomongo topush gateway lag, up ", "log level warn", "PART", "tomongo", "lag")
	got := objects[statusLine](t, d.ok("status", "--admin", admin, "-o", "json"))
	if len(got) != 1 || !got[0].Live || !got[0].Ready || len(got[0].Parts) < 5 || got[0].Version == "" {
		t.Errorf("got %+v", got)
	}

	// Two processes, one of which is not there.
	r := d.run("", "status", "--admin", admin, "--admin", "http://127.0.0.1:1")
	if r.code != exitFailed || !strings.Contains(r.errOut, "http://127.0.0.1:1 does not answer: ") || !strings.Contains(r.out, "PART") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.errOut)
	}
	if r := d.run("", "status", "--admin", "127.0.0.1:1"); r.code != exitUsage {
		t.Errorf("no URL: exit code %d", r.code)
	}

	wantSays(t, d.ok("log-level", "--admin", admin), admin+"  warn")
	wantSays(t, d.ok("log-level", "debug", "--admin", admin), admin+"  debug")
	wantSays(t, d.ok("status", "--admin", admin), "log level debug")
	if r := d.run("", "log-level", "loud", "--admin", admin); r.code != exitUsage || !strings.Contains(r.errOut, "debug, info, warn, error") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
}

// TestStatusOfAProcessThatWaits: it says what for, and fails.
func TestStatusOfAProcessThatWaits(t *testing.T) {
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := emb.Cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	admin := freeAddress(t)
	run := start(t, "run", "sync", "--set", "kafka.brokers="+emb.Config.Kafka.Brokers[0], "--set", "kafka.create_topics=true",
		"--set", "sync.listen=127.0.0.1:0", "--set", "history.path=", "--set", "redis.addresses=127.0.0.1:1",
		"--set", "admin.listen="+admin, "--set", "admin.debug=off")
	run.awaitIn(run.errOut, "redis is not reachable, trying again")
	r := start(t, "status", "--admin", "http://"+admin, "-o", "json").wait()
	var got statusLine
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	if r.code != exitFailed || got.Ready || !got.Live || len(got.Parts) != 1 || got.Parts[0] != (telemetry.Part{Name: "start", Why: "waiting for redis"}) {
		t.Errorf("exit code %d, %+v", r.code, got)
	}
	wantSays(t, start(t, "status", "--admin", "http://"+admin).wait().out, "NOT READY  sync", "waiting for redis")
	if r := start(t, "log-level", "debug", "--admin", "http://"+admin).wait(); r.code != exitFailed || !strings.Contains(r.errOut, "admin.debug") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	run.stop()
}
