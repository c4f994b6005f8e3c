package embedded

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// afterIDs sorts after every id that there can be, in byte order.
const afterIDs = "\x7f"

// ScanConversations gives the conversations above after, by id, at most limit.
func (s *Store) ScanConversations(ctx context.Context, after watermark.ConversationID, limit int) (out []watermark.Conversation, err error) {
	defer s.metrics.done("scan", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	rows, err := s.query(ctx, qScanConvs, after, limit)
	if err != nil {
		return nil, err
	}
	var ids []watermark.ConversationID
	for rows.Next() {
		var c watermark.Conversation
		if err := scanConversation(rows, &c); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		ids, out = append(ids, c.ID), append(out, c)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	inputs, err := s.inputs(ctx, ids)
	for i := range out {
		out[i].Merge(inputs[out[i].ID])
	}
	return out, err
}

// ScanRows gives what stands of all conversations, by conversation and seq.
func (s *Store) ScanRows(ctx context.Context, scan watermark.RowScan) (out []watermark.StoredRow, err error) {
	defer s.metrics.done("scan", time.Now(), &err)
	limit, bytes := min(scan.Limit, watermark.MaxPage), scan.Bytes
	if limit <= 0 {
		return nil, nil
	}
	if bytes <= 0 {
		bytes = watermark.DefaultScanBytes
	}
	rows, err := s.query(ctx, qScanRows, scan.After.Conversation, scan.After.Seq, cmp.Or(scan.Last, afterIDs), limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for bytes > 0 && rows.Next() {
		var r watermark.StoredRow
		if r.Message, err = scanMessage(rows, &r.Conversation, &r.Gone); err != nil {
			return nil, err
		}
		out, bytes = append(out, r), bytes-len(r.Message.Body)
	}
	return out, rows.Err()
}

// ScanMembers gives the member rows above after, by user and conversation, at
// most limit.
func (s *Store) ScanMembers(ctx context.Context, after watermark.MemberKey, limit int) (out []watermark.MemberRow, err error) {
	defer s.metrics.done("scan", time.Now(), &err)
	return s.page(ctx, qScanMembers, limit, after.User, after.Conversation)
}

// Sizes gives about how much there is. Messages are taken to be as many as the
// bounds of the conversations say.
func (s *Store) Sizes(ctx context.Context) (n watermark.Sizes, err error) {
	defer s.metrics.done("sizes", time.Now(), &err)
	s.metrics.queries.WithLabelValues(string(qCount)).Inc()
	err = s.stmts[qCount].QueryRowContext(ctx).Scan(&n.Conversations, &n.Rows, &n.Members)
	return n, err
}
