package tooffline

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// traced begins the span of an attempt, where its message is traced, and gives
// the function that ends it. What the endpoint makes of it belongs below.
func (s *Stage) traced(msg *Notification) (end func(error)) {
	if s.w.cfg.Tracer == nil || !msg.Trace.IsValid() {
		return func(error) {}
	}
	// What a message belongs to came with its record, not with a context.
	parent := trace.ContextWithRemoteSpanContext(context.Background(), msg.Trace)
	_, span := s.w.cfg.Tracer.Start(parent, "notify "+s.w.cfg.Endpoint, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("tidemark.notification", msg.ID), attribute.Int("tidemark.attempt", msg.Try)))
	msg.Trace = span.SpanContext()
	return func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
