package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/watermark"
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
	source, err := a.tokenSource()
	if err != nil {
		return nil, nil, err
	}
	authority, err := a.authority()
	if err != nil {
		return nil, nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = authority
	transport.MaxIdleConnsPerHost = maxConcurrency
	bound := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			res, err := next(ctx, req)
			return res, explain(err, base)
		}
	})
	var sending http.RoundTripper = transport
	if source != nil {
		sending = client.Authorized{Token: source, Base: transport}
	}
	svc = tidemarkv1connect.NewSyncServiceClient(&http.Client{Transport: sending}, base.String(), connect.WithInterceptors(bound))
	return svc, transport.CloseIdleConnections, nil
}

// authority gives what --ca says about whose certificates are believed; nil: the
// system's authorities'.
func (a *app) authority() (*tls.Config, error) {
	if a.ca == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(a.ca)
	if err != nil {
		return nil, usagef("--ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("--ca: %s has no certificate in PEM", a.ca)
	}
	return &tls.Config{RootCAs: pool}, nil
}

// explain says in an error of a call what the person who called can do with.
// What is no passing fault loses its Connect code, which tells them nothing.
func explain(err error, base *url.URL) error {
	if err == nil {
		return nil
	}
	code := connect.CodeOf(err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("nothing listens at %s; start 'tidemark dev', or name another --server: %w", base, syscall.ECONNREFUSED))
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return fmt.Errorf("the certificate of %s is not by an authority that is known here; name it with --ca: %w", base, err)
	case !connect.IsWireError(err) && (code == connect.CodeUnimplemented || code == connect.CodeUnknown || code == connect.CodeInternal):
		return fmt.Errorf("%s does not answer as a sync API; name another --server: %w", base, err)
	}
	c, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err
	}
	if code == connect.CodeUnauthenticated {
		return fmt.Errorf("%s asks who calls: %s; give --token or set %s", base, c.Message(), tokenEnv)
	}
	reason, refused := strings.CutPrefix(c.Message(), "refused: ")
	if text := refusals[reason]; refused && text != "" {
		return fmt.Errorf("refused (%s): %s", reason, text)
	}
	return err
}

// refusals are the reasons for which a conversation's owner refuses.
var refusals = map[string]string{
	watermark.ReasonNotMember:      "the user's window in this conversation is closed",
	watermark.ReasonNotParticipant: "the user is not one of the two of this conversation",
	watermark.ReasonIDReused:       "the sender gave this client message id to other content before",
	watermark.ReasonNoSuchSeq:      "there is no such seq in this conversation",
	watermark.ReasonWindowFull:     "the user has joined and left this conversation too often",
	watermark.ReasonSeqsExhausted:  "the conversation has no seq left",
	watermark.ReasonUndecodable:    "it is not a message or a command",
	watermark.ReasonInvalid:        "a field breaks its rule",
	watermark.ReasonTooLarge:       "it is larger than the deployment takes",
	watermark.ReasonWrongPartition: "it stood in the wrong partition of Kafka twice",
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
	if slices.Contains(schemes, u.Scheme) {
		return u, nil
	}
	return nil, usagef("--%s: %q: the scheme must be %s", flag, given, strings.Join(schemes, " or "))
}
