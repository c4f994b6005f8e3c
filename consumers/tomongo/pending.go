package tomongo

import (
	"cmp"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// pending is what the log has said and history has not been told yet: bounds of
// conversations and marks of members, one entry for each, however often they
// moved. Everything in it is merged by maximum or by version, so telling it
// again, or later, changes nothing.
type pending struct {
	convs   []bounds
	convAt  map[watermark.ConversationID]int32 // index into convs
	members []watermark.MemberRow
	member  map[memberKey]int32 // index into members
	// told are those of the members that a read mark of the log was of. What a
	// sender's own message raised needs no telling: the script that gave the
	// message its seq has raised it in Redis, before any log had it.
	told map[memberKey]struct{}
	// ripe are conversations whose maximum is so far behind their rows that it goes
	// along with the next rows.
	ripe []watermark.ConversationID

	advances int       // since the last flush
	since    time.Time // of the first of what is pending

	seenConvs, seenMembers int // at the last call of grown

	// What is being folded.
	at        int32 // index into convs
	boundsNow bool  // only bounds count
}

// bounds are those of a conversation, and how many rows were written since
// history was told.
type bounds struct {
	watermark.Conversation
	rows int
}

type memberKey struct {
	conv watermark.ConversationID
	user watermark.UserID
}

// maxAhead is how many rows may stand above a conversation's maximum in history,
// and those of one batch. A cold load reads them, and so does Sent.
const maxAhead = watermark.DedupeHorizon

func newPending() *pending {
	return &pending{
		convAt: make(map[watermark.ConversationID]int32),
		member: make(map[memberKey]int32),
		told:   make(map[memberKey]struct{}),
	}
}

// size is how many entries there are.
func (p *pending) size() int { return len(p.convs) + len(p.members) }

func (p *pending) empty() bool { return p.size() == 0 }

// add folds a record. Of the messages in lost, which have no place, it takes
// the bounds alone: their senders have not sent, and so not read, what stands
// there, but their seqs are given out and their inputs decided.
func (p *pending) add(rec *watermark.Record, lost map[place]bool, now time.Time) {
	if p.since.IsZero() {
		p.since = now
	}
	p.enter(rec)
	p.count(rec)
	if loses(rec, lost) {
		p.boundsNow = true
		watermark.Fold(rec, p)
		p.boundsNow = false
		rest := without(rec, lost)
		rec = &rest
	}
	watermark.Fold(rec, p)
	p.leave()
	p.settle()
}

// settle notes that nothing waits, where that is so.
func (p *pending) settle() {
	if p.empty() {
		p.since = time.Time{}
	}
}

// enter makes the record's conversation the one that is folded into.
func (p *pending) enter(rec *watermark.Record) {
	i, ok := p.convAt[rec.Conversation]
	if !ok {
		i = int32(len(p.convs))
		p.convAt[rec.Conversation] = i
		p.convs = append(p.convs, bounds{Conversation: watermark.Conversation{ID: rec.Conversation}})
	}
	p.at = i
}

// leave drops an entry that has nothing to say: a record with nothing but read
// marks moves no bounds.
func (p *pending) leave() {
	c := &p.convs[p.at]
	if !c.Exists() && c.ChangedAt == 0 {
		p.drop(c.ID)
	}
}

// count counts advances, and the rows of the conversation.
func (p *pending) count(rec *watermark.Record) {
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.MessagesSequenced:
			p.advances += len(e.Messages)
			c := &p.convs[p.at]
			if c.rows < maxAhead && c.rows+len(e.Messages) >= maxAhead {
				p.ripe = append(p.ripe, c.ID)
			}
			c.rows += len(e.Messages)
		case watermark.ReadAdvanced:
			p.told[memberKey{rec.Conversation, e.User}] = struct{}{}
			p.advances++
		}
	}
}

// Bounds implements watermark.Folder.
func (p *pending) Bounds() *watermark.Conversation { return &p.convs[p.at].Conversation }

// MergeWindow implements watermark.Folder. Windows are written with their batch,
// each version of them.
func (p *pending) MergeWindow(watermark.Member) {}

// MergeMember implements watermark.Folder.
func (p *pending) MergeMember(m watermark.Member) {
	if p.boundsNow {
		return
	}
	p.merge(p.convs[p.at].ID, m)
}

