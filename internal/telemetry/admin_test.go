package telemetry_test

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/internal/telemetry"
)

func adminServer(t *testing.T, cfg telemetry.AdminConfig) *httptest.Server {
	t.Helper()
	h, err := telemetry.AdminHandler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

func TestStatus(t *testing.T) {
	var h telemetry.Health
	h.Add("toredis", func() error { return nil })
	h.Add("auth", func() error { return errors.New("the issuer is away") })
	before := time.Now()
	srv := adminServer(t, telemetry.AdminConfig{
		Registry: telemetry.NewRegistry(), Health: &h, Level: new(slog.LevelVar), Version: "v1", Roles: []string{"toredis"},
	})
	code, body := get(t, srv.URL+"/status")
	var got telemetry.Status
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if got.Started.Before(before.Truncate(time.Second)) || got.Started.After(time.Now()) {
		t.Errorf("started %v", got.Started)
	}
	got.Started = time.Time{}
	want := telemetry.Status{Version: "v1", Roles: []string{"toredis"}, LogLevel: "info", Parts: []telemetry.Part{
		{Name: "auth", Why: "the issuer is away"}, {Name: "toredis", Ready: true},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func put(t *testing.T, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
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

// TestTheLevelOfTheLogIsChanged: for lines that come later, by a name that is
// known, and only where that is wanted.
func TestTheLevelOfTheLogIsChanged(t *testing.T) {
	var lines strings.Builder
	log, level, err := telemetry.NewLeveled(&lines, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	cfg := telemetry.AdminConfig{Registry: telemetry.NewRegistry(), Health: &telemetry.Health{}, Level: level, Debug: true}
	srv := adminServer(t, cfg)
	log.Debug("before")
	if code, body := put(t, srv.URL+"/log-level", "debug\n"); code != http.StatusOK || body != "debug\n" {
		t.Errorf("%d %q", code, body)
	}
	log.Debug("after")
	if strings.Contains(lines.String(), "before") || !strings.Contains(lines.String(), "after") {
		t.Errorf("logged: %s", &lines)
	}
	for _, bad := range []string{"loud", "", "DEBUG+1", strings.Repeat("x", 1<<20)} {
		if code, _ := put(t, srv.URL+"/log-level", bad); code != http.StatusBadRequest {
			t.Errorf("%.20q: %d", bad, code)
		}
	}
	cfg.Debug = false
	closed := adminServer(t, cfg)
	if code, _ := put(t, closed.URL+"/log-level", "error"); code != http.StatusForbidden {
		t.Errorf("without debug: %d", code)
	}
	if _, body := get(t, closed.URL+"/log-level"); body != "debug\n" {
		t.Errorf("level is %q", body)
	}
}

func TestProfilesAreServedToThoseWhoMay(t *testing.T) {
	for _, debug := range []bool{true, false} {
		srv := adminServer(t, telemetry.AdminConfig{Registry: telemetry.NewRegistry(), Health: &telemetry.Health{}, Debug: debug})
		want := http.StatusForbidden
		if debug {
			want = http.StatusOK
		}
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine?debug=2"} {
			if code, _ := get(t, srv.URL+path); code != want {
				t.Errorf("debug %v: %s: %d, want %d", debug, path, code, want)
			}
		}
	}
}
