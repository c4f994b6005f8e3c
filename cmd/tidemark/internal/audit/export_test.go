package audit

import (
	"context"

	"github.com/tidemark-im/tidemark/watermark"
)

// The bounds that tests hold the audit to.
const (
	PageRows           = pageRows
	PageMembers        = pageMembers
	BatchConversations = batchConversations
	MaxSuspicions      = maxSuspicions
	MaxListed          = maxListed
	Workers            = workers
)

// Held gives how many suspicions wait.
func (a *Auditor) Held() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.queue)
}

// Remembered gives the most client message ids that a walk over messages
// remembers, and how many ids came twice.
func (a *Auditor) Remembered(ctx context.Context, messages func(func(*watermark.Message) bool)) (most, twice int, err error) {
	w := &walk{a: a, ids: map[watermark.SentKey]watermark.Seq{}}
	for m := range messages {
		if err := w.identity(ctx, m); err != nil {
			return 0, 0, err
		}
		most = max(most, len(w.ids), len(w.recent))
	}
	return most, a.Held(), nil
}

// Somewhere is where a first pass begins.
var Somewhere = somewhere
