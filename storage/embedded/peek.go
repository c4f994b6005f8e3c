package embedded

import (
	"context"
	"database/sql"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Peek answers peeks, in order: the row at Peek.Last and the seqs within
// Peek.Mentions at which Peek.User is mentioned, at most the lowest MaxMentions
// of each interval. It takes two statements for each 500 peeks.
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
	var rows, spans [][]any
	var rowOf, spanOf []int // which of peeks
	for i, p := range peeks {
		if p.Last > 0 {
			rows = append(rows, []any{p.Conversation, p.Last})
			rowOf = append(rowOf, i)
		}
		for _, in := range p.Mentions {
			spans = append(spans, []any{p.Conversation, p.User, in.First, in.Last})
			spanOf = append(spanOf, i)
		}
	}
	at := 0
	err := over(ctx, s, qRows, rows, func(r *sql.Rows) error {
		var key int
		m, err := scanMessage(r, &key)
		if err == nil {
			out[rowOf[at+key]].Last = &m
		}
		return err
	})
	if err != nil {
		return err
	}
	for ; at < len(spans); at += chunk {
		err := over(ctx, s, qMentions, spans[at:min(at+chunk, len(spans))], func(r *sql.Rows) error {
			var key int
			var text sql.NullString
			if err := r.Scan(&key, &text); err != nil {
				return err
			}
			var seqs []watermark.Seq
			if err := decode(text, &seqs); err != nil {
				return err
			}
			p := &out[spanOf[at+key]]
			p.Mentions = append(p.Mentions, seqs...)
			return nil
		}, watermark.MaxMentions)
		if err != nil {
			return err
		}
	}
	return nil
}
