//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// cluster is a deployment: the services of deploy/local, a proxy before each,
// and the workers as processes of their own.
type cluster struct {
	dir, root string // own folder, and the repository's
	embedded  bool   // history is an SQLite file that the processes share
	hist      *history.Writer
	say       func(format string, args ...any)

	kafka, mongo    *process
	redis           [2]*redisServer // the one that is master, and its replica
	kafkaAt         string          // for producers outside, not through the proxy
	kafkaBehind     string
	toKafka         *proxy
	toRedis         *proxy
	toMongo         *proxy
	bin             string
	env             []string
	mu              sync.Mutex
	workers         map[string]*worker
	supervisors     sync.WaitGroup
	services, saved bool
}

// deployed are the workers that a run begins with.
var deployed = []string{"toredis-1", "toredis-2", "tomongo-1", "tomongo-2", "topush-1", "gateway-1", "sync-1", "sync-2"}

// up brings the services up.
func (c *cluster) up(ctx context.Context) (err error) {
	if c.toKafka, err = newProxy("kafka", "127.0.0.1:1"); err != nil {
		return err
	}
	args := []string{"--dir", c.dir, "--kafka-behind", c.toKafka.Listen, "--redis-replica"}
	if !c.embedded {
		args = append(args, "--mongo")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.root, "deploy/local/up"), args...)
	// A MongoDB of the developer's own must not be killed.
	cmd.Env, cmd.Stderr = without("TIDEMARK_"), os.Stderr
	c.services = true
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("deploy/local/up: %w", err)
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(out)) {
		k, v, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		vars[k] = strings.Trim(v, "'")
	}
	c.kafkaAt, c.kafkaBehind = vars["TIDEMARK_TEST_KAFKA"], vars["TIDEMARK_TEST_KAFKA_BEHIND"]
	if c.kafka, err = adopt("kafka", filepath.Join(c.dir, "kafka-1/1")); err != nil {
		return err
	}
	for i, name := range []string{"redis", "redis-replica"} {
		p, err := adopt(name, filepath.Join(c.dir, name))
		if err != nil {
			return err
		}
		c.redis[i] = &redisServer{process: p, addr: vars[[]string{"TIDEMARK_TEST_REDIS", "TIDEMARK_TEST_REDIS_REPLICA"}[i]]}
	}
	if c.toRedis, err = newProxy("redis", c.redis[0].addr); err != nil {
		return err
	}
	c.env = append(without("TIDEMARK_"),
		"TIDEMARK_KAFKA_BROKERS="+c.toKafka.Listen, "TIDEMARK_KAFKA_CREATE_TOPICS=true", "TIDEMARK_KAFKA_PARTITIONS=4",
		"TIDEMARK_REDIS_ADDRESSES="+c.toRedis.Listen)
	if c.embedded {
		c.env = append(c.env, "TIDEMARK_HISTORY_PATH="+filepath.Join(c.dir, "history.db"))
	} else if err := c.upMongo(vars["TIDEMARK_TEST_MONGO"]); err != nil {
		return err
	}
	return c.toKafka.to(c.kafkaBehind)
}

func (c *cluster) upMongo(uri string) (err error) {
	if c.mongo, err = adopt("history", filepath.Join(c.dir, "mongo")); err != nil {
		return err
	}
	addr, options, _ := strings.Cut(strings.TrimPrefix(uri, "mongodb://"), "/")
	if c.toMongo, err = newProxy("history", addr); err != nil {
		return err
	}
	c.env = append(c.env, "TIDEMARK_HISTORY_BACKEND=mongodb", "TIDEMARK_HISTORY_URI=mongodb://"+c.toMongo.Listen+"/"+options)
	return nil
}

// without gives our environment without the variables of a prefix.
func without(prefix string) []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, prefix) })
}

// build compiles tidemark, with an overlay when one is given.
func (c *cluster) build(ctx context.Context, overlay string) error {
	c.bin = filepath.Join(c.dir, "bin", "tidemark")
	args := []string{"build", "-o", c.bin}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/tidemark")...)
	cmd.Dir = c.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// worker is a process of tidemark that is started again when it ends.
type worker struct {
	*process
	role, admin string
	listen      string // of sync and gateway

	mu       sync.Mutex
	wanted   bool
	expected bool          // its end is our doing
	away     time.Duration // how long it stays away after an end
}

// deploy starts a worker and sees to it that it runs.
func (c *cluster) deploy(name string) error {
	role, _, _ := strings.Cut(name, "-")
	dir := filepath.Join(c.dir, name)
	config := filepath.Join(dir, "tidemark.yaml")
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(config, nil, 0o600)); err != nil {
		return err
	}
	w := &worker{process: &process{name: name, dir: dir}, role: role, wanted: true}
	var err [2]error
	w.admin, err[0] = freeAddr()
	w.listen, err[1] = freeAddr()
	if err := errors.Join(err[:]...); err != nil {
		return err
	}
	w.argv = []string{c.bin, "run", role, "--config", config}
	w.env = append(slices.Clip(c.env), "TIDEMARK_ADMIN_LISTEN="+w.admin, "TIDEMARK_SYNC_LISTEN="+w.listen, "TIDEMARK_GATEWAY_LISTEN="+w.listen)
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.workers[name]; old != nil {
		return fmt.Errorf("%s is deployed already", name)
	}
	if err := w.start(); err != nil {
		return err
	}
	c.workers[name] = w
	c.supervisors.Go(func() { c.supervise(w) })
	return nil
}

