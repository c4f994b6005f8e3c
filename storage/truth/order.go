package truth

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Order gives the conversations that List gives, in any order, and of each only
// when it had its latest message: a tenth of what List reads, and a third of the
// queries.
//
// known is an order that was given before, or zero. Where nothing was appended
// to the log between the two, nothing is read, and Same is set: what it listed
// is what there is.
func (t *Truth) Order(ctx context.Context, user watermark.UserID, known watermark.ListOrder) (order watermark.ListOrder, err error) {
	defer t.metrics.observe("order", time.Now(), &err)
	pin, err := t.cfg.PinAll(ctx)
	if err != nil {
		return watermark.ListOrder{}, fmt.Errorf("pin the tail: %w", err)
	}
	defer pin.Release()
	// Before anything else is read, so that whatever is read covers them.
	ends, err := pin.Ends(ctx)
	if err != nil {
		return watermark.ListOrder{}, fmt.Errorf("read the ends of the tail: %w", err)
	}
	order = watermark.ListOrder{Log: t.cfg.Log, Ends: ends}
	if known.Log == order.Log && slices.Equal(known.Ends, ends) {
		order.Same = true
		return order, nil
	}
	if order.Entries, err = t.activity(ctx, pin, user); err != nil {
		return watermark.ListOrder{}, err
	}
	convs := make([]watermark.ConversationID, len(order.Entries))
	for i, e := range order.Entries {
		convs[i] = e.Conversation
	}
	tail, err := pin.States(ctx, convs)
	if err != nil {
		return watermark.ListOrder{}, fmt.Errorf("read the tail: %w", err)
	}
	if len(tail) == 0 {
		return order, nil
	}
	for i := range order.Entries {
		if s := tail[convs[i]]; s != nil {
			order.Entries[i].LastTime = max(order.Entries[i].LastTime, s.LastTime)
		}
	}
	return order, nil
}

// activity gives what history says, also of conversations that only the tail
// knows user in; as in stored, the caller reads the tail once more.
func (t *Truth) activity(ctx context.Context, pin Pin, user watermark.UserID) ([]watermark.Activity, error) {
	var out []watermark.Activity
	var after watermark.ConversationID
	for {
		page, err := t.cfg.History.ActivityOf(ctx, user, after, watermark.MaxPage)
		if err != nil {
			return nil, fmt.Errorf("read the activity of %s: %w", user, err)
		}
		out = append(out, page...)
		if len(page) < watermark.MaxPage {
			break
		}
		after = page[len(page)-1].Conversation
	}
	fresh, err := pin.MembersOf(ctx, user)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}
	if len(fresh) == 0 {
		return out, nil
	}
	known := make(map[watermark.ConversationID]bool, len(out))
	for _, a := range out {
		known[a.Conversation] = true
	}
	fresh = slices.DeleteFunc(fresh, func(c watermark.ConversationID) bool { return known[c] })
	for chunk := range slices.Chunk(fresh, t.cfg.Chunk) {
		part, err := t.cfg.History.Conversations(ctx, chunk)
		if err != nil {
			return nil, fmt.Errorf("read history of %d conversations: %w", len(chunk), err)
		}
		for _, c := range part {
			out = append(out, watermark.Activity{Conversation: c.ID, LastTime: c.LastTime})
		}
	}
	return out, nil
}
