package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

func contextOf(t testing.TB) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx, cancel
}

func TestDevSaysWhereEverythingIs(t *testing.T) {
	d := start(t, "dev", "--kafka-port", "0", "--sync", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--set", "kafka.topic_prefix=p-")
	d.await("Nothing is kept")
	wantSays(t, d.out.String(), "Tidemark is ready", "| kcat -P -b 127.0.0.1:", "-t p-toRedis -X topic.partitioner=murmur2_random -k group:g1",
		"curl -s http://127.0.0.1:", "grpcurl -plaintext", "tidemark watch --user alice --server http://127.0.0.1:", "--gateway ws://127.0.0.1:", "/readyz")
	if strings.Contains(d.out.String(), ":0") {
		t.Errorf("ports that are none:\n%s", d.out)
	}
	console := regexp.MustCompile(`(?m)^console +(http://127\.0\.0\.1:\d+/console/)$`).FindStringSubmatch(d.out.String())
	if console == nil {
		t.Fatalf("no console:\n%s", d.out)
	}
	res, err := http.Get(console[1])
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(page), "<title>Tidemark console</title>") {
		t.Errorf("the console: %s, %v\n%.200s", res.Status, err, page)
	}
	tryLines(t, d.out.String())
	if r := d.stop(); r.code != exitOK || r.errOut != "" {
		t.Errorf("stopped with exit code %d: %s", r.code, r.errOut)
	}
}

// tryLines runs the lines that dev prints, in their order. kcat and curl are
// done by hand.
func tryLines(t *testing.T, printed string) {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	var watch *background
	var did []string
	for _, m := range regexp.MustCompile(`(?m)^  \$ (.*)$`).FindAllStringSubmatch(printed, -1) {
		line := m[1]
		args := strings.Fields(line)
		did = append(did, args[0])
		switch args[0] {
		case "tidemark":
			if args[1] == "watch" {
				watch = start(t, args[1:]...)
				continue
			}
			if r := tidemark(t, "", args[1:]...); r.code != exitOK {
				t.Errorf("%s: exit code %d: %s", line, r.code, r.errOut)
			}
		case "echo":
			broker, value := args[slices.Index(args, "-b")+1], strings.Split(line, "'")[1]
			if r := tidemark(t, value+"\n", "send", "--input", "-", "--kafka", broker, "--set", "kafka.topic_prefix=p-"); r.code != exitOK {
				t.Errorf("%s: exit code %d: %s", line, r.code, r.errOut)
			}
			watch.await("alice: hello")
		case "curl":
			var res *http.Response
			var err error
			if quoted := strings.Split(line, "'"); len(quoted) > 3 {
				res, err = http.Post(args[2], strings.TrimPrefix(quoted[1], "content-type: "), strings.NewReader(quoted[3]))
			} else {
				res, err = http.Get(args[2])
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
				t.Errorf("%s: %s, %v", line, res.Status, err)
			}
			if strings.Contains(line, "Pull") {
				wantSays(t, string(body), "hello")
			}
		}
	}
	if want := []string{"tidemark", "tidemark", "echo", "curl", "grpcurl", "curl"}; !slices.Equal(did, want) {
		t.Errorf("the lines are of %q, want %q", did, want)
	}
	watch.stop()
}

