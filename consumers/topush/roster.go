package topush

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// maxLoads bounds how many conversations are loaded at once, and with the
// largest roster what a batch can hold in memory beyond the cache's bound.
const maxLoads = 64

// roster is a conversation as the log has told it so far: loaded once, then
// following the log.
type roster struct {
	state *watermark.State
	mark  Mark
	// users are all members in order. They are sorted again only when there is a
	// new one: a member is never removed, and a large group has many messages.
	users []watermark.UserID
	// weight is what the cache counts it as: its members, and one for itself.
	weight int
}

// rosters is an LRU bounded by members, not by conversations.
type rosters struct {
	lru     *simplelru.LRU[watermark.ConversationID, *roster]
	members int
	limit   int
}

func newRosters(limit int) (*rosters, error) {
	// Every roster weighs at least 1, so the limit by weight bites first.
	l, err := simplelru.NewLRU[watermark.ConversationID, *roster](limit+maxLoads+1, nil)
	if err != nil {
		return nil, err
	}
	return &rosters{lru: l, limit: limit}, nil
}

// weigh notes that r may have grown.
func (c *rosters) weigh(r *roster) {
	w := len(r.state.Members) + 1
	c.members += w - r.weight
	r.weight = w
}

func (c *rosters) add(id watermark.ConversationID, r *roster) {
	c.lru.Add(id, r)
	c.weigh(r)
}

// trim forgets the rosters used least lately, but not the last one.
func (c *rosters) trim() {
	for c.members > c.limit && c.lru.Len() > 1 {
		_, r, _ := c.lru.RemoveOldest()
		c.members -= r.weight
	}
}

// follow folds one event. The ids of sent messages, which nobody asks for
// here, are let go at once: they would outweigh the members.
func (r *roster) follow(e watermark.Event, offset int64) {
	r.state.Apply(watermark.Record{Conversation: r.state.ID, Events: []watermark.Event{e}, Offset: offset})
	r.state.Sent = nil
}

// load brings the rosters of ids that are not cached, and how far each was
// pushed.
func (s *Stage) load(ctx context.Context, ids []watermark.ConversationID) error {
	for chunk := range slices.Chunk(ids, maxLoads) {
		wants := make([]watermark.Want, len(chunk))
		for i, id := range chunk {
			wants[i] = watermark.Want{Conversation: id, Roster: true}
		}
		marks, err := s.cfg.Marks.Pushed(ctx, chunk)
		if err != nil {
			return fmt.Errorf("topush: read marks of %d conversations: %w", len(chunk), err)
		}
		states, err := s.cfg.Truth.Load(ctx, wants)
		if fault.ClassOf(err) == fault.Poison {
			// It is the truth's, not that of the record that asked for it.
			err = fault.New(fault.Fatal, fault.ReasonOf(err), err)
		}
		if err != nil {
			return fmt.Errorf("topush: load %d conversations: %w", len(chunk), err)
		}
		if len(marks) != len(chunk) || len(states) != len(chunk) {
			return fault.New(fault.Fatal, "contract", fmt.Errorf("topush: %d marks and %d states for %d asked", len(marks), len(states), len(chunk)))
		}
		for i, id := range chunk {
			m := marks[i]
			if known, ok := s.unraised[id]; ok {
				m.Seq, m.Offset = max(m.Seq, known.Seq), max(m.Offset, known.Offset)
			}
			m.Conversation = id
			s.rosters.add(id, &roster{state: own(states[i]), mark: m})
			s.metrics.loads.Inc()
		}
	}
	return nil
}

// own gives a state that the stage may change, with both users of a single
// conversation in it: it exists for its peer from before the first message.
func own(st *watermark.State) *watermark.State {
	out := watermark.NewState(st.ID)
	out.Conversation.Merge(st.Conversation)
	for _, m := range st.Members {
		out.MergeMember(m)
	}
	if a, b, ok := st.ID.Users(); ok {
		out.MergeMember(watermark.Member{User: a})
		out.MergeMember(watermark.Member{User: b})
	}
	return out
}

// audience is who is told of something, in ascending order. A member whose
// window is closed may not learn how far the conversation has gone on.
type audience struct {
	open, closed []watermark.UserID
}

// seeing gives the members who see n.
func (r *roster) seeing(n watermark.Seq) audience {
	return r.those(func(m *watermark.Member) bool { return sees(m, n) })
}

// everybody gives all members, former ones too while they can see anything.
func (r *roster) everybody() audience {
	return r.those(func(m *watermark.Member) bool { return !m.Known() || len(m.Memberships) > 0 })
}

func (r *roster) those(in func(*watermark.Member) bool) audience {
	if len(r.users) != len(r.state.Members) {
		r.users = slices.Sorted(maps.Keys(r.state.Members))
	}
	var a audience
	for _, u := range r.users {
		m := r.state.Members[u]
		switch {
		case !in(&m):
		case m.Open():
			a.open = append(a.open, u)
		default:
			a.closed = append(a.closed, u)
		}
	}
	return a
}

// sees is Window().Contains(n) without making the window: it is asked of every
// member for every message.
func sees(m *watermark.Member, n watermark.Seq) bool {
	if !m.Known() {
		return 1 <= n && n <= watermark.MaxSeq
	}
	for _, w := range m.Memberships {
		if max(w.Lower, 1) <= n && n <= watermark.MaxSeq && (w.Upper == 0 || n <= w.Upper) {
			return true
		}
	}
	return false
}
