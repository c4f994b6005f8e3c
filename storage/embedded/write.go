package embedded

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Write applies a Change in one transaction: rows, revokes, members,
// conversations, positions, in this order. Written tells what it met; without an error
// everything is durable.
func (s *Store) Write(ctx context.Context, c watermark.Change) (w watermark.Written, err error) {
	defer s.metrics.done("write", time.Now(), &err)
	if c.Empty() {
		return watermark.Written{}, nil
	}
	all := func(t *txn) (err error) {
		w = watermark.Written{}
		if w.Rows, err = t.rows(c.Rows); err != nil {
			return err
		}
		for _, r := range c.Revokes {
			if _, err := t.exec(qRevoke, r.Revoked.By, r.Revoked.Time, orNull(r.Revoked.At), r.Conversation, r.Revoked.Seq); err != nil {
				return fmt.Errorf("revoke %s/%d: %w", r.Conversation, r.Revoked.Seq, err)
			}
		}
		if w.MemberConflicts, err = t.members(c.Members); err != nil {
			return err
		}
		if err := t.putConversations(c.Conversations); err != nil {
			return err
		}
		for _, p := range c.Positions {
			if _, err := t.exec(qPutPosition, p.Topic, p.TopicID, p.Number, p.Next); err != nil {
				return fmt.Errorf("position of %s/%d: %w", p.Topic, p.Number, err)
			}
		}
		return nil
	}
	if err = s.inTx(ctx, all); errors.Is(err, errStands) {
		err = s.inTx(ctx, func(t *txn) error {
			t.ahead = true
			return all(t)
		})
	}
	if err != nil {
		return watermark.Written{}, fmt.Errorf("write history: %w", err)
	}
	s.metrics.written(w)
	return w, nil
}

// DeleteBelow takes the content of at most limit rows that are below both seq
// and the conversation's minimum, and gives how many it met: fewer than limit
// means that none is left. A limit above watermark.MaxPage counts as watermark.MaxPage.
//
// Rows within the last DedupeHorizon lose their content but keep their key and
// hash, unseen by Messages, until the conversation has moved on: a producer's
// resend must be recognised that long.
func (s *Store) DeleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (deleted int, err error) {
	defer s.metrics.done("delete", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return 0, nil
	}
	err = s.inTx(ctx, func(t *txn) error {
		found, err := t.bounds(conv)
		if err != nil {
			return err
		}
		b := found[conv]
		below, horizon := min(seq, b.low), b.high-watermark.DedupeHorizon
		removed, err := t.exec(qDelete, conv, below, horizon, limit)
		if err != nil {
			return err
		}
		hollowed, err := t.exec(qHollow, conv, below, horizon, int64(limit)-removed)
		deleted = int(removed + hollowed)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete below %s/%d: %w", conv, seq, err)
	}
	s.metrics.deleted.Add(float64(deleted))
	return deleted, nil
}

// txn is one write transaction.
type txn struct {
	ctx   context.Context // lives as long as one call
	tx    *sql.Tx
	stmts map[query]*sql.Stmt // of the store
	used  map[query]*sql.Stmt // bound to tx
	// ahead: rows stand above their conversation's maximum.
	ahead bool
}

func (s *Store) inTx(ctx context.Context, f func(*txn) error) (err error) {
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		// After a commit, or a rollback because the context ended, there is
		// nothing left to roll back.
		if e := tx.Rollback(); !errors.Is(e, sql.ErrTxDone) {
			err = errors.Join(err, e)
		}
	}()
	if err := f(&txn{ctx: ctx, tx: tx, stmts: s.stmts, used: make(map[query]*sql.Stmt)}); err != nil {
		return err
	}
	return tx.Commit()
}

func (t *txn) stmt(q query) *sql.Stmt {
	st := t.used[q]
	if st == nil {
		st = t.tx.StmtContext(t.ctx, t.stmts[q])
		t.used[q] = st
	}
	return st
}

