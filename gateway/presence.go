package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/centrifugal/centrifuge"

	"github.com/tidemark-im/tidemark/watermark"
)

// keepTelling tells, for as long as the node runs, that its connections stand,
// and seats users in crowds of which the node has not heard: what goes over the
// broker may be lost.
func (g *Gateway) keepTelling(ctx context.Context) {
	t := time.NewTicker(refreshEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		conns := g.connections()
		if g.cfg.Presence != nil {
			g.tell(ctx, g.cfg.Presence.Touch, conns)
		}
		g.seatAll(ctx, conns)
	}
}

// tell tells of connections. What fails is told again by the next round, and
// what is never told expires.
func (g *Gateway) tell(ctx context.Context, what func(context.Context, []watermark.Connection, time.Time) error, conns []*conn) {
	for chunk := range slices.Chunk(conns, maxRead) {
		out := make([]watermark.Connection, len(chunk))
		for i, c := range chunk {
			out[i] = watermark.Connection{User: c.who.User, Device: c.who.Device, Node: g.node.ID()}
		}
		if err := what(ctx, out, g.cfg.Now()); err != nil {
			g.m.failures.Inc()
			g.cfg.Logger.Warn("presence not told", "connections", len(out), "error", err)
			return
		}
	}
}

// UserPresence tells where users are, in the order of users.
func (g *Gateway) UserPresence(ctx context.Context, users []watermark.UserID) ([]watermark.Presence, error) {
	if g.cfg.Presence == nil {
		return nil, errNoPresence
	}
	return g.cfg.Presence.Presence(ctx, users, g.cfg.Now())
}

// Why a connection was ended by DisconnectUser. The library's clients do not
// come back after codes from 4500 on.
var (
	ended        = centrifuge.Disconnect{Code: 4000, Reason: "ended by an administrator, come again"}
	endedForGood = centrifuge.Disconnect{Code: 4500, Reason: "ended by an administrator"}
)

// DisconnectUser ends the connections of a user on all nodes, or those of one
// device. With mayReturn the client connects again, and its token is looked at.
// Without it is told not to; nothing but its token keeps it from doing so all
// the same.
func (g *Gateway) DisconnectUser(user watermark.UserID, device string, mayReturn bool) error {
	why := endedForGood
	if mayReturn {
		why = ended
	}
	opts := []centrifuge.DisconnectOption{centrifuge.WithCustomDisconnect(why)}
	if device != "" {
		opts = append(opts, centrifuge.WithDisconnectLabelFilter(&centrifuge.FilterNode{Key: deviceLabel, Cmp: "eq", Val: device}))
	}
	return g.node.Disconnect(string(user), opts...)
}
