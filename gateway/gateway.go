// Package gateway delivers push events to connected devices, over WebSocket,
// server-sent events and HTTP streaming, on the centrifuge library.
//
// It promises:
//   - An event that Deliver took is handed to the broker. What goes to one user,
//     and what goes to one crowd, is handed over in the order of the calls, and
//     arrives in it, over a Redis Cluster too.
//   - What is sent to a user reaches each connected device of that user on any
//     node, save the one that is excepted.
//   - What is sent to a crowd, the members of a large conversation, is published
//     once, whatever their number, and reaches the connected devices of those
//     whose window contains it. A user who was kicked gets nothing beyond the
//     kick: whether a node knows of all changes of windows is told with each
//     event, and while it does not, what comes waits until members were read.
//   - A slow device never holds up others or buffers without bound: beyond
//     QueueBytes its connection is closed with a reason, and it catches up by
//     pulling.
//   - A node that stops tells its devices to come back, spread over Drain.
//
// It does not promise that a device is there, nor that what was on the wire
// when a connection broke has arrived: seqs tell the client, and it pulls.
// There is no channel history on purpose: recovery is by seq, from the sync
// service, which knows windows and revokes. Nor that a connection ends when
// its user is removed somewhere: it ends when its token does, unless the client
// brings a new one for the same user, or when DisconnectUser says so.
//
// All methods are safe for concurrent use. With a Redis broker several gateway
// nodes, and push workers without any connection, share their channels; an
// unreachable Redis makes Deliver return a transient fault, so that the worker
// waits and nothing is skipped. DESIGN.md says how crowds are kept right.
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/centrifugal/centrifuge"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/watermark"
)

// Defaults of Config.
const (
	DefaultQueueBytes    = 1 << 20
	DefaultDrain         = 5 * time.Second
	DefaultTransientRate = 5
	DefaultConnections   = 100_000
)

// refreshEvery is how often a node tells that its connections stand, and looks
// again which crowds their users are in.
const refreshEvery = 25 * time.Second

// Members reads members of conversations as they are now.
type Members interface {
	// Members gives those of users that are members of conv or ever were. complete
	// tells that conv is small and that all of its members were given, asked for
	// or not.
	Members(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) (members map[watermark.UserID]watermark.Member, complete bool, err error)
}

// Crowds tells in which crowds users may be.
type Crowds interface {
	// Crowds gives the list of each user, in the order of users.
	Crowds(ctx context.Context, users []watermark.UserID) ([][]watermark.ConversationID, error)
}

// Presence keeps who is connected, where all nodes find it.
type Presence interface {
	Touch(ctx context.Context, conns []watermark.Connection, now time.Time) error
	Gone(ctx context.Context, conns []watermark.Connection, now time.Time) error
	Presence(ctx context.Context, users []watermark.UserID, now time.Time) ([]watermark.Presence, error)
}

// Config says how a gateway runs.
type Config struct {
	// Authenticate is required. Trusting is one for development.
	Authenticate Authenticate
	// Admin tells whether a bearer token, which may be empty, is an
	// administrator's: nil, or an error as those of Authenticate, or ErrNotAdmin.
	// nil: everybody is.
	Admin func(ctx context.Context, token string) error
	// Members reads who is in a conversation. nil: nobody is in a crowd, and no
	// transient events are passed on.
	Members Members
	// Crowds tells in which crowds users are. nil: in none, unless they are told to
	// be while they are connected.
	Crowds Crowds
	// Presence keeps who is connected. nil: nobody does.
	Presence Presence
	// Redis carries events between processes. Zero: they stay within this one.
	Redis Redis
	// Prefix is put before the broker's Redis keys. Empty: "tidemark".
	Prefix string
	// QueueBytes bounds what waits for one connection. 0: DefaultQueueBytes.
	QueueBytes int
	// UserConnections bounds how many connections one user has to this node.
	// 0: no bound.
	UserConnections int
	// Connections bounds how many connections this node has, which need some 30 KiB
	// each; more are told to come again, to a node that has room. 0:
	// DefaultConnections.
	Connections int
	// Origins are the origins of web pages that may connect, as
	// "https://chat.example.com"; "*" stands for all. Pages of the gateway's own
	// host always may, and so may whatever says no origin.
	Origins []string
	// Drain is over how long connections are told to go when the node stops.
	// 0: DefaultDrain.
	Drain time.Duration
	// TransientRate is how many transient events, and questions for presence, a
	// connection may send in a second; twice as many at once. 0:
	// DefaultTransientRate.
	TransientRate int
	// Logger is required.
	Logger *slog.Logger
	// Registry takes the metrics. nil: one of the gateway's own.
	Registry *prometheus.Registry
	// Now is the clock of presence. nil: time.Now.
	Now func() time.Time
}

