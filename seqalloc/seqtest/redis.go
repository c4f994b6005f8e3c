// Package seqtest is Redis as this project uses it, in plain Go: what the
// scripts of seqalloc and storage/hot do to a conversation, input by input and
// in the shortest form that says it. Tests of everything around Redis run on
// it, thousands of times a second; that it answers as the scripts do is a test
// of package seqalloc (TestModelAnswersAsTheScriptsDo).
//
// It has what tests need to do to a Redis: lose everything, lose the last
// writes, become another incarnation. It does not expire keys and knows no
// network. A Redis is safe for concurrent use.
package seqtest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/tidemark-im/tidemark/watermark"
)

// Redis is a server with the conversations that it holds.
type Redis struct {
	// HotLog is how many messages of a conversation it keeps. 0: all of them.
	HotLog int
	// KeepUndo is how many of the last writes Undo can take back. 0: none.
	KeepUndo int

	mu     sync.Mutex
	life   int // the incarnation
	tokens int
	convs  map[watermark.ConversationID]*conversation
	undo   []write
	// settled are the places up to which batches stand in the log.
	settled map[watermark.Partition]int64
}

// write is what a conversation was before one.
type write struct {
	id     watermark.ConversationID
	before *conversation
}

// conversation is what the keys of one hold.
type conversation struct {
	life     int
	warm     bool
	token    string
	complete bool
	watermark.Conversation
	log     map[watermark.Seq]watermark.Message // the hot log
	revoked map[watermark.Seq]watermark.Message // tombstones of what was revoked out of it
	members map[watermark.UserID]watermark.Member
	read    map[watermark.UserID]watermark.Seq
	receipt map[watermark.UserID]watermark.Seq
	own     map[watermark.UserID][]watermark.Seq // ascending

	// The client message ids since seq start, and those before.
	ids, oldIDs map[watermark.SentKey]watermark.Sent
	start       watermark.Seq
	// noted is what became of inputs of the last batch that left no other trace:
	// the reason of a refusal, or "+".
	noted map[watermark.Origin]string
	// left are members as commands of that batch left them.
	left  map[watermark.Origin]watermark.Member
	place watermark.Place // of the last batch
}

// New gives an empty server.
func New() *Redis {
	return &Redis{convs: make(map[watermark.ConversationID]*conversation), settled: make(map[watermark.Partition]int64)}
}

// Settle is seqalloc's.
func (r *Redis) Settle(_ context.Context, p watermark.Place) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settled[p.Partition] = max(r.settled[p.Partition], p.Number)
	return r.settled[p.Partition], nil
}

// Forget loses the keys of one conversation, as their expiry does.
func (r *Redis) Forget(id watermark.ConversationID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.touch(id)
	delete(r.convs, id)
}

// FlushAll forgets everything.
func (r *Redis) FlushAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.convs)
	clear(r.settled)
	r.undo = nil
}

// Restart makes it another incarnation that still has its data.
func (r *Redis) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.life++
}

// Undo takes back up to n of the last writes, and tells how many.
func (r *Redis) Undo(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, len(r.undo))
	for _, w := range slices.Backward(r.undo[len(r.undo)-n:]) {
		if w.before == nil {
			delete(r.convs, w.id)
		} else {
			r.convs[w.id] = w.before
		}
	}
	r.undo = r.undo[:len(r.undo)-n]
	return n
}

// touch is called before a conversation is written.
func (r *Redis) touch(id watermark.ConversationID) {
	if r.KeepUndo == 0 {
		return
	}
	if len(r.undo) >= r.KeepUndo {
		r.undo = slices.Delete(r.undo, 0, 1)
	}
	r.undo = append(r.undo, write{id, r.convs[id].clone()})
}

func (c *conversation) clone() *conversation {
	if c == nil {
		return nil
	}
	out := *c
	out.Inputs = maps.Clone(c.Inputs)
	out.log, out.revoked = maps.Clone(c.log), maps.Clone(c.revoked)
	out.members, out.read, out.receipt = maps.Clone(c.members), maps.Clone(c.read), maps.Clone(c.receipt)
	out.own = maps.Clone(c.own)
	for u, own := range out.own {
		out.own[u] = slices.Clone(own)
	}
	out.ids, out.oldIDs, out.noted, out.left = maps.Clone(c.ids), maps.Clone(c.oldIDs), maps.Clone(c.noted), maps.Clone(c.left)
	return &out
}

