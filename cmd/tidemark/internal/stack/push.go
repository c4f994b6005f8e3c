package stack

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/internal/access"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/storage/truth"
	"github.com/tidemark-im/tidemark/watermark"
)

// deliverer turns what toPush decided into what devices read.
type deliverer struct {
	gateway *gateway.Gateway
	tracer  trace.Tracer // nil: nothing is traced
}

var reaches = map[topush.Reach]gateway.Reach{
	topush.ToUsers: gateway.ToUsers, topush.ToCrowd: gateway.ToCrowd,
	topush.Change: gateway.Change, topush.Seat: gateway.Seat, topush.Dissolve: gateway.Dissolve,
}

func (d deliverer) Deliver(ctx context.Context, deliveries []topush.Delivery) error {
	out := make([]gateway.Delivery, 0, len(deliveries))
	spans := pushSpans{tracer: d.tracer}
	for _, x := range deliveries {
		if x.Reach == topush.ToUsers {
			if x.Users = d.gateway.Reachable(x.Users); len(x.Users) == 0 {
				continue
			}
		}
		event := &tidemarkv1.PushEvent{Conversation: string(x.Conversation)}
		if x.Event != nil {
			event = convert.PushEvent(x.Conversation, x.Event)
		}
		event.Traceparent = spans.of(x.Trace)
		event.MaxSeq, event.RepairNumber, event.RepairFrom = int64(x.Max), x.Repair.Number, int64(x.Repair.From)
		out = append(out, gateway.Delivery{
			Reach: reaches[x.Reach], Users: x.Users, Event: event, Place: gateway.Place(x.Place),
			ExceptUser: x.ExceptUser, ExceptDevice: x.ExceptDevice,
		})
	}
	err := d.gateway.Deliver(ctx, out)
	spans.end(err)
	return err
}

// pushSpans are those of one hand-off: one for each traced message, however many
// deliveries it takes.
type pushSpans struct {
	tracer trace.Tracer
	spans  map[trace.SpanID]trace.Span // by what they are below
}

// of gives what a device is told of the trace of a message: the span of its
// push, so that what the device makes of it belongs below. Empty: none.
func (p *pushSpans) of(parent trace.SpanContext) string {
	if !parent.IsValid() || p.tracer == nil {
		return wire.Traceparent(parent)
	}
	span := p.spans[parent.SpanID()]
	if span == nil {
		if p.spans == nil {
			p.spans = make(map[trace.SpanID]trace.Span)
		}
		// What a message belongs to came with its record, not with the call.
		_, span = p.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "push", trace.WithSpanKind(trace.SpanKindProducer))
		p.spans[parent.SpanID()] = span
	}
	return wire.Traceparent(span.SpanContext())
}

func (p *pushSpans) end(err error) {
	for _, s := range p.spans {
		if err != nil {
			s.SetStatus(codes.Error, err.Error())
		}
		s.End()
	}
}

// members lets the gateway read who is in a conversation.
type members struct{ truth *truth.Truth }

func (m members) Members(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) (map[watermark.UserID]watermark.Member, bool, error) {
	states, err := m.truth.Load(ctx, []watermark.Want{{Conversation: conv, Users: users}})
	if err != nil {
		return nil, false, err
	}
	return states[0].Members, states[0].Complete, nil
}

// admins gives the gateway who is an administrator; nil when nobody is asked.
func (s *Stack) admins() func(context.Context, string) error {
	if s.verifier == nil {
		return nil
	}
	return func(ctx context.Context, token string) error {
		c, err := s.verifier.Verify(ctx, token)
		switch {
		case err == nil && c.Admin:
			return nil
		case err == nil:
			return gateway.ErrNotAdmin
		case errors.Is(err, access.ErrExpired):
			return gateway.ErrExpired
		case errors.Is(err, access.ErrInvalid), errors.Is(err, access.ErrMissing):
			return fmt.Errorf("%w: %w", gateway.ErrRefused, err)
		}
		return err
	}
}
