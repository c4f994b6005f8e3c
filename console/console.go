package console

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// Path is where the console is served. Handler serves nothing outside of it.
const Path = "/console/"

var (
	// ErrNoToken is returned by an Admit function, wrapped, for a token that is
	// missing, expired or not good. Its text is told to the caller.
	ErrNoToken = errors.New("not authenticated")
	// ErrNotAdmin is returned by an Admit function, wrapped, for a good token
	// that is no administrator's.
	ErrNotAdmin = errors.New("not an administrator")
)

const (
	// DefaultFresh is Config.Fresh where nobody sets one.
	DefaultFresh = 500 * time.Millisecond
	// DefaultPatience is Config.Patience where nobody sets one.
	DefaultPatience = 2 * time.Second
)

// Config says what the console shows.
type Config struct {
	// Gatherer gives this process's metrics. Required.
	Gatherer prometheus.Gatherer
	// Report gives this process's parts with why each is not ready ("" when it
	// is). Required.
	Report func() (parts map[string]string, ready bool)
	// Processes are the base URLs of other processes' operator ports, which are
	// asked for /metrics and /readyz. None: this process is all that is shown.
	Processes []string
	// Admit tells whether a bearer token is an administrator's. Its errors wrap
	// ErrNoToken or ErrNotAdmin; another one means that it cannot be told now.
	// nil: nobody is asked.
	Admit func(ctx context.Context, token string) error
	// Live serves the gateway's WebSocket. nil: panes are not live.
	Live http.Handler
	// Fresh is how long an answer of the processes is used. 0: DefaultFresh.
	Fresh time.Duration
	// Patience is how long another process may take. 0: DefaultPatience.
	Patience time.Duration

	Client *http.Client     // asks other processes. nil: one of its own
	Now    func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: nothing is logged
}

// Console serves the page.
type Console struct {
	cfg   Config
	files map[string]file

	asking singleflight.Group

	mu   sync.Mutex
	last *Pipeline // guarded by mu
	at   time.Time // of last; guarded by mu
}

// New checks cfg.
func New(cfg Config) (*Console, error) {
	var errs []error
	if cfg.Gatherer == nil {
		errs = append(errs, errors.New("console: Gatherer is missing"))
	}
	if cfg.Report == nil {
		errs = append(errs, errors.New("console: Report is missing"))
	}
	for _, p := range cfg.Processes {
		if u, err := url.Parse(p); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			errs = append(errs, fmt.Errorf("console: process %q is not http://host:port", p))
		}
	}
	if cfg.Fresh < 0 || cfg.Patience < 0 {
		errs = append(errs, fmt.Errorf("console: Fresh is %s and Patience %s, neither may be negative", cfg.Fresh, cfg.Patience))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Fresh == 0 {
		cfg.Fresh = DefaultFresh
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Client == nil {
		cfg.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	files, err := loadFiles()
	if err != nil {
		return nil, err
	}
	return &Console{cfg: cfg, files: files}, nil
}

// Handler serves everything below Path, and sends Path without its slash there.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+strings.TrimSuffix(Path, "/"), func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, Path, http.StatusPermanentRedirect)
	})
	mux.HandleFunc("GET "+Path, c.serveFile)
	mux.HandleFunc("GET "+Path+"about.json", c.serveAbout)
	mux.HandleFunc("GET "+Path+"pipeline.json", c.servePipeline)
	if c.cfg.Live != nil {
		mux.Handle("GET "+Path+"live", c.cfg.Live)
	}
	return secured(mux)
}

// policy lets the page have its own files and talk to its own origin. Nothing in
// the page's text runs, and no string becomes markup.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()")
		next.ServeHTTP(w, r)
	})
}

//go:embed static
var static embed.FS

// file is one that is served.
type file struct {
	content   []byte
	mediaType string
	etag      string
}

var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// loadFiles gives the files by their names. What is not among them is not
// served, whatever a path looks like.
func loadFiles() (map[string]file, error) {
	entries, err := fs.ReadDir(static, "static")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	files := make(map[string]file, len(entries))
	for _, e := range entries {
		content, err := static.ReadFile("static/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		t, ok := mediaTypes[path.Ext(e.Name())]
		if !ok {
			return nil, fmt.Errorf("console: %s has no known type", e.Name())
		}
		sum := sha256.Sum256(content)
		files[e.Name()] = file{content, t, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
	}
	return files, nil
}

func (c *Console) serveFile(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Path)
	if name == "" {
		name = "index.html"
	}
	f, ok := c.files[name]
	if !ok {
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "The console has no such page.", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.mediaType)
	h.Set("ETag", f.etag)
	// A browser may keep a file, but asks each time: the next version of the
	// program has other files under the same names.
	h.Set("Cache-Control", "no-cache")
	if sameTag(r.Header.Get("If-None-Match"), f.etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(f.content)))
	if r.Method == http.MethodHead {
		return
	}
	_, _ = w.Write(f.content) // an error means that the browser is gone
}

func sameTag(given, etag string) bool {
	for t := range strings.SplitSeq(given, ",") {
		if strings.TrimPrefix(strings.TrimSpace(t), "W/") == etag {
			return true
		}
	}
	return false
}

// About says what there is, to whoever can reach the page.
type About struct {
	// Auth: callers are asked for a token.
	Auth bool `json:"auth"`
	// Live: there is a gateway at "live" beside this document.
	Live bool `json:"live"`
}

func (c *Console) serveAbout(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, About{Auth: c.cfg.Admit != nil, Live: c.cfg.Live != nil})
}

// problem is an answer that is no document.
type problem struct {
	Error string `json:"error"`
}

func (c *Console) servePipeline(w http.ResponseWriter, r *http.Request) {
	if c.cfg.Admit != nil {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			token = ""
		}
		switch err := c.cfg.Admit(r.Context(), strings.TrimSpace(token)); {
		case errors.Is(err, ErrNoToken):
			w.Header().Set("WWW-Authenticate", "Bearer")
			answer(w, http.StatusUnauthorized, problem{err.Error()})
			return
		case errors.Is(err, ErrNotAdmin):
			answer(w, http.StatusForbidden, problem{err.Error()})
			return
		case err != nil:
			c.cfg.Logger.Error("authentication failed", "error", err)
			answer(w, http.StatusServiceUnavailable, problem{"whether the token is good cannot be told now"})
			return
		}
	}
	answer(w, http.StatusOK, c.Pipeline(r.Context()))
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the caller is gone
}
