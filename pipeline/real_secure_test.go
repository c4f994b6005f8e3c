//go:build real

package pipeline_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
)

// TestRealSecure: TLS and SASL, and what a wrong setting looks like.
func TestRealSecure(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) { secure(t, mechanism) })
	}
}

func secure(t *testing.T, mechanism string) {
	pem, err := os.ReadFile(setting(t, "TIDEMARK_TEST_KAFKA_SECURE_CA"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate in the file")
	}
	password := setting(t, "TIDEMARK_TEST_KAFKA_SECURE_PASSWORD")
	right := pipeline.SASL{Mechanism: mechanism, User: setting(t, "TIDEMARK_TEST_KAFKA_SECURE_USER"), Password: password}
	cfg := onKafka(t, setting(t, "TIDEMARK_TEST_KAFKA_SECURE"), func(c *pipeline.Config) {
		c.TLS, c.SASL = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, right
	})
	if _, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	topic := cfg.Topics().ToRedis
	p := producer(t, cfg, topic)
	send(t, p, "group:1", numbered(20, "m")...)
	if got := stored(t, cfg, topic, 0, 20); len(got) != 20 {
		t.Errorf("%d records, want 20", len(got))
	}

	for _, tt := range []struct {
		name   string
		change func(*pipeline.Config)
		reason string
	}{
		{"wrong password", func(c *pipeline.Config) { c.SASL.Password = "hunter2" }, pipeline.ReasonAuth},
		{"wrong user", func(c *pipeline.Config) { c.SASL.User = "mallory" }, pipeline.ReasonAuth},
		{"unknown authority", func(c *pipeline.Config) {
			c.TLS = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		}, pipeline.ReasonTLS},
		{"another host's certificate", func(c *pipeline.Config) {
			c.TLS = c.TLS.Clone()
			c.TLS.ServerName = "kafka.example"
		}, pipeline.ReasonTLS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := cfg
			c.Registerer, c.Logger = prometheus.NewRegistry(), nil
			tt.change(&c)
			_, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: c})
			if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != tt.reason {
				t.Fatalf("err = %v, want fatal %s", err, tt.reason)
			}
			for _, secret := range []string{"hunter2", password} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("a password is in the error: %v", err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several lines: %q", err.Error())
			}
			wp := producer(t, c, topic)
			if err := wp.Append(within(t), outs("group:1", "x")); fault.ReasonOf(err) != tt.reason {
				t.Errorf("Append = %v, want %s", err, tt.reason)
			}
		})
	}
}
