package tidemark_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/config"
)

// Every configuration that is shown is read by the real reader.
func TestExampleConfigurationsAreRight(t *testing.T) {
	examples, err := filepath.Glob("deploy/examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	loaded := map[string]config.Config{}
	for _, f := range append(examples, "deploy/kubernetes/base/tidemark.yaml") {
		cfg, err := config.Load(config.Source{File: f})
		if err != nil {
			t.Errorf("%s: %v", f, err)
		}
		loaded[filepath.Base(f)] = cfg
	}
	for f, right := range map[string]func(c config.Config) bool{
		"redis-cluster.yaml": func(c config.Config) bool {
			return len(c.Redis.Addresses) == 3 && c.Redis.Master == "" && c.Redis.TLS.Enabled
		},
		"redis-sentinel.yaml":  func(c config.Config) bool { return len(c.Redis.Addresses) == 3 && c.Redis.Master != "" },
		"kafka-sasl-tls.yaml":  func(c config.Config) bool { return c.Kafka.SASL.Mechanism != "" && c.Kafka.TLS.Cert != "" },
		"mongodb-sharded.yaml": func(c config.Config) bool { return c.History.Backend == "mongodb" },
		"public.yaml":          func(c config.Config) bool { return c.Auth.Enabled() && len(c.Exposed()) == 0 },
		"tidemark.yaml":        func(c config.Config) bool { return c.Auth.Enabled() && c.ToOffline.Enabled },
	} {
		if c, ok := loaded[f]; !ok || !right(c) {
			t.Errorf("%s is not what it is for: %v", f, c.Effective())
		}
	}
	// The secrets that they leave to the environment are settings.
	known := map[string]bool{}
	for _, k := range config.Keys() {
		known[k.Env()] = k.Secret || strings.HasSuffix(k.Name, "username")
	}
	for _, f := range slices.Sorted(maps.Keys(loaded)) {
		path := "deploy/examples/" + f
		if f == "tidemark.yaml" {
			path = "deploy/kubernetes/base/" + f
		}
		for _, env := range regexp.MustCompile(`TIDEMARK_[A-Z_]+`).FindAllString(readText(t, path), -1) {
			if !known[env] {
				t.Errorf("%s names %s, which is no secret of the configuration", f, env)
			}
		}
	}
}

// An image holds one static binary, run by a user without rights, and nothing of
// the machine that built it.
func TestTheImageIsMinimal(t *testing.T) {
	text := readText(t, "deploy/docker/Dockerfile")
	for _, want := range []string{
		`(?m)^FROM golang:[0-9.]+-\w+ AS build$`, `(?m)^FROM gcr.io/distroless/static-debian12:nonroot$`, `(?m)^USER 65532:65532$`,
		`CGO_ENABLED=0`, `-trimpath`, `-buildid=`, `-X main.version=`, `(?m)^ENTRYPOINT \["/tidemark"\]$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the Dockerfile has no %s", want)
		}
	}
	if from := regexp.MustCompile(`golang:([0-9]+\.[0-9]+)`).FindStringSubmatch(text)[1]; !strings.Contains(readText(t, "go.mod"), "\ngo "+from) {
		t.Errorf("it builds with Go %s, which is not go.mod's", from)
	}
	if strings.Contains(text, ":latest") || strings.Contains(text, "ADD ") {
		t.Error("it takes what nobody named")
	}
	if _, err := os.Stat(".dockerignore"); err != nil {
		t.Error(err)
	}
}

// A unit waits longer for its process than the process for its roles.
func TestUnitsLetRolesDrain(t *testing.T) {
	text := readText(t, "deploy/systemd/tidemark@.service")
	for _, want := range []string{"ExecStart=/usr/local/bin/tidemark run %i --config", "TimeoutStopSec=40", "Restart=always", "DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"} {
		if !strings.Contains(text, want) {
			t.Errorf("the unit has no %s", want)
		}
	}
	if d := config.Default().Shutdown.Timeout; d.Seconds() >= 40 {
		t.Errorf("roles may take %s", d)
	}
}
