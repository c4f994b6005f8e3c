package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// TokenSource gives the token that says who the user is. It is asked at every
// call and at every connect, so it can give a new one before the old one
// expires; one that is costly to make is kept by the source.
type TokenSource func(ctx context.Context) (string, error)

// StaticToken always gives token.
func StaticToken(token string) TokenSource {
	return func(context.Context) (string, error) { return token, nil }
}

// FileToken gives what stands in a file, without the spaces and line ends around
// it. The file is read each time: something else may renew it.
func FileToken(name string) TokenSource {
	return func(context.Context) (string, error) {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("client: token: %w", err)
		}
		return strings.TrimSpace(string(b)), nil
	}
}

// Authorized is a transport for the HTTP client of the generated Connect client:
// it adds the token to every request.
type Authorized struct {
	// Token is required.
	Token TokenSource
	// Base does the rest. nil: http.DefaultTransport.
	Base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (a Authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := a.Token(req.Context())
	if err != nil {
		if req.Body != nil {
			err = errors.Join(err, req.Body.Close())
		}
		return nil, err
	}
	// A transport must not change what it is given.
	out := req.Clone(req.Context())
	out.Header.Set("Authorization", "Bearer "+token)
	base := a.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(out)
}
