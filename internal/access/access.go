// Package access tells from a token who calls: JSON Web Tokens, signed with a
// shared secret (HS256, for development) or with keys that are published as a
// JSON Web Key Set (RS256, ES256, EdDSA).
//
// It promises:
//   - The configuration alone says which algorithms are taken, and a key is used
//     for its own algorithm only. "none", and an HMAC under a public key, are
//     refused before anything is computed.
//   - A token must expire; expiry, not-before, issuer and audience are checked
//     with one leeway.
//   - A token of any length or content costs a bounded amount of work and
//     memory, and one with an unknown key makes the key set be fetched at most
//     once every ten seconds, whoever sends how many of them.
//
// It does not promise that a token that was withdrawn is refused before it
// expires, and keeps no state about tokens.
//
// A Verifier is safe for concurrent use and starts no goroutines. When the key
// set cannot be fetched, the keys that were fetched last are used for a day;
// after that, and before the first time, every token is answered with ErrKeys.
package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/tidemark-im/tidemark/watermark"
)

var (
	// ErrMissing is returned for an empty token.
	ErrMissing = errors.New("no token")
	// ErrInvalid is returned, wrapped, for a token that will never be good.
	ErrInvalid = errors.New("token is not valid")
	// ErrExpired is returned for a token that was good once.
	ErrExpired = errors.New("token has expired")
	// ErrKeys is returned, wrapped, when the keys cannot be had: whether the
	// token is good cannot be told.
	ErrKeys = errors.New("keys cannot be had")
)

const (
	// MinSecret is the shortest secret in bytes: RFC 7518, section 3.2.
	MinSecret = 32
	// MaxToken is the longest token in bytes.
	MaxToken = 8 << 10
)

// Algorithms lists what can be allowed with a key set. A secret allows HS256 and
// nothing else.
func Algorithms() []string { return []string{"RS256", "ES256", "EdDSA"} }

// Config says whose tokens are good. Either Secret, URL or File is required.
type Config struct {
	// Secret signs HS256 tokens.
	Secret []byte
	// URL gives a JSON Web Key Set: https, or http on loopback.
	URL string
	// File holds a JSON Web Key Set.
	File string
	// Algorithms are those that are taken with a key set. Empty: Algorithms().
	Algorithms []string
	// Issuer must be the token's iss. Empty: any.
	Issuer string
	// Audience must have one of the token's aud. Empty: any.
	Audience []string
	// Leeway is how much clocks may differ. 0: not at all.
	Leeway time.Duration
	// Refresh is how old a key set from URL may get. 0: 15 minutes.
	Refresh time.Duration
	// ScopeClaim names the claim with the scopes, which is a list or words with
	// spaces between. Empty: "scope".
	ScopeClaim string
	// AdminScope is the scope of those who may act for everybody. Empty:
	// "tidemark:admin".
	AdminScope string

	Client *http.Client     // fetches URL. nil: one of its own
	Now    func() time.Time // nil: time.Now
}

// DefaultAdminScope is Config.AdminScope where nobody sets one.
const DefaultAdminScope = "tidemark:admin"

const defaultScopeClaim = "scope"

// Caller is who a token speaks for.
type Caller struct {
	// User is the token's sub. Empty when an administrator's is no user id.
	User watermark.UserID
	// Admin may act for every user.
	Admin bool
	// Expires is until when the token is taken, with the leeway.
	Expires time.Time
}

// Verifier checks tokens.
type Verifier struct {
	cfg  Config
	algs []jose.SignatureAlgorithm
	keys *keys // nil: Secret
}

