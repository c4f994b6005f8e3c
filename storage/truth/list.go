package truth

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Entry is one conversation of a user's list.
type Entry struct {
	Conversation watermark.Conversation
	// Member is the user's, whole. Whether it still is one, Member.Open tells.
	Member watermark.Member
}

// ConversationsOf gives every conversation in which user has a member row, in
// history or in the tail, left ones too: the latest first, by id where two have
// the same last time. Its size is the user's number of conversations.
func (t *Truth) ConversationsOf(ctx context.Context, user watermark.UserID) (entries []Entry, err error) {
	defer t.metrics.observe("conversations", time.Now(), &err)
	pin, err := t.cfg.PinAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("pin the tail: %w", err)
	}
	defer pin.Release()
	rows, err := t.memberships(ctx, user)
	if err != nil {
		return nil, err
	}
	convs := make([]watermark.ConversationID, len(rows))
	for i, r := range rows {
		convs[i] = r.Conversation
	}
	stored, err := t.conversations(ctx, convs)
	if err != nil {
		return nil, err
	}
	mine, err := pin.StatesOf(ctx, user)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}
	// Conversations that only the tail knows the user in may still stand in
	// history, with a last time that the tail does not have. Read after the
	// tail's first look, they need a second one: between the two toMongo may
	// have moved on, but the pin still holds everything from H.
	known := make(map[watermark.ConversationID]bool, len(convs))
	for _, c := range convs {
		known[c] = true
	}
	var found []watermark.ConversationID
	for c, s := range mine {
		if _, ok := s.Members[user]; ok && !known[c] {
			found = append(found, c)
		}
	}
	slices.Sort(found)
	more, err := t.conversations(ctx, found)
	if err != nil {
		return nil, err
	}
	convs, stored = append(convs, found...), append(stored, more...)
	tail, err := pin.States(ctx, convs)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}

	entries = make([]Entry, len(convs))
	for i, c := range convs {
		entries[i] = Entry{Conversation: stored[i], Member: watermark.Member{User: user}}
		if i < len(rows) {
			entries[i].Member = rows[i].Member
		}
		if s := tail[c]; s != nil {
			entries[i].Conversation.Merge(s.Conversation)
			if m, ok := s.Members[user]; ok {
				entries[i].Member.Merge(m)
			}
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(
			cmp.Compare(b.Conversation.LastTime, a.Conversation.LastTime),
			cmp.Compare(a.Conversation.ID, b.Conversation.ID),
		)
	})
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

// conversations reads what history has of convs, in their order.
func (t *Truth) conversations(ctx context.Context, convs []watermark.ConversationID) ([]watermark.Conversation, error) {
	out := make([]watermark.Conversation, 0, len(convs))
	for chunk := range slices.Chunk(convs, t.cfg.Chunk) {
		part, err := t.cfg.History.Conversations(ctx, chunk)
		if err != nil {
			return nil, fmt.Errorf("read %d conversations: %w", len(chunk), err)
		}
		if len(part) != len(chunk) {
			return nil, fmt.Errorf("history gave %d of %d conversations", len(part), len(chunk))
		}
		out = append(out, part...)
	}
	return out, nil
}
