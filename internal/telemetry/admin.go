package telemetry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// AdminConfig says what the operator's port shows.
type AdminConfig struct {
	// Registry and Health are required.
	Registry *prometheus.Registry
	Health   *Health
	// Level is the level of the log. nil: it is neither shown nor changed.
	Level *slog.LevelVar
	// Version and Roles are what Status says of the process.
	Version string
	Roles   []string
	// Debug serves what may slow the process down or change it: profiles, and
	// the level of the log.
	Debug bool
}

// Status is what a process says about itself.
type Status struct {
	// Ready tells whether every part is.
	Ready   bool      `json:"ready"`
	Version string    `json:"version"`
	Roles   []string  `json:"roles"`
	Started time.Time `json:"started"`
	// LogLevel is empty where there is none.
	LogLevel string `json:"logLevel"`
	Parts    []Part `json:"parts"` // by name
}

// Part is a part of a process.
type Part struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	// Why says what stands in the way; empty: nothing.
	Why string `json:"why"`
}

// AdminHandler serves
//
//	GET /metrics    for Prometheus; exemplars to those that ask for OpenMetrics
//	GET /healthz    the process lives
//	GET /readyz     every part works; 503 and the reasons, as JSON, when one does not
//	GET /status     a Status, as JSON, always with 200
//	GET /log-level  the level of the log
//	PUT /log-level  sets it to the body: debug, info, warn, error
//	/debug/pprof/   profiles
//
// The last two with Debug alone: 403 without.
func AdminHandler(cfg AdminConfig) (http.Handler, error) {
	if cfg.Registry == nil || cfg.Health == nil {
		return nil, errors.New("telemetry: admin: Registry and Health are required")
	}
	started := time.Now()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{Registry: cfg.Registry, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		report, ready := cfg.Health.Report()
		code := http.StatusOK
		if !ready {
			code = http.StatusServiceUnavailable
		}
		writeJSON(w, code, map[string]any{"ready": ready, "parts": report})
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, cfg.status(started))
	})
	if cfg.Level != nil {
		mux.HandleFunc("GET /log-level", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, levelName(cfg.Level)) })
		mux.Handle("PUT /log-level", cfg.debugging(setLevel(cfg.Level)))
	}
	for path, h := range map[string]http.HandlerFunc{
		// Not the command line: --set may hold a password.
		"/debug/pprof/": pprof.Index, "/debug/pprof/profile": pprof.Profile, "/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.Handle(path, cfg.debugging(h))
	}
	return mux, nil
}

func (cfg *AdminConfig) status(started time.Time) Status {
	report, ready := cfg.Health.Report()
	s := Status{Ready: ready, Version: cfg.Version, Roles: cfg.Roles, Started: started, Parts: []Part{}}
	if cfg.Level != nil {
		s.LogLevel = levelName(cfg.Level)
	}
	for _, name := range slices.Sorted(maps.Keys(report)) {
		s.Parts = append(s.Parts, Part{Name: name, Ready: report[name] == "", Why: report[name]})
	}
	return s
}

// debugging refuses where Debug is off.
func (cfg *AdminConfig) debugging(h http.HandlerFunc) http.Handler {
	if cfg.Debug {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not here: see admin.debug", http.StatusForbidden)
	})
}

func setLevel(level *slog.LevelVar) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(io.LimitReader(r.Body, 16))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		l, err := ParseLevel(strings.TrimSpace(string(text)))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		level.Set(l)
		fmt.Fprintln(w, levelName(level))
	}
}

// ParseLevel takes debug, info, warn and error.
func ParseLevel(name string) (slog.Level, error) {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.ToLower(l.String()) == name {
			return l, nil
		}
	}
	return 0, fmt.Errorf("level %q is none of debug, info, warn, error", name)
}

func levelName(l *slog.LevelVar) string { return strings.ToLower(l.Level().String()) }

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The only error is that the caller has gone.
	_ = json.NewEncoder(w).Encode(v)
}
