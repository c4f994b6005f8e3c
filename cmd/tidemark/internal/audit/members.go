package audit

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tidemark-im/tidemark/watermark"
)

// members looks at all members of a conversation, page by page: those that
// history has, and, where Redis may be believed, those that Redis has.
func (a *Auditor) members(ctx context.Context, conv watermark.Conversation, head Head, marks *seenMarks) error {
	for after := watermark.UserID(""); ; {
		page, err := a.cfg.History.Roster(ctx, conv.ID, after, pageMembers)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return a.membersOfRedis(ctx, conv, head)
		}
		pairs, err := a.pairs(ctx, conv.ID, page, head.Warm)
		if err != nil {
			return err
		}
		for i := range pairs {
			marks.add(conv.ID, &pairs[i])
			if err := a.judge(ctx, conv, &pairs[i]); err != nil {
				return err
			}
		}
		if err := a.advance(ctx, 0, func(r *Report) { r.Members += len(page) }); err != nil {
			return err
		}
		if err := a.pace.wait(ctx, len(page)); err != nil {
			return err
		}
		after = page[len(page)-1].User
	}
}

// membersOfRedis looks at the members whose windows Redis holds, for those that
// history has not got.
func (a *Auditor) membersOfRedis(ctx context.Context, conv watermark.Conversation, head Head) error {
	if !head.Warm {
		return nil
	}
	for cursor := uint64(0); ; {
		users, next, err := a.cfg.Redis.Users(ctx, conv.ID, cursor)
		if err != nil {
			return err
		}
		for part := range slices.Chunk(users, pageMembers) {
			if err := a.onlyInRedis(ctx, conv, part); err != nil {
				return err
			}
		}
		if next == 0 {
			return nil
		}
		cursor = next
	}
}

func (a *Auditor) onlyInRedis(ctx context.Context, conv watermark.Conversation, users []watermark.UserID) error {
	// Redis before history: a member that is in neither by then is new.
	known, warm, err := a.cfg.Redis.Known(ctx, conv.ID, users)
	if err != nil || !warm {
		return err
	}
	rows, err := a.cfg.History.Members(ctx, conv.ID, users)
	if err != nil {
		return err
	}
	for i := range known {
		u := users[i]
		if slices.ContainsFunc(rows, func(m watermark.Member) bool { return m.User == u }) {
			continue // it was judged with history's, or will be
		}
		p := pair{history: watermark.Member{User: u}, redis: known[i], warm: true}
		if err := a.judge(ctx, conv, &p); err != nil {
			return err
		}
	}
	return a.pace.wait(ctx, len(users))
}

// pair is what history and Redis have of one member.
type pair struct {
	history watermark.Member
	redis   Known
	warm    bool // redis is set
}

// pairs adds what Redis has to members of history, which were read before.
func (a *Auditor) pairs(ctx context.Context, conv watermark.ConversationID, page []watermark.Member, warm bool) ([]pair, error) {
	out := make([]pair, len(page))
	users := make([]watermark.UserID, len(page))
	for i := range page {
		page[i].Own = nil
		out[i].history, users[i] = page[i], page[i].User
	}
	if !warm {
		return out, nil
	}
	known, warm, err := a.cfg.Redis.Known(ctx, conv, users)
	if err != nil || !warm {
		return out, err
	}
	for i := range known {
		out[i].redis, out[i].warm = known[i], true
	}
	return out, nil
}

// judge suspects a member of which something does not fit.
func (a *Auditor) judge(ctx context.Context, conv watermark.Conversation, p *pair) error {
	if !p.differs() && unseen(&p.history, conv.Max) == "" && (!p.warm || unseen(&p.redis.Member, max(p.redis.Max, conv.Max)) == "") {
		return nil
	}
	return a.suspect(ctx, suspicion{conv: conv.ID, what: member, user: p.history.User, last: conv.Max, pair: *p})
}

