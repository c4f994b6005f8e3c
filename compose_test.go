package tidemark_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tidemark-im/tidemark/internal/config"
)

// compose is what these tests read of compose.yaml.
type compose struct {
	Services map[string]struct {
		Image       string         `yaml:"image"`
		Ports       []string       `yaml:"ports"`
		Volumes     []string       `yaml:"volumes"`
		Healthcheck map[string]any `yaml:"healthcheck"`
		Profiles    []string       `yaml:"profiles"`
		Network     string         `yaml:"network_mode"`
		// Of a role: settings and what the program is called with. Of others it may
		// be anything.
		Environment map[string]string `yaml:"environment"`
		Command     []string          `yaml:"command"`
	} `yaml:"services"`
	Volumes map[string]any `yaml:"volumes"`
	Configs map[string]struct {
		Content string `yaml:"content"`
	} `yaml:"configs"`
}

// TestCompose: services without passwords are for this machine alone, wait until
// they are ready, and are of versions that are named.
func TestCompose(t *testing.T) {
	b, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	if err := yaml.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kafka", "redis", "mongo"} {
		s, ok := c.Services[name]
		if !ok {
			t.Errorf("there is no %s", name)
			continue
		}
		if !regexp.MustCompile(`:[0-9.]+$`).MatchString(s.Image) {
			t.Errorf("%s: image %q names no version", name, s.Image)
		}
		if len(s.Healthcheck) == 0 {
			t.Errorf("%s is not waited for", name)
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s listens for everybody: %q", name, p)
			}
		}
		for _, v := range s.Volumes {
			volume, _, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[volume]; !ok {
				t.Errorf("%s: volume %q is not declared", name, volume)
			}
		}
	}
	// What its comment exports must be settings of tidemark, and right ones.
	var environ []string
	for _, m := range regexp.MustCompile(`TIDEMARK_[A-Z_]+='?[^ '\n]*`).FindAllString(string(b), -1) {
		environ = append(environ, strings.Replace(m, "'", "", 1))
	}
	if len(environ) < 5 {
		t.Fatalf("it exports %q", environ)
	}
	loaded, err := config.Load(config.Source{Environ: func() []string { return environ }})
	if err != nil {
		t.Fatal(err)
	}
	if loaded.History.Backend != "mongodb" || loaded.History.URI != "mongodb://127.0.0.1:27017/tidemark?directConnection=true" {
		t.Errorf("history: %+v", loaded.History)
	}
}

// TestComposeRoles: every role runs with settings that are right, on a port of
// its own that Prometheus asks.
func TestComposeRoles(t *testing.T) {
	b, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	if err := yaml.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"toredis", "tomongo", "topush", "sync", "gateway", "lag"} {
		s, ok := c.Services[role]
		if !ok || len(s.Command) != 4 || !slices.Equal(s.Command[:3], []string{"run", role, "--set"}) {
			t.Errorf("%s is run by %q", role, s.Command)
			continue
		}
		key, value, _ := strings.Cut(s.Command[3], "=")
		var environ []string
		for k, v := range s.Environment {
			environ = append(environ, k+"="+v)
		}
		loaded, err := config.Load(config.Source{Environ: func() []string { return environ }, Flags: map[string]string{key: value}})
		if err != nil {
			t.Errorf("%s: %v", role, err)
			continue
		}
		if loaded.History.Backend != "mongodb" || !loaded.Kafka.CreateTopics || s.Network != "host" || len(s.Profiles) != 1 {
			t.Errorf("%s: %+v", role, s)
		}
		if at := `"` + loaded.Admin.Listen + `"`; strings.Count(c.Configs["targets"].Content, at) != 1 {
			t.Errorf("%s: Prometheus does not ask %s once", role, at)
		}
	}
	for _, name := range []string{"prometheus", "grafana"} {
		for _, v := range c.Services[name].Volumes {
			from, _, _ := strings.Cut(v, ":")
			if _, declared := c.Volumes[from]; declared {
				continue
			}
			if _, err := os.Stat(from); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
