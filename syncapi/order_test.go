package syncapi_test

import (
	"context"

	"github.com/tidemark-im/tidemark/watermark"
)

// Order never says that nothing was appended: tests change times without a
// record.
func (f fakeTruth) Order(ctx context.Context, u userID, _ watermark.ListOrder) (out watermark.ListOrder, err error) {
	list, err := f.List(ctx, u)
	out.Log, out.Ends = list.Log, list.Ends
	for _, l := range list.Entries {
		out.Entries = append(out.Entries, watermark.Activity{Conversation: l.Conversation.ID, LastTime: l.Conversation.LastTime})
	}
	return out, err
}
