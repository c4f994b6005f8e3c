package wire_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func span(t testing.TB, id, spanID string) trace.SpanContext {
	t.Helper()
	tid, err1 := trace.TraceIDFromHex(strings.Repeat(id, 32/len(id)))
	sid, err2 := trace.SpanIDFromHex(strings.Repeat(spanID, 16/len(spanID)))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: tid, SpanID: sid, TraceFlags: trace.FlagsSampled, Remote: true})
}

// spans gives the span ids of messages.
func spans(r *wire.Record) map[watermark.Seq]string {
	out := map[watermark.Seq]string{}
	for seq, sc := range wire.TracesByMessage(r) {
		out[seq] = sc.SpanID().String()[:2]
	}
	return out
}

// TestEachMessageKeepsItsTrace: also when a stage has put its own spans in the
// place of those that came, and has kept some of the traces only.
func TestEachMessageKeepsItsTrace(t *testing.T) {
	traced := []wire.Traced{
		{SpanContext: span(t, "a", "1"), Seq: 7}, {SpanContext: span(t, "b", "2")}, // of a command
		{SpanContext: span(t, "c", "3"), Seq: 9}, {SpanContext: span(t, "a", "4"), Seq: 12}, // a producer that sent twice in one
	}
	r := wire.Record{Headers: wire.SequencedTraces(traced)}
	if diff := cmp.Diff(map[watermark.Seq]string{7: "11", 9: "33", 12: "44"}, spans(&r)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	r.Headers = wire.WithTraces(r.Headers, span(t, "a", "5"), span(t, "a", "6"))
	if diff := cmp.Diff(map[watermark.Seq]string{7: "55", 12: "66"}, spans(&r)); diff != "" {
		t.Errorf("of a later stage, -want +got:\n%s", diff)
	}
	if h := wire.SequencedTraces(nil); h != nil {
		t.Errorf("no traces have headers %v", h)
	}
	if h := wire.SequencedTraces(traced[1:2]); len(h) != 1 || h[0].Key != wire.HeaderTrace {
		t.Errorf("a command has headers %v", h)
	}
	for _, bad := range []string{"", "x", "x:1", ":", strings.Repeat("a", 32), strings.Repeat("a", 32) + ":x", strings.Repeat(" ", 1000)} {
		r.Headers = append(wire.WithTraces(nil, span(t, "a", "1")), wire.Header{Key: wire.HeaderTraced, Value: []byte(bad)})
		if got := spans(&r); len(got) != 0 {
			t.Errorf("%q gives %v", bad, got)
		}
	}
}

func TestTracesAreBounded(t *testing.T) {
	var traced []wire.Traced
	size := 0
	for i := range wire.MaxTraces {
		traced = append(traced, wire.Traced{SpanContext: span(t, "a", "1"), Seq: watermark.MaxSeq - watermark.Seq(i)})
	}
	headers := wire.SequencedTraces(traced)
	for _, h := range headers {
		size += len(h.Key) + len(h.Value) + 10
	}
	if wire.TracesFit(0, wire.MaxTraces, size) {
		t.Errorf("%d bytes of headers are taken for fewer", size)
	}
	r := wire.Record{Headers: append(headers, headers...)}
	if n := len(wire.TracesOf(&r)); n != wire.MaxTraces {
		t.Errorf("a record has %d traces", n)
	}
}

func TestTraceparent(t *testing.T) {
	sc := span(t, "a", "1")
	if got, want := wire.Traceparent(sc), "00-"+strings.Repeat("a", 32)+"-"+strings.Repeat("1", 16)+"-01"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := wire.Traceparent(trace.SpanContext{}); got != "" {
		t.Errorf("of none: %q", got)
	}
}
