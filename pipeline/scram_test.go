package pipeline_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark-im/tidemark/pipeline"
)

// Each mechanism logs in with the right password and not with a wrong one.
func TestEveryMechanismLogsIn(t *testing.T) {
	const user, password = "alice", "p@ss/w:rd%20"
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser(mechanism, user, password))
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			cfg := pipeline.TopicsConfig{Config: pipeline.Config{Brokers: k.ListenAddrs(), SASL: pipeline.SASL{Mechanism: mechanism, User: user, Password: password}}, Create: true, Partitions: 2}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			infos, err := pipeline.EnsureTopics(ctx, cfg)
			if err != nil || infos.ToRedis.Partitions != 2 {
				t.Fatalf("with the right password: %v, %v", infos, err)
			}
			cfg.SASL.Password = "hunter2"
			// This broker hangs up without a word, where Kafka says why.
			short, stop := context.WithTimeout(ctx, time.Second)
			defer stop()
			if _, err = pipeline.EnsureTopics(short, cfg); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("with a wrong password: %v", err)
			}
		})
	}
}
