package hot

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// Mark is how far a conversation has been handed to the gateways.
type Mark = watermark.PushMark

// Pushed gives the push marks of conversations, the zero mark where there is
// none: never raised, or expired, or lost with Redis. A mark is a filter for
// replays, not a truth: what is above it was perhaps pushed all the same.
func (h *Hot) Pushed(ctx context.Context, convs []watermark.ConversationID) (marks []Mark, err error) {
	defer h.observe("pushed", &err)()
	cmds := make([]*redis.SliceCmd, len(convs))
	h.plain(ctx, len(convs), func(p redis.Pipeliner, i int) {
		cmds[i] = p.HMGet(ctx, h.space.PushedKey(convs[i]), "seq", "offset")
	})
	marks = make([]Mark, len(convs))
	for i, cmd := range cmds {
		if cmd.Err() != nil {
			return nil, failed("push mark", convs[i], cmd.Err())
		}
		r := &reply{items: cmd.Val()}
		for k := range r.items {
			if r.items[k] == nil {
				r.items[k] = ""
			}
		}
		marks[i] = Mark{Conversation: convs[i], Seq: r.seq(), Offset: r.number()}
		if r.err != nil {
			return nil, failed("push mark", convs[i], r.err)
		}
	}
	return marks, nil
}

// RaisePushed raises push marks; each part keeps its highest value, in any
// order of calls. It does not matter whether Redis may be believed about the
// conversation.
func (h *Hot) RaisePushed(ctx context.Context, marks []Mark) (err error) {
	defer h.observe("raise_pushed", &err)()
	seconds := int64((h.pushedTTL + time.Second - 1) / time.Second)
	calls := make([]keyspace.Call, len(marks))
	for i, m := range marks {
		calls[i] = keyspace.Call{
			Script: pushedScript, Keys: []string{h.space.PushedKey(m.Conversation)},
			Args: []any{score(m.Seq), max(m.Offset, 0), seconds},
		}
	}
	for i, res := range h.runner.Run(ctx, calls) {
		if res.Err != nil {
			return failed("push mark", marks[i].Conversation, res.Err)
		}
		if res.Value != "raised" {
			return failed("push mark", marks[i].Conversation, fmt.Errorf("%w: %v", errReply, res.Value))
		}
	}
	return nil
}
