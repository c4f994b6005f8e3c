package embedded

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tidemark-im/tidemark/watermark"
)

// This file maps between the vocabulary and SQL columns.

// encoded gives v as JSON, nil when n says that v is empty.
func encoded(v any, n int) (any, error) {
	if n == 0 {
		return nil, nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

func decode(text sql.NullString, v any) error {
	if !text.Valid || text.String == "" {
		return nil
	}
	return json.Unmarshal([]byte(text.String), v)
}

// orNull keeps what is not known out of an index.
func orNull(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// messageArgs appends the parameters of qInsertMessage.
func messageArgs(args []any, r *watermark.Row) ([]any, error) {
	m := &r.Message
	mentions, err1 := encoded(m.Mentions, len(m.Mentions))
	attributes, err2 := encoded(m.Attributes, len(m.Attributes))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	var by, at, offset, body any
	if m.Revoked != nil {
		by, at, offset = string(m.Revoked.By), m.Revoked.Time, orNull(m.Revoked.At)
	}
	if len(m.Body) > 0 {
		body = m.Body
	}
	return append(args,
		r.Conversation, m.Seq, m.Sender, m.ClientID, m.Hash[:], m.Kind, m.SendTime, m.RecordTime, m.Device,
		by, at, offset, int(m.BodyType), mentions, attributes, body,
	), nil
}

// plain tells whether plainArgs has all of m.
func plain(m *watermark.Message) bool {
	return m.Revoked == nil && len(m.Mentions) == 0 && len(m.Attributes) == 0
}

// plainArgs appends the parameters of qInsertPlain. They have the driver's own
// types: database/sql would find out by reflection that it can make them.
func plainArgs(args []any, r *watermark.Row) ([]any, error) {
	m := &r.Message
	var body any
	if len(m.Body) > 0 {
		body = m.Body
	}
	return append(args,
		string(r.Conversation), int64(m.Seq), string(m.Sender), m.ClientID, m.Hash[:], m.Kind, m.SendTime, m.RecordTime, m.Device,
		int64(m.BodyType), body,
	), nil
}

func scanMessages(rows *sql.Rows) (out []watermark.Message, err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		m, err := scanMessage(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

// scanMessage reads messageColumns, behind what goes into before.
func scanMessage(rows *sql.Rows, before ...any) (m watermark.Message, err error) {
	var hash []byte
	var by, mentions, attributes sql.NullString
	var at, offset sql.NullInt64
	if err := rows.Scan(append(before, &m.Seq, &m.Sender, &m.ClientID, &hash, &m.Kind, &m.SendTime, &m.RecordTime, &m.Device,
		&by, &at, &offset, &m.BodyType, &mentions, &attributes, &m.Body)...); err != nil {
		return m, err
	}
	copy(m.Hash[:], hash)
	if err := errors.Join(decode(mentions, &m.Mentions), decode(attributes, &m.Attributes)); err != nil {
		return m, fmt.Errorf("decode message %d: %w", m.Seq, err)
	}
	if at.Valid {
		m.Revoked = &watermark.Revoked{Seq: m.Seq, By: watermark.UserID(by.String), Time: at.Int64, At: offset.Int64}
	}
	return m, nil
}

// memberRow is a member row with the number of its own messages; the messages
// themselves are there where the statement asked for them.
type memberRow struct {
	watermark.MemberRow
	own int64
}

type opColumn struct {
	ID   string        `json:"id"`
	Edge watermark.Seq `json:"edge"`
}

// memberArgs gives the parameters of qPutMember.
func memberArgs(k memberKey, st *memberState) ([]any, error) {
	m := &st.member
	windows := make([][3]int64, len(m.Memberships))
	for i, w := range m.Memberships {
		windows[i] = [3]int64{int64(w.Number), int64(w.Lower), int64(w.Upper)}
	}
	ops := make([]opColumn, len(m.Ops))
	for i, op := range m.Ops {
		ops[i] = opColumn(op)
	}
	w, err1 := json.Marshal(windows)
	o, err2 := json.Marshal(ops)
	a, err3 := encoded(m.Attributes, len(m.Attributes))
	return []any{k.conv, k.user, m.Version, m.LastMembership, m.Read, m.Receipt, m.ChangedAt, st.own, string(w), string(o), a},
		errors.Join(err1, err2, err3)
}

func scanMembers(rows *sql.Rows) (out []memberRow, err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r memberRow
		var windowText, opText, attributes, own sql.NullString
		m := &r.Member
		if err := rows.Scan(&r.Conversation, &m.User, &m.Version, &m.LastMembership, &m.Read, &m.Receipt, &m.ChangedAt,
			&r.own, &windowText, &opText, &attributes, &own); err != nil {
			return nil, err
		}
		var windows [][3]int64
		var ops []opColumn
		if err := errors.Join(decode(windowText, &windows), decode(opText, &ops), decode(attributes, &m.Attributes), decode(own, &m.Own)); err != nil {
			return nil, fmt.Errorf("decode member %s of %s: %w", m.User, r.Conversation, err)
		}
		for _, w := range windows {
			m.Memberships = append(m.Memberships, watermark.Membership{
				Number: int32(w[0]), Lower: watermark.Seq(w[1]), Upper: watermark.Seq(w[2]),
			})
		}
		for _, op := range ops {
			m.Ops = append(m.Ops, watermark.AppliedOp(op))
		}
		out = append(out, r)
	}
	return out, rows.Err()
}
