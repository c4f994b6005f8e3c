// Package stack puts the roles of Tidemark together: it is the only code that
// knows every package, and the same for one process with all roles on embedded
// servers as for one role on real ones.
//
// Open connects and checks, and fails with one clear error for each thing that
// is wrong; Run starts the chosen roles and returns when they have stopped, in
// this order: the query service takes no more calls, toRedis finishes its
// batches, then toMongo, then toPush, then the gateway lets its connections go.
// Each drains and commits before the next is told to stop, so that what one
// still produces the next still handles. Close ends what they shared.
package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/internal/access"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/internal/tracing"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/storage/truth"
	"github.com/tidemark-im/tidemark/watermark"
)

// Role is a part of Tidemark that a process can run.
type Role string

// The roles, in the order in which they stop.
const (
	Sync    Role = "sync"
	ToRedis Role = "toredis"
	ToMongo Role = "tomongo"
	ToPush  Role = "topush"
	Gateway Role = "gateway"
	// ToOffline tells absent users, where tooffline.enabled is set.
	ToOffline Role = "tooffline"
)

// Roles that only look on: a message passes without them.
const (
	Audit Role = "audit"
	Lag   Role = "lag"
)

// Runnable lists everything that a process can run, in the order in which it
// stops.
func Runnable() []Role { return append([]Role{Audit, Lag}, append(Roles(), ToOffline)...) }

// Roles lists the roles that a message passes through, in the order in which
// they stop.
func Roles() []Role { return []Role{Sync, ToRedis, ToMongo, ToPush, Gateway} }

// Config says what a stack works with.
type Config struct {
	config.Config
	// Roles are those that Run starts. Empty: none; the stack then serves tools.
	Roles []Role
	// Logger is required.
	Logger *slog.Logger
	// Registry takes all metrics. nil: a new one.
	Registry *prometheus.Registry
	// Version names this build to whoever looks at its spans.
	Version string
	// Health takes the roles' readiness. nil: a new one.
	Health *telemetry.Health
}

// Stack is what the roles of one process share.
type Stack struct {
	cfg    Config
	kafka  pipeline.Config
	topics pipeline.TopicInfos

	redis    redis.UniversalClient
	producer *pipeline.Producer
	offsets  *pipeline.Offsets
	tail     *pipeline.Tail
	// tailLength is there where toRedis runs.
	tailLength *pipeline.TailLength
	alloc      *seqalloc.Allocator
	hot        *hot.Hot
	history    historyStore
	truth      *truth.Truth
	gateway    *gateway.Gateway
	verifier   *access.Verifier // nil: callers are trusted
	tracing    *tracing.Tracing // nil: nothing is traced

	syncListener, gatewayListener net.Listener
	parts                         []*part        // in order of stopping
	closers                       []func() error // in order of making
}

