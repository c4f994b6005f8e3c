//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// startUp is how long a service may take to come back.
const startUp = 60 * time.Second

// redisServer is one of the two Redis servers.
type redisServer struct {
	*process
	addr string
}

func (r *redisServer) of() *process {
	if r == nil {
		return nil
	}
	return r.process
}

// says runs a command on the server, not through the proxy.
func (r *redisServer) says(ctx context.Context, args ...string) (string, error) {
	_, port, _ := strings.Cut(r.addr, ":")
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "redis-cli", append([]string{"-e", "-p", port}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("redis-cli %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// awaits waits until the server says something.
func (r *redisServer) awaits(ctx context.Context, what string, args ...string) error {
	err := until(ctx, startUp, func() bool {
		out, err := r.says(ctx, args...)
		return err == nil && strings.Contains(out, what)
	})
	if err != nil {
		return fmt.Errorf("%s does not say %q: %w", r.name, what, err)
	}
	return nil
}

// startMaster starts the server as a master, whatever it was before.
func (r *redisServer) startMaster(ctx context.Context, more ...string) error {
	if err := r.start(append([]string{"--replicaof", "no", "one"}, more...)...); err != nil {
		return err
	}
	return r.awaits(ctx, "PONG", "ping")
}

func (r *redisServer) follow(ctx context.Context, master *redisServer) error {
	host, port, _ := strings.Cut(master.addr, ":")
	if _, err := r.says(ctx, "replicaof", host, port); err != nil {
		return err
	}
	return r.awaits(ctx, "master_link_status:up", "info", "replication")
}

// restartRedis kills the master and starts it again with what its log has.
func (c *cluster) restartRedis(ctx context.Context, away time.Duration) error {
	master := c.redis[0]
	if err := master.end(syscall.SIGKILL, startUp); err != nil {
		return err
	}
	_ = pause(ctx, away)
	return master.startMaster(ctx)
}

// dumpRedis keeps what the master has now.
func (c *cluster) dumpRedis(ctx context.Context) error {
	master := c.redis[0]
	// It refuses while it saves by itself, for a replica that comes back.
	if err := master.awaits(ctx, "OK", "save"); err != nil {
		return err
	}
	dump, err := os.ReadFile(filepath.Join(master.dir, "dump.rdb"))
	if err != nil {
		return err
	}
	c.saved = true
	return os.WriteFile(filepath.Join(c.dir, "saved.rdb"), dump, 0o600)
}

// rollBackRedis starts the master with what was kept.
func (c *cluster) rollBackRedis(ctx context.Context) error {
	if !c.saved {
		return errors.New("no dump was made")
	}
	master := c.redis[0]
	if err := master.end(syscall.SIGKILL, startUp); err != nil {
		return err
	}
	dump, err := os.ReadFile(filepath.Join(c.dir, "saved.rdb"))
	if err := errors.Join(err, os.RemoveAll(filepath.Join(master.dir, "appendonlydir")),
		os.WriteFile(filepath.Join(master.dir, "dump.rdb"), dump, 0o600)); err != nil {
		return err
	}
	// With its log switched on a server does not read a dump.
	if err := master.startMaster(ctx, "--appendonly", "no"); err != nil {
		return err
	}
	_, err = master.says(ctx, "config", "set", "appendonly", "yes")
	return err
}

// failOver makes the replica the master. It stops following a while before, so
// that it lacks what the master took and acknowledged meanwhile.
func (c *cluster) failOver(ctx context.Context, lag time.Duration) error {
	old, next := c.redis[0], c.redis[1]
	if err := next.awaits(ctx, "master_link_status:up", "info", "replication"); err != nil {
		return err
	}
	if _, err := next.says(ctx, "replicaof", "no", "one"); err != nil {
		return err
	}
	_ = pause(ctx, lag)
	if err := errors.Join(old.end(syscall.SIGKILL, startUp), c.toRedis.to(next.addr)); err != nil {
		return err
	}
	c.redis[0], c.redis[1] = next, old
	_ = pause(ctx, time.Second)
	if err := old.startMaster(ctx); err != nil {
		return err
	}
	return old.follow(ctx, next)
}

// copyBack copies every conversation in Redis, and puts the copies back a while
// later: a roll-back that Redis itself does not know of, since neither its
// process nor its replication id is another one.
func (c *cluster) copyBack(ctx context.Context, after time.Duration) error {
	master := c.redis[0]
	const take = `local out = {}
for _, k in ipairs(redis.call('KEYS', '*tm:{*')) do
  redis.call('COPY', k, 'kept:' .. k, 'REPLACE')
  out[#out + 1] = k
end
return #out`
	const put = `for _, k in ipairs(redis.call('KEYS', 'kept:*')) do
  redis.call('RENAME', k, string.sub(k, 6))
end
return 1`
	if _, err := master.says(ctx, "eval", take, "0"); err != nil {
		return err
	}
	_ = pause(ctx, after)
	_, err := master.says(ctx, "eval", put, "0")
	return err
}

func (c *cluster) restartKafka(ctx context.Context, sig syscall.Signal, away time.Duration) error {
	if err := c.kafka.end(sig, startUp); err != nil {
		return err
	}
	_ = pause(ctx, away)
	if err := c.kafka.start(); err != nil {
		return err
	}
	err := until(ctx, startUp, func() bool {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, "kcat", "-b", c.kafkaAt, "-L", "-m", "2").Output()
		return err == nil && strings.Contains(string(out), " 1 brokers:")
	})
	if err != nil {
		return fmt.Errorf("kafka did not come back: %w", err)
	}
	return nil
}

func (c *cluster) restartHistory(ctx context.Context, away time.Duration) error {
	if err := c.mongo.end(syscall.SIGKILL, startUp); err != nil {
		return err
	}
	_ = pause(ctx, away)
	if err := c.mongo.start(); err != nil {
		return err
	}
	return until(ctx, startUp, func() bool { return listens(c.toMongo.Upstream) })
}

// freeze stops processes from running for a while.
func freeze(ctx context.Context, d time.Duration, ps ...*process) error {
	var errs []error
	for _, p := range ps {
		errs = append(errs, p.signal(syscall.SIGSTOP))
	}
	_ = pause(ctx, d)
	for _, p := range ps {
		if p.runs() {
			errs = append(errs, p.signal(syscall.SIGCONT))
		}
	}
	return errors.Join(errs...)
}
