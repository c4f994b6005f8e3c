package console_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/console"
)

func config() console.Config {
	return console.Config{
		Gatherer: prometheus.NewRegistry(),
		Report:   func() (map[string]string, bool) { return map[string]string{"sync": ""}, true },
	}
}

func serve(t *testing.T, cfg console.Config) *httptest.Server {
	t.Helper()
	c, err := console.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(c.Handler())
	t.Cleanup(srv.Close)
	return srv
}

type reply struct {
	status int
	header http.Header
	body   string
}

func get(t *testing.T, method, url string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	defer client.CloseIdleConnections()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

// files gives the names of what is served.
func files(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("static")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	if len(out) < 8 {
		t.Fatalf("there are %q only", out)
	}
	return out
}

func TestConfigIsChecked(t *testing.T) {
	_, err := console.New(console.Config{Processes: []string{"10.0.0.1:8082", "http://a:1/?x"}, Fresh: -1})
	for _, want := range []string{"Gatherer is missing", "Report is missing", `process "10.0.0.1:8082"`, `process "http://a:1/?x"`, "Fresh is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

// Whatever is answered, the browser is told to run nothing but the page's files.
func TestEveryAnswerCarriesThePolicy(t *testing.T) {
	srv := serve(t, config())
	paths := []string{"/console", "/console/", "/console/about.json", "/console/pipeline.json", "/console/none", "/console/../etc/passwd"}
	for _, f := range files(t) {
		paths = append(paths, "/console/"+f)
	}
	for _, p := range paths {
		r := get(t, http.MethodGet, srv.URL+p)
		policy := map[string]string{}
		for d := range strings.SplitSeq(r.header.Get("Content-Security-Policy"), ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(d), " ")
			policy[name] = value
		}
		for name, want := range map[string]string{
			"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'", "img-src": "'self'",
			"base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'", "require-trusted-types-for": "'script'",
		} {
			if policy[name] != want {
				t.Errorf("%s: %s is %q, want %q", p, name, policy[name], want)
			}
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := r.header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", p, name, got, want)
			}
		}
	}
}

func TestFilesAreServedWithTheirTypes(t *testing.T) {
	srv := serve(t, config())
	for _, name := range files(t) {
		want, err := os.ReadFile("static/" + name)
		if err != nil {
			t.Fatal(err)
		}
		url := srv.URL + "/console/" + name
		r := get(t, http.MethodGet, url)
		if r.status != http.StatusOK || r.body != string(want) {
			t.Errorf("%s: %d, %d bytes, want %d", name, r.status, len(r.body), len(want))
		}
		types := map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
		if got := r.header.Get("Content-Type"); !strings.HasPrefix(got, types[path.Ext(name)]) || got == "" {
			t.Errorf("%s: type %q", name, got)
		}
		// A browser keeps it, asks again, and gets it again only when it changed.
		etag := r.header.Get("ETag")
		if etag == "" || r.header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: ETag %q, Cache-Control %q", name, etag, r.header.Get("Cache-Control"))
		}
		for given, status := range map[string]int{etag: 304, "W/" + etag: 304, `"x", ` + etag: 304, `"x"`: 200} {
			if r := get(t, http.MethodGet, url, "If-None-Match", given); r.status != status {
				t.Errorf("%s: If-None-Match %s gives %d, want %d", name, given, r.status, status)
			}
		}
		if r := get(t, http.MethodHead, url); r.status != http.StatusOK || r.body != "" || r.header.Get("Content-Length") != fmt.Sprint(len(want)) {
			t.Errorf("%s: HEAD gives %d with %q of %q bytes", name, r.status, r.body, r.header.Get("Content-Length"))
		}
	}
	if r := get(t, http.MethodGet, srv.URL+"/console"); r.status != http.StatusPermanentRedirect || r.header.Get("Location") != "/console/" {
		t.Errorf("without its slash: %d to %q", r.status, r.header.Get("Location"))
	}
	if index, page := get(t, http.MethodGet, srv.URL+"/console/index.html"), get(t, http.MethodGet, srv.URL+"/console/"); index.body != page.body {
		t.Error("the page is not index.html")
	}
}

func TestNothingElseIsServed(t *testing.T) {
	srv := serve(t, config())
	handler := srv.Config.Handler
	for _, p := range []string{
		"/console/static/", "/console/static/app.js", "/console/../console.go", "/console/%2e%2e/console.go", "/console/..%2fconsole.go",
		"/console/./app.js/..", "/console/app.js/", "/console/app.js%00", "/console//app.js", "/console/live", "/", "/app.js", "/consoles/app.js",
	} {
		// Not through a client, which would clean the path.
		req := httptest.NewRequest(http.MethodGet, "http://x/", nil)
		u, err := url.ParseRequestURI(p)
		if err != nil {
			continue // no server gets such a request
		}
		req.URL, req.RequestURI = u, p
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, req)
		if rec.Code == http.StatusOK {
			t.Errorf("%s is served: %.60s", p, rec.Body)
		}
	}
	for _, m := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		for _, p := range []string{"/console/", "/console/app.js", "/console/pipeline.json"} {
			if r := get(t, m, srv.URL+p); r.status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s gives %d", m, p, r.status)
			}
		}
	}
}

