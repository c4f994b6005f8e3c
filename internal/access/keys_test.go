package access_test

import (
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/tidemark-im/tidemark/internal/access"
)

func keyFile(tb testing.TB, set jose.JSONWebKeySet) string {
	tb.Helper()
	name := filepath.Join(tb.TempDir(), "keys.json")
	writeKeys(tb, name, set)
	return name
}

func writeKeys(tb testing.TB, name string, set jose.JSONWebKeySet) {
	tb.Helper()
	b, err := json.Marshal(set)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// issuerServer publishes a key set.
type issuerServer struct {
	mu      sync.Mutex
	set     jose.JSONWebKeySet
	body    string // instead of set
	status  int
	fetches atomic.Int32
}

func (s *issuerServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.fetches.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status != 0 {
		w.WriteHeader(s.status)
		return
	}
	if s.body != "" {
		fmt.Fprint(w, s.body)
		return
	}
	_ = json.NewEncoder(w).Encode(s.set)
}

func (s *issuerServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func serveKeys(tb testing.TB, s *issuerServer) string {
	srv := httptest.NewServer(s)
	tb.Cleanup(srv.Close)
	return srv.URL
}

func TestEveryAlgorithmOfAKeySet(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	ec, ec384 := ecKey(t, elliptic.P256()), ecKey(t, elliptic.P384())
	pub, priv := edKey(t)
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: &rsaKey.PublicKey, KeyID: "rsa", Algorithm: "RS256", Use: "sig"},
		{Key: &ec.PublicKey, KeyID: "ec"},
		{Key: pub, KeyID: "ed", Algorithm: "EdDSA"},
		{Key: &weak.PublicKey, KeyID: "weak"},
		{Key: &ec384.PublicKey, KeyID: "ec384"},
		{Key: &rsaKey.PublicKey, KeyID: "enc", Use: "enc"},
		{Key: &rsaKey.PublicKey, KeyID: "pss", Algorithm: "PS256"},
		{Key: priv, KeyID: "private"},
		{Key: secret, KeyID: "oct"},
	}}
	v := verifier(t, access.Config{File: keyFile(t, set), Now: (&clock{now}).now})
	for _, tc := range []struct {
		alg jose.SignatureAlgorithm
		key any
		kid string
		ok  bool
	}{
		{jose.RS256, rsaKey, "rsa", true},
		{jose.RS256, rsaKey, "", true},
		{jose.ES256, ec, "ec", true},
		{jose.ES256, ec, "", true},
		{jose.EdDSA, priv, "ed", true},
		{jose.EdDSA, priv, "", true},
		{jose.RS256, rsaKey, "ec", false},
		{jose.RS256, rsaKey, "enc", false},
		{jose.RS256, rsaKey, "pss", false},
		{jose.RS256, weak, "weak", false},
		{jose.ES384, ec384, "ec384", false},
		{jose.EdDSA, priv, "private", false},
		{jose.HS256, secret, "oct", false},
		{jose.RS256, rsaKey, "nobody", false},
	} {
		_, err := v.Verify(t.Context(), sign(t, tc.alg, tc.key, tc.kid, with(nil)))
		if ok := err == nil; ok != tc.ok || !ok && !errors.Is(err, access.ErrInvalid) {
			t.Errorf("%s by %q: %v", tc.alg, tc.kid, err)
		}
	}
	only := verifier(t, access.Config{File: keyFile(t, set), Algorithms: []string{"ES256"}, Now: (&clock{now}).now})
	if _, err := only.Verify(t.Context(), sign(t, jose.EdDSA, priv, "ed", with(nil))); !errors.Is(err, access.ErrInvalid) {
		t.Errorf("an algorithm that is not allowed: %v", err)
	}
	if _, err := only.Verify(t.Context(), sign(t, jose.ES256, ec, "ec", with(nil))); err != nil {
		t.Error(err)
	}
}

