package watermark

// Partition names one partition of one incarnation of a Kafka topic.
type Partition struct {
	TopicID string // Kafka's topic id: a topic deleted and made again is another
	Number  int32
}

// Origin is the place of a record in an input topic.
type Origin struct {
	Partition Partition
	Offset    int64
}

// Event is something that happened to a conversation. The kinds are the
// pointer-free structs below; the set is closed.
type Event interface{ event() }

// MessagesSequenced is a run of messages with ascending seqs and the unread
// policy that held.
type MessagesSequenced struct {
	Policy   UnreadPolicy
	Messages []Message
}

// WindowChanged carries the member's full state, so that a lost or repeated
// one does no harm: the highest version stands.
type WindowChanged struct {
	Member Member
	Cause  string // "join", "leave", "clear"
	Actor  UserID
}

// MinSeqRaised deletes everything below Min, for everybody.
type MinSeqRaised struct{ Min Seq }

// Revoked turns a message into a tombstone.
type Revoked struct {
	Seq  Seq
	By   UserID // empty: the deployment
	Time int64  // milliseconds since 1970
	// At is the offset behind the record that revoked it, on the sequenced log,
	// as Conversation.ChangedAt. It is known to history and the tail only; 0: not
	// known. A record does not carry it.
	At int64
}

// ReadAdvanced raises a member's marks; 0 leaves one as it is.
type ReadAdvanced struct {
	User    UserID
	Read    Seq
	Receipt Seq
	Device  string
}

// Repaired tells clients that seqs from From on may have been served wrongly:
// who knows a smaller Number pulls again from there.
type Repaired struct {
	Number int64
	From   Seq
}

// PolicyChanged says how a conversation counts own messages from here on. The
// zero value says nothing: the deployment's default holds.
type PolicyChanged struct {
	Version int64 // raised by one with every change; the highest one stands
	Choice  PolicyChoice
}

// MaxPolicyVersion is the highest version of a PolicyChanged, so that its code
// is exact in a double.
const MaxPolicyVersion = 1<<51 - 1

// PolicyChoice is what a conversation says about the unread policy.
type PolicyChoice int

const (
	ChooseDefault PolicyChoice = iota // the deployment's
	ChooseAdvance                     // AdvanceOnSend
	ChooseKeep                        // KeepOnSend
)

// Policy gives the policy that holds where def is the deployment's.
func (p PolicyChanged) Policy(def UnreadPolicy) UnreadPolicy {
	switch p.Choice {
	case ChooseAdvance:
		return AdvanceOnSend
	case ChooseKeep:
		return KeepOnSend
	}
	return def
}

// Merge keeps the one with the higher version.
func (p *PolicyChanged) Merge(o PolicyChanged) {
	if o.Version > p.Version {
		*p = o
	}
}

// Code gives p as one number that is the higher the higher its version, so
// that a store can merge it by max; PolicyFromCode is the way back.
func (p PolicyChanged) Code() int64 { return p.Version<<2 | int64(p.Choice) }

// PolicyFromCode reads what Code gave.
func PolicyFromCode(n int64) PolicyChanged {
	return PolicyChanged{Version: n >> 2, Choice: PolicyChoice(n & 3)}
}

func (MessagesSequenced) event() {}
func (WindowChanged) event()     {}
func (MinSeqRaised) event()      {}
func (Revoked) event()           {}
func (ReadAdvanced) event()      {}
func (Repaired) event()          {}
func (PolicyChanged) event()     {}

// Record is one record of the sequenced log.
type Record struct {
	Conversation ConversationID
	Events       []Event
	// Inputs are, per input partition, the highest offset that this record and
	// all earlier ones of the conversation account for.
	Inputs []Origin
	// Offset is the record's own place on its partition of the sequenced log.
	Offset int64
}
