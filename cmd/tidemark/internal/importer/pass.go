package importer

import (
	"context"
	"fmt"
	"strings"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/watermark"
)

// pass takes the input through one stage. All stages judge alike; only the
// second writes.
type pass struct {
	Config
	stage Stage
	rep   *Report
	bad   *bits

	rows  *seeker[watermark.RowKey, watermark.StoredRow]
	convs *seeker[watermark.ConversationID, watermark.Conversation]

	number int64         // of conversations that began
	cur    *conversation // nil: none began
	change watermark.Change
	bytes  int
}

// conversation is what is known of the one that is read.
type conversation struct {
	raw      string
	id       watermark.ConversationID
	skip     bool // known to be bad, or no conversation id
	faulty   bool
	standing watermark.Conversation
	live     bool // a deployment has decided about it
	head     head
	began    string // where

	members   bool // have begun
	messages  int64
	next      watermark.Seq
	byOrder   bool
	lastOrder *order
	lastTime  int64
	recent    map[watermark.SentKey]watermark.Seq
	ring      []watermark.SentKey // of recent, oldest first
	sent      map[watermark.UserID]*sender
	seen      map[watermark.UserID]bool
	pending   []pending
}

type pending struct {
	at     string
	member watermark.Member
}

func (c *conversation) max() watermark.Seq { return c.next - 1 }

// fault notes why cur cannot be imported. After the first stage it means that
// something changed.
func (p *pass) fault(at string, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if p.stage != Checking {
		return fmt.Errorf("%w: %s: %w", errChanged, at, err)
	}
	f := Fault{At: at, Detail: strings.ReplaceAll(err.Error(), "\n", "; ")}
	if c := p.cur; c == nil {
		p.bad.lost = true
	} else {
		if f.Conversation = c.raw; !c.faulty {
			p.rep.Bad++
		}
		c.faulty = true
		p.bad.set(p.number - 1)
	}
	p.rep.Faulty++
	reported := p.Reported
	if reported <= 0 {
		reported = DefaultReported
	}
	if len(p.rep.Faults) < reported {
		p.rep.Faults = append(p.rep.Faults, f)
	}
	return nil
}

func (p *pass) entry(ctx context.Context, e *entry) error {
	if p.stage == Checking {
		p.rep.Skipped.add(e.skipped)
	}
	if e.conv == "" {
		if e.fault == nil {
			return nil // it only counts
		}
		// Whose it is nobody knows, so none of the others can be told to be whole.
		was := p.cur
		p.cur = nil
		err := p.fault(e.at, "%w", e.fault)
		p.cur = was
		return err
	}
	if p.cur == nil || p.cur.raw != e.conv {
		if p.cur != nil && e.conv < p.cur.raw {
			return fmt.Errorf("%s: the input is not sorted by conversation: %q comes after %q, which began at %s", e.at, e.conv, p.cur.raw, p.cur.began)
		}
		if err := p.end(ctx); err != nil {
			return err
		}
		if err := p.begin(e); err != nil {
			return err
		}
	}
	c := p.cur
	switch {
	case c.skip:
		return nil
	case e.fault != nil:
		if e.msg.Seq == c.next {
			c.next++
		}
		return p.fault(e.at, "%w", e.fault)
	case e.kind == headEntry:
		return p.head(e)
	case e.kind == messageEntry:
		return p.message(ctx, e)
	}
	return p.member(ctx, e)
}

func (p *pass) begin(e *entry) error {
	p.number++
	c := &conversation{
		raw: e.conv, began: e.at, next: 1, skip: p.bad.has(p.number - 1),
		recent: make(map[watermark.SentKey]watermark.Seq), sent: make(map[watermark.UserID]*sender), seen: make(map[watermark.UserID]bool),
	}
	p.cur = c
	if c.skip {
		return nil
	}
	id, err := watermark.ParseConversationID(e.conv)
	if err != nil {
		c.skip = true
		return p.fault(e.at, "%w", err)
	}
	c.id = id
	standing, err := p.convs.at(id)
	if err != nil {
		return err
	}
	if standing != nil {
		c.standing = *standing
		c.live = len(standing.Inputs) > 0 || standing.Repair != (watermark.Repaired{})
	}
	return nil
}

func (p *pass) head(e *entry) error {
	c := p.cur
	if c.messages > 0 || c.members || c.head != (head{}) || c.next > 1 {
		return p.fault(e.at, "the line of a conversation must be its first, and stand once")
	}
	c.head = e.head
	c.next = max(e.head.min, 1)
	if c.head.max > 0 && c.head.min > c.head.max+1 {
		return p.fault(e.at, "the minimum %d is above the maximum %d by more than one", c.head.min, c.head.max)
	}
	return nil
}

