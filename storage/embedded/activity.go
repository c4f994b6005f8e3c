package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
		var text string
		if err = rows.Scan(&text); err == nil {
			out, err = activity(text)
		}
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", qActivity, err)
	}
	return out, nil
}

// activity reads what qActivity gives: "<conversation> <time>,...", which no id
// can be mistaken for. SQLite does not promise in which order it puts them.
func activity(text string) ([]watermark.Activity, error) {
	if text == "" {
		return nil, nil
	}
	out := make([]watermark.Activity, 0, strings.Count(text, ",")+1)
	for entry := range strings.SplitSeq(text, ",") {
		id, at, _ := strings.Cut(entry, " ")
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("entry %.100q: %w", entry, err)
		}
		out = append(out, watermark.Activity{Conversation: watermark.ConversationID(id), LastTime: n})
	}
	slices.SortFunc(out, func(a, b watermark.Activity) int { return cmp.Compare(a.Conversation, b.Conversation) })
	return out, nil
}