// Redis says how to reach the Redis that carries the broker.
type Redis struct {
	// Addresses as host:port. One is a single server; several are a Cluster,
	// of Redis 7 or later, or the Sentinels when Master is set.
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
	cfg    Config
	node   *centrifuge.Node
	relay  *relay
	crowds *crowds
	rosters
	m      *metrics
	shard  *centrifuge.RedisShard // nil: no Redis
	bucket int                    // ways that Deliver goes at once

	// life spans from Run's begin to the end of its drain.
	life    atomic.Pointer[lifetime]
	running chan struct{} // closed once life is set
	leaving atomic.Bool
	work    sync.WaitGroup
	loads   chan struct{} // how many reads of members and crowds go on at once
	calls   chan struct{} // how many calls of clients

	mu    sync.Mutex
	over  bool // nothing is begun any more
	users map[watermark.UserID]map[*conn]struct{}
}

type lifetime struct{ context.Context }

func (c *Config) fill() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("gateway: "+what))
		}
	}
	need(c.Authenticate != nil, "Authenticate is missing")
	need(c.Logger != nil, "Logger is missing")
	for name, n := range map[string]int64{
		"QueueBytes": int64(c.QueueBytes), "UserConnections": int64(c.UserConnections), "Connections": int64(c.Connections),
		"Drain": int64(c.Drain), "TransientRate": int64(c.TransientRate),
	} {
		need(n >= 0, fmt.Sprintf("%s is %d, it may not be negative", name, n))
	}
	for _, o := range c.Origins {
		if err := checkOrigin(o); err != nil {
			errs = append(errs, err)
		}
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = DefaultQueueBytes
	}
	if c.Prefix == "" {
		c.Prefix = "tidemark"
	}
	if c.Drain == 0 {
		c.Drain = DefaultDrain
	}
	if c.Connections == 0 {
		c.Connections = DefaultConnections
	}
	if c.TransientRate == 0 {
		c.TransientRate = DefaultTransientRate
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return errors.Join(errs...)
}

// New checks cfg and builds a gateway; Run starts it.
func New(cfg Config) (*Gateway, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	node, err := centrifuge.New(centrifuge.Config{
		LogLevel:           centrifuge.LogLevelWarn,
		LogHandler:         logTo(cfg.Logger),
		ClientQueueMaxSize: cfg.QueueBytes,
		ChannelMaxLength:   255,
		ClientChannelLimit: maxCrowds + 1,

		UserConnectionLimit: cfg.UserConnections,
		Metrics:             centrifuge.MetricsConfig{RegistererGatherer: cfg.Registry},
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: build node: %w", err)
	}
	g := &Gateway{
		cfg: cfg, node: node, m: newMetrics(cfg.Registry), bucket: 1, running: make(chan struct{}),
		loads: make(chan struct{}, maxLoads), calls: make(chan struct{}, maxCalls), users: make(map[watermark.UserID]map[*conn]struct{}),
	}
	g.crowds = &crowds{g: g, by: make(map[watermark.ConversationID]*crowd)}
	g.crowds.most.Store(maxWaitingBytes)
	if err := g.rosters.init(); err != nil {
		return nil, fmt.Errorf("gateway: cache of rosters: %w", err)
	}
	if err := g.openBroker(); err != nil {
		return nil, err
	}
	node.OnConnecting(g.connecting)
	node.OnConnect(g.connected)
	return g, nil
}

// Run serves until ctx ends, then tells every connected device to come back
// and returns nil.
func (g *Gateway) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		end()
		g.mu.Lock()
		g.over = true
		g.mu.Unlock()
		g.work.Wait()
	}()
	if err := g.node.Run(); err != nil {
		return fmt.Errorf("gateway: run node: %w", err)
	}
	g.life.Store(&lifetime{life})
	close(g.running)
	g.spawn(func() { g.keepTelling(life) })
	<-ctx.Done()
	drained := g.drain(life)
	down, cancel := context.WithTimeout(life, 10*time.Second)
	defer cancel()
	if err := g.node.Shutdown(down); err != nil {
		return fmt.Errorf("gateway: shut down node: %w", err)
	}
	if g.cfg.Presence != nil {
		g.tell(down, g.cfg.Presence.Gone, drained)
	}
	return nil
}

