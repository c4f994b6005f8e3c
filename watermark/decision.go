package watermark

// Act says what an input asks of the owner of a conversation.
type Act int

const (
	ActSend          Act = iota // give Message a seq
	ActJoin                     // open a window for User
	ActLeave                    // close User's window: leave or kick
	ActClear                    // hide the past from User
	ActRaiseMin                 // delete below Seq for everybody
	ActRevoke                   // turn the message at Seq into a tombstone
	ActResequence               // give Message, which lost its place at Seq, another one; or decide again the op of Member
	ActWarm                     // make the conversation warm, nothing else
	ActSetAttributes            // set Attributes of User
	ActSetPolicy                // let Policy hold from here on
)

// Input is one record of the toRedis topic, decoded: something that the owner
// of a conversation must decide, in order.
type Input struct {
	Conversation ConversationID
	// Origin is the record's place where it first stood. A record that was
	// forwarded from another partition keeps its first one.
	Origin Origin
	Act    Act
	Caller string // who waits for the answer; empty: nobody
	// OpID is the command's idempotency key. For ActSend the message's client
	// id has that part.
	OpID  string
	Actor UserID // empty: the deployment itself
	Time  int64  // record time, milliseconds since 1970

	Message    *Message // ActSend, ActResequence
	User       UserID   // ActJoin, ActLeave, ActClear, ActSetAttributes
	History    History  // ActJoin
	Seq        Seq      // ActJoin from, ActRaiseMin, ActRevoke; ActResequence: the seq that was lost
	Membership int32    // ActLeave
	Repair     int64    // ActResequence: the number to reach
	Member     *Member  // ActResequence: the member state that lost
	// Attributes are those to set, an empty value removes one: ActSetAttributes.
	Attributes map[string]string
	Policy     PolicyChoice // ActSetPolicy
}

// Verdict says what the owner made of an input.
type Verdict int

const (
	// Accepted: decided now; its events must be appended.
	Accepted Verdict = iota
	// Again: decided before, by this or another owner, and perhaps not yet
	// appended: the same events are appended once more.
	Again
	// Resent: the producer sent the message before, it stands at Outcome.Seq;
	// nothing is to be appended.
	Resent
	// Known: decided before and surely appended; nothing is to be done.
	Known
	// Refused: not acceptable; Outcome.Reason says why. A message goes to the
	// dead letters, a command is answered.
	Refused
)

// Reasons for which an owner refuses an input.
const (
	ReasonNotMember      = "not_member"      // the sender's window is closed
	ReasonNotParticipant = "not_participant" // not one of the two of a single conversation
	ReasonIDReused       = "id_reused"       // same client message id, other content
	ReasonNoSuchSeq      = "no_such_seq"     // a revoke or a minimum beyond the maximum
	ReasonWindowFull     = "window_full"     // MaxMemberships reached, or the version or number at its end
	ReasonAttributesFull = "attributes_full" // MaxAttributes reached
	ReasonSeqsExhausted  = "seqs_exhausted"  // MaxSeq reached
	ReasonUndecodable    = "undecodable"     // not a message at all
	ReasonInvalid        = "invalid"         // a field breaks its rule
	ReasonTooLarge       = "too_large"       // above the body or the topic's limit
	ReasonWrongPartition = "wrong_partition" // forwarded, and wrong there too
)

// Outcome is the owner's decision on one Input.
type Outcome struct {
	Verdict Verdict
	Reason  string // Refused only
	// Seq is the message's place. For commands it is the edge: the
	// conversation's max at that moment.
	Seq Seq
	// Min is the conversation's minimum after the input.
	Min Seq
	// Changed tells whether a command changed anything.
	Changed bool
	// Member is the state of the command's user after it.
	Member *Member
	// Policy is the one that holds for a message, and for what comes after a
	// command.
	Policy UnreadPolicy
	// Override is what the conversation says of the policy after ActSetPolicy.
	Override PolicyChanged
	// Advance is set when the input raised a mark that must be appended: the
	// list of own messages outgrew MaxOwn.
	Advance *ReadAdvanced
	// Repaired is set when the input repaired the conversation.
	Repaired *Repaired
}

// Answer is what waits in Redis for the caller of a command or a send.
type Answer struct {
	Verdict Verdict
	Reason  string
	Seq     Seq
	Min     Seq
	Changed bool
	Member  *Member
}

// Answer gives what the caller of an input is told.
func (o *Outcome) Answer() Answer {
	return Answer{o.Verdict, o.Reason, o.Seq, o.Min, o.Changed, o.Member}
}

// Message gives the message that in has become where that is all that came of
// it: what Events gives then is one run of it.
func (o *Outcome) Message(in *Input) (m Message, ok bool) {
	if in.Act != ActSend || in.Message == nil || o.Seq <= 0 || (o.Verdict != Accepted && o.Verdict != Again) ||
		o.Member != nil || o.Advance != nil || o.Repaired != nil {
		return Message{}, false
	}
	m = *in.Message
	m.Seq = o.Seq
	return m, true
}

// Events gives what must be appended to the sequenced log for input in, in
// order; none for Resent, Known and Refused, nor for a command of which
// nothing needs to be known.
func (o *Outcome) Events(in *Input) []Event {
	if o.Verdict != Accepted && o.Verdict != Again {
		return nil
	}
	var out []Event
	switch in.Act {
	case ActSend, ActResequence:
		if in.Message != nil && o.Seq > 0 {
			m := *in.Message
			m.Seq = o.Seq
			out = append(out, MessagesSequenced{Policy: o.Policy, Messages: []Message{m}})
		}
		if o.Member != nil {
			out = append(out, WindowChanged{Member: *o.Member, Cause: "resequence"})
		}
	case ActJoin, ActLeave, ActClear, ActSetAttributes:
		out = append(out, WindowChanged{Member: *o.Member, Cause: in.Act.cause(), Actor: in.Actor})
	case ActRaiseMin:
		out = append(out, MinSeqRaised{Min: o.Min})
	case ActRevoke:
		out = append(out, Revoked{Seq: in.Seq, By: in.Actor, Time: in.Time})
	case ActSetPolicy:
		if o.Override.Version > 0 { // else nothing was ever said
			out = append(out, o.Override)
		}
	}
	if o.Advance != nil {
		out = append(out, *o.Advance)
	}
	if o.Repaired != nil {
		out = append(out, *o.Repaired)
	}
	return out
}

func (a Act) cause() string {
	switch a {
	case ActJoin:
		return "join"
	case ActLeave:
		return "leave"
	case ActClear:
		return "clear"
	case ActSetAttributes:
		return "attributes"
	}
	return ""
}
