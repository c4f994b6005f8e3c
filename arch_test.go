package tidemark_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tidemark-im/tidemark/"

// arrows says what each package may import of this module. An entry that ends
// with /... stands for a folder. What is not listed may import nothing.
var arrows = map[string][]string{
	"watermark":           {},
	"internal/fault":      {},
	"api/tidemark/v1":     {},
	"api/tidemark/v1/...": {"api/tidemark/v1"},
	"api/convert":         {"api/tidemark/v1", "watermark", "internal/fault"},
	"pipeline/wire":       {"api/tidemark/v1", "api/convert", "watermark", "internal/fault"},
	"pipeline":            {"pipeline/wire", "watermark", "internal/fault"},
	"consumers/...":       {"pipeline/wire", "watermark", "internal/fault", "internal/latency"},
	// The endpoints of tooffline.
	"consumers/tooffline/...": {"consumers/tooffline", "pipeline/wire", "watermark", "internal/fault"},
	"seqalloc/keyspace":       {"watermark", "internal/fault"},
	"seqalloc":                {"seqalloc/keyspace", "watermark", "internal/fault"},
	"seqalloc/seqtest":        {"watermark"},
	"storage/hot":             {"seqalloc/keyspace", "watermark", "internal/fault"},
	"storage/embedded":        {"watermark", "internal/fault"},
	"storage/history":         {"watermark", "internal/fault"},
	"storage/truth":           {"watermark", "internal/fault"},
	"storage/storagetest":     {"watermark", "internal/fault"},
	"syncapi":                 {"api/...", "watermark", "internal/fault"},
	"gateway":                 {"api/...", "watermark", "internal/fault"},
	"client":                  {"api/...", "watermark"},
	"console":                 {},
	"client/sqlite":           {"api/...", "client", "watermark"},
	"examples/...":            {"api/...", "client", "client/...", "watermark"},
	"internal/config":         {},
	"internal/access":         {"watermark"},
	"internal/certs":          {},
	"internal/telemetry":      {},
	"internal/latency":        {},
	"internal/tracing":        {},
	"internal/devcluster":     {},
	"internal/mutate":         {},
	"internal/regression":     {},
	"internal/gateload":       {"gateway", "api/...", "watermark"},
	// The judge of a chaos run knows nothing of what it judges.
	"internal/chaos":         {"internal/chaos/check", "internal/chaos/history"},
	"internal/chaos/check":   {"internal/chaos/history"},
	"internal/chaos/history": {},
	"cmd/...":                {"..."},
	"cmd/tidemark/...":       {"..."},
}

// homes says where a driver may be imported, beside tests.
var homes = map[string][]string{
	"github.com/IBM/sarama":                                   {"pipeline"},
	"github.com/redis/go-redis/v9":                            {"seqalloc", "seqalloc/keyspace", "storage/hot", "cmd/tidemark/internal/stack", "cmd/tidemark/internal/bench"},
	"go.mongodb.org/mongo-driver/v2":                          {"storage/history"},
	"modernc.org/sqlite":                                      {"storage/embedded", "client/sqlite"},
	"github.com/go-jose/go-jose/v4":                           {"internal/access"},
	"connectrpc.com/connect":                                  {"syncapi", "client", "api/tidemark/v1/tidemarkv1connect", "cmd/tidemark", "gateway"},
	"connectrpc.com/grpchealth":                               {"syncapi"},
	"connectrpc.com/grpcreflect":                              {"syncapi"},
	"connectrpc.com/cors":                                     {"syncapi"},
	"github.com/centrifugal/centrifuge":                       {"gateway"},
	"github.com/centrifugal/centrifuge-go":                    {"client"},
	"github.com/sideshow/apns2":                               {"consumers/tooffline/apns"},
	"google.golang.org/api":                                   {"consumers/tooffline/fcm"},
	"golang.org/x/oauth2":                                     {"consumers/tooffline/fcm"},
	"github.com/failsafe-go/failsafe-go/circuitbreaker":       {"consumers/tooffline"},
	"github.com/twmb/franz-go/pkg/kfake":                      {"internal/devcluster"},
	"github.com/twmb/franz-go/pkg/kgo":                        {"internal/chaos", "cmd/tidemark/internal/bench"},
	"github.com/Shopify/toxiproxy/v2":                         {"internal/chaos"},
	"github.com/alicebob/miniredis/v2":                        {"internal/devcluster"},
	"github.com/knadh/koanf/v2":                               {"internal/config"},
	"github.com/spf13/cobra":                                  {"cmd/tidemark"},
	"github.com/prometheus/client_golang/prometheus/promhttp": {"internal/telemetry"},
	"go.opentelemetry.io/otel/sdk":                            {"internal/tracing"},
	"go.opentelemetry.io/otel/exporters":                      {"internal/tracing"},
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Doc        string
	GoFiles    []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Doc,GoFiles", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 15 {
		t.Fatalf("go list gave %d packages only", len(pkgs))
	}
	return pkgs
}

// matches tells whether pattern names pkg.
func matches(pattern, pkg string) bool {
	if dir, ok := strings.CutSuffix(pattern, "..."); ok {
		return strings.HasPrefix(pkg+"/", dir)
	}
	return pattern == pkg
}

func TestImportsGoAlongTheArrows(t *testing.T) {
	for _, p := range packages(t) {
		name, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok || len(p.GoFiles) == 0 {
			continue // the tests of the root
		}
		allowed, listed := arrows[name]
		if !listed {
			var best string
			for pattern, a := range arrows {
				if matches(pattern, name) && len(pattern) > len(best) {
					allowed, best, listed = a, pattern, true
				}
			}
		}
		if !listed {
			t.Errorf("package %s is not on the map", name)
		}
		for _, imp := range p.Imports {
			if own, ok := strings.CutPrefix(imp, module); ok {
				if !slices.ContainsFunc(allowed, func(a string) bool { return matches(a, own) }) {
					t.Errorf("%s imports %s, which no arrow allows", name, own)
				}
				continue
			}
			for driver, home := range homes {
				if (imp == driver || strings.HasPrefix(imp, driver+"/")) && !slices.Contains(home, name) && !longerHome(imp, driver) {
					t.Errorf("%s imports %s, which belongs to %v", name, imp, home)
				}
			}
		}
	}
}

// longerHome tells whether a longer entry of homes speaks about imp.
func longerHome(imp, driver string) bool {
	for d := range homes {
		if len(d) > len(driver) && (imp == d || strings.HasPrefix(imp, d+"/")) {
			return true
		}
	}
	return false
}

func TestEveryPackageHasItsComment(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath == strings.TrimSuffix(module, "/") || strings.Contains(p.ImportPath, "/api/tidemark/") {
			continue
		}
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
