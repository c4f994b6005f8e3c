package stack_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/storage/history"
)

const (
	root       = "../../../.."
	metricsDoc = root + "/docs/metrics.md"
	docBegin   = "<!-- metrics:begin -->\n"
	docEnd     = "<!-- metrics:end -->"
)

// metricInfo is a metric as a registry describes it.
type metricInfo struct {
	name, help string
	labels     []string
}

// TestMetricsAreDocumented: docs/metrics.md lists every metric that the code
// names and a running deployment registers, and those are the same; a metric
// that is only named is never seen. TIDEMARK_UPDATE_METRICS=1 writes the list.
func TestMetricsAreDocumented(t *testing.T) {
	types := namedMetrics(t)
	infos := registeredMetrics(t)
	for name := range types {
		if _, ok := infos[name]; !ok {
			t.Errorf("%s is named in the code, and no role registers it", name)
		}
	}
	var b strings.Builder
	section := ""
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		m, kind := infos[name], types[name]
		if kind == "" {
			t.Errorf("%s: where its type is given is not found", name)
		}
		if err := houseStyle(name, kind); err != nil {
			t.Error(err)
		}
		if s := strings.SplitN(name, "_", 3)[1]; s != section {
			section = s
			fmt.Fprintf(&b, "\n## %s\n\n| metric | type | labels | unit | meaning |\n| --- | --- | --- | --- | --- |\n", section)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, kind, strings.Join(m.labels, ", "), unit(name), strings.ReplaceAll(m.help, "|", `\|`))
	}
	compareDoc(t, b.String())
}

func compareDoc(t *testing.T, want string) {
	t.Helper()
	have, err := os.ReadFile(metricsDoc)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(have), docBegin)
	list, tail, ok2 := strings.Cut(rest, docEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no %q and %q", metricsDoc, docBegin, docEnd)
	}
	if os.Getenv("TIDEMARK_UPDATE_METRICS") != "" {
		if err := os.WriteFile(metricsDoc, []byte(head+docBegin+want+"\n"+docEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want+"\n", list); diff != "" {
		t.Errorf("%s differs from the code (-code +document); TIDEMARK_UPDATE_METRICS=1 writes it:\n%s", metricsDoc, diff)
	}
}

// units are the last words of names that say in what is measured; all else is
// a number of what the word says.
var units = []string{"seconds", "bytes", "ratio"}

func unit(name string) string {
	words := strings.Split(strings.TrimSuffix(name, "_total"), "_")
	if last := words[len(words)-1]; slices.Contains(units, last) {
		return last
	}
	return "1"
}

var metricName = regexp.MustCompile(`^tidemark_(audit|embedded|gateway|history|hot|offline|pipeline|seqalloc|syncapi|tomongo|tooffline|topush|toredis|truth)_[a-z]+(_[a-z]+)*$`)

func houseStyle(name, kind string) error {
	if !metricName.MatchString(name) {
		return fmt.Errorf("%s is not tidemark_<package>_<thing>_<unit>", name)
	}
	if total := strings.HasSuffix(name, "_total"); total != (kind == "counter") {
		return fmt.Errorf("%s is a %s: counters end with _total, and nothing else does", name, kind)
	}
	return nil
}

// registeredMetrics starts every role and asks their registries.
func registeredMetrics(t *testing.T) map[string]metricInfo {
	t.Helper()
	r := newRig(t, func(c *config.Config) {
		c.ToOffline.Enabled = true
		c.ToOffline.Webhook.URL, c.ToOffline.Webhook.Secret = "http://127.0.0.1:1/", strings.Repeat("k", 32)
	})
	r.start(stack.Runnable()...)
	defer r.stop(stack.Audit, stack.Lag, stack.ToOffline)
	var registries []*prometheus.Registry
	for _, run := range r.roles {
		registries = append(registries, run.registry)
	}
	// The other store registers what it has before it connects.
	reg := prometheus.NewRegistry()
	h, err := history.New(history.Config{URI: "mongodb://127.0.0.1:1/tidemark", Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(r.ctx()); err != nil {
			t.Error(err)
		}
	})
	infos := map[string]metricInfo{}
	for _, reg := range append(registries, reg) {
		for _, m := range described(t, reg) {
			have, ok := infos[m.name]
			if ok && have.help != m.help {
				t.Errorf("%s has two meanings: %q and %q", m.name, have.help, m.help)
			}
			infos[m.name] = m
		}
	}
	return infos
}

var describedDesc = regexp.MustCompile(`^Desc\{fqName: ("[^"]*"), help: ("(?:[^"\\]|\\.)*"), (?:unit: "[^"]*", )?constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// described lists what is registered under our name, also what has no series yet.
func described(t *testing.T, reg *prometheus.Registry) (out []metricInfo) {
	t.Helper()
	ch := make(chan *prometheus.Desc)
	go func() { reg.Describe(ch); close(ch) }()
	for d := range ch {
		parts := describedDesc.FindStringSubmatch(d.String())
		if parts == nil {
			t.Fatalf("cannot read %s", d)
		}
		name, err := strconv.Unquote(parts[1])
		if err != nil {
			t.Fatal(err)
		}
		help, err := strconv.Unquote(parts[2])
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(name, "tidemark_") {
			continue // of the runtime, the process and the gateway's library
		}
		m := metricInfo{name: name, help: help}
		for l := range strings.SplitSeq(parts[3]+","+parts[4], ",") {
			if l, _, _ = strings.Cut(l, "="); l != "" {
				m.labels = append(m.labels, "`"+l+"`")
			}
		}
		out = append(out, m)
	}
	return out
}

// namedMetrics finds in the source which metrics are made, and of what type.
func namedMetrics(t *testing.T) map[string]string {
	t.Helper()
	types := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() != ".." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if name, kind := made(n); name != "" {
				types[name] = kind
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return types
}

// makers are the functions that make a metric of the name that is their first
// text. What is described by hand is a gauge.
var makers = map[string]string{
	"counters": "counter", "gauges": "gauge", "histograms": "histogram", "NewDesc": "gauge", "f": "gauge", "New": "histogram",
}

// made gives the name and the type of the metric that n makes; "" when it makes
// none.
func made(n ast.Node) (name, kind string) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		opts := strings.ToLower(called(n.Type))
		for _, kind := range []string{"counter", "gauge", "histogram"} {
			if opts != kind+"opts" {
				continue
			}
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok && called(kv.Key) == "Name" {
					return text(kv.Value), kind
				}
			}
		}
	case *ast.CallExpr:
		if kind := makers[called(n.Fun)]; kind != "" {
			for _, a := range n.Args {
				if name := text(a); strings.HasPrefix(name, "tidemark_") {
					return name, kind
				}
			}
		}
	}
	return "", ""
}

func called(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}
