package embedded

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/tidemark-im/tidemark/watermark"
)

// A statement that is run for one row costs more in getting there than in the
// row, so many rows share one. bulks are those statements, each prepared for
// several numbers of rows: what is left of one size is written by the next.
var bulkSizes = []int{64, 16, 4, 1}

type bulk struct {
	into, then string
	columns    int
}

// A statement for many rows that fails would take back those before, for which
// SQLite copies every page before it changes it. OR FAIL leaves them: the
// transaction takes all of it back anyway.
var bulks = map[query]bulk{
	// Only what cannot stand yet is inserted this way: see fresh.
	qInsertMessage: {
		into: `INSERT OR FAIL INTO messages (conversation, seq, sender, client_id, hash, kind, send_time, record_time, device,
		revoked_by, revoked_at, revoked_offset, body_type, mentions, attributes, body)`, then: `ON CONFLICT DO NOTHING`, columns: 16,
	},
	// The same for messages of which most have nothing more: each parameter that is
	// NULL anyway costs as much as one that is not.
	qInsertPlain: {
		into: `INSERT OR FAIL INTO messages (conversation, seq, sender, client_id, hash, kind, send_time, record_time, device,
		body_type, body)`, then: `ON CONFLICT DO NOTHING`, columns: 11,
	},
	qPutConv: {
		into: `INSERT OR FAIL INTO conversations AS c (id, min, max, policy, repair_number, repair_from, last_time, changed_at, override)`,
		then: `ON CONFLICT DO UPDATE SET
		policy = CASE WHEN excluded.max > c.max THEN excluded.policy ELSE c.policy END,
		min = max(c.min, excluded.min), max = max(c.max, excluded.max), last_time = max(c.last_time, excluded.last_time),
		changed_at = max(c.changed_at, excluded.changed_at), override = max(c.override, excluded.override),
		repair_number = max(c.repair_number, excluded.repair_number),
		repair_from = CASE WHEN c.repair_from = 0 OR (excluded.repair_from <> 0 AND excluded.repair_from < c.repair_from)
			THEN excluded.repair_from ELSE c.repair_from END`, columns: 9,
	},
	qPutInput: {
		into: `INSERT OR FAIL INTO inputs AS i (conversation, topic, partition, offset)`,
		then: `ON CONFLICT DO UPDATE SET offset = max(i.offset, excluded.offset)`, columns: 4,
	},
	// Who has own messages is left alone: those that the mark passes must go, too.
	qPutMarks: {
		into: `INSERT OR FAIL INTO members AS m (conversation, user, version, last_membership, read, receipt, changed_at, own_count, memberships, ops)`,
		then: `ON CONFLICT DO UPDATE SET read = max(m.read, excluded.read), receipt = max(m.receipt, excluded.receipt),
		changed_at = max(m.changed_at, excluded.changed_at) WHERE m.own_count = 0`, columns: 10,
	},
}

// sized names the statement of q for n rows.
func sized(q query, n int) query { return query(fmt.Sprintf("%s (%d)", q, n)) }

func (b bulk) text(n int) string {
	row := "(?" + strings.Repeat(", ?", b.columns-1) + ")"
	return b.into + " VALUES " + row + strings.Repeat(", "+row, n-1) + " " + b.then
}

// putAll runs q for as many rows as args has, and gives how many it changed.
func (t *txn) putAll(q query, args []any) (changed int64, err error) {
	columns := bulks[q].columns
	for _, size := range bulkSizes {
		name := sized(q, size)
		for len(args) >= size*columns {
			n, err := t.exec(name, args[:size*columns]...)
			if err != nil {
				return changed, err
			}
			changed += n
			args = args[size*columns:]
			// A change of thousands of rows would keep a processor for ten
			// milliseconds at a time, before Go takes it away: as long as
			// everybody else's messages are on their way in all.
			runtime.Gosched()
		}
	}
	return changed, nil
}

// errStands says that a row which could not stand yet does.
var errStands = errors.New("a row stands above its conversation's maximum")

