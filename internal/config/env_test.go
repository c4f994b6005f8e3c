package config_test

import (
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/config"
)

// A shell that has the environment of the local services can run tidemark too.
func TestVariablesOfTheTestServicesAreNotOurs(t *testing.T) {
	environ := []string{"TIDEMARK_TEST_KAFKA=127.0.0.1:1", "TIDEMARK_LOCAL_MONGO=pip", "TIDEMARK_MONGO_URI=mongodb://h/", "TIDEMARK_TOKEN=x", "TIDEMARK_TOKEN_FILE=f", "TIDEMARK_KAFKA_BROKERS=b:1"}
	cfg, err := config.Load(config.Source{Environ: func() []string { return environ }})
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Kafka.Brokers) != 1 || cfg.Kafka.Brokers[0] != "b:1" {
		t.Errorf("brokers = %v", cfg.Kafka.Brokers)
	}
	environ = append(environ, "TIDEMARK_TESTS=1")
	if _, err := config.Load(config.Source{Environ: func() []string { return environ }}); err == nil || !strings.Contains(err.Error(), "TIDEMARK_TESTS") {
		t.Errorf("err = %v, want the misspelt variable named", err)
	}
}
