package audit

import (
	"context"
	"fmt"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// rows looks at every row of a conversation, page by page, and at what the hot
// log has of the same seqs.
// It gives the highest row above the maximum, 0 when there is none.
func (a *Auditor) rows(ctx context.Context, conv watermark.Conversation, head Head) (watermark.Seq, error) {
	w := &walk{a: a, conv: conv, head: head, next: lowest(conv.Min), ids: map[watermark.SentKey]watermark.Seq{}}
	if conv.Min > 1 {
		below, err := a.cfg.History.Messages(ctx, conv.ID, watermark.Interval{First: 1, Last: conv.Min - 1}, 1)
		if err != nil {
			return 0, err
		}
		for _, m := range below {
			if err := w.suspect(ctx, suspicion{what: retention, seq: m.Seq}); err != nil {
				return 0, err
			}
		}
	}
	for {
		// What is above the maximum is looked at as well, but not to its end: it
		// may grow faster than it is read.
		page, err := a.cfg.History.Messages(ctx, conv.ID, watermark.Interval{First: w.next, Last: watermark.MaxSeq}, pageRows)
		if err != nil {
			return 0, err
		}
		if err := w.page(ctx, page); err != nil {
			return 0, err
		}
		if err := a.advance(ctx, len(page), func(r *Report) { r.Messages += len(page) }); err != nil {
			return 0, err
		}
		a.metrics.rows.Add(float64(len(page)))
		if len(page) < pageRows || w.next > conv.Max+1 {
			break
		}
	}
	if w.next <= conv.Max {
		if err := w.gap(ctx, watermark.Interval{First: w.next, Last: conv.Max}); err != nil {
			return 0, err
		}
	}
	if w.above == 0 {
		return 0, nil
	}
	return w.above, w.suspect(ctx, suspicion{what: above, seq: w.above})
}

// walk is where rows stands in a conversation.
type walk struct {
	a    *Auditor
	conv watermark.Conversation
	head Head
	next watermark.Seq
	// ids has the client message ids of the last DedupeHorizon seqs, recent
	// them in order.
	ids    map[watermark.SentKey]watermark.Seq
	recent []watermark.SentKey
	above  watermark.Seq // the highest row above the maximum
}

func (w *walk) suspect(ctx context.Context, s suspicion) error {
	s.conv = w.conv.ID
	return w.a.suspect(ctx, s)
}

func (w *walk) page(ctx context.Context, page []watermark.Message) error {
	for i := range page {
		m := &page[i]
		if last := min(m.Seq-1, w.conv.Max); w.next <= last {
			if err := w.gap(ctx, watermark.Interval{First: w.next, Last: last}); err != nil {
				return err
			}
		}
		w.next = m.Seq + 1
		if m.Seq > w.conv.Max {
			w.above = m.Seq
		}
		if why := damage(m); why != "" {
			if err := w.suspect(ctx, suspicion{what: damaged, seq: m.Seq}); err != nil {
				return err
			}
		}
		if err := w.identity(ctx, m); err != nil {
			return err
		}
	}
	return w.compareHot(ctx, page)
}

// gap is a stretch of seqs without rows.
func (w *walk) gap(ctx context.Context, in watermark.Interval) error {
	return w.suspect(ctx, suspicion{what: gap, seq: in.First, last: in.Last, top: in.Last == w.conv.Max})
}

// damage tells what is wrong with a message by itself, "" for nothing.
func damage(m *watermark.Message) string {
	if m.Revoked != nil {
		if len(m.Body)+len(m.Mentions)+len(m.Attributes) > 0 {
			return "it was revoked, but its content is still there"
		}
		return ""
	}
	if got := m.SumHash(); got != m.Hash {
		return fmt.Sprintf("its content has hash %x, it was taken in with %x", got, m.Hash)
	}
	return ""
}

// identity looks for the same client message id among the seqs before.
func (w *walk) identity(ctx context.Context, m *watermark.Message) error {
	key := watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}
	before, ok := w.ids[key]
	w.ids[key] = m.Seq
	w.recent = append(w.recent, key)
	for len(w.recent) > watermark.DedupeHorizon {
		// The same id may have come again since.
		if old := w.recent[0]; w.ids[old] <= m.Seq-watermark.DedupeHorizon {
			delete(w.ids, old)
		}
		w.recent = w.recent[1:]
	}
	if !ok || m.Seq-before > watermark.DedupeHorizon {
		return nil
	}
	return w.suspect(ctx, suspicion{what: twice, seq: before, last: m.Seq})
}

// compareHot compares a page of rows with the hot log.
func (w *walk) compareHot(ctx context.Context, page []watermark.Message) error {
	if !w.head.Warm || w.head.First == 0 || len(page) == 0 || page[len(page)-1].Seq < w.head.First {
		return nil
	}
	in := watermark.Interval{First: max(page[0].Seq, w.head.First), Last: page[len(page)-1].Seq}
	for !in.Empty() {
		entries, warm, err := w.a.cfg.Redis.Entries(ctx, w.conv.ID, in)
		if err != nil || !warm || len(entries) == 0 {
			return err
		}
		for i := range entries {
			if why := compareEntry(page, &entries[i]); why != "" {
				if err := w.suspect(ctx, suspicion{what: hotRow, seq: entries[i].Seq, field: why}); err != nil {
					return err
				}
			}
		}
		in.First = entries[len(entries)-1].Seq + 1
	}
	return nil
}

// The ways in which an entry and a row can differ: each is looked at again by
// itself, since a revoke reaches one store before the other.
const (
	fieldContent = "content"
	fieldRevoked = "revoked in redis only"
	fieldStands  = "revoked in history only"
)

// compareEntry tells how an entry differs from its row, "" where it does not or
// where there is no row.
func compareEntry(page []watermark.Message, e *Entry) string {
	i, ok := slices.BinarySearchFunc(page, e.Seq, func(m watermark.Message, s watermark.Seq) int { return int(m.Seq - s) })
	if !ok {
		return ""
	}
	row := &page[i]
	switch {
	case e.Revoked && row.Revoked == nil:
		return fieldRevoked
	case e.Revoked:
		return ""
	case e.Damaged != nil || !row.SameAs(&e.Message) || damage(&e.Message) != "":
		return fieldContent
	case row.Revoked != nil:
		return fieldStands
	}
	return ""
}
