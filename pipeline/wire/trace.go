package wire

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// HeaderTrace is a trace that a record belongs to, as the W3C writes it
// (https://www.w3.org/TR/trace-context/#traceparent-header): what a producer's
// own tracing puts there. It decides nothing about a record. A record of several
// inputs has one for each of their traces, MaxTraces at most.
const HeaderTrace = "traceparent"

// MaxTraces bounds the traces of a record: those of a run of a busy moment are
// many, and alike.
const MaxTraces = 8

// traceHeaderSize is what one header takes, generously.
const traceHeaderSize = 128

// TracesOf gives the traces that a record belongs to, at most MaxTraces.
func TracesOf(r *Record) []trace.SpanContext {
	var out []trace.SpanContext
	for _, h := range r.Headers {
		if h.Key != HeaderTrace || len(out) == MaxTraces {
			continue
		}
		carrier := propagation.MapCarrier{HeaderTrace: string(h.Value)}
		if sc := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier)); sc.IsValid() {
			out = append(out, sc)
		}
	}
	return out
}

// WithTraces gives headers with those traces in the place of others. Those that
// are not valid are left out.
func WithTraces(headers []Header, traces ...trace.SpanContext) []Header {
	if len(traces) == 0 {
		return headers
	}
	out := without(headers, HeaderTrace)
	for _, sc := range traces {
		if sc.IsValid() {
			carrier := propagation.MapCarrier{}
			propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
			out = append(out, Header{HeaderTrace, []byte(carrier[HeaderTrace])})
		}
	}
	return out
}

// TracesFit tells whether a record of size bytes has room for n traces below
// limit: no trace is worth a record that Kafka does not take.
func TracesFit(size, n, limit int) bool { return size+n*traceHeaderSize <= limit }
