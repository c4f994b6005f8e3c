package access

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	maxKeySet    = 1 << 20          // bytes
	maxKeys      = 100              // of one set
	minRSA       = 2048             // bits
	fetchTimeout = 5 * time.Second  // for one fetch
	fetchPause   = 10 * time.Second // between two fetches
	staleLimit   = 24 * time.Hour   // how long keys are used without a fetch
	fileRefresh  = 10 * time.Second
	maxRedirects = 3
)

// keys is a key set that is fetched when somebody asks and it is too old, or
// has not the key that is asked for; never more often than fetchPause.
type keys struct {
	fetch   func(context.Context) ([]byte, error)
	algs    []string
	refresh time.Duration
	now     func() time.Time

	mu      sync.Mutex
	set     []jose.JSONWebKey
	fetched time.Time     // when set was
	tried   time.Time     // when the last fetch began
	fault   error         // of the last fetch
	busy    chan struct{} // closed when the fetch under way ends; nil: none is
}

func newKeys(cfg Config) *keys {
	k := &keys{algs: cfg.Algorithms, refresh: cmp.Or(cfg.Refresh, 15*time.Minute), now: cfg.Now}
	if cfg.File != "" {
		k.refresh = fileRefresh
		k.fetch = func(context.Context) ([]byte, error) { return readFile(cfg.File) }
		return k
	}
	client := cfg.Client
	if client == nil {
		client = &http.Client{Timeout: fetchTimeout, CheckRedirect: checkRedirect}
	}
	k.fetch = func(ctx context.Context) ([]byte, error) { return get(ctx, client, cfg.URL) }
	return k
}

// checkURL refuses to take keys from a place that somebody on the way can play.
func checkURL(given string) error {
	if given == "" {
		return nil
	}
	u, err := url.Parse(given)
	if err != nil || u.Host == "" {
		return errors.New("the key set's URL is none")
	}
	if u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("the key set's URL must be https (http on loopback only), its scheme is %q", u.Scheme)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errors.New("too many redirects")
	}
	return checkURL(req.URL.String())
}

func get(ctx context.Context, client *http.Client, from string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", from, res.Status)
	}
	return readAll(res.Body)
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f)
}

func readAll(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxKeySet+1))
	if err == nil && len(b) > maxKeySet {
		err = fmt.Errorf("the key set has more than %d bytes", maxKeySet)
	}
	return b, err
}

// parseKeys gives those keys of a set that can check a signature by one of algs.
// Keys of other kinds and for other uses may stand beside them.
func parseKeys(b []byte, algs []string) ([]jose.JSONWebKey, error) {
	var doc struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("it is no key set: %w", err)
	}
	if len(doc.Keys) > maxKeys {
		return nil, fmt.Errorf("it has %d keys, at most %d are taken", len(doc.Keys), maxKeys)
	}
	var out []jose.JSONWebKey
	for _, raw := range doc.Keys {
		var k jose.JSONWebKey
		// A key of a kind that is not known is for somebody else.
		if json.Unmarshal(raw, &k) != nil || k.Use != "" && k.Use != "sig" {
			continue
		}
		if slices.Contains(algs, algorithmOf(k)) {
			out = append(out, k)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("it has no key for %v", algs)
	}
	return out, nil
}

// algorithmOf tells the one algorithm that k may check, "" when it may none: a
// key is never used for what it was not made for. Private and symmetric keys do
// not belong where everybody can read them, and are not used.
func algorithmOf(k jose.JSONWebKey) string {
	var alg jose.SignatureAlgorithm
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() >= minRSA {
			alg = jose.RS256
		}
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			alg = jose.ES256
		}
	case ed25519.PublicKey:
		alg = jose.EdDSA
	}
	if k.Algorithm != "" && k.Algorithm != string(alg) {
		return ""
	}
	return string(alg)
}

// find gives the keys that may have signed a token with kid and alg. A kid that
// is not in the set may be a new one, so the set is fetched again.
func (k *keys) find(ctx context.Context, kid, alg string) ([]jose.JSONWebKey, error) {
	set, err := k.current(ctx)
	if err != nil {
		return nil, err
	}
	if out := pick(set, kid, alg); len(out) > 0 {
		return out, nil
	}
	if set, err = k.again(ctx); err != nil {
		return nil, err
	}
	if out := pick(set, kid, alg); len(out) > 0 {
		return out, nil
	}
	return nil, errSignature
}

func pick(set []jose.JSONWebKey, kid, alg string) []jose.JSONWebKey {
	var out []jose.JSONWebKey
	for _, key := range set {
		if algorithmOf(key) == alg && (kid == "" || key.KeyID == kid) {
			out = append(out, key)
		}
	}
	return out
}

// current gives the set, and fetches it before when it is too old. Those who
// come while it is fetched use the old one.
func (k *keys) current(ctx context.Context) ([]jose.JSONWebKey, error) {
	k.mu.Lock()
	have, old := k.usableLocked(), k.now().Sub(k.fetched) >= k.refresh
	if have && (!old || k.busy != nil || k.pausedLocked()) {
		defer k.mu.Unlock()
		return k.set, nil
	}
	k.mu.Unlock()
	return k.again(ctx)
}

func (k *keys) usableLocked() bool {
	return len(k.set) > 0 && k.now().Sub(k.fetched) < staleLimit
}

func (k *keys) pausedLocked() bool {
	return !k.tried.IsZero() && k.now().Sub(k.tried) < fetchPause
}

// again fetches the set unless that was tried just now, and gives what there is
// then. One caller fetches, the others wait for it.
func (k *keys) again(ctx context.Context) ([]jose.JSONWebKey, error) {
	k.mu.Lock()
	switch {
	case k.busy != nil:
		busy := k.busy
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrKeys, ctx.Err())
		}
		k.mu.Lock()
	case !k.pausedLocked():
		k.fetchLocked(ctx)
	}
	defer k.mu.Unlock()
	if !k.usableLocked() {
		return nil, fmt.Errorf("%w: %w", ErrKeys, k.faultLocked())
	}
	return k.set, nil
}

// fetchLocked lets go of the lock while it fetches. The fetch is for all who
// wait, so the caller's end does not end it.
func (k *keys) fetchLocked(ctx context.Context) {
	k.busy, k.tried = make(chan struct{}), k.now()
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	var set []jose.JSONWebKey
	b, err := k.fetch(ctx)
	if err == nil {
		set, err = parseKeys(b, k.algs)
	}
	k.mu.Lock()
	if k.fault = err; err == nil {
		k.set, k.fetched = set, k.tried
	}
	close(k.busy)
	k.busy = nil
}

func (k *keys) faultLocked() error {
	return cmp.Or(k.fault, errors.New("the key set was not fetched yet"))
}

func (k *keys) ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.usableLocked() {
		return k.faultLocked()
	}
	return nil
}
