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

func (MessagesSequenced) event() {}
func (WindowChanged) event()     {}
func (MinSeqRaised) event()      {}
func (Revoked) event()           {}
func (ReadAdvanced) event()      {}
func (Repaired) event()          {}

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
