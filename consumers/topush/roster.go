package topush

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

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
	// renewed is when the mark was last raised with a new life.
	renewed time.Time
	// users are all members in order. They are sorted again only when there is a
	// new one: a member is never removed, and a large group has many messages.
	users []watermark.UserID
	// weight is what the cache counts it as: its members, and one for itself.
	weight int
	// inLane is what the lane counts it as. 0: it is not there.
	inLane int
	// open counts the members who hear what comes.
	open int
	// log is the topic id of what was followed last, and changed the offset plus 1
	// of the last change of a window on it, or of something after it.
	log     string
	changed int64
	// crowd says that what comes is handed off once. It stood until stands when
	// Crowds was asked last.
	crowd  bool
	stands time.Time
}

// size is what it weighs.
func (r *roster) size() int { return len(r.state.Members) + 1 }

// spread is the number of publications that a message takes.
func (r *roster) spread() int {
	if r.crowd {
		return 1
	}
	return len(r.state.Members)
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
	w := r.size()
	c.members += w - r.weight
	r.weight = w
}

func (c *rosters) add(id watermark.ConversationID, r *roster) {
	c.lru.Add(id, r)
	c.weigh(r)
}

// take takes a roster out, which another goroutine is to have.
func (c *rosters) take(r *roster) {
	if c.lru.Remove(r.state.ID) {
		c.members -= r.weight
		r.weight = 0
	}
}

// trim forgets the rosters used least lately, but not the last one.
func (c *rosters) trim() {
	for c.members > c.limit && c.lru.Len() > 1 {
		_, r, _ := c.lru.RemoveOldest()
		c.members -= r.weight
	}
}

// follow folds one event. What nobody asks for here is let go at once: the ids
// of sent messages, and of members all but their windows and marks.
func (r *roster) follow(e watermark.Event, offset int64) {
	var about watermark.UserID
	switch e := e.(type) {
	case watermark.WindowChanged:
		about = e.Member.User
		if e.Cause != "attributes" {
			r.changed = max(r.changed, offset+1)
		}
	case watermark.MessagesSequenced:
		about = e.Messages[0].Sender
	case watermark.ReadAdvanced:
		about = e.User
	}
	was, had := r.state.Members[about]
	r.state.Apply(watermark.Record{Conversation: r.state.ID, Events: []watermark.Event{e}, Offset: offset})
	r.state.Sent = nil
	m, has := r.state.Members[about]
	if had && was.Open() {
		r.open--
	}
	if has && m.Open() {
		r.open++
	}
	if _, ok := e.(watermark.WindowChanged); ok && has {
		r.state.Members[about] = slim(m)
	}
}

// slim leaves out what nobody asks for here.
func slim(m watermark.Member) watermark.Member {
	m.Ops, m.Attributes, m.Own = nil, nil, nil
	return m
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
			s.rosters.add(id, newRoster(states[i], m))
			s.metrics.loads.Inc()
		}
	}
	return nil
}

// newRoster gives the roster of a state that was loaded.
func newRoster(st *watermark.State, m Mark) *roster {
	r := &roster{state: own(st), mark: m}
	for _, m := range r.state.Members {
		if m.Open() {
			r.open++
		}
		r.changed = max(r.changed, m.ChangedAt)
	}
	return r
}

// own gives a state that the stage may change, with both users of a single
// conversation in it: it exists for its peer from before the first message.
func own(st *watermark.State) *watermark.State {
	out := watermark.NewState(st.ID)
	out.Conversation.Merge(st.Conversation)
	for _, m := range st.Members {
		out.MergeMember(slim(m))
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

// seesAny tells whether a member sees anything, former ones too.
func seesAny(m *watermark.Member) bool { return !m.Known() || len(m.Memberships) > 0 }

func (r *roster) those(in func(*watermark.Member) bool) audience {
	if len(r.users) != len(r.state.Members) {
		r.users = slices.Sorted(maps.Keys(r.state.Members))
	}
	var a audience
	var m watermark.Member // one for all, since it is looked at by its place
	for _, u := range r.users {
		m = r.state.Members[u]
		switch {
		case !in(&m):
		case m.Open():
			if a.open == nil {
				a.open = make([]watermark.UserID, 0, r.open)
			}
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
