package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
)

// callFunc is a command that calls the sync API.
type callFunc func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) error

// calls makes cmd one that calls the sync API: it gets a --timeout, and a client
// that is let go of at the end.
func (a *app) calls(cmd *cobra.Command, call callFunc) {
	var timeout time.Duration
	addTimeout(cmd, &timeout)
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		svc, done, err := a.syncClient(timeout)
		if err != nil {
			return err
		}
		defer done()
		return call(cmd.Context(), svc)
	}
}

func addTimeout(cmd *cobra.Command, timeout *time.Duration) {
	cmd.Flags().DurationVar(timeout, "timeout", 30*time.Second, "how long one call may take")
}

// require marks flags as required; the library reports all that are missing at
// once.
func require(cmd *cobra.Command, names ...string) {
	for _, n := range names {
		if err := cmd.MarkFlagRequired(n); err != nil {
			panic(err) // no such flag
		}
	}
}

// syncClient makes a client of the sync API at --server. done lets go of its
// connections.
func (a *app) syncClient(timeout time.Duration) (svc tidemarkv1connect.SyncServiceClient, done func(), err error) {
	if timeout <= 0 {
		return nil, nil, usagef("--timeout must be above 0, is %s", timeout)
	}
	base, err := baseURL("server", a.server, "http", "https")
	if err != nil {
		return nil, nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxConcurrency
	bound := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			res, err := next(ctx, req)
			if errors.Is(err, syscall.ECONNREFUSED) {
				err = connect.NewError(connect.CodeUnavailable, fmt.Errorf("nothing listens at %s; start 'tidemark dev', or name another --server: %w", base, syscall.ECONNREFUSED))
			}
			return res, err
		}
	})
	svc = tidemarkv1connect.NewSyncServiceClient(&http.Client{Transport: transport}, base.String(), connect.WithInterceptors(bound))
	return svc, transport.CloseIdleConnections, nil
}

// baseURL reads a URL flag with one of the given schemes; without any it has
// the first.
func baseURL(flag, given string, schemes ...string) (*url.URL, error) {
	full := given
	if !strings.Contains(full, "://") {
		full = schemes[0] + "://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Host == "" {
		return nil, usagef("--%s: %q is not a URL", flag, given)
	}
	for _, s := range schemes {
		if u.Scheme == s {
			return u, nil
		}
	}
	return nil, usagef("--%s: %q: the scheme must be %s", flag, given, strings.Join(schemes, " or "))
}
