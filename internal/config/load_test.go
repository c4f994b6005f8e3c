package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/internal/config"
)

func write(t *testing.T, yaml string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "tidemark.yaml")
	if err := os.WriteFile(f, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestLaterSourcesGoOverEarlierOnes(t *testing.T) {
	cfg, err := config.Load(config.Source{
		File: write(t, "kafka:\n  brokers: [a:1, b:2]\n  topic_prefix: file-\ntomongo:\n  flush_interval: 250ms\n  flush_marks: 7\n"),
		Environ: func() []string {
			return []string{"TIDEMARK_KAFKA_TOPIC_PREFIX=env-", "TIDEMARK_REDIS_ADDRESSES=c:3, d:4", "TIDEMARK_TOMONGO_FLUSH_MARKS=8", "HOME=/x"}
		},
		Flags: map[string]string{"tomongo.flush_marks": "9", "kafka.create_topics": "true"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(cfg.Kafka.Brokers, []string{"a:1", "b:2"}) || cfg.Kafka.TopicPrefix != "env-" ||
		!slices.Equal(cfg.Redis.Addresses, []string{"c:3", "d:4"}) || cfg.ToMongo.FlushMarks != 9 ||
		cfg.ToMongo.FlushInterval != 250*time.Millisecond || !cfg.Kafka.CreateTopics {
		t.Errorf("got %+v", cfg)
	}
	if cfg.ToRedis != config.Default().ToRedis {
		t.Errorf("what nobody set is not the default: %+v", cfg.ToRedis)
	}
}

func TestAllFaultsAreReportedTogether(t *testing.T) {
	_, err := config.Load(config.Source{
		File: write(t, "kafka:\n  brokerz: [a:1]\n  brokers: [nonsense]\nredis:\n  password: topsecret\n  expiry: 1s\n"),
		Environ: func() []string {
			return []string{"TIDEMARK_KAFKA_BROKER=a:1", "TIDEMARK_SYNC_LISTEN=0.0.0.0:80", "TIDEMARK_HISTORY_BACKEND=paper"}
		},
		Flags: map[string]string{"tomongo.flush_marks": "0"},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"kafka.brokerz", `"nonsense" is not host:port`, "TIDEMARK_KAFKA_BROKER", "not a loopback", `"paper"`, "tomongo.flush_marks", "redis.expiry"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %s:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "topsecret") {
		t.Errorf("the error shows a secret:\n%v", err)
	}
}

func TestWrongTypesNameTheKey(t *testing.T) {
	_, err := config.Load(config.Source{Flags: map[string]string{"tomongo.flush_interval": "soon"}})
	if err == nil || !strings.Contains(err.Error(), "flush_interval") {
		t.Errorf("err = %v", err)
	}
}

func TestDefaultIsValid(t *testing.T) {
	c := config.Default()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	for _, k := range config.Keys() {
		if k.Doc == "" {
			t.Errorf("%s has no doc", k.Name)
		}
	}
}

func TestEffectiveMasksSecrets(t *testing.T) {
	c := config.Default()
	c.Redis.Password, c.Kafka.SASL.Password = "topsecret", "topsecret"
	all := strings.Join(c.Effective(), "\n")
	if strings.Contains(all, "topsecret") || !strings.Contains(all, "redis.password=***") {
		t.Errorf("got\n%s", all)
	}
}
