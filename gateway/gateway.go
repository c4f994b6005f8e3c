// Package gateway delivers push events to connected devices, over WebSocket,
// server-sent events and HTTP streaming, on the centrifuge library.
//
// It promises:
//   - An event that Deliver took is handed to the broker, in the order of the
//     calls, for every user that was named; each connected device of that user
//     gets it, save the one that is excepted.
//   - A slow device never holds up others or buffers without bound: beyond
//     QueueBytes its connection is closed with a reason, and it catches up by
//     pulling.
//
// It does not promise that a device is there, nor that what was on the wire
// when a connection broke has arrived: seqs tell the client, and it pulls.
// There is no channel history on purpose: recovery is by seq, from the sync
// service, which knows windows and revokes. Nor that a connection ends when
// its user is removed somewhere: it ends when its token does, unless the client
// brings a new one for the same user.
//
// All methods are safe for concurrent use. With a Redis broker several gateway
// nodes, and push workers without any connection, share their channels; an
// unreachable Redis makes Deliver return a transient fault, so that the worker
// waits and nothing is skipped.
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/centrifugal/centrifuge"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultQueueBytes is how much may wait for one connection.
const DefaultQueueBytes = 1 << 20

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

// Config says how a gateway runs.
type Config struct {
	// Authenticate is required. Trusting is one for development.
	Authenticate Authenticate
	// Redis carries events between processes. Zero: they stay within this one.
	Redis Redis
	// Prefix is put before the broker's Redis keys. Empty: "tidemark".
	Prefix string
	// QueueBytes bounds what waits for one connection. 0: DefaultQueueBytes.
	QueueBytes int
	// UserConnections bounds how many connections one user has to this node.
	// 0: no bound.
	UserConnections int
	// CheckOrigin decides on browsers' Origin headers. nil: same host only.
	CheckOrigin func(*http.Request) bool
	// Logger is required.
	Logger *slog.Logger
	// Registry takes the metrics. nil: one of the gateway's own.
	Registry *prometheus.Registry
}

// Redis says how to reach the Redis that carries the broker.
type Redis struct {
	// Addresses as host:port. One is a single server; several are a Cluster,
	// or the Sentinels when Master is set.
	Addresses []string
	// Master is the name of the master that Sentinels watch. Empty: none do.
	Master string
	// Username and Password log in. Empty: nobody does.
	Username, Password string
	// DB is the database's number, not with a Cluster.
	DB int
	// TLS encrypts connections. nil: they are plain.
	TLS *tls.Config
}

// Gateway is a node of the gateway.
type Gateway struct {
	cfg   Config
	node  *centrifuge.Node
	m     *metrics
	redis *centrifuge.RedisShard // nil: no Redis
}

// Delivery is one event for some users.
type Delivery struct {
	Users []watermark.UserID
	Event *tidemarkv1.PushEvent
	// ExceptUser and ExceptDevice name the device that caused the event and
	// does not need it. Without a device every device of the user gets it.
	ExceptUser   watermark.UserID
	ExceptDevice string
}

// New checks cfg and builds a gateway; Run starts it.
func New(cfg Config) (*Gateway, error) {
	var errs []error
	if cfg.Authenticate == nil {
		errs = append(errs, errors.New("gateway: Authenticate is missing"))
	}
	if cfg.Logger == nil {
		errs = append(errs, errors.New("gateway: Logger is missing"))
	}
	if cfg.QueueBytes < 0 || cfg.UserConnections < 0 {
		errs = append(errs, fmt.Errorf("gateway: QueueBytes is %d and UserConnections %d, neither may be negative", cfg.QueueBytes, cfg.UserConnections))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.QueueBytes == 0 {
		cfg.QueueBytes = DefaultQueueBytes
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "tidemark"
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	node, err := centrifuge.New(centrifuge.Config{
		LogLevel:           centrifuge.LogLevelWarn,
		LogHandler:         logTo(cfg.Logger),
		ClientQueueMaxSize: cfg.QueueBytes,
		ChannelMaxLength:   255,

		UserConnectionLimit: cfg.UserConnections,
		Metrics:             centrifuge.MetricsConfig{RegistererGatherer: cfg.Registry},
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: build node: %w", err)
	}
	g := &Gateway{cfg: cfg, node: node, m: newMetrics(cfg.Registry)}
	if err := g.broker(); err != nil {
		return nil, err
	}
	node.OnConnecting(g.connecting)
	node.OnConnect(g.connected)
	return g, nil
}

// Run serves until ctx ends, then tells every connected device to come back
// and returns nil.
func (g *Gateway) Run(ctx context.Context) error {
	if err := g.node.Run(); err != nil {
		return fmt.Errorf("gateway: run node: %w", err)
	}
	<-ctx.Done()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := g.node.Shutdown(drain); err != nil {
		return fmt.Errorf("gateway: shut down node: %w", err)
	}
	return nil
}

// Close ends the connections to Redis, also of a gateway that only delivers and
// never ran. Run must have returned.
func (g *Gateway) Close() error {
	if g.redis != nil {
		g.redis.Close()
	}
	return nil
}

// Handler serves the connections: /connection/websocket, /connection/sse,
// /connection/http_stream and /emulation.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/connection/websocket", centrifuge.NewWebsocketHandler(g.node, centrifuge.WebsocketConfig{
		CheckOrigin:        g.cfg.CheckOrigin,
		UseWriteBufferPool: true,
	}))
	mux.Handle("/connection/sse", centrifuge.NewSSEHandler(g.node, centrifuge.SSEConfig{MaxRequestBodySize: 64 << 10}))
	mux.Handle("/connection/http_stream", centrifuge.NewHTTPStreamHandler(g.node, centrifuge.HTTPStreamConfig{MaxRequestBodySize: 64 << 10}))
	mux.Handle("/emulation", centrifuge.NewEmulationHandler(g.node, centrifuge.EmulationConfig{MaxRequestBodySize: 64 << 10}))
	return mux
}

