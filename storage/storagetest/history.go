package storagetest

import (
	"context"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

// History is a history store. All methods are safe for concurrent use.
type History interface {
	// Write applies a Change: rows, revokes, members, conversations, positions.
	// Inside one Change too, entries count one after the other. An empty Change does
	// nothing.
	//
	// A row at a seq that is taken is a Replay or a Conflict, wherever the
	// minimum stands; one below the minimum that stood before the Change is
	// Retired where nothing stands. A revoke of a row that does not stand does
	// nothing, the first revoke of a row stands.
	//
	// A member's own messages are kept at MaxOwn: beyond it the lowest go, and
	// the read watermark rises to the last that went. A member state whose
	// version stands already with other windows or ops is reported in
	// MemberConflicts: windows and ops stay, its marks are merged all the same.
	Write(ctx context.Context, c watermark.Change) (watermark.Written, error)

	// Positions gives all positions, one for each topic, topic id and partition,
	// in no particular order. There are as many as the topics have partitions,
	// and as many again for each time that a topic was made anew.
	Positions(ctx context.Context) ([]watermark.Position, error)

	// Conversations gives what stands of each, in the order of ids; an unknown
	// one has its ID and nothing else. ids may repeat.
	Conversations(ctx context.Context, ids []watermark.ConversationID) ([]watermark.Conversation, error)

	// ConversationsAfter gives the ids above after of the conversations that
	// stand, or that have a row of a message, in byte order. Whoever pages ends
	// at an empty answer.
	ConversationsAfter(ctx context.Context, after watermark.ConversationID, limit int) ([]watermark.ConversationID, error)

	// Members gives those of users that have a row, in no particular order.
	Members(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) ([]watermark.Member, error)

	// Roster gives the member rows of conv above after, by user id in byte
	// order.
	Roster(ctx context.Context, conv watermark.ConversationID, after watermark.UserID, limit int) ([]watermark.Member, error)

	// MembershipsOf gives user's member rows above after, by conversation id in
	// byte order.
	MembershipsOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) ([]watermark.MemberRow, error)

	// ActivityOf gives of the rows that MembershipsOf gives the conversation and
	// the time of its latest message, 0 where the conversation was never written.
	// A page takes a handful of queries.
	ActivityOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) ([]watermark.Activity, error)

	// Messages gives the lowest rows of conv within in, ascending.
	Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error)

	// Peek answers peeks, in order: the row at Peek.Last, where it stands and
	// retention has not taken it, and the seqs within Peek.Mentions at which rows
	// mention Peek.User, all of them or the lowest MaxMentions of each interval; and
	// what was revoked from Peek.RevokedFrom on, ascending, all of it or any
	// MaxRevoked.
	// 500 peeks must take a handful of queries.
	Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.Peeked, error)

	// Sent gives the client message ids of the rows above a seq; of an id that
	// stands at two, the higher one. Callers ask for about DedupeHorizon seqs.
	Sent(ctx context.Context, conv watermark.ConversationID, above watermark.Seq) (map[watermark.SentKey]watermark.Sent, error)

	// States is the batched read of a cold load: for each want, in order, the
	// conversation, its members, and with Want.Sent the ids that Sent gives above
	// max - DedupeHorizon (nil without). The members are all of them, and
	// Complete is set, where at most SmallGroup exist or Want.Roster asks for
	// them; those of Want.Users that exist otherwise. An unknown conversation is
	// a complete state with its ID and nothing else. The states are the
	// caller's own, also where a conversation is wanted twice.
	//
	// Ten thousand conversations of a few members must take tens of queries of
	// the database, not one or more for each: about 500 conversations a query.
	// The reads need not be of one moment, but no member may be mixed of two.
	States(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error)

	// DeleteBelow takes the content of at most limit rows below both seq and the
	// conversation's minimum, and gives how many it met: fewer than limit means
	// that none is left. Rows within the last DedupeHorizon seqs are gone for
	// Messages at once but still count for Sent and for conflicts until the
	// conversation's max has moved on; a later call takes what is left of them,
	// and counts them again.
	DeleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (deleted int, err error)

	// ScanConversations gives the conversations above after that were ever
	// written, by id in byte order.
	ScanConversations(ctx context.Context, after watermark.ConversationID, limit int) ([]watermark.Conversation, error)

	// ScanRows gives rows of all conversations, by conversation in byte order and
	// seq: whatever stands, also for conversations that were never written, below
	// a minimum, and without its content. A page that is not empty is not always
	// full; an empty one is the end.
	ScanRows(ctx context.Context, s watermark.RowScan) ([]watermark.StoredRow, error)

	// ScanMembers gives the member rows above after, by user and conversation in
	// byte order.
	ScanMembers(ctx context.Context, after watermark.MemberKey, limit int) ([]watermark.MemberRow, error)

	// PutDevice registers a device. A token is one user's and one device's, those
	// that registered it last; a registration older than the one that stands does
	// nothing. What watermark.SurplusDevices says of the user goes. Doing it again
	// changes nothing.
	PutDevice(ctx context.Context, user watermark.UserID, d watermark.Device) error

	// DropDevice takes the registration of user under id away, and tells whether
	// there was one. With a token: only if it is that one.
	DropDevice(ctx context.Context, user watermark.UserID, id, token string) (dropped bool, err error)

	// DevicesOf gives user's devices, by id in byte order.
	DevicesOf(ctx context.Context, user watermark.UserID) ([]watermark.Device, error)

	// ScanDevices gives the devices of all users whose keys are above after, by
	// key.
	ScanDevices(ctx context.Context, after watermark.DeviceKey, limit int) ([]watermark.DeviceRow, error)

	// Sizes gives about how much there is. It may count rows that retention has
	// taken, and miss those of conversations that were never written.
	Sizes(ctx context.Context) (watermark.Sizes, error)
}

// Reopener is a History that outlives its process. Reopen closes it and opens
// what it kept; the one it was called on is not used again.
type Reopener interface {
	Reopen(t testing.TB) History
}

// Run holds an implementation against the contract. open gives a new, empty
// history each time and closes it with t.Cleanup.
func Run(t *testing.T, open func(testing.TB) History) {
	groups := []struct {
		name  string
		tests []test
	}{
		{"rows", rowTests},
		{"members", memberTests},
		{"conversations", conversationTests},
		{"positions", positionTests},
		{"reads", readTests},
		{"retention", retentionTests},
		{"scans", scanTests},
		{"devices", deviceTests},
		{"durability", durabilityTests},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, tt := range g.tests {
				t.Run(tt.name, func(t *testing.T) { tt.run(t, open(t)) })
			}
		})
	}
}

type test struct {
	name string
	run  func(*testing.T, History)
}