func TestANewKeyIsFetchedWhenItIsUsedAndNotMoreOftenThanThat(t *testing.T) {
	one, two := ecKey(t, elliptic.P256()), ecKey(t, elliptic.P256())
	s := &issuerServer{set: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &one.PublicKey, KeyID: "1"}}}}
	c := &clock{now}
	v := verifier(t, access.Config{URL: serveKeys(t, s), Now: c.now, Refresh: time.Hour})
	first, second := sign(t, jose.ES256, one, "1", with(claims{"exp": now.Unix() + 1e6})), sign(t, jose.ES256, two, "2", with(claims{"exp": now.Unix() + 1e6}))
	want := func(token string, ok bool, fetches int32) {
		t.Helper()
		if _, err := v.Verify(t.Context(), token); (err == nil) != ok {
			t.Errorf("err = %v, want ok %v", err, ok)
		}
		if got := s.fetches.Load(); got != fetches {
			t.Errorf("%d fetches, want %d", got, fetches)
		}
	}
	want(first, true, 1)
	want(first, true, 1)
	s.change(func() { s.set.Keys = append(s.set.Keys, jose.JSONWebKey{Key: &two.PublicKey, KeyID: "2"}) })
	for range 50 {
		want(second, false, 1) // just fetched
	}
	c.Time = c.Add(10 * time.Second)
	want(second, true, 2)
	want(first, true, 2)
	// A flood of names that nobody has costs a fetch in ten seconds.
	for i := range 30 {
		c.Time = c.Add(time.Second)
		if _, err := v.Verify(t.Context(), sign(t, jose.ES256, two, fmt.Sprint("x", i), with(claims{"exp": now.Unix() + 1e6}))); !errors.Is(err, access.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
	if got := s.fetches.Load(); got > 5 {
		t.Errorf("%d fetches in 30 seconds", got-2)
	}
	// A key that was taken away goes with the next refresh.
	s.change(func() { s.set.Keys = s.set.Keys[1:] })
	c.Time = c.Add(time.Hour)
	n := s.fetches.Load()
	want(second, true, n+1)
	c.Time = c.Add(10 * time.Second)
	want(first, false, n+2)
}

func TestKeysOutliveAnIssuerThatIsAwayForADay(t *testing.T) {
	key := ecKey(t, elliptic.P256())
	s := &issuerServer{set: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "1"}}}, status: 500}
	c := &clock{now}
	v := verifier(t, access.Config{URL: serveKeys(t, s), Now: c.now})
	token := sign(t, jose.ES256, key, "1", with(claims{"exp": now.Unix() + 1e6}))
	if err := v.Load(t.Context()); !errors.Is(err, access.ErrKeys) {
		t.Errorf("load: %v", err)
	}
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, access.ErrKeys) || v.Ready() == nil {
		t.Errorf("no keys: %v, ready %v", err, v.Ready())
	}
	s.change(func() { s.status = 0 })
	c.Time = c.Add(10 * time.Second)
	if _, err := v.Verify(t.Context(), token); err != nil || v.Ready() != nil {
		t.Errorf("%v, ready %v", err, v.Ready())
	}
	for _, fault := range []func(){
		func() { s.status = 503 },
		func() { s.status, s.body = 0, "<html>" },
		func() { s.body = `{"keys":[]}` },
		func() { s.body = `{"keys":[{"kty":"oct","k":"eHh4"}]}` },
		func() { s.body = `{"keys":[` + strings.Repeat(`{},`, 200) + `{}]}` },
		func() { s.body = strings.Repeat(" ", 2<<20) },
	} {
		s.change(fault)
		c.Time = c.Add(time.Hour)
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Errorf("%v", err)
		}
	}
	c.Time = c.Add(24 * time.Hour)
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, access.ErrKeys) || v.Ready() == nil {
		t.Errorf("after a day: %v", err)
	}
}

func TestAKeySetHasItsBounds(t *testing.T) {
	key := ecKey(t, elliptic.P256())
	one := must(json.Marshal(jose.JSONWebKey{Key: &key.PublicKey, KeyID: "1"}))
	for body, ok := range map[string]bool{
		`{"keys":[` + one + `]}`:                                   true,
		`{"keys":[` + one + `]}` + strings.Repeat(" ", 1<<20):      false,
		`{"keys":[` + strings.Repeat(one+",", 99) + one + `]}`:     true,
		`{"keys":[` + strings.Repeat(one+",", 100) + one + `]}`:    false,
		`{"keys":[` + one + `,{"kty":"new"},{"kty":"oct","k":1}]}`: true,
	} {
		v := verifier(t, access.Config{URL: serveKeys(t, &issuerServer{body: body})})
		if err := v.Load(t.Context()); (err == nil) != ok {
			t.Errorf("%d bytes: %v", len(body), err)
		}
	}
}

func must(b []byte, err error) string {
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestOneFetchServesAllWhoWait(t *testing.T) {
	key := ecKey(t, elliptic.P256())
	s := &issuerServer{set: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "1"}}}}
	v := verifier(t, access.Config{URL: serveKeys(t, s), Now: (&clock{now}).now})
	token := sign(t, jose.ES256, key, "1", with(nil))
	s.mu.Lock() // holds the answer back
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := v.Verify(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	for deadline := time.Now().Add(10 * time.Second); s.fetches.Load() == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	s.mu.Unlock()
	wg.Wait()
	if n := s.fetches.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

func TestKeysAreNotTakenFromWhereARedirectLeadsInClear(t *testing.T) {
	s := httptest.NewServer(http.RedirectHandler("http://192.0.2.1/keys", http.StatusFound))
	defer s.Close()
	err := verifier(t, access.Config{URL: s.URL}).Load(t.Context())
	if !errors.Is(err, access.ErrKeys) || !strings.Contains(err.Error(), "must be https") {
		t.Errorf("%v", err)
	}
}

func TestAKeyFileIsReadAgain(t *testing.T) {
	one, two := ecKey(t, elliptic.P256()), ecKey(t, elliptic.P256())
	name := keyFile(t, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &one.PublicKey, KeyID: "1"}}})
	c := &clock{now}
	v := verifier(t, access.Config{File: name, Now: c.now})
	if err := v.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	writeKeys(t, name, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &two.PublicKey, KeyID: "2"}}})
	c.Time = c.Add(10 * time.Second)
	if _, err := v.Verify(t.Context(), sign(t, jose.ES256, two, "2", with(nil))); err != nil {
		t.Error(err)
	}
	if _, err := v.Verify(t.Context(), sign(t, jose.ES256, one, "1", with(nil))); !errors.Is(err, access.ErrInvalid) {
		t.Errorf("the old key: %v", err)
	}
	if err := verifier(t, access.Config{File: name + "x"}).Load(t.Context()); !errors.Is(err, access.ErrKeys) {
		t.Errorf("no file: %v", err)
	}
}
