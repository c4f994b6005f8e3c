package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

// TestSecretsAreNeverShown: every setting that is one holds a word that must
// not come out: not when it is printed, nor checked, nor logged at debug while
// connections fail or tokens are taken, nor on the operator's port.
func TestSecretsAreNeverShown(t *testing.T) {
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := emb.Cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	emb.Cluster.Redis().RequireUserAuth("alice", "another")
	sets := map[string]string{
		"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.user": "alice", "kafka.brokers": "127.0.0.1:1",
		"redis.username": "alice", "redis.addresses": emb.Cluster.RedisAddr(),
		"history.backend": "mongodb", "log.level": "debug", "sync.listen": "127.0.0.1:0", "gateway.listen": "127.0.0.1:0",
	}
	var words []string
	for _, k := range config.Keys() {
		if !k.Secret {
			continue
		}
		word := fmt.Sprintf("hunter2-%d-of-%s", len(words), strings.ReplaceAll(k.Name, ".", "-"))
		words = append(words, word)
		switch k.Name {
		case "history.uri":
			sets[k.Name] = "mongodb://bob:" + word + "@127.0.0.1:1/tidemark?serverSelectionTimeoutMS=200"
		case "history.password":
			words = words[:len(words)-1] // the URI has one; both are refused
		case "tracing.endpoint":
			sets[k.Name] = "http://bob:" + word + "@127.0.0.1:1"
		case "auth.secret":
			word = base64.RawURLEncoding.EncodeToString([]byte(word + strings.Repeat("x", 32)))
			words[len(words)-1], sets[k.Name] = word, word
		default:
			sets[k.Name] = word
		}
	}
	if len(words) < 4 {
		t.Fatalf("%d settings are secrets", len(words))
	}
	silent := func(what, text string) {
		t.Helper()
		for _, w := range words {
			if strings.Contains(text, w) {
				t.Errorf("%s shows %s:\n%s", what, w, text)
			}
		}
	}
	with := func(change map[string]string, args ...string) []string {
		for _, m := range []map[string]string{sets, change} {
			for k, v := range m {
				args = append(args, "--set", k+"="+v)
			}
		}
		return args
	}
	for _, args := range [][]string{{"config"}, {"config", "-o", "json"}, {"config", "check", "--timeout", "2s"}, {"topics", "describe"}, {"lag", "--timeout", "2s"}} {
		r := tidemark(t, "", with(nil, args...)...)
		silent(strings.Join(args, " "), r.out+r.errOut)
	}
	// Each service that fails, by itself.
	file := filepath.Join(t.TempDir(), "history.db")
	broker := map[string]string{"kafka.brokers": emb.Config.Kafka.Brokers[0], "kafka.sasl.mechanism": "", "kafka.sasl.user": "", "kafka.sasl.password": "", "kafka.create_topics": "true"}
	for what, change := range map[string]map[string]string{
		"kafka": nil,
		"redis": broker,
	} {
		admin := freeAddress(t)
		run := start(t, append(with(change, "run", "sync", "gateway", "toredis", "topush"), "--set", "admin.listen="+admin, "--set", "history.path="+file)...)
		if what == "kafka" {
			run.awaitIn(run.errOut, "trying again")
			for _, path := range []string{"/metrics", "/status", "/readyz", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
				body, err := askAdmin(context.Background(), http.MethodGet, "http://"+admin, path, "")
				if err != nil {
					body = []byte(err.Error())
				}
				silent(path, string(body))
			}
			run.stop()
		}
		r := run.wait()
		silent(what, r.out+r.errOut)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
