package storagetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/tidemark-im/tidemark/watermark"
)

// Step names a point between two parts of a Write of Memory.
type Step string

// The steps of a Write, in order. Each is reached when its part is done.
const (
	StepRows          Step = "rows"
	StepRevokes       Step = "revokes"
	StepMembers       Step = "members"
	StepConversations Step = "conversations"
	StepPositions     Step = "positions"
)

// Memory is a history in maps: the contract in its shortest form. It has no
// transactions on purpose, like a store that applies a Change in five steps.
type Memory struct {
	// Fail, when set, is called after each step of a Write, and before the first
	// one with "". An error ends the Write there: what was done stays, as after a
	// crash between two effects. Set it before the first call.
	Fail func(Step) error

	mu        sync.Mutex
	convs     map[watermark.ConversationID]*memConv
	positions map[memPosition]int64
	devices   map[watermark.DeviceKey]watermark.DeviceRow
}

type memPosition struct {
	topic string
	watermark.Partition
}

type memConv struct {
	watermark.Conversation
	written bool // itself, not only its rows or members
	rows    map[watermark.Seq]*memRow
	members map[watermark.UserID]watermark.Member
}

type memRow struct {
	watermark.Message
	gone bool
}

// NewMemory gives an empty history.
func NewMemory() *Memory {
	return &Memory{convs: make(map[watermark.ConversationID]*memConv), positions: make(map[memPosition]int64), devices: make(map[watermark.DeviceKey]watermark.DeviceRow)}
}

// Write implements History.
func (h *Memory) Write(ctx context.Context, c watermark.Change) (w watermark.Written, err error) {
	if err := ctx.Err(); err != nil {
		return w, err
	}
	steps := []struct {
		name Step
		do   func()
	}{
		{"", func() {}},
		{StepRows, func() { w.Rows = h.insertLocked(c.Rows) }},
		{StepRevokes, func() { h.revokeLocked(c.Revokes) }},
		{StepMembers, func() { w.MemberConflicts = h.membersLocked(c.Members) }},
		{StepConversations, func() { h.conversationsLocked(c.Conversations) }},
		{StepPositions, func() { h.positionsLocked(c.Positions) }},
	}
	for _, s := range steps {
		h.mu.Lock()
		s.do()
		h.mu.Unlock()
		if h.Fail != nil {
			if err := h.Fail(s.name); err != nil {
				return watermark.Written{}, err
			}
		}
	}
	return w, nil
}

func (h *Memory) convLocked(id watermark.ConversationID) *memConv {
	c := h.convs[id]
	if c == nil {
		c = &memConv{
			Conversation: watermark.Conversation{ID: id},
			rows:         make(map[watermark.Seq]*memRow),
			members:      make(map[watermark.UserID]watermark.Member),
		}
		h.convs[id] = c
	}
	return c
}

func (h *Memory) insertLocked(rows []watermark.Row) (out []watermark.Fate) {
	for _, r := range rows {
		c := h.convLocked(r.Conversation)
		old := c.rows[r.Message.Seq]
		switch {
		case old != nil && old.SameAs(&r.Message):
			out = append(out, watermark.Replay)
		case old != nil:
			out = append(out, watermark.Conflict)
		case r.Message.Seq < c.Min:
			out = append(out, watermark.Retired)
		default:
			c.rows[r.Message.Seq] = &memRow{Message: cloneMessage(r.Message)}
			out = append(out, watermark.Inserted)
		}
	}
	return out
}

func cloneMessage(m watermark.Message) watermark.Message {
	m.Body = slices.Clone(m.Body)
	m.Mentions = slices.Clone(m.Mentions)
	m.Attributes = maps.Clone(m.Attributes)
	return m
}

func (h *Memory) revokeLocked(revokes []watermark.RevokedRow) {
	for _, r := range revokes {
		if row := h.convLocked(r.Conversation).rows[r.Revoked.Seq]; row != nil && row.Revoked == nil {
			row.Message = row.Tombstone(r.Revoked)
		}
	}
}

func (h *Memory) membersLocked(rows []watermark.MemberRow) (conflicts []int) {
	for i, r := range rows {
		c := h.convLocked(r.Conversation)
		m, ok := c.members[r.Member.User]
		if !ok {
			m.User = r.Member.User
		}
		if m.Version == r.Member.Version && m.Version > 0 && !m.SameState(&r.Member) {
			conflicts = append(conflicts, i)
		}
		m.Merge(r.Member)
		if n := len(m.Own) - watermark.MaxOwn; n > 0 {
			m.RaiseRead(m.Own[n-1])
		}
		c.members[m.User] = m
	}
	return conflicts
}

func (h *Memory) conversationsLocked(convs []watermark.Conversation) {
	for _, o := range convs {
		c := h.convLocked(o.ID)
		c.Conversation.Merge(o)
		c.written = true
	}
}

func (h *Memory) positionsLocked(ps []watermark.Position) {
	for _, p := range ps {
		k := memPosition{p.Topic, p.Partition}
		h.positions[k] = max(h.positions[k], p.Next)
	}
}