// fresh tells which rows cannot stand yet: those above all of their conversation
// that stand, each above the one before. They are inserted without being looked
// at one by one.
//
// What stands is first taken to end at the conversation's maximum. It does not
// always: the maximum is written later than its rows, so a process that died
// leaves rows above it. Then the transaction begins again with the highest rows,
// which are looked for only then.
func fresh(rows []watermark.Row, bounds map[watermark.ConversationID]bounds) []bool {
	out := make([]bool, len(rows))
	highest := make(map[watermark.ConversationID]watermark.Seq, len(bounds))
	for i := range rows {
		r := &rows[i]
		b := bounds[r.Conversation]
		high := max(b.high, highest[r.Conversation])
		if r.Message.Seq > high && r.Message.Seq >= b.low {
			out[i] = true
			highest[r.Conversation] = r.Message.Seq
		}
	}
	return out
}

// insertFresh inserts those rows, in the order of the table: neighbours share
// its pages.
func (t *txn) insertFresh(rows []watermark.Row, fresh []bool) error {
	order := make([]int, 0, len(rows))
	for i := range rows {
		if fresh[i] {
			order = append(order, i)
		}
	}
	// Those of one conversation ascend already.
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(string(rows[a].Conversation), string(rows[b].Conversation)) })
	columns := bulks[qInsertMessage].columns
	args := make([]any, 0, bulkSizes[0]*columns)
	for part := range slices.Chunk(order, bulkSizes[0]) {
		q, appendArgs := qInsertPlain, plainArgs
		if slices.ContainsFunc(part, func(i int) bool { return !plain(&rows[i].Message) }) {
			q, appendArgs = qInsertMessage, messageArgs
		}
		args = args[:0]
		for _, i := range part {
			var err error
			if args, err = appendArgs(args, &rows[i]); err != nil {
				return err
			}
		}
		inserted, err := t.putAll(q, args)
		if err == nil && inserted != int64(len(part)) {
			err = errStands
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putMarks merges rows that have nothing but marks, where that takes no look at
// what stands, and tells whether it did. Doing it again changes nothing.
func (t *txn) putMarks(rows []watermark.MemberRow) (done bool, err error) {
	args := make([]any, 0, len(rows)*bulks[qPutMarks].columns)
	for i := range rows {
		m := &rows[i].Member
		if m.Version != 0 || m.LastMembership != 0 || len(m.Own)+len(m.Memberships)+len(m.Ops)+len(m.Attributes) > 0 {
			return false, nil
		}
		args = append(args, string(rows[i].Conversation), string(m.User), int64(0), int64(0), int64(m.Read), int64(m.Receipt), m.ChangedAt,
			int64(0), "[]", "[]")
	}
	n, err := t.putAll(qPutMarks, args)
	return n == int64(len(rows)), err
}

// putConversations merges bounds and inputs.
func (t *txn) putConversations(convs []watermark.Conversation) error {
	if len(convs) == 0 {
		return nil
	}
	args := make([]any, 0, len(convs)*bulks[qPutConv].columns)
	inputs := make([]any, 0, len(convs)*bulks[qPutInput].columns)
	for i := range convs {
		// What is merged with nothing is not what it was: the policy counts only
		// with a message.
		n := watermark.Conversation{}
		n.Merge(convs[i])
		args = append(args, string(convs[i].ID), int64(n.Min), int64(n.Max), int64(n.Policy), n.Repair.Number, int64(n.Repair.From),
			n.LastTime, n.ChangedAt, n.Override.Code())
		for p, offset := range convs[i].Inputs {
			inputs = append(inputs, string(convs[i].ID), p.TopicID, int64(p.Number), offset)
		}
	}
	if _, err := t.putAll(qPutConv, args); err != nil {
		return fmt.Errorf("merge %d conversations, %s first: %w", len(convs), convs[0].ID, err)
	}
	if _, err := t.putAll(qPutInput, inputs); err != nil {
		return fmt.Errorf("merge inputs of %d conversations, %s first: %w", len(convs), convs[0].ID, err)
	}
	return nil
}
