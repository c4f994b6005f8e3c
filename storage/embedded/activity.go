package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// ActivityOf gives the conversations above after in which user has a member row,
// by id, at most limit, each with the time of its latest message; 0 where the
// conversation was never written.
func (s *Store) ActivityOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) (out []watermark.Activity, err error) {
	defer s.metrics.done("activity", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	rows, err := s.query(ctx, qActivity, user, after, limit)
	if err != nil {
		return nil, err
	}
	for err == nil && rows.Next() {
		var a watermark.Activity
		err = rows.Scan(&a.Conversation, &a.LastTime)
		out = append(out, a)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", qActivity, err)
	}
	return out, nil
}
