package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// States gives what stands of each wanted conversation, in the order of wants:
// itself, the members that Want asks for, and with Want.Sent the client message
// ids above its max minus DedupeHorizon. It takes three queries for each 500
// conversations, and one more for each that is larger than SmallGroup.
// State.Complete is set where all members are there: at most SmallGroup, or
// Want.Roster.
func (s *Store) States(ctx context.Context, wants []watermark.Want) (out []*watermark.State, err error) {
	defer s.done("states", time.Now(), &err)
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
	// In the order of the members' keys, which is not that of the ids: an id that
	// another one begins with may come after it.
	byKey(convs, func(c watermark.ConversationID) string { return memberKey(c, "") })
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

// loadMembers reads the members of convs, which are sorted by key.
func (s *Store) loadMembers(ctx context.Context, convs []watermark.ConversationID, states map[watermark.ConversationID]*loading) error {
	for part := range slices.Chunk(convs, chunk) {
		for len(part) > 0 {
			n, err := s.loadWhole(ctx, part, states)
			if err != nil {
				return fmt.Errorf("read members: %w", err)
			}
			part = part[n:]
		}
	}
	var named []string
	for _, c := range convs {
		l := states[c]
		if l.state.Complete = l.roster || !l.large; l.state.Complete {
			continue
		}
		for _, u := range l.users {
			named = append(named, memberKey(c, u))
		}
	}
	rows, err := s.named(ctx, named)
	for _, r := range rows {
		states[r.Conversation].state.MergeMember(r.Member)
	}
	return err
}

// memberBatch is how many members come with one answer; it is also what may be
// read in vain when a conversation turns out to be large.
const memberBatch = 1000

// loadWhole reads all members of convs in one query, in the order of keys, up to and with the first conversation that is larger than SmallGroup
// and whose roster nobody asked for. It gives how many of convs that were.
// Counting in the same query is what keeps it one for many small conversations.
func (s *Store) loadWhole(ctx context.Context, convs []watermark.ConversationID, states map[watermark.ConversationID]*loading) (n int, err error) {
	opts := options.Find().SetSort(byID).SetBatchSize(memberBatch)
	branches := make(bson.A, len(convs))
	for i, c := range convs {
		branches[i] = membersAfter(c, "")
	}
	size := 0
	var current watermark.ConversationID
	err = each(ctx, s.members.Collection, anyOf(branches), opts, func(d *memberDoc) error {
		r := d.row()
		if r.Conversation != current {
			current, size = r.Conversation, 0
		}
		l := states[current]
		if size++; size > watermark.SmallGroup {
			l.large = true
			if !l.roster {
				l.state.Members = nil
				return errEnough
			}
		}
		l.state.MergeMember(r.Member)
		return nil
	})
	if !errors.Is(err, errEnough) {
		return len(convs), err
	}
	return slices.Index(convs, current) + 1, nil
}

func (s *Store) loadSent(ctx context.Context, convs []watermark.ConversationID, states map[watermark.ConversationID]*loading) error {
	var list []sentAbove
	for _, c := range convs {
		if states[c].sent {
			list = append(list, sentAbove{c, states[c].state.Max - watermark.DedupeHorizon})
			states[c].state.Sent = make(map[watermark.SentKey]watermark.Sent)
		}
	}
	return s.sent(ctx, list, func(conv watermark.ConversationID) map[watermark.SentKey]watermark.Sent {
		return states[conv].state.Sent
	})
}
