package audit

import (
	"fmt"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// Kind says what is wrong. docs/audit.md says of each what it means and what to
// do.
type Kind string

// What is wrong with history by itself.
const (
	Hole          Kind = "hole"           // a seq between minimum and maximum has no row
	MaxAboveRows  Kind = "max_above_rows" // the highest seqs up to the maximum have no rows
	RowsAboveMax  Kind = "rows_above_max" // there are rows above the maximum
	PastRetention Kind = "past_retention" // there are rows below the minimum
	TwoSeqs       Kind = "two_seqs"       // one client message id stands at two seqs within the horizon
	DamagedRow    Kind = "damaged_row"    // a row's content is not what its hash says
	MarkUnseen    Kind = "mark_unseen"    // a mark is above what its user can ever have seen
	MarkFell      Kind = "mark_fell"      // a mark was higher before
)

// What is wrong between Redis, where it may be believed, and history.
const (
	RedisBehind   Kind = "redis_behind"   // the counter is below what was given
	NeverAppended Kind = "never_appended" // Redis gave seqs that history never got
	HotRow        Kind = "hot_row"        // the hot log has another message than history
	RedisBounds   Kind = "redis_bounds"   // minimum or repair number are older than history's
	RedisPolicy   Kind = "redis_policy"   // the unread policy is older than history's, or another
	RedisMember   Kind = "redis_member"   // a member's window is older than history's, or another
	RedisMark     Kind = "redis_mark"     // a mark is lower than history's
	// ChangeNeverAppended: Redis has a window, mark, minimum, repair or policy that
	// history never got.
	ChangeNeverAppended Kind = "change_never_appended"
)

// What the log says and history lacks.
const (
	MissingRow    Kind = "missing_row"
	MissingRevoke Kind = "missing_revoke"
	MissingMark   Kind = "missing_mark"
	MissingWindow Kind = "missing_window"
	MissingBounds Kind = "missing_bounds"
	LostMessage   Kind = "lost_message" // a message lost its seq to another one and got no other
)

// steps says what to do about what an audit does not mend; the details are in
// docs/audit.md under the kind's name.
var steps = map[Kind]string{
	Hole:                "audit with --log: if the log has the message, --repair writes it; else restore the row from a backup, or raise the minimum above it",
	MaxAboveRows:        "audit with --log: if the log has the messages, --repair writes them; else restore the rows from a backup, or raise the minimum above them",
	RowsAboveMax:        "run with --repair: the maximum is raised to the rows",
	PastRetention:       "run with --repair: the rows are deleted as retention would",
	TwoSeqs:             "keep both: clients have seen them; find the producer's id in the workers' logs",
	DamagedRow:          "restore the row from a backup, or from the log while it still holds it",
	MarkUnseen:          "nothing is served wrongly, since marks are clamped; find out whether Redis or history was restored",
	MarkFell:            "find out whether Redis or history was restored to an older state; the next mark raises it again",
	RedisBehind:         "run with --repair: the conversation is made cold and rebuilt from the log",
	NeverAppended:       "run with --repair: what Redis still has is appended; what Redis has lost too is a hole: publish the skipped records of toRedis again",
	HotRow:              "run with --repair: the conversation is made cold and rebuilt from the log",
	RedisBounds:         "run with --repair: the conversation is made cold and rebuilt from the log",
	RedisPolicy:         "run with --repair: the conversation is made cold and rebuilt from the log",
	RedisMember:         "run with --repair: the conversation is made cold and rebuilt from the log",
	RedisMark:           "run with --repair: the mark is raised to history's",
	ChangeNeverAppended: "run with --repair: windows and marks are appended; for a minimum, a repair or a policy give the command again",
	MissingRow:          "run with --repair and --log: the row is written from the log",
	MissingRevoke:       "run with --repair and --log: the revoke is written from the log",
	MissingMark:         "run with --repair and --log: the mark is written from the log",
	MissingWindow:       "run with --repair and --log: the window is written from the log",
	MissingBounds:       "run with --repair and --log: the minimum, repair or policy is written from the log",
	LostMessage:         "move toMongo's offsets back to the message's record: it hands the message to its owner again",
}

// Kinds lists all kinds, by name.
func Kinds() []Kind {
	var out []Kind
	for k := range steps {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Finding is one thing that is wrong.
type Finding struct {
	Kind         Kind                     `json:"kind"`
	Conversation watermark.ConversationID `json:"conversation"`
	// Seq is the first seq that it is about, 0: none.
	Seq watermark.Seq `json:"seq,omitempty"`
	// User is whose member it is about, empty: nobody's.
	User   watermark.UserID `json:"user,omitempty"`
	Detail string           `json:"detail"`
	// Mended says what was done about it; empty: nothing, and Step says what to
	// do.
	Mended string `json:"mended,omitempty"`
	Step   string `json:"step,omitempty"`

	mend mend
}

func (s *suspicion) finding(k Kind, format string, args ...any) Finding {
	return Finding{Kind: k, Conversation: s.conv, Seq: s.seq, User: s.user, Detail: fmt.Sprintf(format, args...)}
}
