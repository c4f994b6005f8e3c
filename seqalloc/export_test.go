package seqalloc

import "github.com/tidemark-im/tidemark/watermark"

// DecodeReply is open to the fuzz test.
func DecodeReply(b *watermark.Batch, value any) (watermark.Allocation, error) {
	return decodeReply(b, value, make([]watermark.Outcome, len(b.Inputs)))
}
