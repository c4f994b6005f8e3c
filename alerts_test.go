package tidemark_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// alertRules is what these tests read of a file of rules.
type alertRules struct {
	Groups []struct {
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

// ruleTests is what they read of a file of promtool's.
type ruleTests struct {
	Tests []struct {
		Cases []struct {
			Alert  string `yaml:"alertname"`
			Expect []any  `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	} `yaml:"tests"`
}

// TestAlerts: each says what is wrong, how bad it is and where it is read what
// to do, asks for metrics that exist, and is tested quiet and firing.
func TestAlerts(t *testing.T) {
	var rules alertRules
	var tests ruleTests
	readYAML(t, "deploy/prometheus/rules/tidemark.yml", &rules)
	readYAML(t, "deploy/prometheus/tests/tidemark.yml", &tests)
	quiet, firing := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, c := range test.Cases {
			if len(c.Expect) == 0 {
				quiet[c.Alert] = true
			} else {
				firing[c.Alert] = true
			}
		}
	}
	runbook := readText(t, "docs/runbook.md")
	known := documentedMetrics(t)
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			n++
			const page = "https://github.com/tidemark-im/tidemark/blob/main/docs/runbook.md#"
			if want := page + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook_url is %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
			}
			if !strings.Contains(runbook, "\n### "+r.Alert+"\n") {
				t.Errorf("docs/runbook.md has no section %s", r.Alert)
			}
			if r.Annotations["summary"] == "" {
				t.Errorf("%s: has no summary", r.Alert)
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" {
				t.Errorf("%s: severity is %q", r.Alert, s)
			}
			if !quiet[r.Alert] || !firing[r.Alert] {
				t.Errorf("%s: tested quiet: %v, firing: %v", r.Alert, quiet[r.Alert], firing[r.Alert])
			}
			for _, m := range metricsOf(r.Expr) {
				if !known[m] {
					t.Errorf("%s: asks for %s, which docs/metrics.md does not have", r.Alert, m)
				}
			}
		}
	}
	if n < 9 {
		t.Errorf("%d alerts only", n)
	}
}

// TestDocumentsAskForMetricsThatExist: so do the documents that quote some.
func TestDocumentsAskForMetricsThatExist(t *testing.T) {
	known := documentedMetrics(t)
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "README.md") {
		for _, m := range metricsOf(readText(t, page)) {
			if !known[m] {
				t.Errorf("%s names %s, which docs/metrics.md does not list", page, m)
			}
		}
	}
}

var (
	metricWord = regexp.MustCompile(`\btidemark_[a-z]+_[a-z_]*[a-z]\b`)
	listed     = regexp.MustCompile("(?m)^\\| `(tidemark_[a-z_]+)` \\| ([a-z]+) \\|")
)

// metricsOf finds our metrics in an expression or a text. Parts of a histogram
// count as it.
func metricsOf(text string) []string {
	words := metricWord.FindAllString(text, -1)
	for i := range words {
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			words[i] = strings.TrimSuffix(words[i], part)
		}
	}
	return words
}

// documentedMetrics gives what docs/metrics.md lists, which another test holds
// against the code.
func documentedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for _, m := range listed.FindAllStringSubmatch(readText(t, "docs/metrics.md"), -1) {
		known[m[1]] = true
	}
	if len(known) < 50 {
		t.Fatalf("docs/metrics.md lists %d metrics only", len(known))
	}
	return known
}

func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readText(t, name)), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// TestDrillsAreExecuted: what a drill of the runbook names as executing it is
// there.
func TestDrillsAreExecuted(t *testing.T) {
	_, drills, _ := strings.Cut(readText(t, "docs/runbook.md"), "\n## Drills\n")
	drills, _, _ = strings.Cut(drills, "\n## ")
	var code strings.Builder
	for _, dir := range []string{"cmd/tidemark/internal/stack", "cmd/tidemark/internal/transfer", "pipeline"} {
		files, err := filepath.Glob(dir + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			code.WriteString(readText(t, f))
		}
	}
	sections := strings.Split(drills, "\n### ")[1:]
	if len(sections) < 8 {
		t.Errorf("%d drills", len(sections))
	}
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	for _, s := range sections {
		title, _, _ := strings.Cut(s, "\n")
		named := name.FindAllStringSubmatch(s, -1)
		if len(named) == 0 && !strings.Contains(s, "go run ./internal/chaos") {
			t.Errorf("%s: nothing executes it", title)
		}
		for _, m := range named {
			if !strings.Contains(code.String(), "func "+m[1]+"(") {
				t.Errorf("%s: there is no %s", title, m[1])
			}
		}
	}
}
