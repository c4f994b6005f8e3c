package toredis_test

import (
	"context"

	"github.com/tidemark-im/tidemark/watermark"
)

// What the scripts do is seqtest's; the world decides how far a call gets.

func (w *world) Begin(ctx context.Context, ids []watermark.ConversationID) (out []string, err error) {
	err = w.step("begin", len(ids), func(n int) { out, _ = w.redis.Begin(ctx, ids[:n]) })
	return out, err
}

func (w *world) Install(ctx context.Context, loaded []watermark.Loaded) (out []bool, err error) {
	err = w.step("install", len(loaded), func(n int) { out, _ = w.redis.Install(ctx, loaded[:n]) })
	return out, err
}

func (w *world) Settle(ctx context.Context, p watermark.Place) (number int64, err error) {
	err = w.step("settle", 1, func(n int) {
		if n > 0 {
			number, _ = w.redis.Settle(ctx, p)
		}
	})
	return number, err
}

func (w *world) MergeMembers(ctx context.Context, loads []watermark.MemberLoad) (out []bool, err error) {
	err = w.step("members", len(loads), func(n int) { out, _ = w.redis.MergeMembers(ctx, loads[:n]) })
	return out, err
}

func (w *world) Malloc(ctx context.Context, batches []watermark.Batch) (out []watermark.Allocation, err error) {
	err = w.step("malloc", len(batches), func(n int) {
		w.mallocs = append(w.mallocs, batches[:n]...)
		out, _ = w.redis.Malloc(ctx, batches[:n])
	})
	return out, err
}

// isWarm tells whether Redis may be believed about a conversation.
func (w *world) isWarm(conv watermark.ConversationID) bool {
	v, err := w.redis.Views(context.Background(), []watermark.Ask{{Conversation: conv}})
	return err == nil && v[0].Temperature != watermark.Cold
}
