package syncapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/watermark"
)

// Ask names a view: what User may know of Conversation.
type Ask = watermark.Ask

// Span names the rows First..Last of a conversation.
type Span = watermark.Span

// List is all conversations of a user.
type List = watermark.List

// Hot is what Redis holds. Each call is one pipelined round trip.
type Hot interface {
	// Views gives one view for each ask, in order. Cold ones hold nothing else.
	Views(ctx context.Context, asks []Ask) ([]watermark.View, error)
	// Messages gives for each span the rows that are there, ascending.
	Messages(ctx context.Context, spans []Span) ([][]watermark.Message, error)
	// MergeMembers tells Redis of members that it did not know; what was loaded
	// under another token than the one that stands is not taken.
	MergeMembers(ctx context.Context, loads []watermark.MemberLoad) (merged []bool, err error)
	// RaiseReads raises Read and Receipt of the members.
	RaiseReads(ctx context.Context, rows []watermark.MemberRow) error
	// Readers gives the users whose read mark is at or above seq, a page at a time.
	Readers(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, after watermark.Reader, limit int) (watermark.Readership, error)
	// Answers gives for each key the owner's answer, nil where there is none yet.
	Answers(ctx context.Context, keys []watermark.AnswerKey) ([]*watermark.Answer, error)
}

// Truth is history and the tail of the sequenced log, merged.
type Truth interface {
	// Load gives one state for each want, in order.
	Load(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error)
	// Messages gives the rows of at most 1,000 seqs that are there, ascending.
	Messages(ctx context.Context, conv watermark.ConversationID, span watermark.Interval) ([]watermark.Message, error)
	// List gives all conversations of a user, former ones too, in any order.
	List(ctx context.Context, user watermark.UserID) (List, error)
	// Order gives the conversations of List, in any order, and of each only when
	// it had its latest message; nothing but Same where nothing was appended to
	// the log since known was given.
	Order(ctx context.Context, user watermark.UserID, known watermark.ListOrder) (watermark.ListOrder, error)
	// Peek gives last messages and mentions of many conversations.
	Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.Peeked, error)
}

// Log appends to Kafka; each method returns after the acknowledgement.
type Log interface {
	// AppendSend puts a message on the toRedis topic. A caller that is not
	// empty waits for the answer.
	AppendSend(ctx context.Context, m *v1.SendMessage, caller string) error
	// AppendCommand puts a command on the toRedis topic.
	AppendCommand(ctx context.Context, c *v1.Command) error
	// AppendMarks puts the marks of one conversation on the sequenced log, in
	// one record.
	AppendMarks(ctx context.Context, conv watermark.ConversationID, marks []watermark.ReadAdvanced) error
}

// Config says what a Service works with.
type Config struct {
	Hot   Hot   // required
	Truth Truth // required
	Log   Log   // required
	// Devices keeps where users can be notified. Required.
	Devices Devices

	// NodeID names this process among all that share the Redis: 1-40 bytes of
	// [A-Za-z0-9._~@-], required. Answers of owners are addressed to it.
	NodeID string
	// Authenticate tells who calls. nil: nobody is asked, and every caller is
	// trusted as an administrator is.
	Authenticate Authenticate
	// UserLimits bounds what one user may ask for.
	UserLimits UserLimits
	// MaxInFlight is how many calls are served at once. 0: 10,000.
	MaxInFlight int
	// MaxRequest is how many bytes a request may have. 0: 4 MiB.
	MaxRequest int
	// Wrap is put around the whole handler that Serve serves. Nil: nothing.
	Wrap func(http.Handler) http.Handler
	// NoReflection leaves out gRPC reflection.
	NoReflection bool
	// Origins are those of web pages that may call from a browser, each as
	// scheme://host[:port], or "*" for all. Empty: only pages of the same host.
	Origins []string
	// Console serves everything under /console/, to everybody who can reach the
	// port: it asks for tokens itself. nil: there is nothing.
	Console http.Handler

	// ClosedGroups hides groups from users who never had a window in them, also
	// when somebody asks who is trusted. False: such a user sees everything,
	// since who is trusted lets nobody ask who should not. From callers who are
	// no administrators such groups are hidden in any case.
	ClosedGroups bool
	// Limits are those of messages that are sent; zero: convert's defaults.
	Limits convert.Limits
	// PageBytes is how much of messages one answer of Pull carries, give or
	// take one message for each range. 0: 2 MiB.
	PageBytes int
	// AnswerTimeout is how long a call waits for an owner's answer, unless its
	// own deadline is shorter. 0: 10 s.
	AnswerTimeout time.Duration
	// MarkWindow is how long a mark waits for others of its conversation to
	// share a record with. 0: 3 ms.
	MarkWindow time.Duration
	// MaxWaiting is how many calls may wait for an owner's answer at once, and
	// how many marks may be under way. 0: 10,000.
	MaxWaiting int
	// LoadTimeout is how long a call waits for the truth of conversations, or for
	// messages, that Redis does not have; what is not there by then is
	// Unavailable. It counts for each 500 conversations. 0: 5 s.
	LoadTimeout time.Duration
	// DrainTimeout is how long Serve lets calls finish when it is to stop.
	// 0: 10 s.
	DrainTimeout time.Duration

	Now        func() time.Time      // nil: time.Now
	Logger     *slog.Logger          // nil: nothing is logged
	Registerer prometheus.Registerer // nil: metrics are not exposed
}