func TestDevServesHealthAndMetrics(t *testing.T) {
	d := startDev(t)
	for path, want := range map[string]string{"/readyz": `"ready":true`, "/healthz": "ok", "/metrics": "tidemark_"} {
		res, err := http.Get(d.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s\n%.300s", path, res.Status, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestDevKeepsItsData(t *testing.T) {
	dir := t.TempDir() + "/new/data"
	d := startDev(t, "--data", dir)
	d.ok("join", "--conversation", "group:k", "--user", "alice")
	for _, text := range []string{"a", "b"} {
		d.ok("send", "--conversation", "group:k", "--from", "alice", "--text", text, "--wait")
	}
	if r := tidemark(t, "", "dev", "--data", dir, "--kafka-port", "0"); r.code != exitFailed || !strings.Contains(r.errOut, "another tidemark dev is using this directory") {
		t.Errorf("a second one: exit code %d: %s", r.code, r.errOut)
	}
	if r := d.stop(); r.code != exitOK {
		t.Fatalf("exit code %d: %s", r.code, r.errOut)
	}
	d = startDev(t, "--data", dir)
	if got, want := d.pullAll("alice", "group:k"), []string{"1 a", "2 b"}; !slices.Equal(got, want) {
		t.Errorf("after a restart: %q, want %q", got, want)
	}
	wantSays(t, d.ok("send", "--conversation", "group:k", "--from", "alice", "--text", "c", "--wait"), "seq 3")
}

func TestDevNamesTakenPorts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken := ln.Addr().String()
	_, port, _ := net.SplitHostPort(taken)
	r := tidemark(t, "", "dev", "--kafka-port", port, "--sync", taken, "--gateway", taken, "--admin", taken)
	if r.code != exitFailed || r.out != "" {
		t.Errorf("exit code %d, printed %q", r.code, r.out)
	}
	for _, flag := range []string{"--kafka-port", "--sync", "--gateway", "--admin"} {
		wantSays(t, r.errOut, "cannot listen on "+taken+", choose another with "+flag)
	}
	if r := tidemark(t, "", "dev", "--sync", "0.0.0.0:1"); r.code != exitUsage || !strings.Contains(r.errOut, "not a loopback address") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
}

func TestRun(t *testing.T) {
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := emb.Cluster.Close(); err != nil {
			t.Error(err)
		}
	}()
	servers := []string{
		"--set", "kafka.brokers=" + emb.Config.Kafka.Brokers[0], "--set", "kafka.create_topics=true", "--set", "history.path=",
		"--set", "sync.listen=127.0.0.1:0", "--set", "gateway.listen=127.0.0.1:0", "--set", "gateway.redis=false",
		"--set", "redis.addresses=" + emb.Config.Redis.Addresses[0],
	}
	run := func(args ...string) *background { return start(t, slices.Concat([]string{"run"}, servers, args)...) }

	r := run("sync", "topush", "gateway", "-o", "json", "--set", "admin.listen=127.0.0.1:0")
	r.await(`"admin"`)
	addrs := objects[address](t, r.out.String())
	if len(addrs) != 3 || addrs[0].Name != "sync" || addrs[1].Name != "gateway" {
		t.Fatalf("addresses %+v", addrs)
	}
	r.awaitIn(r.errOut, "all roles are ready")
	wantReady(t, addrs[2].URL)
	taken := strings.TrimPrefix(addrs[2].URL, "http://")
	if res := run("sync", "--set", "admin.listen="+taken).wait(); res.code != exitFailed || !strings.Contains(res.errOut, "cannot start sync: admin.listen: ") {
		t.Errorf("a taken port: exit code %d: %s", res.code, res.errOut)
	}
	if res := r.stop(); res.code != exitOK {
		t.Errorf("stopped with exit code %d: %s", res.code, res.errOut)
	}
}

func wantReady(t testing.TB, admin string) {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	res, err := http.Get(admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("not ready: %s", res.Status)
	}
}

func TestSignals(t *testing.T) {
	// A broker that takes connections and never answers keeps the command busy.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, tt := range map[string]struct {
		args    []string
		signals []os.Signal
		until   string
		code    int
	}{
		"one signal stops": {[]string{"dev", "--kafka-port", "0", "--sync", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, []os.Signal{syscall.SIGTERM}, "Nothing is kept", exitOK},
		"a second ends":    {[]string{"run", "sync", "--set", "admin.listen=", "--set", "kafka.brokers=" + ln.Addr().String()}, []os.Signal{syscall.SIGTERM, os.Interrupt}, "", exitInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, _ := contextOf(t)
			cmd := exec.CommandContext(ctx, os.Args[0], tt.args...)
			cmd.Env = append(os.Environ(), asMain+"=1")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if tt.until == "" {
				conn, err := ln.Accept() // it is at work
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			} else {
				s := bufio.NewScanner(out)
				for s.Scan() && !strings.Contains(s.Text(), tt.until) {
				}
			}
			for _, sig := range tt.signals {
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
			}
			err = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("exit code %d (%v), want %d", got, err, tt.code)
			}
		})
	}
}
