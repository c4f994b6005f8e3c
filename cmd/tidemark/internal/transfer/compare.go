package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// maxShown bounds the differences that a Report lists.
const maxShown = 20

// Report is what Compare found.
type Report struct {
	From Side `json:"from"`
	To   Side `json:"to"`
	// Differing counts the conversations and members that are not the same, of
	// which Differences lists the first.
	Differing   int64        `json:"differing"`
	Differences []Difference `json:"differences"`
}

// Same tells whether there is no difference.
func (r *Report) Same() bool { return r.Differing == 0 }

// Side is what one history holds.
type Side struct {
	Counts
	// Digest is the SHA-256 of everything, in the order of keys.
	Digest string `json:"digest"`
}

// Difference says where two histories differ: in a conversation's messages, in
// a conversation itself, in one of its members, in a device, or in how far they
// have the log.
type Difference struct {
	Kind         string                   `json:"kind"` // "messages", "conversation", "member", "device", "positions"
	Conversation watermark.ConversationID `json:"conversation,omitempty"`
	User         watermark.UserID         `json:"user,omitempty"`
	// From and To are the conversation's messages. Kind "messages" only.
	From *Side `json:"from,omitempty"`
	To   *Side `json:"to,omitempty"`
	// Detail says what is different; of messages, the first one that is.
	Detail string `json:"detail"`
}

// digest is one side's count and hash.
type digest struct {
	n    int64
	hash hash.Hash
}

func newDigest() digest { return digest{hash: sha256.New()} }

func (d *digest) add(t text) {
	var length text
	length.num(int64(len(t)))
	d.hash.Write(length)
	d.hash.Write(t)
	d.n++
}

func (d *digest) side() *Side {
	return &Side{Counts{Messages: d.n}, d.sum()}
}

func (d *digest) sum() string { return hex.EncodeToString(d.hash.Sum(nil)) }

type comparer struct {
	Config
	report   Report
	from, to digest // of everything

	// Of the conversation whose messages are being read:
	conv             watermark.ConversationID
	fromConv, toConv digest
	first            string
}

// Compare reads both histories and tells where they differ. What counts for
// nothing is passed over: content below a minimum, and rows there behind the
// dedupe horizon. The error is about reading, never about a difference.
func Compare(ctx context.Context, cfg Config) (*Report, error) {
	c := &comparer{Config: cfg, from: newDigest(), to: newDigest()}
	for after, more := watermark.ConversationID(""), true; more; {
		convs, err := conversationsAfter(ctx, c.From, c.page(), after)
		if err != nil {
			return nil, fmt.Errorf("read conversations of the source: %w", err)
		}
		var last watermark.ConversationID
		for _, p := range pieces(convs, after, c.page()) {
			if err := c.messages(ctx, p); err != nil {
				return nil, err
			}
			last = p.last
		}
		more = len(convs) > 0
		if err := c.conversations(ctx, convs, after, last); err != nil {
			return nil, err
		}
		after = last
	}
	err := join(membersOf(ctx, c.From, c.page()), membersOf(ctx, c.To, c.page()), compareMembers, func(from, to *watermark.MemberRow) error {
		c.member(from, to)
		return nil
	})
	if err == nil {
		err = c.devices(ctx)
	}
	if err == nil {
		err = c.positions(ctx)
	}
	c.report.From.Digest, c.report.To.Digest = c.from.sum(), c.to.sum()
	return &c.report, err
}

func (c *comparer) differs(d Difference) {
	c.report.Differing++
	if len(c.report.Differences) < maxShown {
		c.report.Differences = append(c.report.Differences, d)
	}
}

func (c *comparer) messages(ctx context.Context, p piece) error {
	c.begin("")
	err := join(rowsOf(ctx, c.From, c.page(), p.after, p.last), rowsOf(ctx, c.To, c.page(), p.after, p.last), compareRows, func(from, to *watermark.StoredRow) error {
		if from != nil {
			c.step(Counts{Messages: 1})
		}
		row := from
		if row == nil {
			row = to
		}
		if row.Conversation != c.conv {
			c.end()
			c.begin(row.Conversation)
		}
		if as := p.bounds.of(row); as != expired {
			c.message(from, to, as)
		}
		return nil
	})
	c.end()
	return err
}

func (c *comparer) begin(conv watermark.ConversationID) {
	c.conv, c.first, c.fromConv, c.toConv = conv, "", newDigest(), newDigest()
}

// end compares the digests of a conversation's messages.
func (c *comparer) end() {
	from, to := c.fromConv.side(), c.toConv.side()
	if *from != *to {
		c.differs(Difference{Kind: "messages", Conversation: c.conv, From: from, To: to, Detail: c.first})
	}
}