func (c *Config) check() error {
	var faults []error
	if c.Hot == nil {
		faults = append(faults, errors.New("no Hot"))
	}
	if c.Truth == nil {
		faults = append(faults, errors.New("no Truth"))
	}
	if c.Log == nil {
		faults = append(faults, errors.New("no Log"))
	}
	if c.Devices == nil {
		faults = append(faults, errors.New("no Devices"))
	}
	if _, err := watermark.ParseUserID(c.NodeID); err != nil || len(c.NodeID) > maxNodeID {
		faults = append(faults, fmt.Errorf("node id %q is not 1-%d bytes of [A-Za-z0-9._~@-]", c.NodeID, maxNodeID))
	}
	for _, o := range c.Origins {
		if err := checkOrigin(o); err != nil {
			faults = append(faults, err)
		}
	}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"Limits.MaxBody", int64(c.Limits.MaxBody)},
		{"PageBytes", int64(c.PageBytes)},
		{"AnswerTimeout", int64(c.AnswerTimeout)},
		{"MarkWindow", int64(c.MarkWindow)},
		{"MaxWaiting", int64(c.MaxWaiting)},
		{"LoadTimeout", int64(c.LoadTimeout)},
		{"DrainTimeout", int64(c.DrainTimeout)},
		{"MaxInFlight", int64(c.MaxInFlight)},
		{"MaxRequest", int64(c.MaxRequest)},
		{"UserLimits.Requests", int64(math.Floor(c.UserLimits.Requests))},
		{"UserLimits.Burst", int64(math.Floor(c.UserLimits.Burst))},
		{"UserLimits.Bytes", int64(math.Floor(c.UserLimits.Bytes))},
		{"UserLimits.BytesBurst", int64(math.Floor(c.UserLimits.BytesBurst))},
		{"UserLimits.InFlight", int64(c.UserLimits.InFlight)},
	} {
		if n.value < 0 {
			faults = append(faults, fmt.Errorf("%s is negative", n.name))
		}
	}
	return errors.Join(faults...)
}

func (c *Config) fill() {
	c.PageBytes = cmp.Or(c.PageBytes, 2<<20)
	c.AnswerTimeout = cmp.Or(c.AnswerTimeout, 10*time.Second)
	c.MarkWindow = cmp.Or(c.MarkWindow, 3*time.Millisecond)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 10_000)
	c.LoadTimeout = cmp.Or(c.LoadTimeout, 5*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 10_000)
	c.MaxRequest = cmp.Or(c.MaxRequest, defaultMaxRequest)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

const (
	maxNodeID = 40
	// maxEntries is how many ranges or conversations one call may name.
	maxEntries = 500
)

// Service is the query service. Its methods are the handlers of the Connect
// service; Handler serves them over HTTP.
type Service struct {
	cfg       Config
	log       *slog.Logger
	metrics   *metrics
	poller    *poller
	marks     *coalescer
	warmer    *warmer
	anomalies *anomalies
	lists     *snapshots
	orders    *snapshots    // for GetWatermarks
	rosters   chan struct{} // holds a token for each roster that is being read
	health    *healthState
	faults    throttle
	limits    *limiter
}

var _ tidemarkv1connect.SyncServiceHandler = (*Service)(nil)

// New checks cfg and makes a Service. It starts nothing.
func New(cfg Config) (*Service, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("syncapi: %w", err)
	}
	cfg.fill()
	m := newMetrics(cfg.Registerer)
	warmer, err := newWarmer(cfg.Log, cfg.Now, m, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("syncapi: %w", err)
	}
	return &Service{
		cfg:       cfg,
		log:       cfg.Logger,
		metrics:   m,
		poller:    newPoller(cfg.Hot, cfg.NodeID, cfg.MaxWaiting, m, cfg.Logger),
		marks:     newCoalescer(cfg, m),
		warmer:    warmer,
		anomalies: newAnomalies(cfg.Now, cfg.Logger, m),
		lists:     newSnapshots(cfg.Now),
		orders:    newSnapshots(cfg.Now),
		rosters:   make(chan struct{}, maxRosters),
		health:    newHealthState(),
		limits:    newLimiter(cfg, m),
	}, nil
}

// Run fetches the answers that calls wait for, and asks owners to make
// conversations warm that are read often, until ctx is done, and then waits for
// the marks that are being appended. It returns nil; calls that still wait
// are answered with Unavailable. A Service runs once.
func (s *Service) Run(ctx context.Context) error {
	var warming sync.WaitGroup
	warming.Go(func() { s.warmer.run(ctx) })
	s.poller.run(ctx)
	warming.Wait()
	s.marks.drain()
	return nil
}
