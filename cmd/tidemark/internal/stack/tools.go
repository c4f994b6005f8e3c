package stack

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline"
)

// Kafka gives the way to Kafka that a configuration describes, for tools that
// need nothing else of a stack.
func Kafka(cfg config.Config, logger *slog.Logger) (pipeline.Config, error) {
	return kafkaConfig(Config{Config: cfg, Logger: logger, Registry: prometheus.NewRegistry()})
}

// Groups lists the workers' consumer groups with the topics that they read, in
// the order in which a message goes through them. endpoints are those of
// tooffline that have one each.
func Groups(k pipeline.Config, endpoints ...string) []pipeline.GroupTopic {
	topics := k.Topics()
	groups := []pipeline.GroupTopic{
		{Group: groupName(k.TopicPrefix, ToRedis), Topic: topics.ToRedis},
		{Group: groupName(k.TopicPrefix, ToMongo), Topic: topics.Sequenced},
		{Group: groupName(k.TopicPrefix, ToPush), Topic: topics.Sequenced},
	}
	for _, e := range endpoints {
		groups = append(groups, pipeline.GroupTopic{Group: offlineGroup(k.TopicPrefix, e), Topic: topics.Offline})
	}
	return groups
}

func groupName(prefix string, r Role) string { return prefix + "tidemark-" + string(r) }

// Quiet keeps the Redis driver from writing to standard error by itself: what
// went wrong comes back as an error, and whoever gets that reports it. It is
// for the whole process and not safe while a stack is open.
func Quiet() { redis.SetLogger(nothing{}) }

type nothing struct{}

func (nothing) Printf(context.Context, string, ...any) {}

// Redis connects to the Redis that a configuration describes, for tools that
// need nothing else of a stack.
func Redis(cfg config.Redis) (redis.UniversalClient, error) {
	opts, err := redisOptions(cfg, nil)
	if err != nil {
		return nil, err
	}
	return redis.NewUniversalClient(opts), nil
}
