package tidemark_test

import (
	"os"
	"regexp"
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
	} `yaml:"services"`
	Volumes map[string]any `yaml:"volumes"`
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
