package stack

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/internal/access"
	"github.com/tidemark-im/tidemark/storage/truth"
	"github.com/tidemark-im/tidemark/watermark"
)

// deliverer turns what toPush decided into what devices read.
type deliverer struct{ gateway *gateway.Gateway }

var reaches = map[topush.Reach]gateway.Reach{
	topush.ToUsers: gateway.ToUsers, topush.ToCrowd: gateway.ToCrowd,
	topush.Change: gateway.Change, topush.Seat: gateway.Seat, topush.Dissolve: gateway.Dissolve,
}

func (d deliverer) Deliver(ctx context.Context, deliveries []topush.Delivery) error {
	out := make([]gateway.Delivery, 0, len(deliveries))
	for _, x := range deliveries {
		event := &tidemarkv1.PushEvent{Conversation: string(x.Conversation)}
		if x.Event != nil {
			event = convert.PushEvent(x.Conversation, x.Event)
		}
		event.MaxSeq, event.RepairNumber, event.RepairFrom = int64(x.Max), x.Repair.Number, int64(x.Repair.From)
		out = append(out, gateway.Delivery{
			Reach: reaches[x.Reach], Users: x.Users, Event: event, Place: gateway.Place(x.Place),
			ExceptUser: x.ExceptUser, ExceptDevice: x.ExceptDevice,
		})
	}
	return d.gateway.Deliver(ctx, out)
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
