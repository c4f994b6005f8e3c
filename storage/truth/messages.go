package truth

import (
	"context"
	"fmt"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// Messages gives the messages of conv within in that exist, ascending, the
// lowest ones where there are more than watermark.MaxPage. Revoked messages come
// as tombstones. The content of the messages must not be changed.
func (t *Truth) Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval) (rows []watermark.Message, err error) {
	defer t.metrics.observe("messages", time.Now(), &err)
	const limit = watermark.MaxPage
	in = in.Intersect(watermark.Interval{First: 1, Last: watermark.MaxSeq})
	if in.Empty() {
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
	fresh, err := pin.Messages(ctx, conv, in, limit)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}
	rows = union(stored, fresh)
	rows = rows[:min(len(rows), limit)]
	// Last, so that the revokes are at least as new as every row.
	revokes, err := pin.Revokes(ctx, conv, in)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}
	for i := range rows {
		// The first revoke of a message stands, as in history.
		if r, ok := revokes[rows[i].Seq]; ok && rows[i].Revoked == nil {
			rows[i] = rows[i].Tombstone(r)
		}
	}
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