// state gives the conversation when it may be believed, else why not.
func (r *Redis) state(id watermark.ConversationID) (c *conversation, why string) {
	c = r.convs[id]
	switch {
	case c == nil:
		return nil, "absent"
	case c.life != r.life:
		return nil, "incarnation"
	case !c.warm:
		return nil, "warming"
	}
	return c, ""
}

// Begin is seqalloc's.
func (r *Redis) Begin(_ context.Context, ids []watermark.ConversationID) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	tokens := make([]string, len(ids))
	for i, id := range ids {
		r.touch(id)
		r.tokens++
		tokens[i] = fmt.Sprint("token-", r.tokens)
		r.convs[id] = &conversation{
			life: r.life, token: tokens[i], Conversation: watermark.Conversation{ID: id},
			log: make(map[watermark.Seq]watermark.Message), revoked: make(map[watermark.Seq]watermark.Message),
			members: make(map[watermark.UserID]watermark.Member),
			read:    make(map[watermark.UserID]watermark.Seq), receipt: make(map[watermark.UserID]watermark.Seq),
			own: make(map[watermark.UserID][]watermark.Seq),
			ids: make(map[watermark.SentKey]watermark.Sent), noted: make(map[watermark.Origin]string), left: make(map[watermark.Origin]watermark.Member),
		}
	}
	return tokens, nil
}

// Install is seqalloc's.
func (r *Redis) Install(_ context.Context, loaded []watermark.Loaded) ([]bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	done := make([]bool, len(loaded))
	for i, l := range loaded {
		c := r.convs[l.State.ID]
		if c == nil || c.life != r.life || c.warm || c.token != l.Token {
			continue
		}
		r.touch(l.State.ID)
		c.install(l.State)
		done[i] = true
	}
	return done, nil
}

func (c *conversation) install(s *watermark.State) {
	c.warm, c.complete, c.start = true, c.complete || s.Complete, s.Max
	c.Conversation = s.Conversation
	c.Inputs = maps.Clone(s.Inputs)
	for u, m := range s.Members {
		c.learn(m)
		c.read[u], c.receipt[u] = max(c.read[u], m.Read), max(c.receipt[u], m.Receipt)
		c.addOwn(u, m.Own)
		c.dropOwn(u, c.read[u])
	}
	for k, v := range s.Sent {
		if v.Seq > s.Max-watermark.DedupeHorizon {
			c.ids[k] = v
		}
	}
}

// learn makes a member known, unless a later version of it is.
func (c *conversation) learn(m watermark.Member) {
	if old, ok := c.members[m.User]; !ok || old.Version < m.Version {
		c.members[m.User] = windowsOf(m)
	}
}

// windowsOf gives m without its marks.
func windowsOf(m watermark.Member) watermark.Member {
	return watermark.Member{
		User: m.User, Version: m.Version, LastMembership: m.LastMembership,
		Memberships: slices.Clone(m.Memberships), Ops: slices.Clone(m.Ops), Attributes: maps.Clone(m.Attributes),
	}
}

func (c *conversation) addOwn(u watermark.UserID, seqs []watermark.Seq) {
	own := append(slices.Clone(c.own[u]), seqs...)
	slices.Sort(own)
	c.own[u] = slices.Compact(own)
}

func (c *conversation) dropOwn(u watermark.UserID, read watermark.Seq) {
	i, _ := slices.BinarySearch(c.own[u], read+1)
	c.own[u] = c.own[u][i:]
}

// raise raises a read watermark and drops the own messages that it passes.
func (c *conversation) raise(u watermark.UserID, read watermark.Seq) {
	c.read[u] = max(c.read[u], read)
	c.dropOwn(u, read)
}

// MergeMembers is hot's.
func (r *Redis) MergeMembers(_ context.Context, loads []watermark.MemberLoad) ([]bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	merged := make([]bool, len(loads))
	for i, l := range loads {
		c, _ := r.state(l.Conversation)
		if c == nil || c.token != l.Token {
			continue
		}
		r.touch(l.Conversation)
		for _, m := range l.Members {
			c.merge(m)
		}
		for _, u := range l.Absent {
			c.learn(watermark.Member{User: u})
		}
		c.complete, merged[i] = c.complete || l.Complete, true
	}
	return merged, nil
}