// exec gives the number of rows that were changed. The driver would watch a
// context that can end in a goroutine for each statement; a statement is short,
// so it is asked before it instead.
func (t *txn) exec(q query, args ...any) (int64, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	res, err := t.stmt(q).ExecContext(context.WithoutCancel(t.ctx), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// bounds are the lowest and highest seq of a conversation.
type bounds struct{ low, high watermark.Seq }

// bounds gives those of the conversations that stand.
func (t *txn) bounds(convs ...watermark.ConversationID) (map[watermark.ConversationID]bounds, error) {
	out := make(map[watermark.ConversationID]bounds, len(convs))
	err := t.over(qBounds, convs, func(rows *sql.Rows) error {
		var id watermark.ConversationID
		var b bounds
		err := rows.Scan(&id, &b.low, &b.high)
		out[id] = b
		return err
	})
	return out, err
}

// highest raises the bounds of convs to the highest row that stands.
func (t *txn) highest(convs []watermark.ConversationID, bounds map[watermark.ConversationID]bounds) error {
	return t.over(qHighest, convs, func(rows *sql.Rows) error {
		var id watermark.ConversationID
		var high sql.Null[watermark.Seq]
		if err := rows.Scan(&id, &high); err != nil {
			return err
		}
		b := bounds[id]
		b.high = max(b.high, high.V)
		bounds[id] = b
		return nil
	})
}

// over runs q for a list, and each for every row.
func (t *txn) over(q query, list any, each func(*sql.Rows) error) error {
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	rows, err := t.stmt(q).QueryContext(t.ctx, string(text))
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = each(rows)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

func (t *txn) rows(rows []watermark.Row) ([]watermark.Fate, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	var convs []watermark.ConversationID
	seen := make(map[watermark.ConversationID]bool)
	for i := range rows {
		if id := rows[i].Conversation; !seen[id] {
			seen[id] = true
			convs = append(convs, id)
		}
	}
	bounds, err := t.bounds(convs...)
	if err == nil && t.ahead {
		err = t.highest(convs, bounds)
	}
	if err != nil {
		return nil, fmt.Errorf("read bounds of %d conversations, %s first: %w", len(convs), convs[0], err)
	}
	fresh := fresh(rows, bounds)
	if err := t.insertFresh(rows, fresh); err != nil {
		return nil, fmt.Errorf("insert %d rows, %s/%d first: %w", len(rows), rows[0].Conversation, rows[0].Message.Seq, err)
	}
	out := make([]watermark.Fate, len(rows))
	standing, err := t.standing(rows, fresh)
	if err != nil {
		return nil, fmt.Errorf("look for %d rows, %s/%d first: %w", len(rows), rows[0].Conversation, rows[0].Message.Seq, err)
	}
	for i := range rows {
		r := &rows[i]
		if fresh[i] {
			out[i] = watermark.Inserted
			continue
		}
		if old, ok := standing[i]; ok {
			out[i] = fateBeside(&old, &r.Message)
			continue
		}
		if out[i], err = t.row(r, bounds[r.Conversation].low); err != nil {
			return nil, fmt.Errorf("insert %s/%d: %w", r.Conversation, r.Message.Seq, err)
		}
	}
	return out, nil
}

// fateBeside gives the fate of a message in whose place old stands.
func fateBeside(old, m *watermark.Message) watermark.Fate {
	if old.SameAs(m) {
		return watermark.Replay
	}
	return watermark.Conflict
}

// standing gives what stands in the places of the rows that are not fresh, by
// their index; of each what tells it from another one.
func (t *txn) standing(rows []watermark.Row, fresh []bool) (map[int]watermark.Message, error) {
	var places [][]any
	var index []int
	for i := range rows {
		if !fresh[i] {
			places = append(places, []any{rows[i].Conversation, rows[i].Message.Seq})
			index = append(index, i)
		}
	}
	if len(places) == 0 {
		return nil, nil
	}
	out := make(map[int]watermark.Message, len(places))
	err := t.over(qStanding, places, func(found *sql.Rows) error {
		var key int
		var hash []byte
		m := watermark.Message{}
		if err := found.Scan(&key, &m.Sender, &m.ClientID, &hash); err != nil {
			return err
		}
		copy(m.Hash[:], hash)
		out[index[key]] = m
		return nil
	})
	return out, err
}

// row inserts a row that stood nowhere when the change began.
func (t *txn) row(r *watermark.Row, low watermark.Seq) (watermark.Fate, error) {
	if r.Message.Seq < low {
		return watermark.Retired, nil
	}
	args, err := messageArgs(nil, r)
	if err != nil {
		return 0, err
	}
	n, err := t.putAll(qInsertMessage, args)
	if err != nil || n == 1 {
		return watermark.Inserted, err
	}
	// The change names the place twice.
	old, err := t.standing([]watermark.Row{*r}, []bool{false})
	if err != nil {
		return 0, err
	}
	m := old[0]
	return fateBeside(&m, &r.Message), nil
}

// memberKey names a member row.
type memberKey struct {
	conv watermark.ConversationID
	user watermark.UserID
}

// memberState is a member as a transaction sees it. Own stays in its table:
// only its length is carried.
type memberState struct {
	member watermark.Member
	own    int64
}

// members merges rows one after the other, each as Member.Merge does, and
// writes every member once.
func (t *txn) members(rows []watermark.MemberRow) (conflicts []int, err error) {
	if done, err := t.putMarks(rows); done || err != nil {
		return nil, err
	}
	states := make(map[memberKey]*memberState)
	var order []memberKey
	for i := range rows {
		k := memberKey{rows[i].Conversation, rows[i].Member.User}
		st, ok := states[k]
		if !ok {
			if st, err = t.member(k); err != nil {
				return nil, fmt.Errorf("read member %s of %s: %w", k.user, k.conv, err)
			}
			states[k] = st
			order = append(order, k)
		}
		if clash(&st.member, &rows[i].Member) {
			conflicts = append(conflicts, i)
		}
		if err := t.mergeMember(k, st, rows[i].Member); err != nil {
			return nil, fmt.Errorf("merge member %s of %s: %w", k.user, k.conv, err)
		}
	}
	for _, k := range order {
		args, err := memberArgs(k, states[k])
		if err != nil {
			return nil, err
		}
		if _, err := t.exec(qPutMember, args...); err != nil {
			return nil, fmt.Errorf("write member %s of %s: %w", k.user, k.conv, err)
		}
	}
	return conflicts, nil
}

func (t *txn) member(k memberKey) (*memberState, error) {
	rows, err := t.stmt(qMember).QueryContext(t.ctx, k.conv, k.user)
	if err != nil {
		return nil, err
	}
	found, err := scanMembers(rows)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return &memberState{member: watermark.Member{User: k.user}}, nil
	}
	return &memberState{member: found[0].Member, own: found[0].own}, nil
}

// clash tells whether two states of one version differ in what the version
// counts.
func clash(a, b *watermark.Member) bool {
	return a.Version == b.Version && a.Version > 0 && !a.SameState(b)
}

// mergeMember merges m into st, and m's own messages into their table. The list
// is kept at MaxOwn as its owner keeps it: the lowest ones go, and the read
// watermark rises to the last that went.
func (t *txn) mergeMember(k memberKey, st *memberState, m watermark.Member) error {
	own, before := m.Own, st.member.Read
	m.Own = nil
	st.member.Merge(m)
	for _, seq := range own {
		if seq <= st.member.Read {
			continue
		}
		n, err := t.exec(qAddOwn, k.conv, k.user, seq)
		if err != nil {
			return err
		}
		st.own += n
	}
	if st.own > watermark.MaxOwn {
		var dropped watermark.Seq
		if err := t.stmt(qOwnBound).QueryRowContext(t.ctx, k.conv, k.user, watermark.MaxOwn).Scan(&dropped); err != nil {
			return err
		}
		st.member.RaiseRead(dropped)
	}
	if st.own > 0 && st.member.Read > before {
		n, err := t.exec(qTrimOwn, k.conv, k.user, st.member.Read)
		if err != nil {
			return err
		}
		st.own -= n
	}
	return nil
}
