package telemetry_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/internal/telemetry"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestAdminHandler(t *testing.T) {
	var h telemetry.Health
	var down atomic.Bool
	h.Add("toredis", func() error { return nil })
	h.Add("kafka", func() error {
		if down.Load() {
			return errors.New("broker is away")
		}
		return nil
	})
	srv := adminServer(t, telemetry.AdminConfig{Registry: telemetry.NewRegistry(), Health: &h})
	defer srv.Close()
	if code, body := get(t, srv.URL+"/readyz"); code != http.StatusOK || !strings.Contains(body, `"ready":true`) {
		t.Errorf("readyz: %d %s", code, body)
	}
	down.Store(true)
	if code, body := get(t, srv.URL+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "broker is away") {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, _ := get(t, srv.URL+"/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	if code, body := get(t, srv.URL+"/metrics"); code != http.StatusOK || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %d, %d bytes", code, len(body))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := h.Await(ctx); err == nil || !strings.Contains(err.Error(), "kafka is not ready: broker is away") {
		t.Errorf("await: %v", err)
	}
}

func TestServeStopsCleanly(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- telemetry.Serve(ctx, ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hi") }), time.Second)
	}()
	if _, body := get(t, "http://"+ln.Addr().String()); body != "hi" {
		t.Errorf("got %q", body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestNewLogger(t *testing.T) {
	var b strings.Builder
	l, err := telemetry.NewLogger(&b, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	l.Info("hidden")
	l.Warn("shown", "id", 7)
	if got := b.String(); strings.Contains(got, "hidden") || !strings.Contains(got, `"id":7`) {
		t.Errorf("log: %s", got)
	}
	if _, err := telemetry.NewLogger(&b, "loud", "json"); err == nil {
		t.Error("level loud is accepted")
	}
	if _, err := telemetry.NewLogger(&b, "info", "xml"); err == nil {
		t.Error("format xml is accepted")
	}
}
