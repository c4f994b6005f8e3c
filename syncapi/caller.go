package syncapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/tidemark-im/tidemark/watermark"
)

var (
	// ErrTokenInvalid is returned by an Authenticate function, wrapped, for a
	// token that will never be good. Its text is told to the caller.
	ErrTokenInvalid = errors.New("token refused")
	// ErrTokenExpired is returned by an Authenticate function, wrapped, for a
	// token that was good once.
	ErrTokenExpired = errors.New("token has expired")
)

// Authenticate tells who a bearer token speaks for. An error that is neither
// ErrTokenInvalid nor ErrTokenExpired means that it cannot be told now.
type Authenticate func(ctx context.Context, token string) (Caller, error)

// Caller is who a call comes from.
type Caller struct {
	// User is whom the caller may act for. It may be empty for an Admin.
	User watermark.UserID
	// Admin may act for everybody, and does what users may not: join and kick
	// others, and delete for all.
	Admin bool
}

type callerKey struct{}

// callerOf tells whose call it is. Without authentication everybody is trusted.
// With it, a call that came past the guard is nobody's.
func (s *Service) callerOf(ctx context.Context) Caller {
	if s.cfg.Authenticate == nil {
		return Caller{Admin: true}
	}
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// closedTo tells whether groups are hidden from callers without a window in
// them. To users they always are: only who is trusted may ask for somebody.
func (s *Service) closedTo(ctx context.Context) bool {
	return s.cfg.ClosedGroups || !s.callerOf(ctx).Admin
}

// guard stands before the service: it finds out who calls and how much they may
// ask for before anything of the request is read.
func (s *Service) guard(next http.Handler) http.Handler {
	w := connect.NewErrorWriter(codecs())
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, release, err := s.admitCall(r)
		if err != nil {
			refused, internal := refusalOf(r.Context(), err)
			if internal {
				s.logFault(r.URL.Path, err)
			}
			s.metrics.calls.WithLabelValues(methodOf(r.URL.Path), refused.code.String()).Inc()
			// An error means that the client is gone.
			_ = w.Write(rw, r, refused.connectError())
			return
		}
		defer release()
		next.ServeHTTP(rw, r.WithContext(ctx))
	})
}

// methodOf gives the last part of a procedure's path.
func methodOf(procedure string) string { return procedure[strings.LastIndexByte(procedure, '/')+1:] }

func (s *Service) admitCall(r *http.Request) (ctx context.Context, release func(), err error) {
	if r.ContentLength > int64(s.cfg.MaxRequest) {
		return nil, nil, refuse(connect.CodeResourceExhausted, reasonRequestTooLarge,
			"the request has %d bytes, at most %d are allowed", r.ContentLength, s.cfg.MaxRequest)
	}
	leave, err := s.limits.enter()
	if err != nil {
		return nil, nil, err
	}
	ctx = r.Context()
	if s.cfg.Authenticate == nil {
		return ctx, leave, nil
	}
	caller, err := s.authenticate(ctx, r.Header)
	if err != nil {
		leave()
		return nil, nil, err
	}
	ctx = context.WithValue(ctx, callerKey{}, caller)
	if caller.Admin {
		return ctx, leave, nil
	}
	land, err := s.limits.take(caller.User)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return ctx, func() { land(); leave() }, nil
}

func (s *Service) authenticate(ctx context.Context, h http.Header) (Caller, error) {
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || strings.TrimSpace(token) == "" {
		return Caller{}, refuse(connect.CodeUnauthenticated, reasonTokenMissing, "no bearer token in the authorization header")
	}
	caller, err := s.cfg.Authenticate(ctx, strings.TrimSpace(token))
	switch {
	case err == nil && caller.User == "" && !caller.Admin:
		return Caller{}, refuse(connect.CodeUnauthenticated, reasonTokenInvalid, "the token names no user")
	case err == nil:
		return caller, nil
	case errors.Is(err, ErrTokenExpired):
		return Caller{}, refuse(connect.CodeUnauthenticated, reasonTokenExpired, "the token has expired")
	case errors.Is(err, ErrTokenInvalid):
		return Caller{}, refuse(connect.CodeUnauthenticated, reasonTokenInvalid, "%v", err)
	case ctx.Err() != nil:
		return Caller{}, err
	default:
		s.logFault("authenticate", err)
		return Caller{}, unavailable(reasonKeys, "tokens cannot be checked at the moment")
	}
}