// Positions implements History.
func (h *Memory) Positions(ctx context.Context) ([]watermark.Position, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.Position
	for k, next := range h.positions {
		out = append(out, watermark.Position{Topic: k.topic, Partition: k.Partition, Next: next})
	}
	slices.SortFunc(out, comparePositions)
	return out, ctx.Err()
}

func comparePositions(a, b watermark.Position) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.TopicID, b.TopicID), cmp.Compare(a.Number, b.Number))
}

func (h *Memory) conversationLocked(id watermark.ConversationID) watermark.Conversation {
	out := watermark.Conversation{ID: id}
	if c := h.convs[id]; c != nil {
		out.Merge(c.Conversation)
	}
	return out
}

// Conversations implements History.
func (h *Memory) Conversations(ctx context.Context, ids []watermark.ConversationID) ([]watermark.Conversation, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]watermark.Conversation, len(ids))
	for i, id := range ids {
		out[i] = h.conversationLocked(id)
	}
	return out, ctx.Err()
}

// ConversationsAfter implements History.
func (h *Memory) ConversationsAfter(ctx context.Context, after watermark.ConversationID, limit int) ([]watermark.ConversationID, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.ConversationID
	for _, id := range slices.Sorted(maps.Keys(h.convs)) {
		if c := h.convs[id]; id > after && (c.Exists() || len(c.rows) > 0) {
			out = append(out, id)
		}
	}
	return capped(out, limit), ctx.Err()
}

// Members implements History.
func (h *Memory) Members(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) ([]watermark.Member, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.Member
	for _, u := range users {
		if m, ok := h.memberLocked(conv, u); ok {
			out = append(out, m)
		}
	}
	return out, ctx.Err()
}

func (h *Memory) memberLocked(conv watermark.ConversationID, u watermark.UserID) (watermark.Member, bool) {
	c := h.convs[conv]
	if c == nil {
		return watermark.Member{}, false
	}
	m, ok := c.members[u]
	out := watermark.Member{User: u}
	out.Merge(m)
	return out, ok
}

// Roster implements History.
func (h *Memory) Roster(ctx context.Context, conv watermark.ConversationID, after watermark.UserID, limit int) ([]watermark.Member, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.Member
	if c := h.convs[conv]; c != nil {
		for _, u := range slices.Sorted(maps.Keys(c.members)) {
			if u > after {
				m, _ := h.memberLocked(conv, u)
				out = append(out, m)
			}
		}
	}
	return capped(out, limit), ctx.Err()
}

func capped[T any](list []T, limit int) []T {
	return list[:min(len(list), max(0, min(limit, watermark.MaxPage)))]
}

// MembershipsOf implements History.
func (h *Memory) MembershipsOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) ([]watermark.MemberRow, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.MemberRow
	for _, id := range slices.Sorted(maps.Keys(h.convs)) {
		if m, ok := h.memberLocked(id, user); ok && id > after {
			out = append(out, watermark.MemberRow{Conversation: id, Member: m})
		}
	}
	return capped(out, limit), ctx.Err()
}

// ActivityOf implements History.
func (h *Memory) ActivityOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) ([]watermark.Activity, error) {
	rows, err := h.MembershipsOf(ctx, user, after, limit)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.Activity
	for _, r := range rows {
		out = append(out, watermark.Activity{Conversation: r.Conversation, LastTime: h.convs[r.Conversation].LastTime})
	}
	return out, nil
}

// Messages implements History.
func (h *Memory) Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.Message
	if c := h.convs[conv]; c != nil {
		for s, r := range c.rows {
			if in.Contains(s) && !r.gone {
				out = append(out, cloneMessage(r.Message))
			}
		}
	}
	slices.SortFunc(out, func(a, b watermark.Message) int { return cmp.Compare(a.Seq, b.Seq) })
	return capped(out, limit), ctx.Err()
}

// Peek implements History.
func (h *Memory) Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.Peeked, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]watermark.Peeked, len(peeks))
	for i, p := range peeks {
		c := h.convs[p.Conversation]
		if c == nil {
			continue
		}
		if r := c.rows[p.Last]; r != nil && !r.gone {
			m := cloneMessage(r.Message)
			out[i].Last = &m
		}
		for _, in := range p.Mentions {
			var seqs []watermark.Seq
			for s, r := range c.rows {
				if in.Contains(s) && slices.Contains(r.Mentions, p.User) {
					seqs = append(seqs, s)
				}
			}
			slices.Sort(seqs)
			out[i].Mentions = append(out[i].Mentions, capped(seqs, watermark.MaxMentions)...)
		}
		out[i].Revoked = c.revokedFrom(p.RevokedFrom)
	}
	return out, ctx.Err()
}

// revokedFrom gives the first MaxRevoked revokes whose At is from or higher.
func (c *memConv) revokedFrom(from int64) (out []watermark.Seq) {
	for s, r := range c.rows {
		if from > 0 && r.Revoked != nil && r.Revoked.At >= from {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b watermark.Seq) int { return cmp.Compare(c.rows[a].Revoked.At, c.rows[b].Revoked.At) })
	out = capped(out, watermark.MaxRevoked)
	slices.Sort(out)
	return out
}

