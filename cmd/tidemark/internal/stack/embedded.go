package stack

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/devcluster"
)

// Embedded is a configuration for all roles in one process, with the embedded
// servers that it runs on.
type Embedded struct {
	Cluster *devcluster.Cluster
	Config  config.Config
}

// EmbeddedConfig says how the embedded servers are started.
type EmbeddedConfig struct {
	// DataDir keeps Kafka's log and history; it is made when missing. Empty: in
	// memory.
	DataDir string
	// KafkaPort, SyncListen and GatewayListen are where to listen. 0 and empty:
	// free ports on loopback.
	KafkaPort                 int
	SyncListen, GatewayListen string
	// Partitions of the topics. 0: 4, enough to see more than one and little
	// enough to start at once.
	Partitions int32
	// Base is what the rest is taken from. nil: the defaults.
	Base *config.Config
	// Logger takes the servers' warnings. nil: silence.
	Logger *slog.Logger
}

// StartEmbedded starts Kafka and Redis in this process and gives the
// configuration that uses them.
func StartEmbedded(e EmbeddedConfig) (*Embedded, error) {
	if e.DataDir != "" {
		if err := os.MkdirAll(e.DataDir, 0o750); err != nil {
			return nil, fmt.Errorf("stack: make data directory: %w", err)
		}
	}
	cluster, err := devcluster.Start(devcluster.Config{KafkaPort: e.KafkaPort, DataDir: e.DataDir, Logger: e.Logger})
	if err != nil {
		return nil, err
	}
	cfg := config.Default()
	if e.Base != nil {
		cfg = *e.Base
	}
	cfg.Kafka.Brokers, cfg.Kafka.CreateTopics = cluster.Brokers(), true
	cfg.Kafka.Partitions = e.Partitions
	if e.Partitions == 0 {
		cfg.Kafka.Partitions = 4
	}
	cfg.Redis.Addresses, cfg.Redis.Incarnation = []string{cluster.RedisAddr()}, cluster.Incarnation()
	// In this process Redis is slow when everything is, which is no reason to give
	// it up.
	cfg.Redis.Timeout = max(cfg.Redis.Timeout, 30*time.Second)
	cfg.History.Backend, cfg.History.Path = "sqlite", ""
	if e.DataDir != "" {
		cfg.History.Path = filepath.Join(e.DataDir, "history.db")
	}
	cfg.Sync.Listen, cfg.Gateway.Listen, cfg.Gateway.Redis = "127.0.0.1:0", "127.0.0.1:0", false
	if e.SyncListen != "" {
		cfg.Sync.Listen = e.SyncListen
	}
	if e.GatewayListen != "" {
		cfg.Gateway.Listen = e.GatewayListen
	}
	if err := cfg.Validate(); err != nil {
		return nil, errors.Join(err, cluster.Close())
	}
	return &Embedded{Cluster: cluster, Config: cfg}, nil
}
