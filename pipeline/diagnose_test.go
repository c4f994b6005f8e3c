package pipeline_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
)

// certificate makes one that signs itself.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kafka"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// What never heals ends within seconds, in one line that says what to check.
func TestAWrongWayToKafkaIsSaid(t *testing.T) {
	cert, roots := certificate(t)
	_, plain := cluster(t, 1)
	_, encrypted := cluster(t, 1, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
	_, guarded := cluster(t, 1, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "topsecret"))
	_, both := cluster(t, 1, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}),
		kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "topsecret"))
	right := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	alice := pipeline.SASL{Mechanism: "PLAIN", User: "alice", Password: "topsecret"}
	tests := []struct {
		name   string
		cfg    pipeline.Config
		change func(*pipeline.Config)
		reason string // empty: nothing is wrong
		says   string
	}{
		{"encrypted, as it must be", encrypted, func(c *pipeline.Config) { c.TLS = right }, "", ""},
		{"with credentials", guarded, func(c *pipeline.Config) { c.SASL = alice }, "", ""},
		{"both", both, func(c *pipeline.Config) { c.TLS, c.SASL = right, alice }, "", ""},
		{"TLS on a plain port", plain, func(c *pipeline.Config) { c.TLS = right }, pipeline.ReasonTLS, "kafka.tls.enabled off"},
		{"plain on a TLS port", encrypted, func(*pipeline.Config) {}, pipeline.ReasonTLS, "kafka.tls.enabled on"},
		{"plain with credentials on a TLS port", both, func(c *pipeline.Config) { c.SASL = alice }, pipeline.ReasonTLS, "kafka.tls.enabled on"},
		{"an authority that is not known", encrypted, func(c *pipeline.Config) { c.TLS = &tls.Config{RootCAs: x509.NewCertPool()} }, pipeline.ReasonTLS, "certificate signed by unknown authority"},
		{"another host's certificate", encrypted, func(c *pipeline.Config) { c.TLS = &tls.Config{RootCAs: roots, ServerName: "kafka.example"} }, pipeline.ReasonTLS, "kafka.example"},
		{"no credentials", guarded, func(*pipeline.Config) {}, pipeline.ReasonAuth, "set kafka.sasl"},
		{"no credentials over TLS", both, func(c *pipeline.Config) { c.TLS = right }, pipeline.ReasonAuth, "set kafka.sasl"},
		{"a wrong password", guarded, func(c *pipeline.Config) { c.SASL = alice; c.SASL.Password = "hunter2" }, pipeline.ReasonAuth, "logs in: check kafka.sasl"},
		{"a wrong user", both, func(c *pipeline.Config) { c.TLS, c.SASL = right, alice; c.SASL.User = "bob" }, pipeline.ReasonAuth, "logs in: check kafka.sasl"},
		{"a mechanism that is not there", guarded, func(c *pipeline.Config) { c.SASL = alice; c.SASL.Mechanism = "SCRAM-SHA-512" }, pipeline.ReasonAuth, ""},
		{"topics that nobody made", plain, func(c *pipeline.Config) { c.TopicPrefix = "nowhere." }, pipeline.ReasonMissingTopic, "nowhere.toRedis is missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := tt.cfg
			tt.change(&cfg)
			began := time.Now()
			_, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg})
			if tt.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != tt.reason || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v (%s), want %s that says %q", err, fault.ReasonOf(err), tt.reason, tt.says)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Error("the password is in the line")
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// What may heal is waited for, and says what may be wrong.
func TestABrokerThatHangsUpIsWaitedForWithAHint(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	for _, t0 := range []*tls.Config{nil, {MinVersion: tls.VersionTLS12}} {
		cfg := pipeline.Config{Brokers: []string{ln.Addr().String()}, TLS: t0}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := pipeline.EnsureTopics(ctx, pipeline.TopicsConfig{Config: cfg})
		cancel()
		if fault.ClassOf(err) != fault.Transient || !strings.Contains(err.Error(), "check that kafka.tls and kafka.sasl fit the port") {
			t.Errorf("%v, want a hint and no end", err)
		}
	}
}
