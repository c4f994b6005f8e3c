package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidemark-im/tidemark/internal/config"
)

// embeddedKeys are the settings, or groups of them, that follow from Kafka,
// Redis and history being inside this process.
var embeddedKeys = []string{
	"kafka.brokers", "kafka.create_topics", "kafka.replication", "kafka.tls", "kafka.sasl",
	"redis.addresses", "redis.master", "redis.username", "redis.password", "redis.db", "redis.tls",
	"history", "gateway.redis",
}

// loadEmbedded reads the configuration of a command that runs on embedded
// servers. What these decide, and the command's own settings besides, must not
// be asked for with --set; in a file or the environment, which are there for
// other commands too, it is passed over.
func (a *app) loadEmbedded(command string, base *config.Config, own ...string) (config.Config, error) {
	var errs []error
	for _, s := range a.sets {
		key, _, _ := strings.Cut(s, "=")
		if slices.ContainsFunc(append(own, embeddedKeys...), func(k string) bool { return key == k || strings.HasPrefix(key, k+".") }) {
			errs = append(errs, fmt.Errorf("--set %s: %s sets this itself, since its servers run in this process", key, command))
		}
	}
	cfg, err := a.load(base)
	if err := errors.Join(errors.Join(errs...), err); err != nil {
		return config.Config{}, usageError{err}
	}
	fresh := config.Default()
	cfg.Kafka.Brokers, cfg.Kafka.CreateTopics, cfg.Kafka.Replication = fresh.Kafka.Brokers, false, fresh.Kafka.Replication
	cfg.Kafka.TLS, cfg.Kafka.SASL = fresh.Kafka.TLS, fresh.Kafka.SASL
	redis := fresh.Redis
	redis.Prefix, redis.Expiry, redis.HotLog = cfg.Redis.Prefix, cfg.Redis.Expiry, cfg.Redis.HotLog
	cfg.Redis, cfg.History, cfg.Gateway.Redis = redis, fresh.History, false
	return cfg, nil
}

// errInterrupted is what a command ends with that was told to stop before it
// had done what it is for.
var errInterrupted = errors.New("interrupted")

// interrupted makes whatever err says about a stop that was asked for
// errInterrupted.
func interrupted(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return errInterrupted
	}
	return err
}