// Sent implements History.
func (h *Memory) Sent(ctx context.Context, conv watermark.ConversationID, above watermark.Seq) (map[watermark.SentKey]watermark.Sent, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sentLocked(conv, above), ctx.Err()
}

func (h *Memory) sentLocked(conv watermark.ConversationID, above watermark.Seq) map[watermark.SentKey]watermark.Sent {
	out := make(map[watermark.SentKey]watermark.Sent)
	c := h.convs[conv]
	if c == nil {
		return out
	}
	for s, r := range c.rows {
		k := watermark.SentKey{Sender: r.Sender, ClientID: r.ClientID}
		if s > above && s > out[k].Seq {
			out[k] = watermark.Sent{Seq: s, Hash: r.Hash}
		}
	}
	return out
}

// States implements History.
func (h *Memory) States(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*watermark.State, len(wants))
	for i, w := range wants {
		s := watermark.NewState(w.Conversation)
		out[i] = s
		s.Conversation = h.conversationLocked(w.Conversation)
		users := w.Users
		var all map[watermark.UserID]watermark.Member
		if c := h.convs[w.Conversation]; c != nil {
			all = c.members
		}
		if w.Roster || len(all) <= watermark.SmallGroup {
			s.Complete = true
			users = slices.Collect(maps.Keys(all))
		}
		for _, u := range users {
			if m, ok := h.memberLocked(w.Conversation, u); ok {
				s.MergeMember(m)
			}
		}
		if w.Sent {
			s.Sent = h.sentLocked(w.Conversation, s.Max-watermark.DedupeHorizon)
		}
	}
	return out, ctx.Err()
}

// DeleteBelow implements History.
func (h *Memory) DeleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (deleted int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.convs[conv]
	if c == nil {
		return 0, ctx.Err()
	}
	horizon := c.Max - watermark.DedupeHorizon
	below := slices.DeleteFunc(slices.Sorted(maps.Keys(c.rows)), func(s watermark.Seq) bool {
		return s >= min(seq, c.Min) || (s > horizon && c.rows[s].gone)
	})
	below = capped(below, limit)
	for _, s := range below {
		if s <= horizon {
			delete(c.rows, s)
			continue
		}
		r := c.rows[s]
		r.gone = true
		r.Body, r.BodyType, r.Mentions, r.Attributes = nil, watermark.BodyNone, nil, nil
	}
	return len(below), ctx.Err()
}

// ScanConversations implements History.
func (h *Memory) ScanConversations(ctx context.Context, after watermark.ConversationID, limit int) ([]watermark.Conversation, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.Conversation
	for _, id := range slices.Sorted(maps.Keys(h.convs)) {
		if id > after && h.convs[id].written {
			out = append(out, h.conversationLocked(id))
		}
	}
	return capped(out, limit), ctx.Err()
}

// ScanRows implements History.
func (h *Memory) ScanRows(ctx context.Context, s watermark.RowScan) ([]watermark.StoredRow, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.StoredRow
	for id, c := range h.convs {
		for _, r := range c.rows {
			row := watermark.StoredRow{Row: watermark.Row{Conversation: id, Message: cloneMessage(r.Message)}, Gone: r.gone}
			if row.Key().Compare(s.After) > 0 && (s.Last == "" || id <= s.Last) {
				out = append(out, row)
			}
		}
	}
	slices.SortFunc(out, func(a, b watermark.StoredRow) int { return a.Key().Compare(b.Key()) })
	out = capped(out, s.Limit)
	bytes := s.Bytes
	if bytes <= 0 {
		bytes = watermark.DefaultScanBytes
	}
	for i := range out {
		if bytes -= len(out[i].Message.Body); bytes <= 0 {
			return out[:i+1], ctx.Err()
		}
	}
	return out, ctx.Err()
}

// ScanMembers implements History.
func (h *Memory) ScanMembers(ctx context.Context, after watermark.MemberKey, limit int) ([]watermark.MemberRow, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []watermark.MemberRow
	for id, c := range h.convs {
		for u := range c.members {
			if (watermark.MemberKey{User: u, Conversation: id}).Compare(after) > 0 {
				m, _ := h.memberLocked(id, u)
				out = append(out, watermark.MemberRow{Conversation: id, Member: m})
			}
		}
	}
	slices.SortFunc(out, func(a, b watermark.MemberRow) int { return a.Key().Compare(b.Key()) })
	return capped(out, limit), ctx.Err()
}

// Sizes implements History.
func (h *Memory) Sizes(ctx context.Context) (watermark.Sizes, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var s watermark.Sizes
	for _, c := range h.convs {
		if c.written {
			s.Conversations++
		}
		s.Rows += int64(len(c.rows))
		s.Members += int64(len(c.members))
	}
	return s, ctx.Err()
}
