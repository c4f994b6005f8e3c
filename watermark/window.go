package watermark

import (
	"maps"
	"slices"
)

// MaxMemberships bounds the intervals of one member's window. A Join beyond it
// is refused; a Clear, or a Join with all of the history, makes room.
const MaxMemberships = 256

// Bounds of a member's attributes: how many stand, and how many bytes a name
// and a value have.
const (
	MaxAttributes      = 16
	MaxAttributeName   = 32
	MaxAttributeLength = 256
)

// AttributeMuted keeps a conversation out of the total of unread messages that
// are to be noticed. It is the only attribute that means anything here.
const AttributeMuted = "muted"

// KeptOps is how many op ids a member keeps, so that a repeated command is
// recognised.
const KeptOps = 8

// Membership is one stay of a user in a conversation and what can be seen of
// it: a closed interval of seqs with 0 for "not set" at either edge. An upper
// edge of 0 means that the membership is open.
type Membership struct {
	Number       int32 // from 1
	Lower, Upper Seq
}

// AppliedOp is a command that a member's owner has decided.
type AppliedOp struct {
	ID   string
	Edge Seq // the conversation's max at that moment
}

// History says what of the past a Join shows.
type History int

const (
	HistoryNone History = iota // nothing before the join
	HistoryAll                 // everything that still exists
	HistoryFrom                // from a seq on
)

// Member is all that is known of one user in one conversation.
//
// The zero value, save for User, is a user who never had a window: Version is
// 0, Intervals gives everything, and whether that user may ask at all is for
// others to decide.
type Member struct {
	User        UserID
	Version     int64 // raised by one with every op; the highest one stands
	Memberships []Membership
	// LastMembership is the number of the latest membership, open or closed.
	// Memberships of which nothing is left to see are dropped from the list, so
	// the number is kept here.
	LastMembership int32
	Ops            []AppliedOp // oldest first, at most KeptOps
	// Attributes are what the member set about the conversation, at most
	// MaxAttributes, never an empty value. The version counts them too.
	Attributes map[string]string
	Read       Seq // read watermark, only rises
	Receipt    Seq // single conversations: what the peer was told
	// Own lists the member's own messages above Read under KeepOnSend,
	// ascending, at most MaxOwn.
	Own []Seq
	// ChangedAt is the offset on the sequenced log of the last record about the
	// member, plus 1: its windows, its marks, in a single conversation the peer's
	// receipt. 0: none. What it sends itself changes the conversation.
	ChangedAt int64
}

// Known tells whether m ever had a window of its own.
func (m *Member) Known() bool { return m.Version > 0 }

// Open tells whether m sees what comes: a member now, or a user who never had
// a window.
func (m *Member) Open() bool {
	if !m.Known() {
		return true
	}
	n := len(m.Memberships)
	return n > 0 && m.Memberships[n-1].Number == m.LastMembership && m.Memberships[n-1].Upper == 0
}

// Listed tells whether m has conv in its list of conversations: a member now,
// one of the two of a single conversation from its first message on.
func (m *Member) Listed(conv ConversationID) bool {
	return m.Open() && (m.Known() || conv.Single())
}

// Window gives what m may see, before the conversation's bounds: 1..MaxSeq for
// a user who never had a window.
func (m *Member) Window() Intervals {
	if !m.Known() {
		return Intervals{{1, MaxSeq}}
	}
	out := make(Intervals, 0, len(m.Memberships))
	for _, w := range m.Memberships {
		i := Interval{max(w.Lower, 1), w.Upper}
		if w.Upper == 0 {
			i.Last = MaxSeq
		}
		if !i.Empty() {
			out = append(out, i)
		}
	}
	return out
}

// HasOp finds a decided op.
func (m *Member) HasOp(id string) (AppliedOp, bool) {
	for _, op := range m.Ops {
		if op.ID == id {
			return op, true
		}
	}
	return AppliedOp{}, false
}

// Join opens a membership at the conversation's maximum edge and records op.
// A member whose membership is open is left as it is. changed tells whether
// the window moved; it is false too when MaxMemberships would be exceeded,
// which full reports.
//
// Older memberships never reach into the new one: what the new one covers is
// cut off the old ones, so the list stays ordered and a later kick of the new
// membership closes everything that it opened.
func (m Member) Join(op string, edge Seq, h History, from Seq) (out Member, changed, full bool) {
	out = m.decided(op, edge)
	if m.Known() && m.Open() {
		return out, false, false
	}
	lower := edge + 1
	switch h {
	case HistoryAll:
		lower = 0
	case HistoryFrom:
		lower = min(max(from, 1), edge+1)
	}
	var kept []Membership
	for _, w := range m.Memberships {
		if w.Lower >= max(lower, 1) {
			continue
		}
		w.Upper = min(w.Upper, max(lower, 1)-1)
		if w.Upper < max(w.Lower, 1) {
			continue
		}
		kept = append(kept, w)
	}
	if len(kept) >= MaxMemberships {
		return out, false, true
	}
	out.LastMembership++
	out.Memberships = append(kept, Membership{Number: out.LastMembership, Lower: lower})
	return out, true, false
}