func (c *conversation) merge(m watermark.Member) {
	c.learn(m)
	if c.ID.Single() {
		c.receipt[m.User] = max(c.receipt[m.User], m.Receipt)
	}
	if m.Read > 0 {
		c.raise(m.User, m.Read)
	}
	above := slices.DeleteFunc(slices.Clone(m.Own), func(s watermark.Seq) bool { return s <= c.read[m.User] })
	c.addOwn(m.User, above)
	if n := len(c.own[m.User]) - watermark.MaxOwn; n > 0 {
		c.own[m.User] = c.own[m.User][n:]
	}
}

// RaiseReads is hot's.
func (r *Redis) RaiseReads(_ context.Context, rows []watermark.MemberRow) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range rows {
		c := r.convs[row.Conversation]
		if c == nil || c.life != r.life {
			continue
		}
		r.touch(row.Conversation)
		m := row.Member
		if c.ID.Single() {
			c.receipt[m.User] = max(c.receipt[m.User], m.Receipt)
		}
		if m.Read > 0 {
			c.raise(m.User, m.Read)
		}
	}
	return nil
}

// Readers is hot's.
func (r *Redis) Readers(_ context.Context, id watermark.ConversationID, seq watermark.Seq, after watermark.Reader, limit int) (out watermark.Readership, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, _ := r.state(id)
	if c == nil || !c.complete {
		return out, nil
	}
	out.Known = true
	for u, read := range c.read {
		if read < max(seq, 1) {
			continue
		}
		out.Count++
		if read > after.Read || read == after.Read && u > after.User {
			m := c.members[u]
			out.Readers = append(out.Readers, watermark.Reader{User: u, Read: read, Window: m.Window()})
		}
	}
	slices.SortFunc(out.Readers, func(a, b watermark.Reader) int {
		return cmp.Or(cmp.Compare(a.Read, b.Read), cmp.Compare(a.User, b.User))
	})
	out.Readers = out.Readers[:min(limit, len(out.Readers))]
	return out, nil
}

// Views is hot's.
func (r *Redis) Views(_ context.Context, asks []watermark.Ask) ([]watermark.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	views := make([]watermark.View, len(asks))
	for i, a := range asks {
		views[i] = r.view(a)
	}
	return views, nil
}

func (r *Redis) view(a watermark.Ask) watermark.View {
	v := watermark.View{Conversation: watermark.Conversation{ID: a.Conversation}, Member: watermark.Member{User: a.User}}
	c, _ := r.state(a.Conversation)
	if c == nil || c.place.Number > r.settled[c.place.Partition] {
		v.Temperature = watermark.Cold
		return v
	}
	v.Token, v.Conversation = c.token, c.Conversation
	v.Inputs, v.ChangedAt, v.Override = nil, 0, watermark.PolicyChanged{} // readers get neither
	if a.User != "" {
		v.Member = c.member(&v, a.User)
		v.Member.Read = c.read[a.User]
		i, _ := slices.BinarySearch(c.own[a.User], v.Member.Read+1)
		v.Member.Own = slices.Clone(c.own[a.User][i:])
	}
	if peer, ok := a.Conversation.Peer(a.User); ok {
		p := c.member(&v, peer)
		v.PeerWindow, v.PeerReceipt, v.Member.Receipt = p.Window(), c.receipt[peer], c.receipt[a.User]
	}
	return v
}

// member gives a known member; of another one v becomes Partial.
func (c *conversation) member(v *watermark.View, u watermark.UserID) watermark.Member {
	m, ok := c.members[u]
	if !ok && !c.complete {
		v.Temperature = watermark.Partial
	}
	m = windowsOf(m)
	m.User = u
	return m
}

// Messages is hot's, without its limits on bytes.
func (r *Redis) Messages(_ context.Context, spans []watermark.Span) ([][]watermark.Message, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([][]watermark.Message, len(spans))
	for i, s := range spans {
		c, _ := r.state(s.Conversation)
		if c == nil {
			continue
		}
		first, last := max(s.First, c.Min, 1), min(s.Last, c.Max)
		if s.Keep == watermark.NearBegin {
			last = min(last, first+watermark.MaxPage-1)
		} else {
			first = max(first, last-watermark.MaxPage+1)
		}
		for seq := first; seq <= last; seq++ {
			if m, ok := c.revoked[seq]; ok {
				out[i] = append(out[i], m)
			} else if m, ok := c.log[seq]; ok {
				out[i] = append(out[i], m)
			}
		}
	}
	return out, nil
}
