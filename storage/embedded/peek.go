package embedded

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Peek answers peeks, in order: the row at Peek.Last, the seqs within
// Peek.Mentions at which Peek.User is mentioned, at most the lowest MaxMentions
// of each interval, and what was revoked from Peek.RevokedFrom on, at most the
// first MaxRevoked. It takes three statements for each 500 peeks.
func (s *Store) Peek(ctx context.Context, peeks []watermark.Peek) (out []watermark.Peeked, err error) {
	defer s.metrics.done("peek", time.Now(), &err)
	out = make([]watermark.Peeked, len(peeks))
	// Lists are cut into pieces, so what a row answers is told by its place.
	for from := 0; from < len(peeks); from += chunk {
		part := peeks[from:min(from+chunk, len(peeks))]
		if err := s.peek(ctx, part, out[from:]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *Store) peek(ctx context.Context, peeks []watermark.Peek, out []watermark.Peeked) error {
	var rows, spans, revokes [][]any
	var rowOf, spanOf, revokesOf []int // which of peeks
	for i, p := range peeks {
		if p.Last > 0 {
			rows = append(rows, []any{p.Conversation, p.Last})
			rowOf = append(rowOf, i)
		}
		for _, in := range p.Mentions {
			spans = append(spans, []any{p.Conversation, p.User, in.First, in.Last})
			spanOf = append(spanOf, i)
		}
		if p.RevokedFrom > 0 {
			revokes = append(revokes, []any{p.Conversation, p.RevokedFrom})
			revokesOf = append(revokesOf, i)
		}
	}
	err := over(ctx, s, qRows, rows, func(r *sql.Rows) error {
		var key int
		m, err := scanMessage(r, &key)
		if err == nil {
			out[rowOf[key]].Last = &m
		}
		return err
	})
	if err != nil {
		return err
	}
	for at := 0; at < len(spans); at += chunk {
		err := s.lists(ctx, qMentions, spans[at:min(at+chunk, len(spans))], watermark.MaxMentions, func(key int, seqs []watermark.Seq) {
			p := &out[spanOf[at+key]]
			p.Mentions = append(p.Mentions, seqs...)
		})
		if err != nil {
			return err
		}
	}
	return s.lists(ctx, qRevoked, revokes, watermark.MaxRevoked, func(key int, seqs []watermark.Seq) {
		slices.Sort(seqs)
		out[revokesOf[key]].Revoked = seqs
	})
}

// lists reads a list of seqs for each of asks; limit bounds each of them.
func (s *Store) lists(ctx context.Context, q query, asks [][]any, limit int, each func(key int, seqs []watermark.Seq)) error {
	return over(ctx, s, q, asks, func(r *sql.Rows) error {
		var key int
		var text sql.NullString
		if err := r.Scan(&key, &text); err != nil {
			return err
		}
		var seqs []watermark.Seq
		if err := decode(text, &seqs); err != nil {
			return err
		}
		if len(seqs) > 0 {
			each(key, seqs)
		}
		return nil
	}, limit)
}
