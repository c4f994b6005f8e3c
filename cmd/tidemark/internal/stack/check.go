package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/access"
	"github.com/tidemark-im/tidemark/internal/certs"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/storage/hot"
)

// Checked is what came of trying one thing that a configuration names.
type Checked struct {
	Name string
	// Detail says what was found.
	Detail string
	Took   time.Duration
	// Err says what is wrong; secrets are masked. nil: nothing.
	Err error
}

// Check tries everything that cfg names as its roles would, for at most ctx,
// and changes nothing: no topic is made, no index, no key. All of it is tried at
// once, so that one that keeps silent hides no other. Ports are not taken: those
// of processes that run already are.
func Check(ctx context.Context, cfg config.Config, logger *slog.Logger) []Checked {
	c := Config{Config: cfg, Logger: logger, Registry: telemetry.NewRegistry()}
	tries := []struct {
		name string
		try  func(context.Context, Config) (string, error)
	}{{"kafka", checkKafka}, {"redis", checkRedis}, {"history", checkHistory}, {"auth", checkAuth}, {"certificates", checkCertificates}}
	out := make([]Checked, len(tries))
	var all sync.WaitGroup
	for i, x := range tries {
		all.Go(func() {
			began := time.Now()
			detail, err := x.try(ctx, c)
			out[i] = Checked{Name: x.name, Detail: detail, Took: time.Since(began), Err: err}
		})
	}
	all.Wait()
	return out
}

func checkKafka(ctx context.Context, c Config) (string, error) {
	kafka, err := kafkaConfig(c)
	if err != nil {
		return "", err
	}
	infos, err := pipeline.EnsureTopics(ctx, pipeline.TopicsConfig{
		Config: kafka, Partitions: c.Kafka.Partitions, Replication: c.Kafka.Replication, Retention: c.Kafka.Retention,
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("%s does not answer in time: %s", strings.Join(c.Kafka.Brokers, ","), strings.ReplaceAll(err.Error(), "\n", ": "))
	case err != nil && c.Kafka.CreateTopics && fault.ReasonOf(err) == pipeline.ReasonMissingTopic:
		return "topics are missing, and are made at the first start (kafka.create_topics)", nil
	case err != nil:
		return "", err
	}
	return fmt.Sprintf("%d partitions, %d replicas", infos.Sequenced.Partitions, infos.Sequenced.Replication), nil
}

func checkRedis(ctx context.Context, c Config) (string, error) {
	opts, err := redisOptions(c.Redis, c.Logger)
	if err != nil {
		return "", err
	}
	client := redis.NewUniversalClient(opts)
	defer func() { _ = client.Close() }() // what was asked is answered by now
	h, err := hot.New(hot.Config{
		Redis: client, Space: keyspace.Space{Prefix: c.Redis.Prefix, Expiry: c.Redis.Expiry, Incarnation: c.Redis.Incarnation},
		Decode: wire.DecodeMessage, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return "", err
	}
	if err := h.CheckServer(ctx); err != nil {
		return "", fmt.Errorf("%s: %w", c.Redis.Addresses, err)
	}
	memory, err := h.Memory(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.Redis.Addresses, err)
	}
	return describeMemory(memory), nil
}

func checkHistory(ctx context.Context, c Config) (detail string, err error) {
	if c.History.Backend != "mongodb" && c.History.Path != "" {
		return checkFile(c.History.Path)
	}
	store, closing, err := openHistory(ctx, c.History, c.Logger, prometheus.NewRegistry())
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, closing()) }()
	positions, err := store.Positions(ctx)
	if err != nil && c.History.Backend == "mongodb" {
		err = fmt.Errorf("%s: %w", history.Masked(c.History.URI), err)
	}
	return fmt.Sprintf("%s answers, and knows %d partitions", c.History.Backend, len(positions)), err
}

// checkFile leaves a file closed: to open it would make it, or turn it to what
// this version wants.
func checkFile(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return "", err
		}
		return path + " is made at the first start", nil
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no file", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %d bytes", path, info.Size()), f.Close()
}

func checkAuth(ctx context.Context, c Config) (string, error) {
	if !c.Auth.Enabled() {
		return "callers are not authenticated", nil
	}
	cfg, err := AccessConfig(c.Auth)
	if err != nil {
		return "", err
	}
	v, err := access.New(cfg)
	if err != nil {
		return "", err
	}
	return "keys can be had", v.Load(ctx)
}

// checkCertificates reads those that the ports would show.
func checkCertificates(_ context.Context, c Config) (string, error) {
	var errs []error
	n := 0
	for _, x := range []struct {
		key string
		tls config.ServerTLS
	}{{"sync.tls", c.Sync.TLS}, {"gateway.tls", c.Gateway.TLS}} {
		if !x.tls.Enabled() {
			continue
		}
		n++
		if _, err := certs.New(certs.Config{Cert: x.tls.Cert, Key: x.tls.Key, ClientCA: x.tls.ClientCA, Logger: c.Logger}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", x.key, err))
		}
	}
	return fmt.Sprintf("%d ports are encrypted", n), errors.Join(errs...)
}
