// Package devcluster runs Kafka and Redis inside this process, for demos,
// development and tests: kfake and miniredis, spoken to over TCP by the same
// drivers as the real ones.
//
// With a data directory Kafka's log and offsets outlive the process, also when
// it is killed: every write reaches the operating system before it is
// acknowledged (not the disk, so a power failure may lose the latest). Redis
// always starts empty, which makes every restart a recovery from a lost Redis.
// Nothing here is meant to carry production traffic.
package devcluster

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Config says where the servers listen and keep their data.
type Config struct {
	// KafkaPort is the port on loopback. 0: a free one.
	KafkaPort int
	// RedisPort is the port on loopback. 0: a free one.
	RedisPort int
	// DataDir keeps Kafka's log. Empty: in memory.
	DataDir string
	// Logger takes Kafka's warnings. nil: silence.
	Logger *slog.Logger
}

// Cluster is a running pair of servers.
type Cluster struct {
	kafka       *kfake.Cluster
	redis       *miniredis.Miniredis
	incarnation string
	stop        chan struct{}
	clock       sync.WaitGroup
}

// Start starts the servers; Close ends them.
func Start(cfg Config) (*Cluster, error) {
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.ClusterID("tidemark-dev"),
		kfake.GroupMinSessionTimeout(time.Second),
		kfake.BrokerConfigs(map[string]string{
			"message.max.bytes":                "4194304",
			"group.initial.rebalance.delay.ms": "0",
		}),
	}
	if cfg.Logger != nil {
		opts = append(opts, kfake.WithLogger(logger{cfg.Logger}))
	}
	if cfg.KafkaPort != 0 {
		opts = append(opts, kfake.Ports(cfg.KafkaPort))
	}
	if cfg.DataDir != "" {
		opts = append(opts, kfake.DataDir(filepath.Join(cfg.DataDir, "kafka")))
	}
	k, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("devcluster: start kafka: %w", err)
	}
	r := miniredis.NewMiniRedis()
	if err := r.StartAddr(fmt.Sprintf("127.0.0.1:%d", cfg.RedisPort)); err != nil {
		k.Close()
		return nil, fmt.Errorf("devcluster: start redis: %w", err)
	}
	c := &Cluster{kafka: k, redis: r, incarnation: rand.Text(), stop: make(chan struct{})}
	c.clock.Go(c.tick)
	return c, nil
}

// Brokers gives Kafka's addresses.
func (c *Cluster) Brokers() []string { return c.kafka.ListenAddrs() }

// RedisAddr gives Redis's address.
func (c *Cluster) RedisAddr() string { return c.redis.Addr() }

// Incarnation is the token that stands for Redis's replication id, which
// miniredis does not have: new with every start.
func (c *Cluster) Incarnation() string { return c.incarnation }

// FlushRedis empties Redis, as FLUSHALL does.
func (c *Cluster) FlushRedis() { c.redis.FlushAll() }

// Kafka gives the broker, for tests that make it fail.
func (c *Cluster) Kafka() *kfake.Cluster { return c.kafka }

// Redis gives the server, for tests that make it fail.
func (c *Cluster) Redis() *miniredis.Miniredis { return c.redis }

// Close ends the servers.
func (c *Cluster) Close() error {
	if c == nil {
		return errors.New("devcluster: not started")
	}
	close(c.stop)
	c.clock.Wait()
	c.redis.Close()
	c.kafka.Close()
	return nil
}

// tick moves miniredis's clock, which stands still by itself, so that keys
// expire as they do in a real Redis.
func (c *Cluster) tick() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-t.C:
			c.redis.FastForward(time.Second)
		}
	}
}

// logger shows kfake's warnings and errors.
type logger struct{ l *slog.Logger }

func (l logger) Logf(level kfake.LogLevel, format string, args ...any) {
	if level <= kfake.LogLevelWarn && level != kfake.LogLevelNone {
		l.l.Warn("embedded kafka", "detail", fmt.Sprintf(format, args...))
	}
}
