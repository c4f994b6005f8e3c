package telemetry_test

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/internal/telemetry"
)

// TestLinesNameTheirTrace: those whose context knows one, in both formats.
func TestLinesNameTheirTrace(t *testing.T) {
	id, err := trace.TraceIDFromHex("0af7651916cd43dd8448eb211c80319c")
	if err != nil {
		t.Fatal(err)
	}
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}}))
	for _, format := range []string{"text", "json"} {
		var lines strings.Builder
		log, err := telemetry.NewLogger(&lines, "info", format)
		if err != nil {
			t.Fatal(err)
		}
		log.With("part", "x").InfoContext(ctx, "traced")
		log.InfoContext(context.Background(), "alone")
		traced, alone, _ := strings.Cut(lines.String(), "\n")
		if !strings.Contains(traced, "0af7651916cd43dd8448eb211c80319c") || !strings.Contains(traced, "part") || strings.Contains(alone, "trace_id") {
			t.Errorf("%s: %s", format, &lines)
		}
	}
}
