package transfer

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// Config says what is copied or compared.
type Config struct {
	From Source
	To   Target
	// Page is how many rows, members or conversations are handled at once; 0:
	// DefaultPage, at most watermark.MaxPage.
	Page int
	// Step is told of what was read of From since it was last called. nil:
	// nobody is.
	Step func(Counts)
}

func (c *Config) page() int { return min(cmp.Or(max(c.Page, 0), DefaultPage), watermark.MaxPage) }

func (c *Config) step(n Counts) {
	if c.Step != nil {
		c.Step(n)
	}
}

// Copy brings To to what From holds and gives what it wrote.
func Copy(ctx context.Context, cfg Config) (written Counts, err error) {
	c := &copier{Config: cfg}
	positions, err := positionsOf(ctx, c.From)
	if err != nil {
		return c.written, fmt.Errorf("read positions of the source: %w", err)
	}
	for after, more := watermark.ConversationID(""), true; more; {
		convs, err := conversationsAfter(ctx, c.From, c.page(), after)
		if err != nil {
			return c.written, fmt.Errorf("read conversations of the source: %w", err)
		}
		for _, p := range pieces(convs, after, c.page()) {
			if err := c.copyPiece(ctx, p); err != nil {
				return c.written, err
			}
			after = p.last
		}
		more = len(convs) > 0
	}
	if err := c.copyMembers(ctx); err != nil {
		return c.written, err
	}
	if err := c.copyDevices(ctx); err != nil {
		return c.written, err
	}
	if _, err := Patiently(ctx, func() (watermark.Written, error) { return c.To.Write(ctx, watermark.Change{Positions: positions}) }); err != nil {
		return c.written, fmt.Errorf("write positions to the target: %w", err)
	}
	return c.written, nil
}

type copier struct {
	Config
	written Counts

	bounds bounds
	trim   map[watermark.ConversationID]bool // those with content below the minimum
	change watermark.Change
	bytes  int
}

// copyPiece copies the rows of a piece, then its conversations. They were read
// before their rows are: all rows that they speak of stood then, so what is
// written afterwards claims nothing that was not read.
func (c *copier) copyPiece(ctx context.Context, p piece) error {
	c.bounds, c.trim = p.bounds, make(map[watermark.ConversationID]bool)
	err := join(rowsOf(ctx, c.From, c.page(), p.after, p.last), rowsOf(ctx, c.To, c.page(), p.after, p.last), compareRows, func(from, to *watermark.StoredRow) error {
		if from == nil {
			c.trim[to.Conversation] = c.trim[to.Conversation] || c.bounds.of(to) != served
			return nil
		}
		c.step(Counts{Messages: 1})
		return c.row(ctx, from, to)
	})
	if err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	if err := c.copyConversations(ctx, p.convs); err != nil {
		return err
	}
	for i := range p.convs {
		if c.trim[p.convs[i].ID] {
			if err := c.deleteBelow(ctx, &p.convs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// row copies one row. to is what stands in its place; nil: nothing.
func (c *copier) row(ctx context.Context, from, to *watermark.StoredRow) error {
	if to != nil && !to.Message.SameAs(&from.Message) {
		return fmt.Errorf("%w: another message at %s/%d", ErrClash, from.Conversation, from.Message.Seq)
	}
	m := from.Message
	switch c.bounds.of(from) {
	case expired:
		c.trim[from.Conversation] = c.trim[from.Conversation] || to != nil
		return nil
	case kept:
		m.BodyType, m.Body, m.Mentions, m.Attributes = watermark.BodyNone, nil, nil, nil
		c.trim[from.Conversation] = c.trim[from.Conversation] || to == nil || !to.Gone
	case served:
	}
	switch {
	case to == nil:
		c.change.Rows = append(c.change.Rows, watermark.Row{Conversation: from.Conversation, Message: m})
		c.bytes += len(m.Body)
	case m.Revoked != nil && to.Message.Revoked == nil:
		c.change.Revokes = append(c.change.Revokes, watermark.RevokedRow{Conversation: from.Conversation, Revoked: *m.Revoked})
	default:
		return nil
	}
	c.written.Messages++
	if len(c.change.Rows)+len(c.change.Revokes) < c.page() && c.bytes < watermark.DefaultScanBytes {
		return nil
	}
	return c.flush(ctx)
}

// flush writes what was gathered.
func (c *copier) flush(ctx context.Context) error {
	change := c.change
	c.change, c.bytes = watermark.Change{}, 0
	if len(change.Rows)+len(change.Revokes)+len(change.Members) == 0 {
		return nil
	}
	w, err := Patiently(ctx, func() (watermark.Written, error) { return c.To.Write(ctx, change) })
	if err != nil {
		return fmt.Errorf("write the target: %w", err)
	}
	if i := slices.Index(w.Rows, watermark.Conflict); i >= 0 {
		return fmt.Errorf("%w: another message at %s/%d", ErrClash, change.Rows[i].Conversation, change.Rows[i].Message.Seq)
	}
	if len(w.MemberConflicts) > 0 {
		m := &change.Members[w.MemberConflicts[0]]
		return fmt.Errorf("%w: version %d of %s in %s with other windows", ErrClash, m.Member.Version, m.Member.User, m.Conversation)
	}
	return nil
}

func (c *copier) copyConversations(ctx context.Context, convs []watermark.Conversation) error {
	if len(convs) == 0 {
		return nil
	}
	ids := make([]watermark.ConversationID, len(convs))
	for i := range convs {
		ids[i] = convs[i].ID
	}
	there, err := Patiently(ctx, func() ([]watermark.Conversation, error) { return c.To.Conversations(ctx, ids) })
	if err != nil {
		return fmt.Errorf("read conversations of the target: %w", err)
	}
	var change watermark.Change
	for i := range convs {
		if string(conversationText(&convs[i])) != string(conversationText(&there[i])) {
			change.Conversations = append(change.Conversations, convs[i])
		}
	}
	c.step(Counts{Conversations: int64(len(convs))})
	if len(change.Conversations) == 0 {
		return nil
	}
	if _, err := Patiently(ctx, func() (watermark.Written, error) { return c.To.Write(ctx, change) }); err != nil {
		return fmt.Errorf("write conversations to the target: %w", err)
	}
	c.written.Conversations += int64(len(change.Conversations))
	return nil
}

// deleteBelow has the target do what retention did in the source.
func (c *copier) deleteBelow(ctx context.Context, conv *watermark.Conversation) error {
	for {
		n, err := Patiently(ctx, func() (int, error) { return c.To.DeleteBelow(ctx, conv.ID, conv.Min, c.page()) })
		if err != nil {
			return fmt.Errorf("delete below %s/%d in the target: %w", conv.ID, conv.Min, err)
		}
		if n < c.page() {
			return nil
		}
	}
}

func (c *copier) copyMembers(ctx context.Context) error {
	err := join(membersOf(ctx, c.From, c.page()), membersOf(ctx, c.To, c.page()), compareMembers, func(from, to *watermark.MemberRow) error {
		if from == nil {
			return nil
		}
		c.step(Counts{Members: 1})
		if to != nil && string(memberText(from)) == string(memberText(to)) {
			return nil
		}
		c.written.Members++
		c.change.Members = append(c.change.Members, *from)
		if len(c.change.Members) < c.page() {
			return nil
		}
		return c.flush(ctx)
	})
	if err != nil {
		return err
	}
	return c.flush(ctx)
}