// Open connects to everything that the roles need and checks it.
func Open(ctx context.Context, cfg Config) (_ *Stack, err error) {
	if cfg.Registry == nil {
		cfg.Registry = telemetry.NewRegistry()
	}
	if cfg.Health == nil {
		cfg.Health = &telemetry.Health{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Stack{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.kafka, err = kafkaConfig(cfg); err != nil {
		return nil, err
	}
	if err := s.openTracing(ctx); err != nil {
		return nil, err
	}
	// Readiness is asked for while services are waited for.
	var waiting atomic.Value
	cfg.Health.Add("start", func() error {
		if what, _ := waiting.Load().(string); what != "" {
			return errors.New("waiting for " + what)
		}
		return nil
	})
	for _, step := range []struct {
		what string
		open func(context.Context) error
	}{
		{"kafka", s.openKafka}, {"redis", s.openRedis}, {"history", s.openHistory}, {"the keys of callers", s.openAccess},
		{"the gateway", s.openGateway}, {"its ports", s.listen}, {"its roles", s.assemble},
	} {
		if s.onlyLag() && step.what != "kafka" && step.what != "its roles" {
			continue
		}
		waiting.Store(step.what)
		if err := step.open(ctx); err != nil {
			return nil, err
		}
	}
	waiting.Store("")
	return s, nil
}

// Close ends what Open made. Run must have returned.
func (s *Stack) Close() error {
	var errs []error
	for _, c := range slices.Backward(s.closers) {
		errs = append(errs, c())
	}
	s.closers = nil
	return errors.Join(errs...)
}

func (s *Stack) onClose(c func() error) { s.closers = append(s.closers, c) }

func (s *Stack) runs(r Role) bool { return slices.Contains(s.cfg.Roles, r) }

// onlyLag tells whether Kafka is all that the roles need: lag must be seen also
// while everything else is away.
func (s *Stack) onlyLag() bool { return len(s.cfg.Roles) == 1 && s.runs(Lag) }

func (s *Stack) openKafka(ctx context.Context) (err error) {
	s.topics, err = pipeline.EnsureTopics(ctx, pipeline.TopicsConfig{
		Config: s.kafka, Create: s.cfg.Kafka.CreateTopics, Partitions: s.cfg.Kafka.Partitions,
		Replication: s.cfg.Kafka.Replication, Retention: s.cfg.Kafka.Retention, Offline: s.cfg.ToOffline.Enabled,
	})
	if err != nil {
		return err
	}
	if s.producer, err = pipeline.NewProducer(pipeline.ProducerConfig{Config: s.kafka, Topic: s.kafka.Topics().ToRedis}); err != nil {
		return err
	}
	s.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return s.producer.Close(ctx)
	})
	if s.offsets, err = pipeline.NewOffsets(pipeline.OffsetsConfig{Config: s.kafka}); err != nil {
		return err
	}
	s.onClose(s.offsets.Close)
	s.tail, err = pipeline.NewTail(pipeline.TailConfig{Config: s.kafka, Group: s.group(ToMongo), MaxBytes: s.cfg.Limits.TailBytes})
	return err
}

func (s *Stack) openRedis(ctx context.Context) (err error) {
	opts, err := redisOptions(s.cfg.Redis, s.cfg.Logger)
	if err != nil {
		return err
	}
	// The driver has one logger for all of the process, and writes to standard
	// error what it returns as an error as well: several lines a second while
	// Redis is away.
	logging.Disable()
	s.redis = redis.NewUniversalClient(opts)
	s.onClose(s.redis.Close)
	space := keyspace.Space{Prefix: s.cfg.Redis.Prefix, Expiry: s.cfg.Redis.Expiry, Incarnation: s.cfg.Redis.Incarnation}
	s.alloc, err = seqalloc.New(seqalloc.Config{
		Redis: s.redis, Space: space, Append: wire.AppendMessage, HotLog: s.cfg.Redis.HotLog, Registerer: s.cfg.Registry,
	})
	if err != nil {
		return err
	}
	s.hot, err = hot.New(hot.Config{Redis: s.redis, Space: space, Decode: wire.DecodeMessage, Registerer: s.cfg.Registry})
	if err != nil {
		return err
	}
	return s.reach(ctx, "redis", func(ctx context.Context) error {
		if err := s.hot.CheckServer(ctx); err != nil {
			return fmt.Errorf("redis at %s: %w", s.cfg.Redis.Addresses, err)
		}
		memory, err := s.hot.Memory(ctx)
		if err == nil {
			s.warnOfMemory(memory)
		}
		return err
	})
}

func (s *Stack) openHistory(ctx context.Context) (err error) {
	if err := s.openStore(ctx); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	s.truth, err = truth.New(truth.Config{
		History: s.history,
		Pin: func(ctx context.Context, convs []watermark.ConversationID) (truth.Pin, error) {
			return pinned(s.tail.Pin(ctx, convs))
		},
		PinAll:     func(ctx context.Context) (truth.Pin, error) { return pinned(s.tail.PinAll(ctx)) },
		Log:        s.topics.Sequenced.ID,
		Logger:     s.cfg.Logger,
		Registerer: s.cfg.Registry,
	})
	return err
}

func (s *Stack) openGateway(context.Context) (err error) {
	if !s.runs(Gateway) && !s.runs(ToPush) {
		return nil
	}
	// The library keeps its own names; a registry of its own would hide them.
	cfg := gateway.Config{
		Authenticate: s.devices(), Prefix: s.cfg.Redis.Prefix + "tidemark",
		Admin: s.admins(), Members: members{s.truth}, Crowds: s.hot, Presence: s.hot,
		QueueBytes: s.cfg.Gateway.QueueBytes, UserConnections: s.cfg.Gateway.UserConnections, Connections: s.cfg.Gateway.Connections,
		Origins: s.cfg.Gateway.Origins, Drain: s.cfg.Gateway.Drain, TransientRate: s.cfg.Gateway.TransientRate,
		Logger: s.cfg.Logger, Registry: s.cfg.Registry,
	}
	if s.cfg.Gateway.Redis {
		r := s.cfg.Redis
		t, err := tlsConfig(r.TLS, s.cfg.Logger)
		if err != nil {
			return fmt.Errorf("redis.tls: %w", err)
		}
		cfg.Redis = gateway.Redis{Addresses: r.Addresses, Master: r.Master, Username: r.Username, Password: r.Password, DB: r.DB, TLS: t}
	} else if !s.runs(Gateway) || !s.runs(ToPush) {
		return errors.New("gateway.redis is off, so the roles gateway and topush must run in one process")
	}
	if s.gateway, err = gateway.New(cfg); err != nil {
		return err
	}
	s.onClose(s.gateway.Close)
	return nil
}

// pinned keeps a nil pin from becoming an interface that is not nil.
func pinned(p *pipeline.Pin, err error) (truth.Pin, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// listen takes the ports before anything runs, so that a taken one is an error
// at start.
func (s *Stack) listen(ctx context.Context) (err error) {
	var lc net.ListenConfig
	if s.runs(Sync) {
		if s.syncListener, err = lc.Listen(ctx, "tcp", s.cfg.Sync.Listen); err != nil {
			return fmt.Errorf("sync.listen: %w", err)
		}
		s.onClose(closeQuietly(s.syncListener))
		if s.syncListener, err = s.encrypted(s.syncListener, s.cfg.Sync.TLS); err != nil {
			return fmt.Errorf("sync.tls: %w", err)
		}
	}
	if s.runs(Gateway) {
		if s.gatewayListener, err = lc.Listen(ctx, "tcp", s.cfg.Gateway.Listen); err != nil {
			return fmt.Errorf("gateway.listen: %w", err)
		}
		s.onClose(closeQuietly(s.gatewayListener))
		if s.gatewayListener, err = s.encrypted(s.gatewayListener, s.cfg.Gateway.TLS); err != nil {
			return fmt.Errorf("gateway.tls: %w", err)
		}
	}
	return nil
}

// assemble makes the parts of the roles, so that their readiness can be asked
// for before they run.
func (s *Stack) assemble(context.Context) error {
	for _, r := range Runnable() {
		if !s.runs(r) {
			continue
		}
		if r == ToOffline {
			if err := s.assembleOffline(); err != nil {
				return fmt.Errorf("%s: %w", r, err)
			}
			continue
		}
		p, err := s.part(r)
		if err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		if r == Sync || r == Gateway {
			s.showServing(r, p)
		}
		s.parts = append(s.parts, p)
	}
	if s.runs(ToRedis) {
		s.parts = append(s.parts, s.memoryPart())
	}
	if s.tailLength != nil {
		s.parts = append(s.parts, newPart("length of the tail", s.tailLength.Run))
	}
	if s.onlyLag() {
		return nil
	}
	// The tail is read by all others, so it goes last.
	s.parts = append(s.parts, newPart("tail", s.tail.Run))
	return nil
}

// closeQuietly closes a listener that its server may have closed already.
func closeQuietly(ln net.Listener) func() error {
	return func() error {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// Health gives the readiness of the roles.
func (s *Stack) Health() *telemetry.Health { return s.cfg.Health }

// SyncURL gives the base URL of the query service; empty when it does not run.
func (s *Stack) SyncURL() string {
	if s.syncListener == nil {
		return ""
	}
	return scheme("http", s.cfg.Sync.TLS) + "://" + s.syncListener.Addr().String()
}

// GatewayURL gives the WebSocket URL of the gateway; empty when it does not run.
func (s *Stack) GatewayURL() string {
	if s.gatewayListener == nil {
		return ""
	}
	return scheme("ws", s.cfg.Gateway.TLS) + "://" + s.gatewayListener.Addr().String() + "/connection/websocket"
}

// Run runs the roles until ctx ends or one of them fails, then stops all of
// them in order, within shutdown.timeout. It returns nil after a clean stop. A
// stack runs once.
func (s *Stack) Run(ctx context.Context) error {
	return runParts(ctx, s.parts, s.cfg.Shutdown.Timeout)
}

// runParts runs parts and stops them one after the other. What has not stopped
// when the time is up is left behind: the process is to end, and what was not
// committed is read again.
func runParts(ctx context.Context, parts []*part, timeout time.Duration) error {
	var mu sync.Mutex
	var errs []error
	failed := make(chan struct{}, len(parts))
	for _, p := range parts {
		p.start(context.WithoutCancel(ctx), func(err error) {
			if err == nil && p.ctx.Err() == nil {
				err = errors.New("ended by itself")
			}
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
				mu.Unlock()
			}
			failed <- struct{}{}
		})
	}
	select {
	case <-ctx.Done():
	case <-failed:
	}
	late := stopParts(parts, timeout)
	mu.Lock()
	defer mu.Unlock()
	if len(late) > 0 {
		errs = append(errs, fmt.Errorf("not stopped within %s: %s", timeout, strings.Join(late, ", ")))
	}
	return errors.Join(errs...)
}

// stopParts gives the names of those that had not stopped in time.
func stopParts(parts []*part, timeout time.Duration) []string {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for i, p := range parts {
		p.cancel()
		select {
		case <-p.done:
			continue
		case <-timer.C:
		}
		var late []string
		for _, p := range parts[i:] {
			p.cancel()
			select {
			case <-p.done:
			default:
				late = append(late, p.name)
			}
		}
		return late
	}
	return nil
}

// part is something that runs until it is told to stop.
type part struct {
	name   string
	run    func(context.Context) error
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

func newPart(name string, run func(context.Context) error) *part {
	return &part{name: name, run: run, done: make(chan struct{})}
}

func (p *part) start(ctx context.Context, ended func(error)) {
	p.ctx, p.cancel = context.WithCancel(ctx)
	go func() {
		defer close(p.done)
		ended(p.run(p.ctx))
	}()
}
