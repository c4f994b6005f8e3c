package hot

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/watermark"
)

// Mark is how far a conversation has been handed to the gateways.
type Mark = watermark.PushMark

// Pushed gives the push marks of conversations, the zero mark where there is
// none: never raised, or expired, or lost with Redis. A mark is a filter for
// replays, not a truth: what is above it was perhaps pushed all the same.
func (h *Hot) Pushed(ctx context.Context, convs []watermark.ConversationID) (marks []Mark, err error) {
	defer h.observe("pushed", &err)()
	cmds := make([]*redis.FloatSliceCmd, len(convs))
	h.plain(ctx, len(convs), func(p redis.Pipeliner, i int) {
		cmds[i] = p.ZMScore(ctx, h.space.PushedKey(convs[i]), pushedSeq, pushedOffset)
	})
	marks = make([]Mark, len(convs))
	for i, cmd := range cmds {
		scores, err := cmd.Result()
		if err == nil && len(scores) != 2 {
			err = fmt.Errorf("%w: %d scores", errReply, len(scores))
		}
		if err != nil {
			return nil, failed("push mark", convs[i], err)
		}
		marks[i] = Mark{Conversation: convs[i], Seq: watermark.Seq(scores[0]), Offset: int64(scores[1])}
	}
	return marks, nil
}

// The members of a push mark, which is a sorted set: its scores rise by a command
// of Redis's own, for a tenth of what a script costs. Seqs and offsets stay below
// 2^53, so a score is exact.
const (
	pushedSeq    = "seq"
	pushedOffset = "offset"
)

// RaisePushed raises push marks; each part keeps its highest value, in any
// order of calls. It does not matter whether Redis may be believed about the
// conversation. A mark that was not there, and one that is to be renewed, lives
// for Config.PushedTTL from now on; the others as long as they would have. After
// an error all of them are to be renewed with the next call.
func (h *Hot) RaisePushed(ctx context.Context, marks []Mark) (err error) {
	defer h.observe("raise_pushed", &err)()
	added, kept := make([]*redis.IntCmd, len(marks)), make([]*redis.BoolCmd, len(marks))
	expire := func(p redis.Pipeliner, i int) {
		kept[i] = p.Expire(ctx, h.space.PushedKey(marks[i].Conversation), h.pushedTTL)
	}
	h.plain(ctx, len(marks), func(p redis.Pipeliner, i int) {
		m := marks[i]
		added[i] = p.ZAddGT(ctx, h.space.PushedKey(m.Conversation),
			redis.Z{Score: float64(m.Seq), Member: pushedSeq}, redis.Z{Score: float64(max(m.Offset, 0)), Member: pushedOffset})
		if m.Renew {
			expire(p, i)
		}
	})
	var lost []int // made anew though they were there when they were last renewed
	for i := range marks {
		if !marks[i].Renew && added[i].Err() == nil && added[i].Val() > 0 {
			lost = append(lost, i)
		}
	}
	h.plain(ctx, len(lost), func(p redis.Pipeliner, k int) { expire(p, lost[k]) })
	for i := range marks {
		err := added[i].Err()
		if err == nil && kept[i] != nil {
			err = kept[i].Err()
		}
		if err != nil {
			return failed("push mark", marks[i].Conversation, err)
		}
	}
	return nil
}
