package wire

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/watermark"
)

// HeaderTrace is a trace that a record belongs to, as the W3C writes it
// (https://www.w3.org/TR/trace-context/#traceparent-header): what a producer's
// own tracing puts there. It decides nothing about a record. A record of several
// inputs has one for each of their traces, MaxTraces at most.
const HeaderTrace = "traceparent"

// MaxTraces bounds the traces of a record: those of a run of a busy moment are
// many, and alike.
const MaxTraces = 8

// HeaderTraced says which message of a record of the sequenced log each of its
// traces is of: "trace id:seq", with spaces between. It names trace ids, which
// stay what they are while each stage puts spans of its own in HeaderTrace.
const HeaderTraced = "tidemark-traced"

// traceHeaderSize is what one trace takes in both headers, generously.
const traceHeaderSize = 192

// Traced is a trace, and the message that it is of; 0: of something else.
type Traced struct {
	trace.SpanContext
	Seq watermark.Seq
}

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
			out = append(out, Header{HeaderTrace, []byte(Traceparent(sc))})
		}
	}
	return out
}

// Traceparent is a trace as HeaderTrace has it; empty where it is not valid.
func Traceparent(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
	return carrier[HeaderTrace]
}

// SequencedTraces gives the headers of a record of the sequenced log with those
// traces; none where there are none.
func SequencedTraces(traced []Traced) []Header {
	var contexts []trace.SpanContext
	var of []string
	for _, t := range traced {
		contexts = append(contexts, t.SpanContext)
		if t.Seq > 0 {
			of = append(of, t.TraceID().String()+":"+t.Seq.String())
		}
	}
	headers := WithTraces(nil, contexts...)
	if len(of) > 0 {
		headers = append(headers, Header{HeaderTraced, []byte(strings.Join(of, " "))})
	}
	return headers
}

// TracesByMessage gives the traces of a record of the sequenced log by the
// messages that they are of; nil where there are none. Of several traces of one
// id, as when a producer sends twice in one, each message gets one of its own.
func TracesByMessage(r *Record) map[watermark.Seq]trace.SpanContext {
	of, ok := r.Header(HeaderTraced)
	if !ok {
		return nil
	}
	contexts := TracesOf(r)
	out := make(map[watermark.Seq]trace.SpanContext, len(contexts))
	for pair := range strings.SplitSeq(string(of), " ") {
		id, text, _ := strings.Cut(pair, ":")
		seq, err := strconv.ParseInt(text, 10, 64)
		i := slices.IndexFunc(contexts, func(sc trace.SpanContext) bool { return sc.TraceID().String() == id })
		if err != nil || i < 0 {
			continue // not kept here
		}
		out[watermark.Seq(seq)] = contexts[i]
		contexts = slices.Delete(contexts, i, i+1)
	}
	return out
}

// TracesFit tells whether a record of size bytes has room for n traces below
// limit: no trace is worth a record that Kafka does not take.
func TracesFit(size, n, limit int) bool { return size+n*traceHeaderSize <= limit }