// place gives a message its seq, or says why it has none.
func (p *pass) place(e *entry) (ok bool, err error) {
	c := p.cur
	byOrder := e.order != nil
	if c.messages++; c.messages > 1 && byOrder != c.byOrder {
		return false, p.fault(e.at, "one message has a seq and another an order")
	}
	c.byOrder = byOrder
	if byOrder {
		if last := c.lastOrder; last != nil {
			n, comparable := e.order.compare(*last)
			switch {
			case !comparable:
				return false, p.fault(e.at, "one order is a number and another a text")
			case n == 0:
				return false, p.fault(e.at, "two messages have the order %s", e.order)
			case n < 0:
				return false, p.fault(e.at, "the input is not sorted: order %s comes after %s", e.order, last)
			}
		}
		c.lastOrder = e.order
		e.msg.Seq = c.next
		c.next++
		return true, nil
	}
	seq, want := e.msg.Seq, c.next
	switch {
	case seq < max(c.head.min, 1):
		return false, p.fault(e.at, "seq %d is below the minimum %d", seq, max(c.head.min, 1))
	case seq == want-1 && c.messages > 1:
		return false, p.fault(e.at, "seq %d stands twice", seq)
	case seq < want:
		return false, p.fault(e.at, "seq %d comes after %d: the messages of a conversation must be sorted and stand once", seq, want-1)
	case seq > want+1:
		err = p.fault(e.at, "a hole: seqs %d to %d are missing", want, seq-1)
	case seq > want:
		err = p.fault(e.at, "a hole: seq %d is missing", want)
	}
	c.next = seq + 1
	return err == nil, err
}

func (p *pass) message(ctx context.Context, e *entry) error {
	c := p.cur
	if c.members {
		return p.fault(e.at, "a message comes after a member: the messages of a conversation come first")
	}
	if ok, err := p.place(e); !ok || err != nil {
		return err
	}
	m := &e.msg
	if m.ClientID == "" {
		m.ClientID = derivedID(c.id, e)
	}
	if m.Revoked != nil {
		m.Revoked.Seq = m.Seq
	}
	if was, ok := c.remember(m); ok {
		return p.fault(e.at, "client message id %q of %s stands at seq %d already", m.ClientID, m.Sender, was)
	}
	c.lastTime = max(c.lastTime, m.RecordTime)
	if !e.hole {
		c.sender(m.Sender).said(m.Seq, c.head.policy)
	}
	return p.row(ctx, e)
}

// remember notes a client id and tells where it stands within the horizon.
func (c *conversation) remember(m *watermark.Message) (watermark.Seq, bool) {
	key := watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}
	if was, ok := c.recent[key]; ok {
		return was, true
	}
	if len(c.ring) == watermark.DedupeHorizon {
		delete(c.recent, c.ring[0])
		c.ring = c.ring[1:]
	}
	c.recent[key] = m.Seq
	c.ring = append(c.ring, key)
	return 0, false
}

// row compares a message with what stands in its place, and writes it where
// nothing does.
func (p *pass) row(ctx context.Context, e *entry) error {
	c, m := p.cur, &e.msg
	there, err := p.rows.at(watermark.RowKey{Conversation: c.id, Seq: m.Seq})
	if err != nil {
		return err
	}
	revoke := false
	switch {
	case there != nil && !there.Message.SameAs(m):
		return p.fault(e.at, "another message stands at seq %d in the target, of %s with client message id %q", m.Seq, there.Message.Sender, there.Message.ClientID)
	case there != nil:
		if revoke = m.Revoked != nil && there.Message.Revoked == nil && !c.live; !revoke {
			return p.passed(1, 0, 0)
		}
	case c.live && m.Seq >= c.standing.Min:
		return p.fault(e.at, "refused: a deployment goes on with this conversation and has no message at seq %d; what Redis and the log know of it cannot be changed from here", m.Seq)
	case c.live:
		return p.passed(1, 0, 0) // it was deleted for everybody
	case m.Seq < c.standing.Min:
		return p.fault(e.at, "seq %d is below the minimum %d in the target, where nothing stands", m.Seq, c.standing.Min)
	}
	switch {
	case p.stage == Verifying:
		return fmt.Errorf("%w: seq %d of %s does not stand", errChanged, m.Seq, c.id)
	case p.stage == Checking:
		return nil
	case revoke:
		p.change.Revokes = append(p.change.Revokes, watermark.RevokedRow{Conversation: c.id, Revoked: *m.Revoked})
	default:
		p.change.Rows = append(p.change.Rows, watermark.Row{Conversation: c.id, Message: *m})
		p.bytes += len(m.Body)
	}
	p.rep.Written.Messages++
	return p.mayFlush(ctx)
}

