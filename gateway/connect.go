package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/centrifugal/centrifuge"
	"golang.org/x/time/rate"

	"github.com/tidemark-im/tidemark/watermark"
)

// ErrRefused is returned by an Authenticate function, wrapped, when the caller
// may not connect; the connection is closed for good.
var ErrRefused = errors.New("connection refused")

// ErrExpired is returned by an Authenticate function, wrapped, for a token that
// was good once; the client may come again with a new one.
var ErrExpired = errors.New("token has expired")

// Identity is who connected.
type Identity struct {
	User   watermark.UserID
	Device string // may be empty; at most 64 bytes
	// Expires is when the connection ends unless the client brings a new token
	// for the same user. Zero: never.
	Expires time.Time
}

// Authenticate finds out who connects, from the token and the JSON data of the
// connect frame. To renew a connection it is called with its new token and no
// data. An error that is neither ErrRefused nor ErrExpired means that it cannot
// be told now; the client comes again.
type Authenticate func(ctx context.Context, token string, data []byte) (Identity, error)

// Trusting takes the identity from the connect data, {"user": "...", "device":
// "..."}, and believes it. It is for development, on loopback only.
func Trusting(_ context.Context, _ string, data []byte) (Identity, error) {
	who, err := readData(data)
	if err != nil {
		return Identity{}, err
	}
	u, err := watermark.ParseUserID(who.User)
	if err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return Identity{User: u, Device: who.Device}, nil
}

// conn is a connection to this node.
type conn struct {
	client *centrifuge.Client
	who    Identity
	binary bool      // events are wanted in binary protobuf
	since  time.Time // before it the client was not told that it is connected
	budget *rate.Limiter

	mu     sync.Mutex
	gone   bool
	crowds map[*crowd]struct{}
}

// join notes that c sits in cr, unless c has ended or sits in too many.
func (c *conn) join(cr *crowd) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || len(c.crowds) >= maxCrowds {
		return false
	}
	c.crowds[cr] = struct{}{}
	return true
}

func (c *conn) part(cr *crowd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.crowds, cr)
}

// end gives the crowds that c has to be taken out of.
func (c *conn) end() []*crowd {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	out := make([]*crowd, 0, len(c.crowds))
	for cr := range c.crowds {
		out = append(out, cr)
	}
	return out
}

func (c *conn) sits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.crowds)
}

// channel gives the name under which c listens to a channel of the broker.
func (c *conn) channel(name string) string {
	if c.binary {
		return binaryPrefix + name
	}
	return name
}

type identityKey struct{}

// arrival is who connected, and when.
type arrival struct {
	Identity
	at time.Time
}

func (g *Gateway) connecting(ctx context.Context, e centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
	select {
	case <-g.running:
	case <-ctx.Done(): // whoever comes before the node runs waits for it, as long as it likes
		return centrifuge.ConnectReply{}, centrifuge.ErrorInternal
	}
	if g.leaving.Load() {
		return centrifuge.ConnectReply{}, centrifuge.DisconnectShutdown
	}
	if g.Connections() >= g.cfg.Connections {
		return centrifuge.ConnectReply{}, full
	}
	who, err := g.cfg.Authenticate(ctx, e.Token, e.Data)
	if err != nil {
		return centrifuge.ConnectReply{}, g.refusal(err, centrifuge.ErrorTokenExpired)
	}
	sub := centrifuge.SubscribeOptions{}
	if who.Device != "" {
		sub.ServerTagsFilter = except(who)
	}
	c := &conn{who: who, binary: e.Transport.Protocol() == centrifuge.ProtocolTypeProtobuf}
	return centrifuge.ConnectReply{
		Context:           context.WithValue(ctx, identityKey{}, arrival{who, time.Now()}),
		Credentials:       &centrifuge.Credentials{UserID: string(who.User), ExpireAt: expireAt(who)},
		Subscriptions:     map[string]centrifuge.SubscribeOptions{c.channel(userChannel(who.User)): sub},
		ClientSideRefresh: true,
		Labels:            map[string]string{deviceLabel: who.Device},
	}, nil
}

// full is what a client is told for whom this node has no room: it comes back.
var full = centrifuge.Disconnect{Code: 4001, Reason: "this node has no room, come again"}

// deviceLabel carries the device of a connection to where it is ended.
const deviceLabel = "device"

// refusal is what a client is told whose token is not taken. Where expired is an
// error and not a disconnect, the client gets a new token and comes again.
func (g *Gateway) refusal(err, expired error) error {
	g.m.refused.Inc()
	switch {
	case errors.Is(err, ErrExpired):
		return expired
	case errors.Is(err, ErrRefused):
		return centrifuge.Disconnect{Code: centrifuge.DisconnectInvalidToken.Code, Reason: clip(err.Error())}
	}
	g.cfg.Logger.Error("authentication failed", "error", err)
	return centrifuge.ErrorInternal
}

