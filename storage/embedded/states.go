package embedded

import (
	"context"
	"database/sql"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// States gives what stands of each wanted conversation, in the order of wants:
// itself, the members that Want asks for, and with Want.Sent the client message
// ids above its max minus DedupeHorizon. It takes a handful of queries for each
// 500 conversations. State.Complete is set where all members are there: at most
// SmallGroup, or Want.Roster.
func (s *Store) States(ctx context.Context, wants []watermark.Want) (out []*watermark.State, err error) {
	defer s.metrics.done("states", time.Now(), &err)
	out = make([]*watermark.State, len(wants))
	// A conversation that is wanted twice is read once, for both.
	states := make(map[watermark.ConversationID]*loading, len(wants))
	convs := make([]watermark.ConversationID, 0, len(wants))
	for _, w := range wants {
		if states[w.Conversation] == nil {
			states[w.Conversation] = &loading{state: watermark.NewState(w.Conversation)}
			convs = append(convs, w.Conversation)
		}
		states[w.Conversation].add(w)
	}
	found, err := s.conversations(ctx, convs)
	if err != nil {
		return nil, err
	}
	for _, c := range convs {
		states[c].state.Conversation.Merge(found[c])
	}
	if err := s.loadMembers(ctx, convs, states); err != nil {
		return nil, err
	}
	if err := s.loadSent(ctx, convs, states); err != nil {
		return nil, err
	}
	for i, w := range wants {
		out[i] = states[w.Conversation].take(w)
	}
	return out, nil
}

// loading is a conversation's state while it is read, and all that is wanted
// of it.
type loading struct {
	state  *watermark.State
	users  []watermark.UserID
	sent   bool
	roster bool
	large  bool
	wanted int // how often
}

func (l *loading) add(w watermark.Want) {
	l.users = append(l.users, w.Users...)
	l.sent = l.sent || w.Sent
	l.roster = l.roster || w.Roster
	l.wanted++
}

// take hands out what w asks for: the state itself where there is one want, so
// that nothing is copied, and copies where there are several, so that no two
// callers change one map.
func (l *loading) take(w watermark.Want) *watermark.State {
	if l.wanted == 1 {
		return l.state
	}
	c := watermark.NewState(l.state.ID)
	c.Merge(l.state)
	if !w.Sent {
		c.Sent = nil
	}
	if l.large && !w.Roster {
		c.Complete, c.Members = false, nil
		for _, u := range w.Users {
			if m, ok := l.state.Members[u]; ok {
				c.MergeMember(m)
			}
		}
	}
	return c
}

func (s *Store) loadMembers(ctx context.Context, convs []watermark.ConversationID, states map[watermark.ConversationID]*loading) error {
	var whole []watermark.ConversationID
	var named []memberKey
	err := over(ctx, s, qSizes, convs, func(rows *sql.Rows) error {
		var id watermark.ConversationID
		var size int
		if err := rows.Scan(&id, &size); err != nil {
			return err
		}
		l := states[id]
		l.large = size > watermark.SmallGroup
		if l.roster || !l.large {
			l.state.Complete = true
			whole = append(whole, id)
			return nil
		}
		for _, u := range l.users {
			named = append(named, memberKey{id, u})
		}
		return nil
	}, watermark.SmallGroup+1)
	if err != nil {
		return err
	}
	merge := func(rows []watermark.MemberRow) {
		for _, r := range rows {
			states[r.Conversation].state.MergeMember(r.Member)
		}
	}
	for from := 0; from < len(whole); from += chunk {
		rows, err := s.scanned(ctx, qAllMembers, whole[from:min(from+chunk, len(whole))])
		if err != nil {
			return err
		}
		merge(rows)
	}
	rows, err := s.named(ctx, named)
	if err != nil {
		return err
	}
	merge(rows)
	return nil
}

func (s *Store) loadSent(ctx context.Context, convs []watermark.ConversationID, states map[watermark.ConversationID]*loading) error {
	var list []sentAbove
	for _, c := range convs {
		if states[c].sent {
			list = append(list, sentAbove{c, states[c].state.Max - watermark.DedupeHorizon})
			states[c].state.Sent = make(map[watermark.SentKey]watermark.Sent)
		}
	}
	return s.sent(ctx, list, func(conv watermark.ConversationID, k watermark.SentKey, v watermark.Sent) {
		if sent := states[conv].state.Sent; v.Seq > sent[k].Seq {
			sent[k] = v
		}
	})
}