// spawn does something on the side that Run waits for. After Run nothing is left
// to be done: a connection may end later than its node.
func (g *Gateway) spawn(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.work.Go(do)
	}
}

// Close ends the connections to Redis, also of a gateway that only delivers and
// never ran. Run must have returned.
func (g *Gateway) Close() error {
	if g.shard != nil {
		g.shard.Close()
	}
	return nil
}

// Handler serves the connections: /connection/websocket, /connection/sse,
// /connection/http_stream and /emulation; and GatewayService.
func (g *Gateway) Handler() http.Handler {
	const most = 64 << 10
	mux := http.NewServeMux()
	mux.Handle("/connection/websocket", centrifuge.NewWebsocketHandler(g.node, centrifuge.WebsocketConfig{
		CheckOrigin:        g.mayConnect,
		MessageSizeLimit:   most,
		UseWriteBufferPool: true,
	}))
	mux.Handle("/connection/sse", g.sameOrigin(centrifuge.NewSSEHandler(g.node, centrifuge.SSEConfig{MaxRequestBodySize: most})))
	mux.Handle("/connection/http_stream", g.sameOrigin(centrifuge.NewHTTPStreamHandler(g.node, centrifuge.HTTPStreamConfig{MaxRequestBodySize: most})))
	mux.Handle("/emulation", g.sameOrigin(centrifuge.NewEmulationHandler(g.node, centrifuge.EmulationConfig{MaxRequestBodySize: most})))
	mux.Handle(tidemarkv1connect.NewGatewayServiceHandler(admin{g}, adminOptions()...))
	return mux
}

// Connections counts the connections of this node.
func (g *Gateway) Connections() int { return g.node.Hub().NumClients() }

// openBroker connects the node to Redis, when there is one.
func (g *Gateway) openBroker() error {
	r := g.cfg.Redis
	if len(r.Addresses) == 0 {
		b, err := centrifuge.NewMemoryBroker(g.node, centrifuge.MemoryBrokerConfig{})
		if err != nil {
			return fmt.Errorf("gateway: build the broker: %w", err)
		}
		g.relay = newRelay(g, b)
		g.node.SetBroker(g.relay)
		return nil
	}
	conf := centrifuge.RedisShardConfig{DB: r.DB, User: r.Username, Password: r.Password, TLSConfig: r.TLS}
	broker := centrifuge.RedisBrokerConfig{Prefix: g.cfg.Prefix}
	switch {
	case r.Master != "":
		conf.SentinelAddresses, conf.SentinelMasterName = r.Addresses, r.Master
		conf.SentinelTLSConfig = r.TLS
	case len(r.Addresses) > 1:
		conf.ClusterAddresses = r.Addresses
		// A plain PUBLISH goes to any node of a Cluster, each time to another one,
		// and from there to all: two of them may overtake each other on the way.
		// With sharded channels all of one go through the node that has its slot.
		broker.NumShardedPubSubPartitions, broker.UsePrecomputedPartitionTags = clusterPartitions, true
	default:
		conf.Address = r.Addresses[0]
	}
	shard, err := centrifuge.NewRedisShard(g.node, conf)
	if err != nil {
		return fmt.Errorf("gateway: connect the broker's redis: %w", err)
	}
	broker.Shards = []*centrifuge.RedisShard{shard}
	b, err := centrifuge.NewRedisBroker(g.node, broker)
	if err != nil {
		shard.Close()
		return fmt.Errorf("gateway: build the broker: %w", err)
	}
	g.shard, g.bucket = shard, deliverWays
	g.relay = newRelay(g, b)
	g.node.SetController(b)
	g.node.SetBroker(g.relay)
	return nil
}

// clusterPartitions is over how many slots the channels of a Cluster are
// spread; a node has one connection for each. It is part of the channels' names.
const clusterPartitions = 16
