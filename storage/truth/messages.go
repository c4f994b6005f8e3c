package truth

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Messages gives the messages of conv within in that exist, ascending, at most
// limit and never more than watermark.MaxPage. A limit that is not positive
// gives none. Revoked messages come as tombstones.
func (t *Truth) Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) (rows []watermark.Message, err error) {
	defer t.metrics.observe("messages", time.Now(), &err)
	in = in.Intersect(watermark.Interval{First: 1, Last: watermark.MaxSeq})
	limit = min(limit, watermark.MaxPage)
	if in.Empty() || limit <= 0 {
		return nil, nil
	}
	pin, err := t.cfg.Pin(ctx, []watermark.ConversationID{conv})
	if err != nil {
		return nil, fmt.Errorf("pin the tail: %w", err)
	}
	defer pin.Release()
	stored, err := t.cfg.History.Messages(ctx, conv, in, limit)
	if err != nil {
		return nil, fmt.Errorf("read history of %s: %w", conv, err)
	}
	// The tail is read even where history left nothing missing: it may hold a
	// revoke of what history gave.
	fresh, err := pin.Messages(ctx, conv, in, limit)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}
	rows = union(stored, fresh)
	rows = rows[:min(len(rows), limit)]
	revoke(rows, pin.Revokes(conv))
	return rows, nil
}

// union merges two ascending lists. At one seq the row of history stands: it
// has the first message that the log holds for the seq, and the tail may begin
// behind it. Cutting both lists at the same limit before does no harm: what is
// among the lowest of the union is among the lowest of its own list.
func union(stored, fresh []watermark.Message) []watermark.Message {
	if len(fresh) == 0 {
		return stored
	}
	out := make([]watermark.Message, 0, max(len(stored), len(fresh)))
	for len(stored) > 0 && len(fresh) > 0 {
		switch {
		case stored[0].Seq < fresh[0].Seq:
			out, stored = append(out, stored[0]), stored[1:]
		case stored[0].Seq > fresh[0].Seq:
			out, fresh = append(out, fresh[0]), fresh[1:]
		default:
			out, stored, fresh = append(out, stored[0]), stored[1:], fresh[1:]
		}
	}
	return append(append(out, stored...), fresh...)
}

// revoke turns revoked rows into tombstones. The first revoke of a message
// stands, as in history.
func revoke(rows []watermark.Message, revokes []watermark.Revoked) {
	for _, r := range revokes {
		i, ok := slices.BinarySearchFunc(rows, r.Seq, func(m watermark.Message, s watermark.Seq) int {
			return int(min(1, max(-1, m.Seq-s)))
		})
		if ok && rows[i].Revoked == nil {
			rows[i] = rows[i].Tombstone(r)
		}
	}
}
