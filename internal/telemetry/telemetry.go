// Package telemetry is what a process says about itself: its log, its metrics
// and whether it is ready.
//
// Readiness is a question asked of every part at the time of asking, never a
// state that somebody has to remember to change. Nothing here is on the path of
// a message; a slow scrape delays nobody.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewLogger makes a logger of the given level (debug, info, warn, error) and
// format (text, json). Lines whose context belongs to a trace name it.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	log, _, err := NewLeveled(w, level, format)
	return log, err
}

// NewLeveled is NewLogger, and gives the level, which may be changed while the
// process runs.
func NewLeveled(w io.Writer, level, format string) (*slog.Logger, *slog.LevelVar, error) {
	l := new(slog.LevelVar)
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, nil, fmt.Errorf("telemetry: log level: %w", err)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return slog.New(traceHandler{slog.NewJSONHandler(w, opts)}), l, nil
	case "text":
		return slog.New(traceHandler{slog.NewTextHandler(w, opts)}), l, nil
	}
	return nil, nil, fmt.Errorf("telemetry: log format %q is neither text nor json", format)
}

// NewRegistry makes a registry with the metrics of the process and of the Go
// runtime.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Check says why a part is not ready, nil when it is.
type Check func() error

// Health gathers the checks of a process.
type Health struct {
	mu     sync.Mutex
	checks map[string]Check // guarded by mu
}

// Add adds a part under a name; it replaces an earlier one of that name.
func (h *Health) Add(name string, c Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.checks == nil {
		h.checks = map[string]Check{}
	}
	h.checks[name] = c
}

// Report asks every part: its name, and why it is not ready ("" when it is).
func (h *Health) Report() (report map[string]string, ready bool) {
	h.mu.Lock()
	checks := make(map[string]Check, len(h.checks))
	maps.Copy(checks, h.checks)
	h.mu.Unlock()
	report, ready = make(map[string]string, len(checks)), true
	for name, c := range checks {
		report[name] = ""
		if err := c(); err != nil {
			report[name], ready = err.Error(), false
		}
	}
	return report, ready
}

// Await polls until every part is ready or ctx ends; the error then says what
// is missing.
func (h *Health) Await(ctx context.Context) error {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		report, ready := h.Report()
		if ready {
			return nil
		}
		select {
		case <-ctx.Done():
			var errs []error
			for name, why := range report {
				if why != "" {
					errs = append(errs, fmt.Errorf("%s is not ready: %s", name, why))
				}
			}
			return errors.Join(append(errs, ctx.Err())...)
		case <-t.C:
		}
	}
}

// Serve serves handler on ln until ctx ends, then lets calls finish for at most
// drain.
func Serve(ctx context.Context, ln net.Listener, handler http.Handler, drain time.Duration) error {
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("telemetry: serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		_ = srv.Close() // what still runs is broken off
	}
	<-failed
	return nil
}
