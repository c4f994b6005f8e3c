package watermark

import "maps"

// Conversation is what everybody shares of a conversation.
type Conversation struct {
	ID ConversationID
	// Min is the lowest seq not deleted for everybody (0 and 1 mean the same),
	// Max the last one allocated.
	Min, Max Seq
	// Inputs is, per input partition, the highest input offset decided.
	Inputs map[Partition]int64
	// Policy is the one that held for the last message.
	Policy UnreadPolicy
	// Override is what the conversation says about the policy of messages that
	// come.
	Override PolicyChanged
	Repair   Repaired
	// LastTime is the record time of the latest message, in milliseconds since
	// 1970.
	LastTime int64
	// ChangedAt is the offset on the sequenced log of the last record that
	// changed what everybody sees of the conversation, plus 1; 0: none.
	ChangedAt int64
}

// Merge takes over what o knows and c does not: bounds, inputs and times by
// max. Merging is idempotent, commutative and associative, but for Policy,
// which follows the higher Max.
func (c *Conversation) Merge(o Conversation) {
	if o.Max > c.Max {
		c.Policy = o.Policy
	}
	c.Min = max(c.Min, o.Min)
	c.Max = max(c.Max, o.Max)
	c.LastTime = max(c.LastTime, o.LastTime)
	c.ChangedAt = max(c.ChangedAt, o.ChangedAt)
	c.Override.Merge(o.Override)
	c.Repair.Merge(o.Repair)
	for p, off := range o.Inputs {
		c.decide(Origin{p, off})
	}
}

// Exists tells whether anything ever happened to c.
func (c *Conversation) Exists() bool {
	return c.Max > 0 || c.Min > 0 || len(c.Inputs) > 0
}

// Merge keeps the highest number and the lowest point to pull again from, so
// that whoever missed several repairs pulls enough.
func (r *Repaired) Merge(o Repaired) {
	r.Number = max(r.Number, o.Number)
	if r.From == 0 || (o.From != 0 && o.From < r.From) {
		r.From = o.From
	}
}

func (c *Conversation) decide(o Origin) {
	if old, ok := c.Inputs[o.Partition]; ok && old >= o.Offset {
		return
	}
	if c.Inputs == nil {
		c.Inputs = make(map[Partition]int64, 1)
	}
	c.Inputs[o.Partition] = o.Offset
}

// SentKey is what makes a client message id unique inside a conversation.
type SentKey struct {
	Sender   UserID
	ClientID string
}

// Sent is where a client message id stands.
type Sent struct {
	Seq  Seq
	Hash Hash
}

// State is what a stretch of the sequenced log, or a store, says about one
// conversation. Absent members are unknown, not new. Its zero value, with an
// ID, is a conversation of which nothing is known.
type State struct {
	Conversation
	Members map[UserID]Member
	// Sent holds the client message ids of at least the last DedupeHorizon
	// seqs that the state saw, and of at most three times as many. An id whose
	// message lost its seq to an earlier one is not among them.
	Sent map[SentKey]Sent
	// Complete says that Members holds every member that exists, so that an
	// absent user never had a window. A fold alone never says so.
	Complete bool
}

// NewState gives the state of a conversation of which nothing is known.
func NewState(id ConversationID) *State {
	return &State{Conversation: Conversation{ID: id}}
}

// Apply folds one record of the sequenced log into s. Applying a record again,
// or records that s has seen by another way, changes nothing.
func (s *State) Apply(rec Record) { Fold(&rec, s) }

// Folder is what a record is folded into.
type Folder interface {
	// Bounds gives what everybody shares of the record's conversation, with its ID.
	Bounds() *Conversation
	// MergeWindow merges the full state of a member, which stands in the record.
	MergeWindow(m Member)
	// MergeMember merges marks of a member.
	MergeMember(m Member)
	// Touch is told of both users of a single conversation with each message:
	// they have it from its first one on.
	Touch(u UserID, seq Seq)
	// Said is told of a message whose seq the fold has not passed yet.
	Said(m *Message)
}

// Fold says what a record of the sequenced log means. It is idempotent.
func Fold(rec *Record, into Folder) {
	c := into.Bounds()
	for _, e := range rec.Events {
		fold(rec, e, c, into)
	}
	for _, o := range rec.Inputs {
		c.decide(o)
	}
}

