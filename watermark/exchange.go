package watermark

import "time"

// This file holds what the stores, the owner and the query service hand one
// another, so that none of them needs to import another.

// Batch is what the owner has to decide for one conversation, in input order.
type Batch struct {
	Conversation ConversationID
	// Floor is the last acknowledged seq that the owner gave; a lower counter
	// means that Redis lost something. 0: the owner does not know.
	Floor Seq
	// Token names the warm-up on which alone the batch may be decided: what Redis
	// holds by another one is cold. Empty: any.
	Token string
	// Policy is the deployment's; what the conversation itself says goes before.
	Policy UnreadPolicy
	Inputs []Input
	// Place is where the batch stands among those of its owner. Once it is
	// settled readers may be told what was decided. The zero value: at once.
	Place Place
}

// Place orders the batches of the owner of a partition of toRedis. A later
// batch has a higher number, also one of a later owner, unless it decides once
// more what an earlier one has decided.
type Place struct {
	Partition Partition
	Number    int64 // below 2^53
}

// Temperature says whether what Redis holds of a conversation may be believed.
type Temperature int

const (
	Warm    Temperature = iota
	Cold                // Redis has nothing to say
	Partial             // warm, but a member that was asked for is unknown
)

// Allocation is the answer to a Batch. Unless it is Warm, nothing was changed.
type Allocation struct {
	Temperature Temperature
	// Why is one word about a cold conversation, for a metric: "absent",
	// "incarnation", "warming", "token", "floor", "counter".
	Why      string
	Unknown  []UserID  // Partial: the members to load
	Token    string    // Partial: the warm-up that does not know them, see MemberLoad
	Outcomes []Outcome // Warm: one for each input, in order
	// Max is the counter after the batch. Meaningful when Warm.
	Max Seq
}

// Want says what a reader needs of one conversation's truth.
type Want struct {
	Conversation ConversationID
	// Users are members to load, whether or not they exist. Where the
	// conversation has at most SmallGroup members all of them are loaded, and
	// State.Complete is set.
	Users []UserID
	// Sent asks for the client message ids of the last DedupeHorizon seqs.
	Sent bool
	// Roster asks for all members, however many there are.
	Roster bool
}

// SmallGroup is the number of members up to which a cold load brings them all.
const SmallGroup = 256

// View is what one user may know of one conversation.
type View struct {
	Temperature Temperature
	Conversation
	Member Member
	// PeerReceipt and PeerWindow are the other user's of a single
	// conversation: is_read of a message is derived from them.
	PeerReceipt Seq
	PeerWindow  Intervals
	// Token names the warm-up of the conversation that the view was read from.
	// Who loads members because a view is Partial hands it back with them, so
	// that they are not merged into a later warm-up. Empty when Cold and where
	// the view does not come from Redis.
	Token string
}

// ViewOf gives u's view of a state that a cold load brought.
func (s *State) ViewOf(u UserID) View {
	v := View{Conversation: s.Conversation, Member: s.Members[u]}
	v.Member.User = u
	if peer, ok := s.ID.Peer(u); ok {
		p := s.Members[peer]
		v.PeerReceipt, v.PeerWindow = p.Receipt, p.Window()
	}
	return v
}

// Row is a message with the conversation that it belongs to.
type Row struct {
	Conversation ConversationID
	Message      Message
}

// Activity is a conversation and when it had its latest message.
type Activity struct {
	Conversation ConversationID
	LastTime     int64 // milliseconds since 1970; 0: not known
}

// ListOrder is the order of a user's list of conversations.
type ListOrder struct {
	Log  string  // names the incarnation of the sequenced log
	Ends []int64 // by partition: everything below is in it
	// Same tells that nothing was appended since an order that the reader had;
	// Entries is empty then.
	Same    bool
	Entries []Activity // in any order
}

// MemberRow is a member with the conversation that it belongs to.
type MemberRow struct {
	Conversation ConversationID
	Member       Member
}

// RevokedRow is a revoke with the conversation that it belongs to.
type RevokedRow struct {
	Conversation ConversationID
	Revoked      Revoked
}

// Position is how far history has a partition of a topic: what every record
// below Next says is in it. It is what tells a history that was restored from
// a backup, and a topic that was made anew, when a group begins to read.
type Position struct {
	Topic string
	Partition
	Next int64
}

// Change is a batch of writes to history. A store applies it in the order
// rows, revokes, members, conversations, positions, so that a conversation's
// max never stands without its rows, nor a position without what is below it,
// whatever dies in between.
type Change struct {
	Rows          []Row
	Revokes       []RevokedRow
	Members       []MemberRow // merged as Member.Merge does
	Conversations []Conversation
	Positions     []Position // the highest Next of each topic and partition stands
}

// Empty tells whether there is nothing to write.
func (c *Change) Empty() bool {
	return len(c.Rows)+len(c.Revokes)+len(c.Members)+len(c.Conversations)+len(c.Positions) == 0
}

// Fate says what became of a row that was to be inserted.
type Fate int

const (
	Inserted Fate = iota
	Replay        // the same message stands there already
	Conflict      // another message stands there; it was left as it is
	Retired       // below the conversation's minimum: not inserted again
)

