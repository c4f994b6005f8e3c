package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestWhatEmbeddedServersDecideCannotBeSet(t *testing.T) {
	for _, args := range []string{
		"dev --set kafka.brokers=h:1 --set history.path=x --set gateway.redis=true --set redis.tls.enabled=true --set nonsense=1",
		"demo --set kafka.brokers=h:1 --set sync.listen=127.0.0.1:0 --set nonsense=1",
		"audit --data . --set redis.addresses=h:1 --set nonsense=1",
	} {
		r := tidemark(t, "", strings.Fields(args)...)
		if r.code != exitUsage || r.out != "" {
			t.Errorf("%s: exit code %d, printed %q", args, r.code, r.out)
		}
		command, _, _ := strings.Cut(args, " --set")
		if strings.HasPrefix(command, "audit") {
			command = "audit --data"
		}
		for _, s := range strings.Split(args, "--set ")[1:] {
			key, _, _ := strings.Cut(s, "=")
			if want := "--set " + key + ": " + command + " sets this itself"; key != "nonsense" {
				wantSays(t, r.errOut, want)
			}
		}
		wantSays(t, r.errOut, "unknown key nonsense on the command line")
	}
}

// A file that is there for a deployment serves the embedded commands too.
func TestDemoTakesTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	file, input := filepath.Join(dir, "tidemark.yaml"), filepath.Join(dir, "in.jsonl")
	yaml := "kafka:\n  brokers: [h:1]\n  replication: 3\n  sasl: {mechanism: PLAIN, user: u, password: p}\n  tls: {enabled: true}\n" +
		"redis:\n  password: p\n  prefix: 'r:'\nhistory: {backend: mongodb, uri: 'mongodb://h/'}\nlimits: {max_body: 5}\n"
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(input, []byte(`{"conversation":"group:g","sender":"ann","text":"12345"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := tidemark(t, "", "demo", "--config", file, "--input", input, "--set", "kafka.topic_prefix=x-")
	if r.code != exitOK || r.errOut != "" {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	r = tidemark(t, "", "demo", "--input", input, "--set", "limits.max_body=4")
	if r.code != exitFailed || r.out != "" || !strings.HasPrefix(r.errOut, "tidemark: demo: line 1: ") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
}

func TestAuditOfData(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{missing: "no such directory", dir: "has no tidemark dev data", file: "is no directory"} {
		if r := tidemark(t, "", "audit", "--data", path); r.code != exitUsage || r.out != "" || !strings.Contains(r.errOut, "--data "+path+": "+want) {
			t.Errorf("%s: exit code %d\n%s%s", path, r.code, r.out, r.errOut)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("something was made: %v, %v", entries, err)
	}

	data := filepath.Join(dir, "data")
	d := startDev(t, "--data", data, "--set", "kafka.topic_prefix=p-")
	d.ok("send", "--conversation", "group:g", "--from", "ann", "--text", "hi", "--wait")
	d.stop()
	r := tidemark(t, "", "audit", "--data", data, "--set", "kafka.topic_prefix=p-")
	if want := "1 conversation, 1 message, 1 member, 0 conversations warm in Redis\nclean\n"; r.code != exitOK || r.out != want {
		t.Errorf("exit code %d\n%s%s\nwant %s", r.code, r.out, r.errOut, want)
	}
	if r := tidemark(t, "", "audit", "--data", data); r.code != exitUnfinished || !strings.Contains(r.errOut, "topic toRedis is missing") {
		t.Errorf("another prefix: exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
}

func TestInterrupted(t *testing.T) {
	want := func(r result) {
		t.Helper()
		if r.code != exitInterrupted || !strings.HasSuffix(r.errOut, "tidemark: interrupted\n") {
			t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
		}
	}
	demo := start(t, "demo")
	demo.await("alice is away")
	r := demo.stop()
	if want(r); r.errOut != "tidemark: interrupted\n" {
		t.Errorf("it says\n%s", r.errOut)
	}

	run := start(t, "run", "sync", "--set", "kafka.brokers=127.0.0.1:1", "--set", "admin.listen=")
	run.awaitIn(run.errOut, "kafka is not reachable, trying again")
	wantSays(t, run.errOut.String(), "127.0.0.1:1")
	want(run.stop())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &app{in: strings.NewReader(""), out: &buffer{}, errOut: &buffer{}}
	code := a.execute(ctx, []string{"dev", "--kafka-port", "0", "--sync", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0"})
	want(result{code, "", a.errOut.(*buffer).String()})
}

func TestTopicsCheckEnds(t *testing.T) {
	// It takes connections and never answers.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, addr := range map[string]string{"refuses": "127.0.0.1:1", "keeps silent": ln.Addr().String()} {
		before := time.Now()
		r := tidemark(t, "", "topics", "check", "--timeout", "1s", "--set", "kafka.brokers="+addr)
		if r.code != exitFailed || !strings.Contains(r.errOut, "kafka at "+addr+" does not answer within 1s") {
			t.Errorf("%s: exit code %d\n%s%s", name, r.code, r.out, r.errOut)
		}
		if took := time.Since(before); took > 20*time.Second {
			t.Errorf("%s: it took %s", name, took)
		}
	}
}

func TestServerThatIsNone(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"not found": http.NotFound,
		"a page":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"refusing":  func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusMethodNotAllowed) },
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(h)
			defer s.Close()
			r := tidemark(t, "", "watermarks", "--user", "a", "--server", s.URL)
			if r.code != exitFailed || strings.Count(r.errOut, "\n") != 1 {
				t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
			}
			wantSays(t, r.errOut, s.URL+" does not answer as a sync API")
		})
	}
}

func TestDemoKeepsRunning(t *testing.T) {
	input := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(input, []byte(`{"conversation":"group:g","sender":"ann","text":"1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	d := start(t, "demo", "--keep", "--input", input)
	d.await("gateway  ws://127.0.0.1:")
	at := regexp.MustCompile(`console +(http://127\.0\.0\.1:\d+/console/)#conversation=group%3Ag&users=ann\n`).FindStringSubmatch(d.out.String())
	if at == nil {
		t.Fatalf("no console:\n%s", d.out)
	}
	res, err := http.Get(at[1] + "pipeline.json")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"name":"sync"`) {
		t.Errorf("the pipeline: %s, %v\n%.300s", res.Status, err, body)
	}
	if r := d.stop(); r.code != exitOK || r.errOut != "" {
		t.Errorf("stopped with exit code %d: %s", r.code, r.errOut)
	}
}
