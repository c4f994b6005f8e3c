package embedded

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// chunk is how many list entries one statement is about.
const chunk = 500

// query runs a prepared read.
func (s *Store) query(ctx context.Context, q query, args ...any) (*sql.Rows, error) {
	s.metrics.queries.WithLabelValues(string(q)).Inc()
	rows, err := s.stmts[q].QueryContext(ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", q, err)
	}
	return rows, nil
}

// over runs q for list, chunk by chunk, and each for every row.
func over[T any](ctx context.Context, s *Store, q query, list []T, each func(*sql.Rows) error, more ...any) error {
	for part := range slices.Chunk(list, chunk) {
		text, err := json.Marshal(part)
		if err != nil {
			return err
		}
		rows, err := s.query(ctx, q, append([]any{string(text)}, more...)...)
		if err != nil {
			return err
		}
		for err == nil && rows.Next() {
			err = each(rows)
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return fmt.Errorf("read %s: %w", q, err)
		}
	}
	return nil
}

// Conversations gives what stands of each conversation, in the order of ids; an
// unknown one has its ID and nothing else.
func (s *Store) Conversations(ctx context.Context, ids []watermark.ConversationID) (out []watermark.Conversation, err error) {
	defer s.metrics.done("conversations", time.Now(), &err)
	found, err := s.conversations(ctx, ids)
	if err != nil {
		return nil, err
	}
	out = make([]watermark.Conversation, len(ids))
	for i, id := range ids {
		out[i].ID = id
		out[i].Merge(found[id])
	}
	return out, nil
}

