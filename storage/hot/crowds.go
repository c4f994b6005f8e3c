package hot

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// crowdMargin is by how much a user's list outlives the mark of the last
// conversation that was put on it: the mark says that the lists are whole.
const crowdMargin = time.Hour

// Enlist puts a conversation on each user's list of crowds: conversations that
// are so large that what happens in them is published once, and not to each
// member. The lists outlive by far what StandCrowd sets afterwards for ttl. A
// list is a hint where to look: it may name conversations that the user has
// left.
func (h *Hot) Enlist(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID, ttl time.Duration) (err error) {
	defer h.observe("enlist", &err)()
	adds, expiries := make([]*redis.IntCmd, len(users)), make([]*redis.BoolCmd, len(users))
	h.plain(ctx, len(users), func(p redis.Pipeliner, i int) {
		key := h.space.CrowdsKey(users[i])
		adds[i] = p.SAdd(ctx, key, string(conv))
		expiries[i] = p.Expire(ctx, key, ttl+crowdMargin)
	})
	for i := range users {
		for _, cmd := range []redis.Cmder{adds[i], expiries[i]} {
			if cmd.Err() != nil {
				return failed("enlist a member", conv, cmd.Err())
			}
		}
	}
	return nil
}

// Delist takes a conversation off each user's list of crowds.
func (h *Hot) Delist(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) (err error) {
	defer h.observe("delist", &err)()
	cmds := make([]*redis.IntCmd, len(users))
	h.plain(ctx, len(users), func(p redis.Pipeliner, i int) {
		cmds[i] = p.SRem(ctx, h.space.CrowdsKey(users[i]), string(conv))
	})
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return failed("delist a member", conv, cmd.Err())
		}
	}
	return nil
}

// Crowds gives the list of crowds of each user, in the order of users, each in
// any order.
func (h *Hot) Crowds(ctx context.Context, users []watermark.UserID) (lists [][]watermark.ConversationID, err error) {
	defer h.observe("crowds", &err)()
	cmds := make([]*redis.StringSliceCmd, len(users))
	h.plain(ctx, len(users), func(p redis.Pipeliner, i int) {
		cmds[i] = p.SMembers(ctx, h.space.CrowdsKey(users[i]))
	})
	lists = make([][]watermark.ConversationID, len(users))
	for i, cmd := range cmds {
		if cmd.Err() != nil {
			return nil, fmt.Errorf("crowds of a user: %w", keyspace.Classify(cmd.Err()))
		}
		for _, c := range cmd.Val() {
			lists[i] = append(lists[i], watermark.ConversationID(c))
		}
	}
	return lists, nil
}

// StandCrowd marks a conversation as one that all its members have on their
// lists, for ttl.
func (h *Hot) StandCrowd(ctx context.Context, conv watermark.ConversationID, ttl time.Duration) (err error) {
	defer h.observe("stand_crowd", &err)()
	_, err = h.crowd(ctx, []watermark.ConversationID{conv}, "stand", ttl.Milliseconds())
	return err
}

// FallCrowd takes the mark away.
func (h *Hot) FallCrowd(ctx context.Context, conv watermark.ConversationID) (err error) {
	defer h.observe("fall_crowd", &err)()
	_, err = h.crowd(ctx, []watermark.ConversationID{conv}, "fall", 0)
	return err
}

// StandingCrowds tells for how long the mark of each conversation stands yet.
// 0: it does not, or Redis is another one than the one that took it.
func (h *Hot) StandingCrowds(ctx context.Context, convs []watermark.ConversationID) (left []time.Duration, err error) {
	defer h.observe("standing_crowds", &err)()
	return h.crowd(ctx, convs, "standing", 0)
}

func (h *Hot) crowd(ctx context.Context, convs []watermark.ConversationID, do string, ms int64) ([]time.Duration, error) {
	calls := make([]keyspace.Call, len(convs))
	for i, c := range convs {
		calls[i] = keyspace.Call{Script: crowdScript, Keys: []string{h.space.CrowdKey(c)}, Args: []any{h.space.Incarnation, do, ms}, Asks: true}
	}
	left := make([]time.Duration, len(convs))
	for i, res := range h.runner.Run(ctx, calls) {
		if res.Err != nil {
			return nil, failed("crowd mark", convs[i], res.Err)
		}
		n, ok := res.Value.(int64)
		if !ok {
			return nil, failed("crowd mark", convs[i], fmt.Errorf("%w: %v", errReply, res.Value))
		}
		left[i] = time.Duration(n) * time.Millisecond
	}
	return left, nil
}