func fold(rec *Record, e Event, c *Conversation, into Folder) {
	switch e := e.(type) {
	case WindowChanged:
		m := e.Member
		m.ChangedAt = rec.Offset + 1
		into.MergeWindow(m)
		// What somebody has read lies within its window, so the peer sees a change.
		if peer, ok := c.ID.Peer(m.User); ok {
			into.MergeMember(Member{User: peer, ChangedAt: rec.Offset + 1})
		}
		return
	case ReadAdvanced:
		into.MergeMember(Member{User: e.User, Read: e.Read, Receipt: e.Receipt, ChangedAt: rec.Offset + 1})
		// What the peer sees of the conversation changed too.
		if peer, ok := c.ID.Peer(e.User); ok && e.Receipt > 0 {
			into.MergeMember(Member{User: peer, ChangedAt: rec.Offset + 1})
		}
		return
	case MessagesSequenced:
		a, b, single := c.ID.Users()
		for i := range e.Messages {
			m := &e.Messages[i]
			if single {
				into.Touch(a, m.Seq)
				into.Touch(b, m.Seq)
			}
			foldMessage(m, e.Policy, c, into)
		}
	case MinSeqRaised:
		c.Min = max(c.Min, e.Min)
	case Repaired:
		c.Repair.Merge(e)
	case PolicyChanged:
		c.Override.Merge(e)
	}
	c.ChangedAt = max(c.ChangedAt, rec.Offset+1)
}

func foldMessage(m *Message, policy UnreadPolicy, c *Conversation, into Folder) {
	// The first message at a seq stands. One at a seq that the fold has passed is
	// either known already, or older than where the fold began, or has lost its
	// place: its id does not stand there.
	first := m.Seq > c.Max
	if first {
		c.Max, c.Policy = m.Seq, policy
	}
	c.LastTime = max(c.LastTime, m.RecordTime)
	if policy == KeepOnSend {
		into.MergeMember(Member{User: m.Sender, Own: []Seq{m.Seq}})
	} else {
		into.MergeMember(Member{User: m.Sender, Read: m.Seq})
	}
	if first {
		into.Said(m)
	}
}

// Bounds implements Folder.
func (s *State) Bounds() *Conversation { return &s.Conversation }

// MergeWindow implements Folder.
func (s *State) MergeWindow(m Member) { s.MergeMember(m) }

// MergeMember merges what is known of one member.
func (s *State) MergeMember(m Member) {
	old, ok := s.Members[m.User]
	if !ok {
		old = Member{User: m.User}
	}
	old.Merge(m)
	if s.Members == nil {
		s.Members = make(map[UserID]Member)
	}
	s.Members[m.User] = old
}

// Touch implements Folder.
func (s *State) Touch(u UserID, _ Seq) {
	if _, ok := s.Members[u]; !ok {
		s.MergeMember(Member{User: u})
	}
}

// Said implements Folder.
func (s *State) Said(m *Message) { s.keep(SentKey{m.Sender, m.ClientID}, Sent{m.Seq, m.Hash}) }

func (s *State) keep(k SentKey, v Sent) {
	if s.Sent == nil {
		s.Sent = make(map[SentKey]Sent)
	}
	if old, ok := s.Sent[k]; !ok || v.Seq > old.Seq {
		s.Sent[k] = v
	}
	if len(s.Sent) > 3*DedupeHorizon {
		maps.DeleteFunc(s.Sent, func(_ SentKey, v Sent) bool { return v.Seq <= s.Max-DedupeHorizon })
	}
}

// Merge takes over what o knows and s does not. s is complete if either was. Of
// two messages at one seq that of s stands, so what is earlier in the log, or
// history, is merged into first.
func (s *State) Merge(o *State) {
	taken := s.taken(o.Sent)
	s.Conversation.Merge(o.Conversation)
	for _, m := range o.Members {
		s.MergeMember(m)
	}
	for k, v := range o.Sent {
		if at, ok := taken[v.Seq]; !ok || at == k {
			s.keep(k, v)
		}
	}
	s.Complete = s.Complete || o.Complete
}

// taken gives whose the seqs are in s that others lay claim to; usually theirs
// are all above.
func (s *State) taken(others map[SentKey]Sent) map[Seq]SentKey {
	low := MaxSeq
	for _, v := range others {
		low = min(low, v.Seq)
	}
	if low > s.Max {
		return nil
	}
	out := make(map[Seq]SentKey)
	for k, v := range s.Sent {
		if v.Seq >= low {
			out[v.Seq] = k
		}
	}
	return out
}
