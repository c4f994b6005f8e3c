package simulation

import (
	"context"

	"github.com/tidemark-im/tidemark/watermark"
)

func (s store) ActivityOf(ctx context.Context, u watermark.UserID, after watermark.ConversationID, limit int) (out []watermark.Activity, err error) {
	err = s.call("activity", 1, func(int) { out, _ = s.w.history.ActivityOf(ctx, u, after, limit) })
	return out, err
}
