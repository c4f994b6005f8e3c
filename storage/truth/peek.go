package truth

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Peek answers peeks, in order, with one set of history queries per chunk and
// one look at the tail. Revoked messages come as tombstones and mention nobody.
// The content of the messages must not be changed.
func (t *Truth) Peek(ctx context.Context, peeks []watermark.Peek) (out []watermark.Peeked, err error) {
	defer t.metrics.observe("peek", time.Now(), &err)
	if len(peeks) == 0 {
		return nil, nil
	}
	convs := make([]watermark.ConversationID, len(peeks))
	for i, p := range peeks {
		convs[i] = p.Conversation
	}
	pin, err := t.cfg.Pin(ctx, convs)
	if err != nil {
		return nil, fmt.Errorf("pin the tail: %w", err)
	}
	defer pin.Release()
	for chunk := range slices.Chunk(peeks, t.cfg.Chunk) {
		part, err := t.cfg.History.Peek(ctx, chunk)
		if err != nil {
			return nil, fmt.Errorf("read history of %d conversations: %w", len(chunk), err)
		}
		if len(part) != len(chunk) {
			return nil, fmt.Errorf("history gave %d answers for %d conversations", len(part), len(chunk))
		}
		out = append(out, part...)
	}
	tail, err := pin.Peek(ctx, peeks)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}
	if len(tail) != len(peeks) {
		return nil, fmt.Errorf("the tail gave %d answers for %d conversations", len(tail), len(peeks))
	}
	for i := range out {
		add(&peeks[i], &out[i], &tail[i])
	}
	return out, nil
}

// add merges what the tail has into what history has. At one seq the row of
// history stands, as in union.
func add(a *watermark.Peek, p *watermark.Peeked, tail *watermark.TailPeek) {
	if p.Last == nil {
		p.Last = tail.Last
	}
	if p.Last != nil && p.Last.Revoked == nil {
		if r, ok := tail.Revokes[p.Last.Seq]; ok {
			m := p.Last.Tombstone(r)
			p.Last = &m
		}
	}
	seqs := append(p.Mentions, tail.Mentions...)
	seqs = slices.DeleteFunc(seqs, func(s watermark.Seq) bool {
		_, gone := tail.Revokes[s]
		return gone
	})
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	p.Mentions = seqs[:min(len(seqs), watermark.MaxMentions)]
	for seq, r := range tail.Revokes {
		if a.RevokedFrom > 0 && r.At >= a.RevokedFrom {
			p.Revoked = append(p.Revoked, seq)
		}
	}
	slices.Sort(p.Revoked)
	p.Revoked = slices.Compact(p.Revoked)
	p.Revoked = p.Revoked[:min(len(p.Revoked), watermark.MaxRevoked)]
}
