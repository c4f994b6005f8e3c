package access

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Claims are what a token that is minted says.
type Claims struct {
	// Subject is the user. Required.
	Subject string
	// Scopes of the token. Empty: none.
	Scopes []string
	// TTL is how long it is good. Required.
	TTL time.Duration
}

// Mint makes a token that a Verifier of the same cfg takes. It is for
// development: it needs cfg.Secret.
func Mint(cfg Config, c Claims) (string, error) {
	var errs []error
	if len(cfg.Secret) == 0 {
		errs = append(errs, errors.New("access: tokens are minted with a secret only; with a key set, who holds the private keys makes them"))
	}
	if c.Subject == "" {
		errs = append(errs, errors.New("access: a token needs a user"))
	}
	if c.TTL < time.Second {
		errs = append(errs, fmt.Errorf("access: a token must be good for a second at least, not for %s", c.TTL))
	}
	v, err := New(cfg)
	if err := errors.Join(append(errs, err)...); err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: cfg.Secret}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("access: %w", err)
	}
	now := v.cfg.Now()
	claims := jwt.Claims{
		Subject: c.Subject, Issuer: cfg.Issuer, Audience: cfg.Audience,
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(c.TTL)),
	}
	b := jwt.Signed(signer).Claims(claims)
	if len(c.Scopes) > 0 {
		b = b.Claims(map[string]any{v.cfg.ScopeClaim: c.Scopes})
	}
	token, err := b.Serialize()
	if err != nil {
		return "", fmt.Errorf("access: %w", err)
	}
	return token, nil
}