// passed counts what was read back.
func (p *pass) passed(messages, members, conversations int64) error {
	if p.stage == Verifying {
		p.rep.Imported.Messages += messages
		p.rep.Imported.Members += members
		p.rep.Imported.Conversations += conversations
	}
	return nil
}

// end ends the conversation that is read: with the members of whom only
// messages are known, and then itself.
func (p *pass) end(ctx context.Context) error {
	c := p.cur
	if c == nil || c.skip {
		return nil
	}
	if p.stage == Checking {
		p.rep.Skipped.Unused += int64(max(c.head.given-c.max(), 0))
	}
	if c.head.max > c.max() {
		if err := p.fault(c.began, "a hole at the end: seqs %d to %d are missing", c.next, c.head.max); err != nil {
			return err
		}
	} else if c.head.max > 0 && c.head.max < c.max() {
		if err := p.fault(c.began, "there are messages up to seq %d, above its maximum %d", c.max(), c.head.max); err != nil {
			return err
		}
	}
	if !c.live && c.standing.Max > c.max() {
		if err := p.fault(c.began, "the target has it up to seq %d, the input only to %d", c.standing.Max, c.max()); err != nil {
			return err
		}
	}
	if err := p.silent(ctx); err != nil {
		return err
	}
	if err := p.members(ctx); err != nil {
		return err
	}
	if c.faulty {
		return nil
	}
	return p.finish(ctx)
}

func (p *pass) finish(ctx context.Context) error {
	c := p.cur
	if c.live {
		if p.stage == Checking {
			p.rep.Live++
		}
		return p.passed(0, 0, 1)
	}
	conv := watermark.Conversation{ID: c.id, Min: c.head.min, Max: c.max(), Policy: c.head.policy, LastTime: c.lastTime}
	if !conv.Exists() {
		return p.passed(0, 0, 1) // only members: it stands as soon as something happens
	}
	after := c.standing
	after.ID = c.id
	after.Merge(conv)
	// Without a message there is no policy that held for the last one.
	if conv.Max > 0 && after.Policy != conv.Policy {
		return p.fault(c.began, "the target has it with another unread policy")
	}
	same := after.Min == c.standing.Min && after.Max == c.standing.Max && after.LastTime == c.standing.LastTime
	switch {
	case p.stage == Verifying && !same:
		return fmt.Errorf("%w: %s stands with %d to %d, must be %d to %d", errChanged, c.id, c.standing.Min, c.standing.Max, conv.Min, conv.Max)
	case same || p.stage == Checking:
		return p.passed(0, 0, 1)
	}
	p.change.Conversations = append(p.change.Conversations, conv)
	p.rep.Written.Conversations++
	return p.mayFlush(ctx)
}

func (p *pass) mayFlush(ctx context.Context) error {
	n := len(p.change.Rows) + len(p.change.Revokes) + len(p.change.Members) + len(p.change.Conversations)
	if n < p.page() && p.bytes < watermark.DefaultScanBytes {
		return nil
	}
	return p.flush(ctx)
}

// flush writes what was gathered. A store applies rows before members and those
// before conversations, so a batch may hold all three.
func (p *pass) flush(ctx context.Context) error {
	change := p.change
	p.change, p.bytes = watermark.Change{}, 0
	if change.Empty() {
		return nil
	}
	w, err := transfer.Patiently(ctx, func() (watermark.Written, error) { return p.To.Write(ctx, change) })
	if err != nil {
		return fmt.Errorf("write the target: %w", err)
	}
	for i, f := range w.Rows {
		if f != watermark.Inserted && f != watermark.Replay {
			return fmt.Errorf("%w: %s/%d was not taken", errChanged, change.Rows[i].Conversation, change.Rows[i].Message.Seq)
		}
	}
	if len(w.MemberConflicts) > 0 {
		m := &change.Members[w.MemberConflicts[0]]
		return fmt.Errorf("%w: the windows of %s in %s stand otherwise", errChanged, m.Member.User, m.Conversation)
	}
	return nil
}