// clip keeps a reason within what a WebSocket close frame carries.
func clip(reason string) string {
	const most = 120
	if len(reason) <= most {
		return reason
	}
	return reason[:most]
}

func expireAt(who Identity) int64 {
	if who.Expires.IsZero() {
		return 0
	}
	return who.Expires.Unix()
}

// refresh renews a connection with a new token, which must speak for the user
// whose connection it is.
func (g *Gateway) refresh(c *centrifuge.Client, e centrifuge.RefreshEvent) (centrifuge.RefreshReply, error) {
	who, err := g.cfg.Authenticate(c.Context(), e.Token, nil)
	if err == nil && string(who.User) != c.UserID() {
		err = fmt.Errorf("%w: the token speaks for another user", ErrRefused)
	}
	if err != nil {
		return centrifuge.RefreshReply{}, g.refusal(err, centrifuge.DisconnectExpired)
	}
	return centrifuge.RefreshReply{ExpireAt: expireAt(who)}, nil
}

func (g *Gateway) connected(client *centrifuge.Client) {
	who, _ := client.Context().Value(identityKey{}).(arrival)
	c := &conn{
		client: client, who: who.Identity, since: who.at, binary: client.Transport().Protocol() == centrifuge.ProtocolTypeProtobuf,
		budget: rate.NewLimiter(rate.Limit(g.cfg.TransientRate), 2*g.cfg.TransientRate),
		crowds: make(map[*crowd]struct{}),
	}
	g.m.connections.Inc()
	g.keep(c)
	client.OnRefresh(func(e centrifuge.RefreshEvent, answer centrifuge.RefreshCallback) { answer(g.refresh(client, e)) })
	client.OnRPC(func(e centrifuge.RPCEvent, answer centrifuge.RPCCallback) { g.rpc(c, e, answer) })
	client.OnDisconnect(func(e centrifuge.DisconnectEvent) { g.disconnected(c, e) })
	life := g.life.Load()
	g.spawn(func() {
		g.settle(life, c)
	})
}

func (g *Gateway) disconnected(c *conn, e centrifuge.DisconnectEvent) {
	g.m.connections.Dec()
	g.m.disconnects.WithLabelValues(disconnectKind(e.Disconnect)).Inc()
	g.forget(c)
	for _, cr := range c.end() {
		cr.leave(c)
	}
	if life := g.life.Load(); g.cfg.Presence != nil && life.Err() == nil && !g.leaving.Load() {
		g.spawn(func() { g.tell(life, g.cfg.Presence.Gone, []*conn{c}) })
	}
}

// settle does for a fresh connection what takes reading: it is made known, and
// seated in the crowds of its user. The channel of the user is listened to by
// now, so a seat that is given from here on is heard of.
func (g *Gateway) settle(ctx context.Context, c *conn) {
	if g.cfg.Presence != nil {
		g.tell(ctx, g.cfg.Presence.Touch, []*conn{c})
	}
	g.seatAll(ctx, []*conn{c})
}

func (g *Gateway) keep(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users[c.who.User] == nil {
		g.users[c.who.User] = make(map[*conn]struct{})
	}
	g.users[c.who.User][c] = struct{}{}
}

func (g *Gateway) forget(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.users[c.who.User]
	if delete(of, c); len(of) == 0 {
		delete(g.users, c.who.User)
	}
}

// connections gives those of this node.
func (g *Gateway) connections() []*conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*conn
	for _, of := range g.users {
		for c := range of {
			out = append(out, c)
		}
	}
	return out
}

// drain tells all devices to come back, in random order and evenly spread, so
// that the other nodes do not get all of them at once. A new one is turned away
// meanwhile. It gives those that were there.
func (g *Gateway) drain(ctx context.Context) (drained []*conn) {
	g.leaving.Store(true)
	all := g.connections()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	begin := time.Now()
	for i, c := range all {
		// Few need not wait for one another.
		due := begin.Add(time.Duration(i) * min(g.cfg.Drain/time.Duration(len(all)), drainPace))
		if left := time.Until(due); left > 0 {
			wait(ctx, left)
		}
		c.client.Disconnect(centrifuge.DisconnectShutdown)
	}
	return all
}

// drainPace is the longest pause between two devices that are told to go.
const drainPace = 5 * time.Millisecond

// disconnectKind keeps the metric's label a bounded set.
func disconnectKind(d centrifuge.Disconnect) string {
	switch d.Code {
	case centrifuge.DisconnectSlow.Code:
		return "slow"
	case centrifuge.DisconnectShutdown.Code:
		return "shutdown"
	case centrifuge.DisconnectConnectionClosed.Code:
		return "closed"
	case centrifuge.DisconnectExpired.Code:
		return "expired"
	case centrifuge.DisconnectConnectionLimit.Code:
		return "limit"
	case endedForGood.Code, ended.Code:
		return "administrator"
	default:
		return "other"
	}
}