// Written tells what a Change met.
type Written struct {
	Rows []Fate // one for each of Change.Rows, in order
	// MemberConflicts are the indexes of Change.Members whose version stood
	// there already with other windows or ops. They were left as they were.
	MemberConflicts []int
}

// AnswerKey names an answer that somebody waits for.
type AnswerKey struct {
	Conversation ConversationID
	Caller       string
	OpID         string // for a send: sender + "/" + client message id
}

// KeyedAnswer is an answer with its name.
type KeyedAnswer struct {
	Key    AnswerKey
	Answer Answer
}

// Ask asks for one user's view of one conversation. An empty User wants only
// what everybody shares.
type Ask struct {
	Conversation ConversationID
	User         UserID
}

// Span asks for the messages of a range of seqs, any int64 each.
type Span struct {
	Conversation ConversationID
	First, Last  Seq
	// Keep says which edge is served when not all of it is: NearEnd, the zero
	// value, keeps the newest.
	Keep Keep
	// Bytes bounds the encoded messages that are read; the one at the kept edge
	// is read in any case. 0: the store's own bound.
	Bytes int
}

// MemberLoad is what a load of members of a warm conversation brought.
type MemberLoad struct {
	Conversation ConversationID
	// Token is View.Token, read before the load began. With any other, and with
	// none, nothing is merged: the conversation was warmed up again meanwhile,
	// and the load may be older than that.
	Token   string
	Members []Member
	// Absent are users who were looked for and never had a window.
	Absent []UserID
	// Complete says that every member that exists is in Members.
	Complete bool
}

// Loaded is the truth about a cold conversation, with the token under which
// its warm-up began.
type Loaded struct {
	Token string
	State *State
}

// PushMark is how far a conversation has been handed to the gateways.
type PushMark struct {
	Conversation ConversationID
	// Seq is the highest one handed off, Offset that of the last record handed
	// off on the sequenced log, plus 1. 0: none.
	Seq    Seq
	Offset int64
	// Renew asks whoever raises the mark to let it live as long as a new one does.
	Renew bool
}

// Connection is a device of a user at a gateway.
type Connection struct {
	User   UserID
	Device string // may be empty
	// Node names the gateway, without a slash: the same device may be at two for
	// a moment.
	Node string
}

// Presence is what is known of where a user is.
type Presence struct {
	Devices  []string  // connected, each once, in no order; empty: none is
	LastSeen time.Time // zero: not lately
}

// List is all conversations in which a user has a member row, former ones too,
// the latest message first, by id where two have the same last time.
type List struct {
	// Log names the incarnation of the sequenced log. Offsets of two logs have
	// nothing to do with one another.
	Log string
	// Ends are, by partition of the sequenced log, the offsets below which
	// everything is in Entries. They may know more.
	Ends    []int64
	Entries []Listed
}

// Listed is a conversation in the list of a user.
type Listed struct {
	Conversation Conversation
	Member       Member // whole
	Partition    int32  // of the sequenced log
}

// InList tells whether the member row of l is that of a member now, who has
// the conversation in its list: one of the two of a single conversation who did
// not leave it, or of a group who joined it and did not leave.
func (l *Listed) InList() bool { return l.Member.Listed(l.Conversation.ID) }

// Changed tells whether anything that the user of l sees of it in the list
// stands at or above offset on its partition of the sequenced log. What goes on
// in a conversation after somebody left it is nothing that it sees.
func (l *Listed) Changed(offset int64) bool {
	return l.Member.ChangedAt > offset || l.InList() && l.Conversation.ChangedAt > offset
}

// MaxMentions is how many mentions of a user are looked for in one
// conversation.
const MaxMentions = 100

// MaxRevoked is how many revokes of one conversation are looked for.
const MaxRevoked = 1000

// Peek asks for what the list of a user shows of a conversation beside its
// numbers.
type Peek struct {
	Conversation ConversationID
	User         UserID
	// Last is the seq of the message that is wanted; 0: none.
	Last Seq
	// Mentions are the seqs among which mentions of User are wanted.
	Mentions Intervals
	// RevokedFrom: the seqs are wanted whose Revoked.At is as high or higher; 0:
	// none.
	RevokedFrom int64
}

// Peeked answers a Peek.
type Peeked struct {
	// Last is nil where the message is nowhere.
	Last *Message
	// Mentions are seqs of messages of others that mention the user, ascending:
	// all of them, or any MaxMentions.
	Mentions []Seq
	// Revoked are the seqs that were revoked, ascending: all of them, or any
	// MaxRevoked.
	Revoked []Seq
}

// TailPeek is what the tail of the sequenced log has of a Peek.
type TailPeek struct {
	Peeked
	// Revokes are all that it has of the conversation, of messages that only
	// history has too; of two of one message the first in the log.
	Revokes map[Seq]Revoked
}

// Reader is a user, how far it has read, and what it may see.
type Reader struct {
	User   UserID
	Read   Seq
	Window Intervals
}

// Readership is who has read a seq, windows aside.
type Readership struct {
	// Known is false where Redis does not know all members of the conversation:
	// nothing else is set then, and the truth answers.
	Known bool
	// Count is how many users have a read mark at or above the seq.
	Count int64
	// Readers is one page of them, by ascending (Read, User).
	Readers []Reader
}
