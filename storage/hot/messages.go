package hot

import (
	"context"
	"fmt"
	"slices"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultSpanBytes bounds the messages of one span where nobody says: as much
// as a page may hold.
const DefaultSpanBytes = 2 << 20

// Span asks for the messages of a range of seqs, any int64 each.
type Span = watermark.Span

var messageParts = []keyspace.Part{keyspace.Meta, keyspace.Log, keyspace.Revoked}

// Messages gives, for each span, what Redis has of it, ascending: nothing where
// the conversation may not be believed. Revoked messages are tombstones.
//
// A span is first cut to the conversation's bounds and then, at the edge that
// is not kept, to watermark.MaxPage seqs. What is missing inside that is not
// there, or not there any more: ask history and the tail for it.
func (h *Hot) Messages(ctx context.Context, spans []Span) (messages [][]watermark.Message, err error) {
	defer h.observe("messages", &err)()
	calls := make([]keyspace.Call, len(spans))
	for i, s := range spans {
		calls[i] = h.call(messagesScript, s.Conversation, messageParts, spanArgs(s)...)
	}
	messages = make([][]watermark.Message, len(spans))
	total := 0
	for i, res := range h.runner.Run(ctx, calls) {
		if res.Err == nil {
			messages[i], res.Err = h.decodeMessages(res.Value)
		}
		if res.Err != nil {
			return nil, failed("messages", spans[i].Conversation, res.Err)
		}
		if spans[i].Keep == watermark.NearEnd {
			slices.Reverse(messages[i])
		}
		total += len(messages[i])
	}
	h.metrics.messages.Add(float64(total))
	return messages, nil
}

func spanArgs(s Span) []any {
	edge := "end"
	if s.Keep == watermark.NearBegin {
		edge = "begin"
	}
	bytes := s.Bytes
	if bytes <= 0 {
		bytes = DefaultSpanBytes
	}
	// Beyond MaxSeq a double is not exact, and there is nothing.
	first := min(max(s.First, 0), watermark.MaxSeq)
	last := min(max(s.Last, 0), watermark.MaxSeq)
	return []any{int64(first), int64(last), edge, watermark.MaxPage, bytes}
}

// decodeMessages reads the reply of messages.lua, in its order.
func (h *Hot) decodeMessages(value any) ([]watermark.Message, error) {
	r := newReply(value)
	switch status := r.text(); {
	case r.err != nil:
		return nil, r.err
	case status == "cold":
		return nil, nil
	case status != "warm":
		return nil, fmt.Errorf("%w: status %.20q", errReply, status)
	}
	out := make([]watermark.Message, 0, (len(r.items)-1)/4)
	for r.more() {
		seq, kind, a, b := r.seq(), r.text(), r.text(), r.text()
		if r.err != nil {
			break
		}
		m, err := h.decodeEntry(seq, kind, a, b)
		if err != nil {
			// The truth is elsewhere: an entry that cannot be read is one that
			// is not here.
			h.metrics.undecodable.Inc()
			continue
		}
		out = append(out, m)
	}
	return out, r.err
}

func (h *Hot) decodeEntry(seq watermark.Seq, kind, a, b string) (watermark.Message, error) {
	if kind == "m" {
		m, err := h.decode(seq, []byte(a), []byte(b))
		m.Seq = seq
		return m, err
	}
	t, err := keyspace.ParseTombstone(a)
	if err != nil {
		return watermark.Message{}, err
	}
	m, err := h.decode(seq, t.Header, nil)
	m.Seq = seq
	return m.Tombstone(watermark.Revoked{Seq: seq, By: t.By, Time: t.Time}), err
}