// differs tells whether the two stores have not the same of a member.
func (p *pair) differs() bool {
	h, r := &p.history, &p.redis.Member
	return p.warm && (h.Read < r.Read || h.Receipt < r.Receipt ||
		p.redis.Known && (h.Version != r.Version || !h.SameState(r) || r.Read < h.Read || r.Receipt < h.Receipt))
}

// unseen tells how a mark is above what its user can ever have seen, "" when it
// is not. A mark is clamped to what is visible when it is made and stays when
// the window closes, so of a closed member none is above the edges of its ops.
func unseen(m *watermark.Member, top watermark.Seq) string {
	if mark := max(m.Read, m.Receipt); mark > top {
		return fmt.Sprintf("a mark at %d, the maximum is %d", mark, top)
	}
	if m.Open() || len(m.Ops) == 0 {
		return ""
	}
	edge := watermark.Seq(0)
	for _, op := range m.Ops {
		edge = max(edge, op.Edge)
	}
	if m.Read > edge {
		return fmt.Sprintf("a mark at %d, the window closed at %d at the latest", m.Read, edge)
	}
	return ""
}

// seenMarks remembers marks of a batch, to see whether they stand at its end.
type seenMarks struct {
	mu   sync.Mutex
	seen []seenMark // at most maxSeenTwice
}

type seenMark struct {
	conv watermark.ConversationID
	pair pair
}

func (s *seenMarks) add(conv watermark.ConversationID, p *pair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) < maxSeenTwice && (p.history.Read > 0 || p.history.Receipt > 0 || p.redis.Member.Read > 0) {
		s.seen = append(s.seen, seenMark{conv, *p})
	}
}

// seeAgain reads the remembered marks a second time: none may be lower.
func (a *Auditor) seeAgain(ctx context.Context, marks *seenMarks) error {
	for seen := marks.seen; len(seen) > 0; {
		n := 1
		for n < len(seen) && n < pageMembers && seen[n].conv == seen[0].conv {
			n++
		}
		if err := a.seeAgainOf(ctx, seen[0].conv, seen[:n]); err != nil {
			return err
		}
		seen = seen[n:]
	}
	return nil
}

func (a *Auditor) seeAgainOf(ctx context.Context, conv watermark.ConversationID, seen []seenMark) error {
	users := make([]watermark.UserID, len(seen))
	warm := false
	for i := range seen {
		users[i] = seen[i].pair.history.User
		warm = warm || seen[i].pair.warm
	}
	now, err := a.membersNow(ctx, conv, users, warm)
	if err != nil {
		return err
	}
	for i := range seen {
		if p := &seen[i].pair; fell(p, now[users[i]]) {
			if err := a.suspect(ctx, suspicion{conv: conv, what: member, user: users[i], pair: *p}); err != nil {
				return err
			}
		}
	}
	return nil
}

// membersNow reads members in both stores; absent ones are new.
func (a *Auditor) membersNow(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID, warm bool) (map[watermark.UserID]pair, error) {
	rows, err := a.cfg.History.Members(ctx, conv, users)
	if err != nil {
		return nil, err
	}
	page := make([]watermark.Member, len(users))
	for i, u := range users {
		page[i] = watermark.Member{User: u}
		if j := slices.IndexFunc(rows, func(m watermark.Member) bool { return m.User == u }); j >= 0 {
			page[i] = rows[j]
		}
	}
	pairs, err := a.pairs(ctx, conv, page, warm && a.cfg.Redis != nil)
	if err != nil {
		return nil, err
	}
	out := make(map[watermark.UserID]pair, len(users))
	for i, u := range users {
		out[u] = pairs[i]
	}
	return out, nil
}

// fell tells whether a mark is lower than it was.
func fell(before *pair, now pair) bool {
	h, r := &before.history, &before.redis.Member
	return now.history.Read < h.Read || now.history.Receipt < h.Receipt ||
		before.warm && now.warm && now.redis.Known && (now.redis.Member.Read < r.Read || now.redis.Member.Receipt < r.Receipt)
}