// What the policy would stop must not be there in the first place, and nothing
// comes from anywhere else.
func TestThePageIsPlain(t *testing.T) {
	html, err := os.ReadFile("static/index.html")
	if err != nil {
		t.Fatal(err)
	}
	for what, re := range map[string]string{
		"a script in the page": `(?s)<script[^>]*>\s*[^<\s]`, "a style in the page": `<style`, "a style attribute": `\sstyle\s*=`,
		"a handler attribute": `\son\w+\s*=`, "javascript:": `javascript:`,
	} {
		if m := regexp.MustCompile(re).Find(html); m != nil {
			t.Errorf("index.html has %s: %s", what, m)
		}
	}
	named := regexp.MustCompile(`(?:src|href)="([^"#]+)`).FindAllStringSubmatch(string(html), -1)
	if len(named) < 4 {
		t.Fatalf("index.html names %q", named)
	}
	have := files(t)
	for _, m := range named {
		if !slices.Contains(have, m[1]) {
			t.Errorf("index.html names %q, which is no file", m[1])
		}
	}
	for _, name := range have {
		text, err := os.ReadFile("static/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`https?://[^\s'")]+`).FindAllString(string(text), -1) {
			if m != "http://www.w3.org/2000/svg" {
				t.Errorf("%s names %s", name, m)
			}
		}
		for _, m := range regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser`).FindAllString(string(text), -1) {
			t.Errorf("%s uses %s", name, m)
		}
		for _, m := range regexp.MustCompile(`from '\./([^']+)'`).FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(have, m[1]) {
				t.Errorf("%s imports %q, which is no file", name, m[1])
			}
		}
	}
	// client.js is for others, too: no page.
	client, err := os.ReadFile("static/client.js")
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`document\.|window\.|localStorage|from '`).Find(client); m != nil {
		t.Errorf("client.js uses %s", m)
	}
}

func TestEveryFileIsEmbedded(t *testing.T) {
	srv := serve(t, config())
	err := fs.WalkDir(os.DirFS("static"), ".", func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		if e.IsDir() {
			t.Errorf("static/%s is a folder, which is not served", p)
		} else if r := get(t, http.MethodGet, srv.URL+"/console/"+p); r.status != http.StatusOK {
			t.Errorf("static/%s gives %d", p, r.status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAboutSaysWhatThereIs(t *testing.T) {
	r := get(t, http.MethodGet, serve(t, config()).URL+"/console/about.json")
	if r.body != `{"auth":false,"live":false}`+"\n" || r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%q, %q", r.body, r.header.Get("Cache-Control"))
	}
	cfg := config()
	cfg.Admit = func(context.Context, string) error { return nil }
	cfg.Live = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "live") })
	srv := serve(t, cfg)
	if r := get(t, http.MethodGet, srv.URL+"/console/about.json"); r.body != `{"auth":true,"live":true}`+"\n" {
		t.Errorf("%q", r.body)
	}
	if r := get(t, http.MethodGet, srv.URL+"/console/live"); r.body != "live" {
		t.Errorf("live: %d %q", r.status, r.body)
	}
}

func TestThePipelineIsForAdministrators(t *testing.T) {
	cfg := config()
	cfg.Admit = func(_ context.Context, token string) error {
		switch token {
		case "admin":
			return nil
		case "user":
			return fmt.Errorf("%w: no scope", console.ErrNotAdmin)
		case "later":
			return errors.New("the issuer is away at 10.1.2.3")
		}
		return fmt.Errorf("%w: %q", console.ErrNoToken, token)
	}
	srv := serve(t, cfg)
	for given, want := range map[string]int{
		"": 401, "Bearer": 401, "Bearer ": 401, "Bearer bad": 401, "Basic admin": 401, "admin": 401,
		"Bearer user": 403, "Bearer later": 503, "Bearer admin": 200, "bearer  admin": 200,
	} {
		r := get(t, http.MethodGet, srv.URL+"/console/pipeline.json", "Authorization", given)
		if r.status != want || r.header.Get("Cache-Control") != "no-store" || strings.Contains(r.body, "10.1.2.3") || want != 200 && strings.Contains(r.body, "processes") {
			t.Errorf("%q: %d %s, want %d", given, r.status, r.body, want)
		}
		if want == 401 && r.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%q: WWW-Authenticate %q", given, r.header.Get("WWW-Authenticate"))
		}
	}
	// Neither the files nor the token's own words need one.
	if r := get(t, http.MethodGet, srv.URL+"/console/"); r.status != http.StatusOK {
		t.Errorf("the page: %d", r.status)
	}
}
