package truth

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// List gives every conversation in which user has a member row, in history or
// in the tail, left ones too: the latest first, by id where two have the same
// last time. Its size is the user's number of conversations.
func (t *Truth) List(ctx context.Context, user watermark.UserID) (list watermark.List, err error) {
	defer t.metrics.observe("list", time.Now(), &err)
	pin, err := t.cfg.PinAll(ctx)
	if err != nil {
		return watermark.List{}, fmt.Errorf("pin the tail: %w", err)
	}
	defer pin.Release()
	// Before anything else is read, so that whatever is read covers them.
	ends, err := pin.Ends(ctx)
	if err != nil {
		return watermark.List{}, fmt.Errorf("read the ends of the tail: %w", err)
	}
	stored, err := t.stored(ctx, pin, user)
	if err != nil {
		return watermark.List{}, err
	}
	convs := make([]watermark.ConversationID, len(stored))
	for i, e := range stored {
		convs[i] = e.Conversation.ID
	}
	tail, err := pin.States(ctx, convs)
	if err != nil {
		return watermark.List{}, fmt.Errorf("read the tail: %w", err)
	}
	for i := range stored {
		stored[i].Partition = pin.Partition(convs[i])
		s := tail[convs[i]]
		if s == nil {
			continue
		}
		stored[i].Conversation.Merge(s.Conversation)
		if m, ok := s.Members[user]; ok {
			stored[i].Member.Merge(m)
		}
	}
	slices.SortFunc(stored, func(a, b watermark.Listed) int {
		return cmp.Or(
			cmp.Compare(b.Conversation.LastTime, a.Conversation.LastTime),
			cmp.Compare(a.Conversation.ID, b.Conversation.ID),
		)
	})
	return watermark.List{Log: t.cfg.Log, Ends: ends, Entries: stored}, nil
}

// stored gives what history says of user's conversations, also of those that
// only the tail knows user in. To find these the tail is read before the last
// of history, so the caller reads it once more: what history shows must never
// be newer than what the tail shows.
func (t *Truth) stored(ctx context.Context, pin Pin, user watermark.UserID) ([]watermark.Listed, error) {
	rows, err := t.memberships(ctx, user)
	if err != nil {
		return nil, err
	}
	fresh, err := pin.MembersOf(ctx, user)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}
	members := make(map[watermark.ConversationID]watermark.Member, len(rows))
	convs := make([]watermark.ConversationID, 0, len(rows))
	for _, r := range rows {
		members[r.Conversation] = r.Member
		convs = append(convs, r.Conversation)
	}
	for _, c := range fresh {
		if _, ok := members[c]; !ok {
			convs = append(convs, c)
		}
	}
	entries := make([]watermark.Listed, 0, len(convs))
	for chunk := range slices.Chunk(convs, t.cfg.Chunk) {
		part, err := t.cfg.History.Conversations(ctx, chunk)
		if err != nil {
			return nil, fmt.Errorf("read history of %d conversations: %w", len(chunk), err)
		}
		if len(part) != len(chunk) {
			return nil, fmt.Errorf("history gave %d conversations for %d", len(part), len(chunk))
		}
		for _, c := range part {
			m := members[c.ID]
			m.User = user
			entries = append(entries, watermark.Listed{Conversation: c, Member: m})
		}
	}
	return entries, nil
}

// memberships pages through all member rows of user.
func (t *Truth) memberships(ctx context.Context, user watermark.UserID) ([]watermark.MemberRow, error) {
	var rows []watermark.MemberRow
	var after watermark.ConversationID
	for {
		page, err := t.cfg.History.MembershipsOf(ctx, user, after, watermark.MaxPage)
		if err != nil {
			return nil, fmt.Errorf("read memberships of %s: %w", user, err)
		}
		rows = append(rows, page...)
		if len(page) < watermark.MaxPage {
			return rows, nil
		}
		after = page[len(page)-1].Conversation
	}
}