// Touch implements watermark.Folder. Whoever has the conversation since its first
// message is not written again with each one that follows.
func (p *pending) Touch(u watermark.UserID, seq watermark.Seq) {
	if seq == 1 {
		p.MergeMember(watermark.Member{User: u})
	}
}

// Said implements watermark.Folder: rows say it.
func (p *pending) Said(*watermark.Message) {}

// merge takes over the marks of o.
func (p *pending) merge(conv watermark.ConversationID, o watermark.Member) {
	k := memberKey{conv, o.User}
	i, ok := p.member[k]
	if !ok {
		i = int32(len(p.members))
		p.member[k] = i
		p.members = append(p.members, watermark.MemberRow{Conversation: conv, Member: watermark.Member{User: o.User}})
	}
	p.members[i].Member.Merge(o)
}

// boundsOf gives the bounds of those of ids that are pending.
func (p *pending) boundsOf(ids []watermark.ConversationID) []watermark.Conversation {
	var out []watermark.Conversation
	for _, id := range ids {
		if i, ok := p.convAt[id]; ok {
			out = append(out, p.convs[i].Conversation)
		}
	}
	return out
}

// drop forgets the bounds of a conversation, which history has.
func (p *pending) drop(id watermark.ConversationID) {
	i, ok := p.convAt[id]
	if !ok {
		return
	}
	last := len(p.convs) - 1
	p.convs[i] = p.convs[last]
	p.convAt[p.convs[i].ID] = i
	p.convs = p.convs[:last]
	delete(p.convAt, id)
}

// dropped forgets the bounds of all of cs.
func (p *pending) dropped(cs []watermark.Conversation) {
	for i := range cs {
		p.drop(cs[i].ID)
	}
	p.settle()
}

// grown gives how much the size changed since it was asked last.
func (p *pending) grown() (convs, members int) {
	convs, members = len(p.convs)-p.seenConvs, len(p.members)-p.seenMembers
	p.seenConvs, p.seenMembers = len(p.convs), len(p.members)
	return convs, members
}

// clear forgets everything. Lists that rows and all gave stay as they are.
func (p *pending) clear() {
	clear(p.convAt)
	clear(p.member)
	clear(p.told)
	p.convs, p.members, p.ripe = nil, nil, nil
	p.advances, p.since = 0, time.Time{}
}

// rows gives the marks sorted by key: stores that touch the same keys from two
// connections in different order deadlock.
func (p *pending) rows() []watermark.MemberRow {
	out := slices.Clone(p.members)
	sortMembers(out)
	return out
}

func sortMembers(rows []watermark.MemberRow) {
	slices.SortFunc(rows, func(a, b watermark.MemberRow) int {
		return cmp.Or(cmp.Compare(a.Conversation, b.Conversation), cmp.Compare(a.Member.User, b.Member.User))
	})
}

// conversations gives the bounds, sorted alike.
func (p *pending) conversations() []watermark.Conversation {
	if len(p.convs) == 0 {
		return nil
	}
	out := make([]watermark.Conversation, len(p.convs))
	for i := range p.convs {
		out[i] = p.convs[i].Conversation
	}
	slices.SortFunc(out, func(a, b watermark.Conversation) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// loses tells whether a message of rec has lost its place.
func loses(rec *watermark.Record, lost map[place]bool) bool {
	if len(lost) == 0 {
		return false
	}
	for m := range messages(rec) {
		if lost[place{rec.Conversation, m.Seq}] {
			return true
		}
	}
	return false
}

// without gives rec without the messages that lost their place.
func without(rec *watermark.Record, lost map[place]bool) watermark.Record {
	out := *rec
	out.Events = make([]watermark.Event, 0, len(rec.Events))
	for _, e := range rec.Events {
		if ms, ok := e.(watermark.MessagesSequenced); ok {
			var standing []watermark.Message
			for _, m := range ms.Messages {
				if !lost[place{rec.Conversation, m.Seq}] {
					standing = append(standing, m)
				}
			}
			ms.Messages = standing
			e = ms
		}
		out.Events = append(out.Events, e)
	}
	return out
}
