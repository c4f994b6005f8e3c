package hot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// PresenceTTL is how long a connection is believed in after it was last told
	// of: three times as long as a gateway takes to tell again.
	PresenceTTL = 75 * time.Second
	// seenTTL is how long it is known when a user was last there.
	seenTTL = 30 * 24 * time.Hour
	// maxDevices bounds the connections of one user that are kept and given.
	maxDevices = 100
)

// Connection and Presence are what gateways tell and are told.
type (
	Connection = watermark.Connection
	Presence   = watermark.Presence
)

// Touch tells that connections stand at now. It is repeated well within
// PresenceTTL for as long as they do.
func (h *Hot) Touch(ctx context.Context, conns []Connection, now time.Time) (err error) {
	defer h.observe("touch_presence", &err)()
	cmds := make([][]redis.Cmder, len(conns))
	h.plain(ctx, len(conns), func(p redis.Pipeliner, i int) {
		c := &conns[i]
		on := h.space.OnlineKey(c.User)
		cmds[i] = []redis.Cmder{
			p.ZAdd(ctx, on, redis.Z{Score: float64(now.UnixMilli()), Member: c.Node + "/" + c.Device}),
			p.ZRemRangeByScore(ctx, on, "-inf", "("+stale(now)),
			p.ZRemRangeByRank(ctx, on, 0, -maxDevices-1),
			p.PExpire(ctx, on, PresenceTTL),
			p.Set(ctx, h.space.SeenKey(c.User), now.UnixMilli(), seenTTL),
		}
	})
	for _, of := range cmds {
		for _, cmd := range of {
			if cmd.Err() != nil {
				return fmt.Errorf("presence: %w", keyspace.Classify(cmd.Err()))
			}
		}
	}
	return nil
}

// Gone tells that connections ended at now.
func (h *Hot) Gone(ctx context.Context, conns []Connection, now time.Time) (err error) {
	defer h.observe("gone", &err)()
	cmds := make([][]redis.Cmder, len(conns))
	h.plain(ctx, len(conns), func(p redis.Pipeliner, i int) {
		c := &conns[i]
		cmds[i] = []redis.Cmder{
			p.ZRem(ctx, h.space.OnlineKey(c.User), c.Node+"/"+c.Device),
			p.Set(ctx, h.space.SeenKey(c.User), now.UnixMilli(), seenTTL),
		}
	})
	for _, of := range cmds {
		for _, cmd := range of {
			if cmd.Err() != nil {
				return fmt.Errorf("presence: %w", keyspace.Classify(cmd.Err()))
			}
		}
	}
	return nil
}

// Presence tells where users are at now, in the order of users.
func (h *Hot) Presence(ctx context.Context, users []watermark.UserID, now time.Time) (out []Presence, err error) {
	defer h.observe("presence", &err)()
	on, seen := make([]*redis.StringSliceCmd, len(users)), make([]*redis.StringCmd, len(users))
	h.plain(ctx, len(users), func(p redis.Pipeliner, i int) {
		on[i] = p.ZRangeByScore(ctx, h.space.OnlineKey(users[i]), &redis.ZRangeBy{Min: stale(now), Max: "+inf", Count: maxDevices})
		seen[i] = p.Get(ctx, h.space.SeenKey(users[i]))
	})
	out = make([]Presence, len(users))
	for i := range users {
		if err := errors.Join(on[i].Err(), absentIsFine(seen[i].Err())); err != nil {
			return nil, fmt.Errorf("presence: %w", keyspace.Classify(err))
		}
		out[i].Devices = devices(on[i].Val())
		if text := seen[i].Val(); text != "" {
			ms, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("presence: last seen %q: %w", text, keyspace.Classify(err))
			}
			out[i].LastSeen = time.UnixMilli(ms)
		}
	}
	return out, nil
}

func stale(now time.Time) string {
	return strconv.FormatInt(now.Add(-PresenceTTL).UnixMilli(), 10)
}

func absentIsFine(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// devices gives each device once; the name of a node has no slash in it.
func devices(members []string) []string {
	var out []string
	for _, m := range members {
		_, device, _ := strings.Cut(m, "/")
		if !slices.Contains(out, device) {
			out = append(out, device)
		}
	}
	return out
}
