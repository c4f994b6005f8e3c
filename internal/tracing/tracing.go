// Package tracing sends spans to a collector by OTLP over HTTP.
//
// It is off unless an endpoint is given. Then who begins a trace decides whether
// it is kept: a producer or a caller, by the flag of its traceparent; or, where
// none came along, the dice here. Spans wait in a buffer of a fixed size and are
// sent in the background; a collector that is slow or away costs spans and
// nothing else, and is logged.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// buffered is how many spans may wait to be sent; later ones are dropped.
	buffered = 4096
	// sendEvery and sendTimeout bound how long a span waits, and a send takes.
	sendEvery, sendTimeout = time.Second, 10 * time.Second
)

// Config says where spans go.
type Config struct {
	// Endpoint is the collector's URL, as http://127.0.0.1:4318; the path is
	// /v1/traces unless it has one. Empty: nothing is traced.
	Endpoint string
	// Ratio is the part of the traces that begin here that is kept, 0 to 1.
	Ratio float64
	// Roles names the process in its spans.
	Roles []string
	// Version is that of the process.
	Version string
	// Logger is told when spans cannot be sent. Required.
	Logger *slog.Logger
}

// Tracing is a running exporter. A nil one traces nothing.
type Tracing struct{ provider *sdk.TracerProvider }

// Start checks cfg and begins to send. It is nil without an endpoint.
func Start(ctx context.Context, cfg Config) (*Tracing, error) {
	if cfg.Endpoint == "" {
		return nil, nil
	}
	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("tracing: the endpoint is no http or https URL") // it may hold a password
	}
	if cfg.Ratio < 0 || cfg.Ratio > 1 {
		return nil, fmt.Errorf("tracing: ratio %v is not within 0..1", cfg.Ratio)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithTimeout(sendTimeout))
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	// The library has one place for errors for all of the process.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { cfg.Logger.Warn("spans cannot be sent", "err", err) }))
	return &Tracing{sdk.NewTracerProvider(
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(buffered), sdk.WithBatchTimeout(sendEvery), sdk.WithExportTimeout(sendTimeout)),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(cfg.Ratio))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "tidemark"),
			attribute.String("service.version", cfg.Version), attribute.StringSlice("tidemark.roles", cfg.Roles))),
	)}, nil
}

// Tracer begins spans; nil where nothing is traced.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("github.com/tidemark-im/tidemark")
}

// Serve wraps a server: each call is a span, below the caller's where that says
// so in its header traceparent.
func (t *Tracing) Serve(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return otelhttp.NewHandler(h, "sync", otelhttp.WithTracerProvider(t.provider), otelhttp.WithMeterProvider(noop.NewMeterProvider()),
		otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.URL.Path }))
}

// Close sends what waits, for as long as ctx lives.
func (t *Tracing) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}