// supervise starts w again, as whoever runs it in production would.
func (c *cluster) supervise(w *worker) {
	for {
		<-w.done
		w.mu.Lock()
		wanted, expected, away := w.wanted, w.expected, w.away
		w.expected, w.away = false, 300*time.Millisecond
		w.mu.Unlock()
		if !wanted {
			return
		}
		if !expected {
			c.hist.Add(history.Op{Kind: history.Exit, T0: c.hist.Now(), Text: w.name, Err: w.exit() + ": " + c.lastLine(w)})
		}
		_ = pause(context.Background(), away) // it ends early with its context only
		w.mu.Lock()
		wanted = w.wanted
		var err error
		if wanted {
			err = w.start()
		}
		w.mu.Unlock()
		if !wanted {
			return
		}
		if err != nil {
			c.say("%v", err)
			return
		}
	}
}

// kill ends a worker the hard way; it is started again after away.
func (w *worker) kill(away time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expected, w.away = true, away
	return w.signal(syscall.SIGKILL)
}

// retire ends a worker for good, by request.
func (c *cluster) retire(name string) error {
	c.mu.Lock()
	w := c.workers[name]
	delete(c.workers, name)
	c.mu.Unlock()
	if w == nil {
		return fmt.Errorf("%s: %w", name, errAbsent)
	}
	w.mu.Lock()
	w.wanted, w.expected = false, true
	w.mu.Unlock()
	return w.end(syscall.SIGTERM, 45*time.Second)
}

// ofRole gives the workers of a role, or the one of that name.
func (c *cluster) ofRole(name string) []*worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*worker
	for _, w := range c.workers {
		if w.name == name || w.role == name {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b *worker) int { return strings.Compare(a.name, b.name) })
	return out
}

// ready waits until all workers say that they are.
func (c *cluster) ready(ctx context.Context, within time.Duration) error {
	c.mu.Lock()
	var all []*worker
	for _, w := range c.workers {
		all = append(all, w)
	}
	c.mu.Unlock()
	for _, w := range all {
		if err := until(ctx, within, func() bool { return answers(ctx, "http://"+w.admin+"/readyz") }); err != nil {
			return fmt.Errorf("%s is not ready within %v: %s", w.name, within, c.lastLine(w))
		}
	}
	return nil
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// lastLine gives the last line that a worker logged.
func (c *cluster) lastLine(w *worker) string {
	log, err := os.ReadFile(filepath.Join(w.dir, "log"))
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return string(lines[len(lines)-1])
}

// tool runs a command of tidemark.
func (c *cluster) tool(ctx context.Context, args ...string) ([]byte, error) {
	config := filepath.Join(c.dir, "tool.yaml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, c.bin, append(args, "--config", config)...)
	cmd.Env = c.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("tidemark %s: %w: %s%s", strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()), lastOf(out))
	}
	return out, nil
}

// lastOf gives the end of what a command printed.
func lastOf(out []byte) string {
	if len(out) > 600 {
		out = out[len(out)-600:]
	}
	return "\n" + string(bytes.TrimSpace(out))
}

// down ends all that was started, and waits for it.
func (c *cluster) down(purge bool) error {
	c.mu.Lock()
	var names []string
	for name := range c.workers {
		names = append(names, name)
	}
	c.mu.Unlock()
	errs := make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { errs[i] = c.retire(name) })
	}
	group.Wait()
	c.supervisors.Wait()
	for _, p := range []*proxy{c.toKafka, c.toRedis, c.toMongo} {
		if p != nil {
			p.Stop()
		}
	}
	if !c.services {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, c.downServices(purge))...)
}

func (c *cluster) downServices(purge bool) error {
	var errs []error
	for _, p := range []*process{c.kafka, c.mongo, c.redis[0].of(), c.redis[1].of()} {
		if p == nil {
			continue
		}
		_ = p.signal(syscall.SIGCONT) // one that is stopped could not end
		// What we started anew is our child, so we are the one to wait for it.
		if p.done != nil {
			errs = append(errs, p.end(syscall.SIGTERM, 20*time.Second))
		}
	}
	args := []string{"--dir", c.dir}
	if purge {
		args = append(args, "--purge")
	}
	// Also after an interrupt what was started is ended.
	cmd := exec.CommandContext(context.Background(), filepath.Join(c.root, "deploy/local/down"), args...)
	cmd.Stderr = os.Stderr
	return errors.Join(append(errs, cmd.Run())...)
}