// New checks cfg. It fetches nothing.
func New(cfg Config) (*Verifier, error) {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf("access: "+format, args...)) }
	sources := 0
	for _, given := range []bool{len(cfg.Secret) > 0, cfg.URL != "", cfg.File != ""} {
		if given {
			sources++
		}
	}
	if sources != 1 {
		add("one of secret, key set URL and key set file must be given, %d are", sources)
	}
	allowed := Algorithms()
	if len(cfg.Secret) > 0 {
		allowed = []string{string(jose.HS256)}
		if len(cfg.Secret) < MinSecret {
			add("the secret has %d bytes, at least %d are needed", len(cfg.Secret), MinSecret)
		}
	}
	if len(cfg.Algorithms) == 0 {
		cfg.Algorithms = allowed
	}
	v := &Verifier{}
	for _, a := range cfg.Algorithms {
		if !slices.Contains(allowed, a) {
			add("algorithm %q is none of %s", a, strings.Join(allowed, ", "))
		}
		v.algs = append(v.algs, jose.SignatureAlgorithm(a))
	}
	if err := checkURL(cfg.URL); err != nil {
		add("%w", err)
	}
	if cfg.Leeway < 0 || cfg.Refresh < 0 {
		add("leeway is %s and refresh %s, neither may be negative", cfg.Leeway, cfg.Refresh)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cfg.ScopeClaim = cmp.Or(cfg.ScopeClaim, defaultScopeClaim)
	cfg.AdminScope = cmp.Or(cfg.AdminScope, DefaultAdminScope)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	v.cfg = cfg
	if len(cfg.Secret) == 0 {
		v.keys = newKeys(cfg)
	}
	return v, nil
}

// Load fetches the key set unless there is one, so that a fault of the
// configuration shows at start.
func (v *Verifier) Load(ctx context.Context) error {
	if v.keys == nil {
		return nil
	}
	_, err := v.keys.current(ctx)
	return err
}

// Ready tells why tokens cannot be checked now, nil when they can.
func (v *Verifier) Ready() error {
	if v.keys == nil {
		return nil
	}
	return v.keys.ready()
}

// Verify tells who a token speaks for. Its errors wrap ErrMissing, ErrInvalid,
// ErrExpired or ErrKeys, and their text holds nothing of the token or the keys.
func (v *Verifier) Verify(ctx context.Context, token string) (Caller, error) {
	switch {
	case token == "":
		return Caller{}, ErrMissing
	case len(token) > MaxToken:
		return Caller{}, invalidf("it has more than %d bytes", MaxToken)
	}
	parsed, err := jwt.ParseSigned(token, v.algs)
	if err != nil || len(parsed.Headers) != 1 {
		return Caller{}, invalidf("it is no token that is signed with %s", strings.Join(v.cfg.Algorithms, " or "))
	}
	var claims jwt.Claims
	var more map[string]any
	if err := v.signed(ctx, parsed, &claims, &more); err != nil {
		return Caller{}, err
	}
	if err := v.check(claims); err != nil {
		return Caller{}, err
	}
	out := Caller{Expires: claims.Expiry.Time().Add(v.cfg.Leeway), Admin: slices.Contains(scopesOf(more[v.cfg.ScopeClaim]), v.cfg.AdminScope)}
	if out.User, err = watermark.ParseUserID(claims.Subject); err != nil && !out.Admin {
		return Caller{}, invalidf("its sub is no user id")
	}
	return out, nil
}

// signed checks the signature and gives the claims.
func (v *Verifier) signed(ctx context.Context, token *jwt.JSONWebToken, claims ...any) error {
	if v.keys == nil {
		if token.Claims(v.cfg.Secret, claims...) != nil {
			return errSignature
		}
		return nil
	}
	h := token.Headers[0]
	keys, err := v.keys.find(ctx, h.KeyID, h.Algorithm)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if token.Claims(k, claims...) == nil {
			return nil
		}
	}
	return errSignature
}

func (v *Verifier) check(c jwt.Claims) error {
	if c.Expiry == nil {
		return invalidf("it has no exp")
	}
	// The library takes an exp of now for good still; RFC 7519 does not.
	now := v.cfg.Now()
	if !now.Add(-v.cfg.Leeway).Before(c.Expiry.Time()) {
		return ErrExpired
	}
	err := c.ValidateWithLeeway(jwt.Expected{Issuer: v.cfg.Issuer, AnyAudience: v.cfg.Audience, Time: now}, v.cfg.Leeway)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jwt.ErrExpired):
		return ErrExpired
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return invalidf("its iss is another one")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return invalidf("its aud is another one")
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return invalidf("it is not good yet")
	default:
		return invalidf("its claims do not hold")
	}
}

var errSignature = invalidf("its signature is not by a key that is known")

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// scopesOf reads a claim that is a list of words, or words with spaces between
// (RFC 8693, section 4.2).
func scopesOf(claim any) []string {
	switch c := claim.(type) {
	case string:
		return strings.Fields(c)
	case []any:
		var out []string
		for _, s := range c {
			if s, ok := s.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}
