package audit

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// Conversations implements Redis.
func (s Server) Conversations(ctx context.Context) iter.Seq2[[]watermark.ConversationID, error] {
	return s.Runner.Conversations(ctx, s.Space)
}

// unknown looks at the conversations that Redis holds and history has nothing of.
func (a *Auditor) unknown(ctx context.Context) error {
	if a.cfg.Redis == nil {
		return nil
	}
	for page, err := range a.cfg.Redis.Conversations(ctx) {
		if err != nil {
			return fmt.Errorf("conversations of redis: %w", err)
		}
		slices.Sort(page)
		for part := range slices.Chunk(slices.Compact(page), batchConversations) {
			convs, err := a.conversations(ctx, part)
			if err != nil {
				return err
			}
			var ids []watermark.ConversationID
			for i := range convs {
				if !convs[i].Exists() {
					ids = append(ids, part[i])
				}
			}
			if len(ids) == 0 {
				continue
			}
			if err := a.lookAt(ctx, ids); err != nil {
				return err
			}
		}
	}
	return nil
}
