package access_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/internal/access"
)

var (
	secret = []byte(strings.Repeat("s", 2*access.MinSecret)) // enough for HS512
	now    = time.Unix(1_800_000_000, 0)
)

type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func config() access.Config {
	return access.Config{Secret: secret, Now: (&clock{now}).now}
}

func verifier(tb testing.TB, cfg access.Config) *access.Verifier {
	tb.Helper()
	v, err := access.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// sign makes a token of any claims, as an issuer would.
func sign(tb testing.TB, alg jose.SignatureAlgorithm, key any, kid string, claims any) string {
	tb.Helper()
	opts := &jose.SignerOptions{}
	if kid != "" {
		opts.WithHeader("kid", kid)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	if err != nil {
		tb.Fatal(err)
	}
	out, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func segment(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func hs256(head string, key []byte, claims any) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + segment(claims)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

type claims = map[string]any

// with gives claims that are good, and others over them; nil takes one away.
func with(changes claims) claims {
	out := claims{"sub": "alice", "exp": now.Unix() + 60}
	for k, v := range changes {
		if out[k] = v; v == nil {
			delete(out, k)
		}
	}
	return out
}

func TestWhatATokenSays(t *testing.T) {
	for name, tc := range map[string]struct {
		claims claims
		config func(*access.Config)
		want   access.Caller
		err    error
	}{
		"plain":                     {claims: with(nil), want: access.Caller{User: "alice"}},
		"no exp":                    {claims: with(claims{"exp": nil}), err: access.ErrInvalid},
		"exp is a word":             {claims: with(claims{"exp": "soon"}), err: access.ErrInvalid},
		"exp overflows":             {claims: with(claims{"exp": 1e300}), err: access.ErrInvalid},
		"expired":                   {claims: with(claims{"exp": now.Unix() - 1}), err: access.ErrExpired},
		"expires now":               {claims: with(claims{"exp": now.Unix()}), err: access.ErrExpired},
		"expired within leeway":     {claims: with(claims{"exp": now.Unix() - 9}), config: leeway, want: access.Caller{User: "alice", Expires: now.Add(time.Second)}},
		"expired beyond leeway":     {claims: with(claims{"exp": now.Unix() - 10}), config: leeway, err: access.ErrExpired},
		"not yet":                   {claims: with(claims{"nbf": now.Unix() + 1}), err: access.ErrInvalid},
		"not yet, within leeway":    {claims: with(claims{"nbf": now.Unix() + 10}), config: leeway, want: access.Caller{User: "alice", Expires: now.Add(70 * time.Second)}},
		"made in the future":        {claims: with(claims{"iat": now.Unix() + 100}), err: access.ErrInvalid},
		"issuer":                    {claims: with(claims{"iss": "us"}), config: issuer, want: access.Caller{User: "alice"}},
		"another issuer":            {claims: with(claims{"iss": "them"}), config: issuer, err: access.ErrInvalid},
		"no issuer":                 {claims: with(nil), config: issuer, err: access.ErrInvalid},
		"any issuer":                {claims: with(claims{"iss": "them"}), want: access.Caller{User: "alice"}},
		"audience":                  {claims: with(claims{"aud": []string{"x", "chat"}}), config: audience, want: access.Caller{User: "alice"}},
		"audience as a word":        {claims: with(claims{"aud": "chat"}), config: audience, want: access.Caller{User: "alice"}},
		"another audience":          {claims: with(claims{"aud": "x"}), config: audience, err: access.ErrInvalid},
		"no audience":               {claims: with(nil), config: audience, err: access.ErrInvalid},
		"admin":                     {claims: with(claims{"scope": "openid tidemark:admin"}), want: access.Caller{User: "alice", Admin: true}},
		"admin by list":             {claims: with(claims{"scope": []string{"tidemark:admin"}}), want: access.Caller{User: "alice", Admin: true}},
		"not quite admin":           {claims: with(claims{"scope": "tidemark:administrator xtidemark:admin"}), want: access.Caller{User: "alice"}},
		"scope is a number":         {claims: with(claims{"scope": 7}), want: access.Caller{User: "alice"}},
		"another claim":             {claims: with(claims{"roles": []string{"boss"}}), config: roles, want: access.Caller{User: "alice", Admin: true}},
		"scope with another claim":  {claims: with(claims{"scope": "boss"}), config: roles, want: access.Caller{User: "alice"}},
		"no sub":                    {claims: with(claims{"sub": nil}), err: access.ErrInvalid},
		"sub is no user id":         {claims: with(claims{"sub": "a|b"}), err: access.ErrInvalid},
		"sub is a number":           {claims: with(claims{"sub": 7}), err: access.ErrInvalid},
		"sub of an admin is no id":  {claims: with(claims{"sub": "a|b", "scope": "tidemark:admin"}), want: access.Caller{Admin: true}},
		"expired admin":             {claims: with(claims{"scope": "tidemark:admin", "exp": 1}), err: access.ErrExpired},
		"a sub that is longer":      {claims: with(claims{"sub": strings.Repeat("a", 65)}), err: access.ErrInvalid},
		"claims are not an object":  {claims: nil, err: access.ErrInvalid},
		"more claims do not matter": {claims: with(claims{"name": "Alice", "deep": map[string]any{"x": []int{1}}}), want: access.Caller{User: "alice"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			if tc.config != nil {
				tc.config(&cfg)
			}
			var body any = tc.claims
			if tc.claims == nil {
				body = []int{1}
			}
			got, err := verifier(t, cfg).Verify(t.Context(), hs256(`{"alg":"HS256"}`, secret, body))
			if !errors.Is(err, tc.err) {
				t.Fatalf("err = %v, want %v", err, tc.err)
			}
			if err == nil && tc.want.Expires.IsZero() {
				tc.want.Expires = now.Add(time.Minute)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func leeway(c *access.Config)   { c.Leeway = 10 * time.Second }
func issuer(c *access.Config)   { c.Issuer = "us" }
func audience(c *access.Config) { c.Audience = []string{"chat", "web"} }
func roles(c *access.Config)    { c.ScopeClaim, c.AdminScope = "roles", "boss" }

// Each of these has worked against somebody.
func TestForgedTokens(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&rsaKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	good := hs256(`{"alg":"HS256"}`, secret, with(nil))
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	bySecret := map[string]string{
		"alg none":              none + "." + parts[1] + ".",
		"alg none, signed":      none + "." + parts[1] + "." + parts[2],
		"alg None":              base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"None"}`)) + "." + parts[1] + ".",
		"no alg":                hs256(`{}`, secret, with(nil)),
		"another HMAC":          sign(t, jose.HS512, secret, "", with(nil)),
		"another secret":        hs256(`{"alg":"HS256"}`, []byte(strings.Repeat("x", 64)), with(nil)),
		"empty secret":          hs256(`{"alg":"HS256"}`, nil, with(nil)),
		"claims changed":        parts[0] + "." + segment(with(claims{"sub": "root"})) + "." + parts[2],
		"no signature":          parts[0] + "." + parts[1] + ".",
		"two parts":             parts[0] + "." + parts[1],
		"five parts":            good + ".x.y",
		"critical header":       hs256(`{"alg":"HS256","crit":["x"],"x":1}`, secret, with(nil)),
		"payload not encoded":   hs256(`{"alg":"HS256","b64":false,"crit":["b64"]}`, secret, with(nil)),
		"alg twice":             hs256(`{"alg":"HS256","alg":"none"}`, secret, with(nil)),
		"key in the header":     hs256(`{"alg":"HS256","jwk":{"kty":"oct","k":"eHh4"}}`, []byte("xxx"), with(nil)),
		"signed by another alg": sign(t, jose.RS256, rsaKey, "", with(nil)),
		"not base64":            "%%%." + parts[1] + "." + parts[2],
		"JSON serialization":    `{"payload":"` + parts[1] + `","signatures":[{"protected":"` + parts[0] + `","signature":"` + parts[2] + `"}]}`,
		"too long":              hs256(`{"alg":"HS256"}`, secret, with(claims{"x": strings.Repeat("y", access.MaxToken)})),
	}
	v := verifier(t, config())
	if _, err := v.Verify(t.Context(), good); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	for name, token := range bySecret {
		if c, err := v.Verify(t.Context(), token); !errors.Is(err, access.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, c, err)
		} else if strings.Contains(err.Error(), "alice") {
			t.Errorf("%s: the error tells what stands in the token: %v", name, err)
		}
	}
	if _, err := v.Verify(t.Context(), ""); !errors.Is(err, access.ErrMissing) {
		t.Errorf("no token: %v", err)
	}

	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &rsaKey.PublicKey, KeyID: "k"}}}
	byKeys := verifier(t, access.Config{File: keyFile(t, set), Now: (&clock{now}).now})
	if _, err := byKeys.Verify(t.Context(), sign(t, jose.RS256, rsaKey, "k", with(nil))); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	for name, token := range map[string]string{
		"alg none":                    none + "." + parts[1] + ".",
		"HMAC by the public key":      hs256(`{"alg":"HS256","kid":"k"}`, public, with(nil)),
		"HMAC by its DER":             hs256(`{"alg":"HS256","kid":"k"}`, der, with(nil)),
		"RSA of a hash not allowed":   sign(t, jose.RS512, rsaKey, "k", with(nil)),
		"RSA-PSS":                     sign(t, jose.PS256, rsaKey, "k", with(nil)),
		"signed by secret":            good,
		"another key under this name": sign(t, jose.ES256, ecKey(t, elliptic.P256()), "k", with(nil)),
	} {
		if c, err := byKeys.Verify(t.Context(), token); !errors.Is(err, access.ErrInvalid) {
			t.Errorf("key set: %s: %v, %v", name, c, err)
		}
	}
}

func ecKey(tb testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	tb.Helper()
	k, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func edKey(tb testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	tb.Helper()
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return pub, priv
}

func TestMintedTokensAreTaken(t *testing.T) {
	cfg := config()
	cfg.Issuer, cfg.Audience, cfg.ScopeClaim = "us", []string{"chat"}, "scp"
	token, err := access.Mint(cfg, access.Claims{Subject: "bob", Scopes: []string{"x", access.DefaultAdminScope}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got, err := verifier(t, cfg).Verify(t.Context(), token)
	if diff := cmp.Diff(access.Caller{User: "bob", Admin: true, Expires: now.Add(time.Hour)}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, c := range []access.Claims{{TTL: time.Hour}, {Subject: "bob"}, {Subject: "bob", TTL: -1}} {
		if _, err := access.Mint(cfg, c); err == nil {
			t.Errorf("%+v was minted", c)
		}
	}
	if _, err := access.Mint(access.Config{URL: "https://x/"}, access.Claims{Subject: "bob", TTL: time.Hour}); err == nil {
		t.Error("minted without a secret")
	}
}

func TestNewNamesAllFaultsTogether(t *testing.T) {
	for _, tc := range []struct {
		cfg  access.Config
		want []string
	}{
		{access.Config{}, []string{"one of"}},
		{access.Config{Secret: []byte("short"), URL: "http://idp.example/keys", Algorithms: []string{"RS256", "none"}, Leeway: -1},
			[]string{"one of", "5 bytes", "must be https", `"RS256"`, `"none"`, "negative"}},
		{access.Config{File: "x", Algorithms: []string{"HS256"}}, []string{`"HS256" is none of`}},
		{access.Config{URL: "ftp://x/y"}, []string{"must be https"}},
		{access.Config{URL: ":"}, []string{"none"}},
	} {
		_, err := access.New(tc.cfg)
		if err == nil {
			t.Errorf("%+v is accepted", tc.cfg)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
		if strings.Contains(err.Error(), "short") {
			t.Errorf("%q shows the secret", err)
		}
	}
	for _, u := range []string{"https://idp.example/keys", "http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]/x"} {
		if _, err := access.New(access.Config{URL: u}); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	v := verifier(f, config())
	f.Add(hs256(`{"alg":"HS256"}`, secret, with(nil)))
	f.Add("a.b.c")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "..")
	f.Fuzz(func(t *testing.T, token string) {
		_, err := v.Verify(context.Background(), token)
		if err == nil && !strings.HasPrefix(token, "ey") {
			t.Errorf("%q is taken", token)
		}
		if err != nil && !errors.Is(err, access.ErrInvalid) && !errors.Is(err, access.ErrMissing) && !errors.Is(err, access.ErrExpired) {
			t.Errorf("%q: %v", token, err)
		}
	})
}
