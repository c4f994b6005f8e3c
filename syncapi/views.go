package syncapi

import (
	"context"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// loadBatch is how many conversations are loaded from the truth at once.
const loadBatch = 500

// sight is what a user sees of a conversation at one moment, or why nothing.
type sight struct {
	watermark.View
	visible watermark.Intervals
	closed  bool // hidden from users without a window
	err     error
}

// hidden tells that the user may not know of the conversation. It is then read
// as one that is not there: from the truth each time, and nothing is kept of it
// in Redis. So how long an answer takes, or that a store is away, tells nothing
// either, and users who ask for what is not theirs fill nothing.
func (s *sight) hidden() bool { return s.closed && !s.Member.Known() }

// blank tells that Redis believes in a conversation and has nothing of it: what
// came may have been refused, or the user may be a stranger to a group of which
// only the members stand. Whether it is there the truth says, as of a cold one.
func (s *sight) blank() bool {
	return s.Temperature == watermark.Warm && s.Max == 0 && s.Min == 0 && !s.Member.Known()
}

// edges gives the first and last seq that can be seen, first = last + 1 where
// there is none. A member whose window is closed learns nothing of how far the
// conversation went on.
func (s *sight) edges() (first, last watermark.Seq) {
	if e, ok := s.visible.Edges(); ok {
		return e.First, e.Last
	}
	if w, ok := s.Member.Window().Edges(); ok {
		last = min(w.Last, s.Max)
	}
	return last + 1, last
}

// look reads what user sees of each of convs, which are distinct: from Redis
// in one round trip, and from the truth in batches where Redis has nothing to
// say. The error is that of Redis; an entry that cannot be loaded has its own.
func (s *Service) look(ctx context.Context, user watermark.UserID, convs []watermark.ConversationID) (map[watermark.ConversationID]*sight, error) {
	out, err := s.lookFor(ctx, user, convs, func(v *sight) bool { return v.Temperature != watermark.Warm })
	var cold []watermark.ConversationID
	for _, v := range out {
		if v.Temperature == watermark.Cold && v.err == nil {
			cold = append(cold, v.ID)
		}
	}
	s.warmer.read(cold)
	return out, err
}

// lookWhole is look for who needs to be sure that everything is in it that was
// appended before the call. Redis alone does not say that: a mark is raised
// there after it was appended. Who looks at a list reads no conversation, so it
// warms none.
func (s *Service) lookWhole(ctx context.Context, user watermark.UserID, convs []watermark.ConversationID) (map[watermark.ConversationID]*sight, error) {
	return s.lookFor(ctx, user, convs, func(*sight) bool { return true })
}

// lookFor reads from the truth those that lacks tells.
func (s *Service) lookFor(ctx context.Context, user watermark.UserID, convs []watermark.ConversationID, lacks func(*sight) bool) (map[watermark.ConversationID]*sight, error) {
	out := make(map[watermark.ConversationID]*sight, len(convs))
	asks := make([]Ask, 0, len(convs))
	for _, c := range convs {
		if !c.Admits(user) {
			out[c] = &sight{err: errUnknown(c)}
			continue
		}
		asks = append(asks, Ask{Conversation: c, User: user})
	}
	if len(asks) == 0 {
		return out, nil
	}
	views, err := s.cfg.Hot.Views(ctx, asks)
	if err != nil {
		return nil, err
	}
	var missing []*sight
	closed := s.closedTo(ctx)
	sights := make([]sight, len(asks))
	var had [len(temperatures)]int
	for i, ask := range asks {
		v := &sights[i]
		v.View, v.closed = views[i], closed && !ask.Conversation.Single()
		v.ID = ask.Conversation
		v.Member.User = user
		out[ask.Conversation] = v
		had[v.Temperature]++
		if lacks(v) || v.hidden() || v.blank() {
			missing = append(missing, v)
		}
	}
	for t, n := range had {
		if n > 0 {
			s.metrics.views.WithLabelValues(temperatures[t]).Add(float64(n))
		}
	}
	for batch := range slices.Chunk(missing, loadBatch) {
		s.load(ctx, user, batch)
	}
	for _, v := range out {
		s.admit(v)
	}
	return out, nil
}

// lookOne is look for one conversation.
func (s *Service) lookOne(ctx context.Context, user watermark.UserID, conv watermark.ConversationID) (*sight, error) {
	seen, err := s.look(ctx, user, []watermark.ConversationID{conv})
	if err != nil {
		return nil, err
	}
	v := seen[conv]
	return v, v.err
}

// load fills in views from the truth: all of a cold one, the members of a
// partial one, and in a warm one what Redis was not told yet.
func (s *Service) load(ctx context.Context, user watermark.UserID, batch []*sight) {
	wants := make([]watermark.Want, len(batch))
	for i, v := range batch {
		wants[i] = watermark.Want{Conversation: v.ID, Users: []watermark.UserID{user}}
		if peer, ok := v.ID.Peer(user); ok {
			wants[i].Users = append(wants[i].Users, peer)
		}
	}
	within, cancel := context.WithTimeout(ctx, s.cfg.LoadTimeout)
	states, err := s.cfg.Truth.Load(within, wants)
	cancel()
	if err != nil {
		for _, v := range batch {
			v.err = err
		}
		return
	}
	var loads []watermark.MemberLoad
	for i, v := range batch {
		switch v.Temperature {
		case watermark.Partial:
			if load := v.complete(states[i], wants[i].Users); !v.hidden() {
				loads = append(loads, load)
			}
			continue
		case watermark.Warm:
			v.add(states[i])
			continue
		}
		v.View = states[i].ViewOf(user)
		v.ID = wants[i].Conversation
		v.Temperature = watermark.Cold
	}
	s.tell(ctx, loads)
	if err := s.cfg.Hot.RaiseReads(ctx, marksOf(states, wants)); err != nil {
		for _, v := range batch {
			v.err = err
		}
	}
}

// marksOf gives the marks that views are made of. They are
// raised in Redis before they are served, since a mark is appended before it is
// raised there, and the truth may know one that Redis is about to forget:
//
//	the owner of a cold conversation has loaded it and is about to install it
//	a mark is appended, behind what the owner loaded
//	this call finds the conversation cold, and the mark in the truth
//	the owner installs, without the mark
//	the next call is served from Redis, where the mark is not raised yet: it fell
//
// Where the conversation is cold to that moment nothing is raised, and a
// warm-up that begins after it loads the mark.
func marksOf(states []*watermark.State, wants []watermark.Want) []watermark.MemberRow {
	var rows []watermark.MemberRow
	for i, want := range wants {
		for _, u := range want.Users {
			if m, ok := states[i].Members[u]; ok && (m.Read > 0 || m.Receipt > 0) {
				rows = append(rows, watermark.MemberRow{
					Conversation: want.Conversation,
					Member:       watermark.Member{User: u, Read: m.Read, Receipt: m.Receipt},
				})
			}
		}
	}
	return rows
}

// tell makes Redis know members that were loaded. Views are right without it,
// and the next one loads again what Redis did not take: so when it fails, or
// when the conversation was warmed up anew meanwhile, it is counted.
func (s *Service) tell(ctx context.Context, loads []watermark.MemberLoad) {
	if len(loads) == 0 {
		return
	}
	merged, err := s.cfg.Hot.MergeMembers(ctx, loads)
	if err != nil {
		s.metrics.merges.WithLabelValues("error").Add(float64(len(loads)))
		return
	}
	for _, ok := range merged {
		outcome := "stale"
		if ok {
			outcome = "ok"
		}
		s.metrics.merges.WithLabelValues(outcome).Inc()
	}
}

// complete merges the members that were loaded into a view of which Redis did
// not know them, and gives what to tell Redis. What Redis has of the
// conversation itself stands: it may be newer. Merging is by version and by max
// on both sides, so nothing that the owner did in between is lost.
func (v *sight) complete(st *watermark.State, wanted []watermark.UserID) watermark.MemberLoad {
	v.PeerWindow = v.add(st).PeerWindow
	out := watermark.MemberLoad{
		Conversation: v.ID, Token: v.Token, Complete: st.Complete,
		Members: slices.Collect(maps.Values(st.Members)),
	}
	for _, u := range wanted {
		if _, ok := st.Members[u]; !ok {
			out.Absent = append(out.Absent, u)
		}
	}
	return out
}

// add merges what the truth says into a view of Redis.
func (v *sight) add(st *watermark.State) watermark.View {
	loaded := st.ViewOf(v.Member.User)
	v.Conversation.Merge(loaded.Conversation)
	v.Member.Merge(loaded.Member)
	v.PeerReceipt = max(v.PeerReceipt, loaded.PeerReceipt)
	return loaded
}

// admit decides whether the user may see anything at all, and what.
func (s *Service) admit(v *sight) {
	switch {
	case v.err != nil:
		return
	case !v.Exists() && !v.Member.Known(), v.hidden():
		v.err = errUnknown(v.ID)
		return
	}
	v.visible = v.Member.Visible(v.Min, v.Max)
}

// temperatures are the words of a metric.
var temperatures = [...]string{watermark.Warm: "warm", watermark.Cold: "cold", watermark.Partial: "partial"}