// ConversationsAfter gives the ids above after of the conversations that stand,
// or that have a row of a message, in byte order, at most limit. Whoever pages
// ends at an empty answer.
func (s *Store) ConversationsAfter(ctx context.Context, after watermark.ConversationID, limit int) (out []watermark.ConversationID, err error) {
	defer s.metrics.done("conversations_after", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	rows, err := s.query(ctx, qConvsAfter, after, limit)
	if err != nil {
		return nil, err
	}
	for err == nil && rows.Next() {
		var id watermark.ConversationID
		err = rows.Scan(&id)
		out = append(out, id)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", qConvsAfter, err)
	}
	return out, nil
}

// conversations gives those that exist.
func (s *Store) conversations(ctx context.Context, ids []watermark.ConversationID) (map[watermark.ConversationID]watermark.Conversation, error) {
	ids = distinct(ids)
	found := make(map[watermark.ConversationID]watermark.Conversation, len(ids))
	err := over(ctx, s, qConvs, ids, func(rows *sql.Rows) error {
		var c watermark.Conversation
		err := scanConversation(rows, &c)
		found[c.ID] = c
		return err
	})
	if err != nil {
		return nil, err
	}
	inputs, err := s.inputs(ctx, ids)
	for id, in := range inputs {
		c := found[id]
		c.Merge(in)
		found[id] = c
	}
	return found, err
}

// inputs gives conversations of which nothing is set but their inputs.
func (s *Store) inputs(ctx context.Context, ids []watermark.ConversationID) (map[watermark.ConversationID]watermark.Conversation, error) {
	found := make(map[watermark.ConversationID]watermark.Conversation, len(ids))
	err := over(ctx, s, qInputs, ids, func(rows *sql.Rows) error {
		var id watermark.ConversationID
		var p watermark.Partition
		var offset int64
		if err := rows.Scan(&id, &p.TopicID, &p.Number, &offset); err != nil {
			return err
		}
		c := found[id]
		c.Merge(watermark.Conversation{Inputs: map[watermark.Partition]int64{p: offset}})
		found[id] = c
		return nil
	})
	return found, err
}

func scanConversation(rows *sql.Rows, c *watermark.Conversation) error {
	var override int64
	err := rows.Scan(&c.ID, &c.Min, &c.Max, &c.Policy, &c.Repair.Number, &c.Repair.From, &c.LastTime, &c.ChangedAt, &override)
	c.Override = watermark.PolicyFromCode(override)
	return err
}

// Positions gives how far history has each partition of each topic that it
// knows, in order.
func (s *Store) Positions(ctx context.Context) (out []watermark.Position, err error) {
	defer s.metrics.done("positions", time.Now(), &err)
	rows, err := s.query(ctx, qPositions)
	if err != nil {
		return nil, err
	}
	for err == nil && rows.Next() {
		var p watermark.Position
		err = rows.Scan(&p.Topic, &p.TopicID, &p.Number, &p.Next)
		out = append(out, p)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("read positions: %w", err)
	}
	return out, nil
}

func distinct[T comparable](list []T) []T {
	seen := make(map[T]bool, len(list))
	out := make([]T, 0, len(list))
	for _, v := range list {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}

// Messages gives the rows of conv within in, ascending, at most limit. Rows
// that retention has taken are not there.
func (s *Store) Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) (out []watermark.Message, err error) {
	defer s.metrics.done("messages", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if in.Empty() || limit <= 0 {
		return nil, nil
	}
	rows, err := s.query(ctx, qMessages, conv, in.First, in.Last, limit)
	if err != nil {
		return nil, err
	}
	return scanMessages(rows)
}

// Members gives those of users that exist, in no particular order.
func (s *Store) Members(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) (out []watermark.Member, err error) {
	defer s.metrics.done("members", time.Now(), &err)
	keys := make([]memberKey, len(users))
	for i, u := range users {
		keys[i] = memberKey{conv, u}
	}
	rows, err := s.named(ctx, keys)
	return justMembers(rows), err
}

// Roster gives conv's members by user id, those above after, at most limit.
func (s *Store) Roster(ctx context.Context, conv watermark.ConversationID, after watermark.UserID, limit int) (out []watermark.Member, err error) {
	defer s.metrics.done("roster", time.Now(), &err)
	rows, err := s.page(ctx, qRoster, limit, conv, after)
	return justMembers(rows), err
}

// MembershipsOf gives user's member rows by conversation id, those above after,
// at most limit.
func (s *Store) MembershipsOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) (out []watermark.MemberRow, err error) {
	defer s.metrics.done("memberships", time.Now(), &err)
	return s.page(ctx, qMemberships, limit, user, after)
}

func justMembers(rows []watermark.MemberRow) []watermark.Member {
	var out []watermark.Member
	for _, r := range rows {
		out = append(out, r.Member)
	}
	return out
}

// page reads one page of member rows.
func (s *Store) page(ctx context.Context, q query, limit int, args ...any) ([]watermark.MemberRow, error) {
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	rows, err := s.query(ctx, q, append(args, limit)...)
	if err != nil {
		return nil, err
	}
	found, err := scanMembers(rows)
	return bare(found), err
}

// named reads the member rows of keys.
func (s *Store) named(ctx context.Context, keys []memberKey) ([]watermark.MemberRow, error) {
	var found []watermark.MemberRow
	for part := range slices.Chunk(distinct(keys), chunk) {
		pairs := make([][2]string, len(part))
		for i, k := range part {
			pairs[i] = [2]string{string(k.conv), string(k.user)}
		}
		some, err := s.scanned(ctx, qNamed, pairs)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// scanned reads the member rows that q gives for list.
func (s *Store) scanned(ctx context.Context, q query, list any) ([]watermark.MemberRow, error) {
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	rows, err := s.query(ctx, q, string(text))
	if err != nil {
		return nil, err
	}
	found, err := scanMembers(rows)
	return bare(found), err
}

func bare(rows []memberRow) []watermark.MemberRow {
	out := make([]watermark.MemberRow, len(rows))
	for i := range rows {
		out[i] = rows[i].MemberRow
	}
	return out
}

// Sent gives the client message ids that stand above a seq; of an id that
// stands twice, the higher one. Rows that retention has taken count as long as
// the dedupe horizon needs them.
func (s *Store) Sent(ctx context.Context, conv watermark.ConversationID, above watermark.Seq) (out map[watermark.SentKey]watermark.Sent, err error) {
	defer s.metrics.done("sent", time.Now(), &err)
	out = make(map[watermark.SentKey]watermark.Sent)
	err = s.sent(ctx, []sentAbove{{conv, above}}, func(_ watermark.ConversationID, k watermark.SentKey, v watermark.Sent) {
		if v.Seq > out[k].Seq {
			out[k] = v
		}
	})
	return out, err
}

type sentAbove struct {
	conv  watermark.ConversationID
	above watermark.Seq
}

// MarshalJSON gives the pair that qSent takes.
func (a sentAbove) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{a.conv, int64(a.above)})
}

func (s *Store) sent(ctx context.Context, list []sentAbove, each func(watermark.ConversationID, watermark.SentKey, watermark.Sent)) error {
	return over(ctx, s, qSent, list, func(rows *sql.Rows) error {
		var conv watermark.ConversationID
		var k watermark.SentKey
		var v watermark.Sent
		var hash []byte
		if err := rows.Scan(&conv, &v.Seq, &k.Sender, &k.ClientID, &hash); err != nil {
			return err
		}
		copy(v.Hash[:], hash)
		each(conv, k, v)
		return nil
	})
}
