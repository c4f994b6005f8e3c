package stack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/internal/access"
	"github.com/tidemark-im/tidemark/internal/certs"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// AccessConfig gives what tokens are checked with, and are minted with where
// there is a secret.
func AccessConfig(a config.Auth) (access.Config, error) {
	secret, err := a.SecretBytes()
	if err != nil {
		return access.Config{}, err
	}
	return access.Config{
		Secret: secret, URL: a.JWKSURL, File: a.JWKSFile, Algorithms: a.Algorithms, Issuer: a.Issuer, Audience: a.Audience,
		Leeway: a.Leeway, Refresh: a.Refresh, ScopeClaim: a.ScopeClaim, AdminScope: a.AdminScope,
	}, nil
}

// openAccess gets ready to tell who calls, where that is asked.
func (s *Stack) openAccess(ctx context.Context) error {
	if !s.cfg.Auth.Enabled() || !s.runs(Sync) && !s.runs(Gateway) {
		return nil
	}
	cfg, err := AccessConfig(s.cfg.Auth)
	if err != nil {
		return err
	}
	if s.verifier, err = access.New(cfg); err != nil {
		return fmt.Errorf("auth: %w", err)
	}
	s.cfg.Health.Add("auth", s.verifier.Ready)
	switch err := s.verifier.Load(ctx); {
	case err == nil:
	case s.cfg.Auth.JWKSURL == "":
		return fmt.Errorf("auth: %w", err)
	default:
		// An issuer that is away keeps nobody from starting: it is asked again.
		s.cfg.Logger.Error("the issuer's keys cannot be had yet", "url", s.cfg.Auth.JWKSURL, "error", err)
	}
	for _, name := range s.cfg.Exposed() {
		if s.runs(Role(name)) {
			s.cfg.Logger.Warn("tokens are taken in clear; encrypt with tls, or by what stands in front", "role", name)
		}
	}
	return nil
}

// callers gives the query service who calls; nil when nobody is asked.
func (s *Stack) callers() syncapi.Authenticate {
	if s.verifier == nil {
		return nil
	}
	return func(ctx context.Context, token string) (syncapi.Caller, error) {
		c, err := s.verifier.Verify(ctx, token)
		switch {
		case err == nil:
			return syncapi.Caller{User: c.User, Admin: c.Admin}, nil
		case errors.Is(err, access.ErrExpired):
			return syncapi.Caller{}, syncapi.ErrTokenExpired
		case errors.Is(err, access.ErrInvalid), errors.Is(err, access.ErrMissing):
			return syncapi.Caller{}, fmt.Errorf("%w: %w", syncapi.ErrTokenInvalid, err)
		}
		return syncapi.Caller{}, err
	}
}

// devices gives the gateway who connects.
func (s *Stack) devices() gateway.Authenticate {
	if s.verifier == nil {
		return gateway.Trusting
	}
	return gateway.Tokens(func(ctx context.Context, token string) (watermark.UserID, time.Time, error) {
		c, err := s.verifier.Verify(ctx, token)
		switch {
		case err == nil:
			return c.User, c.Expires, nil
		case errors.Is(err, access.ErrExpired):
			return "", time.Time{}, gateway.ErrExpired
		case errors.Is(err, access.ErrInvalid), errors.Is(err, access.ErrMissing):
			return "", time.Time{}, fmt.Errorf("%w: %w", gateway.ErrRefused, err)
		}
		return "", time.Time{}, err
	})
}

func (s *Stack) userLimits() syncapi.UserLimits {
	l := s.cfg.Limits
	return syncapi.UserLimits{
		Requests: l.UserRequests, Burst: float64(l.UserBurst),
		Bytes: float64(l.UserBytes), BytesBurst: float64(l.UserBytesBurst), InFlight: l.UserInFlight,
	}
}

// encrypted gives ln with TLS where that is configured.
func (s *Stack) encrypted(ln net.Listener, t config.ServerTLS) (net.Listener, error) {
	if !t.Enabled() {
		return ln, nil
	}
	files, err := certs.New(certs.Config{Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA, Logger: s.cfg.Logger})
	if err != nil {
		return nil, err
	}
	return tls.NewListener(ln, files.Config()), nil
}

// scheme gives the URL scheme of a listener.
func scheme(plain string, t config.ServerTLS) string {
	if t.Enabled() {
		return plain + "s"
	}
	return plain
}