// Leave closes the current membership at edge and records op. number names the
// membership that is meant, 0 the current one; naming another one changes
// nothing.
func (m Member) Leave(op string, edge Seq, number int32) (out Member, changed bool) {
	out = m.decided(op, edge)
	out.settle()
	if !out.Open() || (number != 0 && number != out.LastMembership) {
		return out, false
	}
	last := len(out.Memberships) - 1
	out.Memberships[last].Upper = edge
	if edge < max(out.Memberships[last].Lower, 1) {
		out.Memberships = out.Memberships[:last]
	}
	return out, true
}

// Clear hides everything at or below edge from the member, marks it read, and
// records op.
func (m Member) Clear(op string, edge Seq) (out Member, changed bool) {
	out = m.decided(op, edge)
	out.settle()
	kept := out.Memberships[:0]
	for _, w := range out.Memberships {
		if w.Upper != 0 && w.Upper <= edge {
			changed = true
			continue
		}
		if w.Lower <= edge {
			w.Lower, changed = edge+1, true
		}
		kept = append(kept, w)
	}
	out.Memberships = kept
	out.RaiseRead(edge)
	return out, changed
}

// SetAttributes sets attributes and records op: an empty value removes one,
// those that set does not name stay. full tells that more than MaxAttributes
// would stand; then nothing is changed.
func (m Member) SetAttributes(op string, edge Seq, set map[string]string) (out Member, changed, full bool) {
	next := maps.Clone(m.Attributes)
	for k, v := range set {
		if next[k] == v {
			continue
		}
		changed = true
		if v == "" {
			delete(next, k)
			continue
		}
		if next == nil {
			next = make(map[string]string)
		}
		next[k] = v
	}
	if len(next) > MaxAttributes {
		return m, false, true
	}
	if len(next) == 0 {
		next = nil
	}
	out = m.decided(op, edge)
	out.settle()
	out.Attributes = next
	return out, changed, false
}

// SameState tells whether a and b are the same in what a version counts.
func (m *Member) SameState(o *Member) bool {
	return m.LastMembership == o.LastMembership && slices.Equal(m.Memberships, o.Memberships) &&
		slices.Equal(m.Ops, o.Ops) && maps.Equal(m.Attributes, o.Attributes)
}

// RaiseRead raises the read watermark, never lowers it, and drops own messages
// that it passes.
func (m *Member) RaiseRead(read Seq) {
	if read <= m.Read {
		return
	}
	m.Read = read
	m.dropRead()
}

// dropRead drops own messages at or below the read watermark. The list is cut,
// never written to, so that copies of m may share it.
func (m *Member) dropRead() {
	i, _ := slices.BinarySearch(m.Own, m.Read+1)
	m.Own = m.Own[i:]
}

// Merge takes over what o knows and m does not: windows by version, marks by
// max, own messages by union. Merging is idempotent, commutative and
// associative.
func (m *Member) Merge(o Member) {
	if o.Version > m.Version {
		m.Version = o.Version
		m.Memberships = slices.Clone(o.Memberships)
		m.LastMembership = o.LastMembership
		m.Ops = slices.Clone(o.Ops)
		m.Attributes = maps.Clone(o.Attributes)
	}
	if len(o.Own) > 0 {
		m.Own = append(slices.Clone(m.Own), o.Own...)
		slices.Sort(m.Own)
		m.Own = slices.Compact(m.Own)
	}
	m.Read = max(m.Read, o.Read)
	m.dropRead()
	m.Receipt = max(m.Receipt, o.Receipt)
	m.ChangedAt = max(m.ChangedAt, o.ChangedAt)
}

// decided gives a copy of m with op recorded and its version raised. Every new
// op is recorded, also one that changes nothing: decided again later, at
// another state, it might.
func (m Member) decided(op string, edge Seq) Member {
	m.Version++
	m.Memberships = slices.Clone(m.Memberships)
	m.Ops = append(slices.Clone(m.Ops), AppliedOp{op, edge})
	if n := len(m.Ops) - KeptOps; n > 0 {
		m.Ops = m.Ops[n:]
	}
	return m
}

// settle turns "never had a window" into the explicit membership that it
// stands for, so that it can be closed or cut.
func (m *Member) settle() {
	if m.LastMembership == 0 {
		m.LastMembership = 1
		m.Memberships = []Membership{{Number: 1}}
	}
}

// Visible gives what m sees of a conversation with the given bounds: the
// strictest of all limits.
func (m *Member) Visible(minSeq, maxSeq Seq) Intervals {
	return m.Window().Clip(Interval{max(minSeq, 1), maxSeq})
}

// ClampRead gives the read watermark that a mark at seq amounts to: the
// highest visible seq at or below it, 0 when there is none.
func ClampRead(visible Intervals, seq Seq) Seq {
	for i := len(visible) - 1; i >= 0; i-- {
		if visible[i].First <= seq {
			return min(seq, visible[i].Last)
		}
	}
	return 0
}

// Unread counts the visible seqs above read that are not the member's own. It
// is never negative and costs O(intervals + log own).
func Unread(visible Intervals, read Seq, own []Seq) int64 {
	var n int64
	for _, w := range visible {
		w.First = max(w.First, read+1)
		if w.Empty() {
			continue
		}
		lo, _ := slices.BinarySearch(own, w.First)
		hi, _ := slices.BinarySearch(own, w.Last+1)
		n += w.Len() - int64(hi-lo)
	}
	return n
}
