package topush

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultOfflineMembers is the size from which on a group tells absent users of
// mentions only.
const DefaultOfflineMembers = 10_000

// Offer is a message and those of its recipients who may have to be told of it
// although they are not connected.
type Offer struct {
	Conversation watermark.ConversationID
	Message      watermark.Message
	// Users see the message and are not its sender, ascending. Of a conversation
	// larger than Config.OfflineMembers they are those whom it mentions.
	Users []watermark.UserID
	// Trace is what the message belongs to; not valid: none.
	Trace trace.SpanContext
}

// Offline takes what absent users are to be told of.
type Offline interface {
	// Offer takes offers, those of one conversation in order. After an error any
	// part of them may have been taken, and all are offered again.
	Offer(ctx context.Context, offers []Offer) error
}

// Presence knows who is connected.
type Presence interface {
	// Online gives those of users who have a connection.
	Online(ctx context.Context, users []watermark.UserID) (map[watermark.UserID]bool, error)
}

// Appender appends records and returns when they are acknowledged.
type Appender interface {
	Append(ctx context.Context, outs []wire.Out) error
}

// OfflineLog is an Offline that appends to the topic of the worker that notifies
// absent users: one record per message and batch of users.
type OfflineLog struct {
	// Log takes the records, for Topic. Both are required.
	Log   Appender
	Topic string
	// Presence is required.
	Presence Presence
}

// NewOfflineLog checks l. All its faults are reported together.
func NewOfflineLog(l OfflineLog) (*OfflineLog, error) {
	var errs []error
	if l.Log == nil {
		errs = append(errs, errors.New("topush: offline: Log is required"))
	}
	if l.Topic == "" {
		errs = append(errs, errors.New("topush: offline: Topic is required"))
	}
	if l.Presence == nil {
		errs = append(errs, errors.New("topush: offline: Presence is required"))
	}
	return &l, errors.Join(errs...)
}

// Offer appends what is offered to users who are not online.
func (l *OfflineLog) Offer(ctx context.Context, offers []Offer) error {
	online, err := l.online(ctx, offers)
	if err != nil {
		return err
	}
	var outs []wire.Out
	for i := range offers {
		o := &offers[i]
		absent := slices.DeleteFunc(slices.Clone(o.Users), func(u watermark.UserID) bool { return online[u] })
		told := wire.OfflineOf(o.Conversation, &o.Message)
		for users := range slices.Chunk(absent, wire.MaxOfflineUsers) {
			out, err := wire.EncodeOffline(told.For(users, o.Message.Mentions), "")
			if err != nil {
				return err
			}
			out.Topic = l.Topic
			if o.Trace.IsValid() {
				out.Headers = wire.WithTraces(out.Headers, o.Trace)
			}
			outs = append(outs, out)
		}
	}
	if len(outs) == 0 {
		return nil
	}
	if err := l.Log.Append(ctx, outs); err != nil {
		return fmt.Errorf("topush: offline: append %d records: %w", len(outs), err)
	}
	return nil
}

// online asks once for each user of all offers.
func (l *OfflineLog) online(ctx context.Context, offers []Offer) (map[watermark.UserID]bool, error) {
	var users []watermark.UserID
	for i := range offers {
		users = append(users, offers[i].Users...)
	}
	slices.Sort(users)
	users = slices.Compact(users)
	online := make(map[watermark.UserID]bool)
	for chunk := range slices.Chunk(users, 1000) {
		some, err := l.Presence.Online(ctx, chunk)
		if err != nil {
			return nil, fmt.Errorf("topush: offline: who of %d users is online: %w", len(chunk), err)
		}
		for u, on := range some {
			if on {
				online[u] = true
			}
		}
	}
	return online, nil
}

// offerCrowd is offer for whom the members are not at hand: where only mentions
// count, nobody else is looked at.
func (h *hand) offerCrowd(r *roster, m *watermark.Message) {
	switch {
	case h.worker.cfg.Offline == nil:
	case r.open <= h.worker.cfg.OfflineMembers:
		h.offer(r, m, r.seeing(m.Seq))
	default:
		var to audience
		for _, u := range m.Mentions {
			if o, ok := r.state.Members[u]; ok && sees(&o, m.Seq) {
				to.open = append(to.open, u)
			}
		}
		h.offer(r, m, to)
	}
}

// offer gathers a message for those who may be absent. A message that is too old
// to be pushed live is offered too: how old one may be is the notifier's to say.
func (h *hand) offer(r *roster, m *watermark.Message, to audience) {
	if h.worker.cfg.Offline == nil || m.Revoked != nil {
		return
	}
	var users []watermark.UserID
	if len(to.open)+len(to.closed) > h.worker.cfg.OfflineMembers {
		for _, u := range m.Mentions {
			if to.has(u) {
				users = append(users, u)
			}
		}
	} else {
		users = slices.Concat(to.open, to.closed)
	}
	users = slices.DeleteFunc(users, func(u watermark.UserID) bool { return u == m.Sender })
	if len(users) == 0 {
		return
	}
	slices.Sort(users)
	h.offers = append(h.offers, Offer{Conversation: r.state.ID, Message: *m, Users: slices.Compact(users), Trace: h.trace})
	h.users += len(users)
}

// has tells whether u is in a.
func (a *audience) has(u watermark.UserID) bool {
	_, open := slices.BinarySearch(a.open, u)
	_, closed := slices.BinarySearch(a.closed, u)
	return open || closed
}
