package gateway

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/centrifugal/centrifuge"

	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// maxCrowds bounds the crowds that one connection sits in.
	maxCrowds = 1000
	// maxLoads bounds the reads of members and lists that go on at once.
	maxLoads = 16
	// maxRead bounds the users of one read.
	maxRead = 500
	// maxWaitingBytes bounds what waits of all crowds of a node while members are
	// read; what comes beyond is left to pulling.
	maxWaitingBytes = 64 << 20
)

// crowds are the large conversations that connected users of this node are in.
type crowds struct {
	g  *Gateway
	mu sync.Mutex
	by map[watermark.ConversationID]*crowd
	// waits are the bytes of what waits, of at most so many.
	waits, most atomic.Int64
}

// publication takes what came over the channel of a crowd.
func (cs *crowds) publication(conv watermark.ConversationID, pub *centrifuge.Publication) {
	cs.mu.Lock()
	cr := cs.by[conv]
	cs.mu.Unlock()
	if cr != nil {
		cr.publication(pub)
	}
}

// seat gives the devices of a user on this node a seat in a crowd.
func (cs *crowds) seat(u watermark.UserID, conv watermark.ConversationID) {
	life := cs.g.life.Load()
	if life == nil || cs.g.cfg.Members == nil {
		return
	}
	for _, c := range cs.g.connectionsOf(u) {
		cs.g.spawn(func() { cs.enter(life, c, conv) })
	}
}

// enter seats a connection, for as long as it takes to get the channel.
func (cs *crowds) enter(ctx context.Context, c *conn, conv watermark.ConversationID) {
	_ = cs.g.patiently(ctx, "enter a crowd", func() error {
		cr, err := cs.open(conv)
		if err == nil && !cr.enter(ctx, c) {
			err = errClosed
		}
		return err
	})
}

// errClosed is returned when a crowd was left by its last member meanwhile.
var errClosed = errors.New("the crowd is closed")

// open gives the crowd of a conversation, of whose channel the node hears.
func (cs *crowds) open(conv watermark.ConversationID) (*crowd, error) {
	cs.mu.Lock()
	cr := cs.by[conv]
	if cr == nil {
		cr = &crowd{all: cs, conv: conv, channel: crowdChannel(conv), at: unknown, seats: make(map[watermark.UserID]*seat)}
		cr.held = sync.OnceValue(func() error {
			err := cs.g.relay.hold(cr.channel)
			cr.since = time.Now()
			return err
		})
		cs.by[conv] = cr
		cs.g.m.crowds.Inc()
	}
	cs.mu.Unlock()
	if err := cr.held(); err != nil {
		cs.remove(cr)
		return nil, err
	}
	return cr, nil
}

// remove forgets a crowd, and tells whether it was there.
func (cs *crowds) remove(cr *crowd) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.by[cr.conv] != cr {
		return false
	}
	delete(cs.by, cr.conv)
	cs.g.m.crowds.Dec()
	return true
}

// close lets go of a crowd that nobody sits in.
func (cs *crowds) close(cr *crowd) {
	if !cs.remove(cr) {
		return
	}
	if err := cs.g.relay.release(cr.channel); err != nil {
		cs.g.cfg.Logger.Warn("channel of a crowd not given up", "conversation", cr.conv, "error", err)
	}
}

// seatAll looks up which crowds the users of connections may be in, and seats
// them in those where they are not yet.
func (g *Gateway) seatAll(ctx context.Context, conns []*conn) {
	if g.cfg.Crowds == nil || g.cfg.Members == nil {
		return
	}
	for chunk := range slices.Chunk(conns, maxRead) {
		users := make([]watermark.UserID, len(chunk))
		for i, c := range chunk {
			users[i] = c.who.User
		}
		var lists [][]watermark.ConversationID
		err := g.patiently(ctx, "read lists of crowds", func() (err error) {
			lists, err = g.cfg.Crowds.Crowds(ctx, users)
			return err
		})
		if err != nil {
			return
		}
		for i, list := range lists {
			for _, conv := range list {
				g.crowds.enter(ctx, chunk[i], conv)
			}
			if chunk[i].sits() >= maxCrowds {
				g.m.overfull.Inc()
			}
		}
	}
}

// patiently does what may fail for a while, until it works or ctx ends. Only
// maxLoads of it go on at once.
func (g *Gateway) patiently(ctx context.Context, what string, do func() error) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 20*time.Millisecond, 5*time.Second
	told := false
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		select {
		case g.loads <- struct{}{}:
		case <-ctx.Done():
			return struct{}{}, ctx.Err()
		}
		err := do()
		<-g.loads
		if err != nil && !errors.Is(err, errClosed) {
			g.m.failures.Inc()
			if !told && ctx.Err() == nil {
				told = true
				g.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "gateway waits", slog.String("for", what), slog.Any("error", err))
			}
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	return err
}

func (g *Gateway) connectionsOf(u watermark.UserID) []*conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.users[u]))
}
