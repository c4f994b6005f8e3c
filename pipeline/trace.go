package pipeline

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// traced begins spans for the records of a batch that are traced, and gives the
// function that ends them. Each record then carries its spans, so that what the
// stage makes of it belongs below them. Without a tracer nothing is looked at.
func (r *runner) traced(batch []wire.Record) (end func(error)) {
	if r.g.cfg.Tracer == nil {
		return func(error) {}
	}
	var spans []trace.Span
	for i := range batch {
		spans = append(spans, r.spans(&batch[i])...)
	}
	return func(err error) {
		for _, s := range spans {
			if err != nil {
				s.SetStatus(codes.Error, err.Error())
			}
			s.End()
		}
	}
}

// spans begins a span for each trace that a record belongs to. Whoever began a
// trace decides whether it is kept; a record without one is perhaps the
// beginning of one.
func (r *runner) spans(rec *wire.Record) []trace.Span {
	parents := wire.TracesOf(rec)
	if len(parents) == 0 {
		parents = []trace.SpanContext{{}}
	}
	var spans []trace.Span
	var contexts []trace.SpanContext
	for _, parent := range parents {
		ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
		_, span := r.g.cfg.Tracer.Start(ctx, r.g.cfg.Group+" "+rec.Topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("messaging.system", "kafka"), attribute.String("messaging.consumer.group.name", r.g.cfg.Group),
			attribute.String("messaging.destination.name", rec.Topic), attribute.Int("messaging.destination.partition.id", int(rec.Partition)),
			attribute.Int64("messaging.kafka.offset", rec.Offset)))
		if span.IsRecording() {
			spans, contexts = append(spans, span), append(contexts, span.SpanContext())
		}
	}
	rec.Headers = wire.WithTraces(rec.Headers, contexts...)
	return spans
}

// inject puts the trace of a caller into what it appends, unless a record has
// one or no room for it.
func inject(ctx context.Context, o *wire.Out, limit int) {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !wire.TracesFit(sizeOf(o), 1, limit) {
		return
	}
	for _, h := range o.Headers {
		if h.Key == wire.HeaderTrace {
			return
		}
	}
	o.Headers = wire.WithTraces(o.Headers, sc)
}
