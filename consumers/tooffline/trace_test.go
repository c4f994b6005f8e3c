package tooffline_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

const traceA = "0af7651916cd43dd8448eb211c80319c"

// tellTraced is tell for a message of a trace.
func (w *world) tellTraced(parent string, seq int) {
	w.t.Helper()
	r := w.record(single, 1, nil, "B")
	if seq != 1 {
		r = w.record(group, 2, nil, "C")
	}
	r.Headers = append(r.Headers, wire.Header{Key: wire.HeaderTrace, Value: []byte("00-" + parent)})
	w.handle(r)
}

// TestEachAttemptIsASpan: below what the record says, of the outcome that it had;
// what the endpoint is told is the attempt's own. A dead letter keeps the trace.
func TestEachAttemptIsASpan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		spans := tracetest.NewInMemoryExporter()
		provider := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
		w := newWorld(t)
		w.answer = func(context.Context, *tooffline.Notification) error { return errDown }
		w.begin(func(c *tooffline.Config) { c.Tries, c.Tracer = 2, provider.Tracer("test") })
		defer w.close()
		w.tellTraced(traceA+"-b7ad6b7169203331-01", 1)
		w.tell(group, 1, "A") // of nobody
		w.after(time.Hour)
		got := spans.GetSpans()
		if len(got) != 2 || len(w.sent) != 4 || len(w.letters) != 2 {
			t.Fatalf("%d spans of %d attempts, %d letters", len(got), len(w.sent), len(w.letters))
		}
		told := map[string]bool{}
		for _, n := range w.sent {
			told[wire.Traceparent(n.Trace)] = true
		}
		for i, s := range got {
			if s.Name != "notify webhook" || s.SpanKind != trace.SpanKindClient || s.Status.Code != codes.Error || s.SpanContext.TraceID().String() != traceA ||
				s.Parent.SpanID().String() != "b7ad6b7169203331" || fmt.Sprint(s.Attributes[1].Value.AsInt64()) != fmt.Sprint(i+1) {
				t.Errorf("span %d: %+v", i, s)
			}
			if !told[wire.Traceparent(s.SpanContext)] {
				t.Errorf("the endpoint is not told of attempt %d", i+1)
			}
		}
		if !told[""] {
			t.Error("who is not traced has a trace")
		}
		kept := 0
		for _, l := range w.letters {
			for _, sc := range wire.TracesOf(&l.Record) {
				kept++
				if sc.TraceID().String() != traceA {
					t.Errorf("a letter has %s", sc.TraceID())
				}
			}
		}
		if kept != 1 {
			t.Errorf("%d letters have a trace", kept)
		}
	})
}

// TestATraceIsHandedOnWithoutATracer: as it came, and that of the last message
// where several make one notification.
func TestATraceIsHandedOnWithoutATracer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin(nil)
		defer w.close()
		w.tell(group, 1, "C")
		w.tellTraced(traceA+"-b7ad6b7169203331-01", 2)
		w.after(time.Minute)
		if len(w.sent) != 1 || !strings.HasPrefix(wire.Traceparent(w.sent[0].Trace), "00-"+traceA) {
			t.Errorf("sent %+v", w.sent)
		}
	})
}