// Deliver hands events to the broker, in order. An error is transient: the
// caller delivers the same again, and devices ignore seqs that they know.
func (g *Gateway) Deliver(ctx context.Context, deliveries []Delivery) error {
	for _, d := range deliveries {
		data, err := protojson.Marshal(d.Event)
		if err != nil {
			return fault.New(fault.Poison, watermark.ReasonInvalid, fmt.Errorf("gateway: encode event of %s: %w", d.Event.GetConversation(), err))
		}
		for _, u := range d.Users {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := g.publish(u, data, d); err != nil {
				g.m.events.WithLabelValues("error").Inc()
				return fault.New(fault.Transient, "broker", fmt.Errorf("gateway: publish event of %s: %w", d.Event.GetConversation(), err))
			}
			g.m.events.WithLabelValues("ok").Inc()
		}
	}
	return nil
}

func (g *Gateway) publish(u watermark.UserID, data []byte, d Delivery) error {
	var opts []centrifuge.PublishOption
	if u == d.ExceptUser && d.ExceptDevice != "" {
		opts = append(opts, centrifuge.WithTags(map[string]string{deviceTag: d.ExceptDevice}))
	}
	_, err := g.node.Publish(channelOf(u), data, opts...)
	return err
}

// Connections counts the connections of this node.
func (g *Gateway) Connections() int { return g.node.Hub().NumClients() }

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

const deviceTag = "device"

// channelOf names the channel that all devices of a user listen to. Clients
// cannot subscribe to channels by themselves.
func channelOf(u watermark.UserID) string { return "user:" + string(u) }

func (g *Gateway) connecting(ctx context.Context, e centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
	who, err := g.cfg.Authenticate(ctx, e.Token, e.Data)
	if err != nil {
		return centrifuge.ConnectReply{}, g.refusal(err, centrifuge.ErrorTokenExpired)
	}
	sub := centrifuge.SubscribeOptions{}
	if who.Device != "" {
		sub.ServerTagsFilter = &centrifuge.FilterNode{Key: deviceTag, Cmp: "neq", Val: who.Device}
	}
	return centrifuge.ConnectReply{
		Credentials:       &centrifuge.Credentials{UserID: string(who.User), ExpireAt: expireAt(who)},
		Subscriptions:     map[string]centrifuge.SubscribeOptions{channelOf(who.User): sub},
		ClientSideRefresh: true,
	}, nil
}

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

func (g *Gateway) connected(c *centrifuge.Client) {
	g.m.connections.Inc()
	c.OnRefresh(func(e centrifuge.RefreshEvent, answer centrifuge.RefreshCallback) { answer(g.refresh(c, e)) })
	c.OnDisconnect(func(e centrifuge.DisconnectEvent) {
		g.m.connections.Dec()
		g.m.disconnects.WithLabelValues(disconnectKind(e.Disconnect)).Inc()
	})
}

// broker connects the node to Redis, when there is one.
func (g *Gateway) broker() error {
	r := g.cfg.Redis
	if len(r.Addresses) == 0 {
		return nil
	}
	conf := centrifuge.RedisShardConfig{DB: r.DB, User: r.Username, Password: r.Password, TLSConfig: r.TLS}
	switch {
	case r.Master != "":
		conf.SentinelAddresses, conf.SentinelMasterName = r.Addresses, r.Master
		conf.SentinelTLSConfig = r.TLS
	case len(r.Addresses) > 1:
		conf.ClusterAddresses = r.Addresses
	default:
		conf.Address = r.Addresses[0]
	}
	shard, err := centrifuge.NewRedisShard(g.node, conf)
	if err != nil {
		return fmt.Errorf("gateway: connect the broker's redis: %w", err)
	}
	b, err := centrifuge.NewRedisBroker(g.node, centrifuge.RedisBrokerConfig{Prefix: g.cfg.Prefix, Shards: []*centrifuge.RedisShard{shard}})
	if err != nil {
		shard.Close()
		return fmt.Errorf("gateway: build the broker: %w", err)
	}
	g.redis = shard
	g.node.SetBroker(b)
	return nil
}

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
	default:
		return "other"
	}
}

func logTo(l *slog.Logger) centrifuge.LogHandler {
	return func(e centrifuge.LogEntry) {
		write := l.Warn
		if e.Level >= centrifuge.LogLevelError {
			write = l.Error
		}
		attrs := make([]any, 0, 2*len(e.Fields)+2)
		attrs = append(attrs, "detail", e.Message)
		for k, v := range e.Fields {
			attrs = append(attrs, k, v)
		}
		write("gateway node", attrs...)
	}
}