func (c *comparer) message(from, to *watermark.StoredRow, as standing) {
	var a, b text
	if from != nil {
		a = rowText(from, as)
		c.fromConv.add(a)
		c.from.add(a)
		c.report.From.Messages++
	}
	if to != nil {
		b = rowText(to, as)
		c.toConv.add(b)
		c.to.add(b)
		c.report.To.Messages++
	}
	if c.first != "" || string(a) == string(b) {
		return
	}
	switch {
	case to == nil:
		c.first = fmt.Sprintf("seq %d is missing in the target", from.Message.Seq)
	case from == nil:
		c.first = fmt.Sprintf("seq %d is in the target only", to.Message.Seq)
	case !from.Message.SameAs(&to.Message):
		c.first = fmt.Sprintf("seq %d is another message: %s of %s in the source, %s of %s in the target",
			from.Message.Seq, from.Message.ClientID, from.Message.Sender, to.Message.ClientID, to.Message.Sender)
	case (from.Message.Revoked == nil) != (to.Message.Revoked == nil):
		c.first = fmt.Sprintf("seq %d is revoked on one side only", from.Message.Seq)
	default:
		c.first = fmt.Sprintf("seq %d has other content", from.Message.Seq)
	}
}

// conversations compares those above after up to last. convs are the source's.
func (c *comparer) conversations(ctx context.Context, convs []watermark.Conversation, after, last watermark.ConversationID) error {
	from := &stream[watermark.Conversation]{have: convs, fetch: func(*watermark.Conversation) ([]watermark.Conversation, error) { return nil, nil }}
	to := &stream[watermark.Conversation]{fetch: func(l *watermark.Conversation) ([]watermark.Conversation, error) {
		at := after
		if l != nil {
			at = l.ID
		}
		found, err := conversationsAfter(ctx, c.To, c.page(), at)
		for i := range found {
			if last != "" && found[i].ID > last {
				return found[:i], err
			}
		}
		return found, err
	}}
	return join(from, to, func(a, b *watermark.Conversation) int { return compareIDs(a.ID, b.ID) }, func(from, to *watermark.Conversation) error {
		c.conversation(from, to)
		return nil
	})
}

func compareIDs(a, b watermark.ConversationID) int {
	return watermark.RowKey{Conversation: a}.Compare(watermark.RowKey{Conversation: b})
}

func (c *comparer) conversation(from, to *watermark.Conversation) {
	var a, b text
	if from != nil {
		c.step(Counts{Conversations: 1})
		a = conversationText(from)
		c.from.add(a)
		c.report.From.Conversations++
	}
	if to != nil {
		b = conversationText(to)
		c.to.add(b)
		c.report.To.Conversations++
	}
	if string(a) == string(b) {
		return
	}
	switch {
	case to == nil:
		c.differs(Difference{Kind: "conversation", Conversation: from.ID, Detail: "is missing in the target"})
	case from == nil:
		c.differs(Difference{Kind: "conversation", Conversation: to.ID, Detail: "is in the target only"})
	default:
		c.differs(Difference{Kind: "conversation", Conversation: from.ID, Detail: fmt.Sprintf("%+v in the source, %+v in the target", *from, *to)})
	}
}

func (c *comparer) member(from, to *watermark.MemberRow) {
	var a, b text
	if from != nil {
		c.step(Counts{Members: 1})
		a = memberText(from)
		c.from.add(a)
		c.report.From.Members++
	}
	if to != nil {
		b = memberText(to)
		c.to.add(b)
		c.report.To.Members++
	}
	if string(a) == string(b) {
		return
	}
	d := Difference{Kind: "member"}
	switch {
	case to == nil:
		d.Conversation, d.User, d.Detail = from.Conversation, from.Member.User, "is missing in the target"
	case from == nil:
		d.Conversation, d.User, d.Detail = to.Conversation, to.Member.User, "is in the target only"
	default:
		d.Conversation, d.User, d.Detail = from.Conversation, from.Member.User, memberDetail(&from.Member, &to.Member)
	}
	c.differs(d)
}

// positions compares how far both have the log.
func (c *comparer) positions(ctx context.Context) error {
	from, err := positionsOf(ctx, c.From)
	if err != nil {
		return fmt.Errorf("read positions of the source: %w", err)
	}
	to, err := positionsOf(ctx, c.To)
	if err != nil {
		return fmt.Errorf("read positions of the target: %w", err)
	}
	for _, p := range from {
		c.from.add(positionText(p))
	}
	for _, p := range to {
		c.to.add(positionText(p))
	}
	if !slices.Equal(from, to) {
		c.differs(Difference{Kind: "positions", Detail: fmt.Sprintf("how far it has the log: %+v in the source, %+v in the target", from, to)})
	}
	return nil
}

// memberDetail leaves out the own messages, of which there may be a thousand.
func memberDetail(from, to *watermark.Member) string {
	x, y := *from, *to
	x.Own, y.Own = nil, nil
	return fmt.Sprintf("%+v and %d own messages in the source, %+v and %d in the target", x, len(from.Own), y, len(to.Own))
}
