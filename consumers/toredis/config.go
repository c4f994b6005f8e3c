package toredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Defaults of Config.
const (
	DefaultSequenced    = wire.TopicSequenced
	DefaultDeadLetter   = wire.TopicDeadLetter
	DefaultFloorEntries = 100_000
	DefaultMaxTail      = 1_000_000
	DefaultPatience     = time.Second
	DefaultLoadTimeout  = 30 * time.Second
)

// What one partition parks, at most: records of conversations whose truth
// cannot be had at the moment. One record always fits.
const (
	MaxParkedRecords = 500
	MaxParkedBytes   = 4 << 20
)

// Allocator decides inputs in Redis: one script call for each conversation,
// all of them in one pipelined round trip.
type Allocator interface {
	// Malloc decides batches of different conversations and answers each.
	Malloc(ctx context.Context, batches []watermark.Batch) ([]watermark.Allocation, error)
	// Begin makes conversations cold and gives a token for each, which Install
	// shows to prove that nobody began again in between.
	Begin(ctx context.Context, ids []watermark.ConversationID) (tokens []string, err error)
	// Install makes conversations warm with what was loaded; false for one
	// whose token no longer stands.
	Install(ctx context.Context, loaded []watermark.Loaded) (installed []bool, err error)
	// Settle says that what batches up to a place have decided stands in the log,
	// so that readers may be told of it, and gives the number that stands then.
	// The number 0 only asks.
	Settle(ctx context.Context, p watermark.Place) (number int64, err error)
}

// Truth reads history and the tail of the sequenced log.
type Truth interface {
	// Load answers each want, in order. A conversation of which nothing is
	// known has a state with its ID alone.
	Load(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error)
}

// Members adds members to a warm conversation.
type Members interface {
	// MergeMembers takes over loads under the token that they carry, and tells
	// which ones it took.
	MergeMembers(ctx context.Context, loads []watermark.MemberLoad) (merged []bool, err error)
}

// Log appends to Kafka.
type Log interface {
	// Append produces outs, those of one partition in order, and returns nil
	// once every one of them is acknowledged by all in-sync replicas. After an
	// error any part of them may have been appended.
	Append(ctx context.Context, outs []wire.Out) error
}

// Origins reads records of toRedis back from where they stand.
type Origins interface {
	// Reread gives each those of the records at offsets, ascending, of a
	// partition that stand there, in order, and tells where the log began when it
	// was last asked: what stood below is gone.
	Reread(ctx context.Context, topic string, partition int32, offsets []int64, each func(wire.Record)) (start int64, err error)
}

// Answers hands answers over to whoever waits for them.
type Answers interface {
	PutAnswers(ctx context.Context, answers []watermark.KeyedAnswer) error
}

// Config says what a Sequencer works with. The six ports and Partitions are
// required.
type Config struct {
	Allocator Allocator
	Truth     Truth
	Members   Members
	Log       Log
	Origins   Origins
	Answers   Answers

	// Partitions is the number of partitions that toRedis and sequenced have.
	Partitions int32
	// Codec decodes inputs. Its MaxRecord must not be above what the sequenced
	// topic takes: a message that would not fit is refused while it has no seq.
	// The zero value has the default limits.
	Codec wire.Codec
	// UnreadPolicy gives a conversation's policy. Nil: AdvanceOnSend for all.
	UnreadPolicy func(watermark.ConversationID) watermark.UnreadPolicy
	// Sequenced and DeadLetter name the topics. Empty: DefaultSequenced,
	// DefaultDeadLetter. Misrouted records go back to the topic they came from.
	Sequenced, DeadLetter string
	// FloorEntries bounds how many conversations of one partition have their
	// last acknowledged seq remembered. 0: DefaultFloorEntries.
	FloorEntries int
	// Tail tells how many records of a partition of the sequenced log history
	// may not have yet; known is false while that cannot be told. It must not
	// wait. Nil: no partition pauses.
	Tail func(partition int32) (records int64, known bool)
	// MaxTail is the number of those above which a partition pauses, until they
	// are three quarters of it. 0: DefaultMaxTail.
	MaxTail int64
	// Patience is how long warm conversations wait for the truth of cold ones
	// before these are parked. 0: DefaultPatience.
	Patience time.Duration
	// LoadTimeout ends a read of the truth that does not come back.
	// 0: DefaultLoadTimeout.
	LoadTimeout time.Duration
	// Now is the clock of dead letters and of back-off. Nil: time.Now.
	Now func() time.Time
	// Logger gets one line for each dead letter. Nil: slog.Default().
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept but registered nowhere.
	Registerer prometheus.Registerer
}

func (c *Config) fill() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("toredis: config: %s", what))
		}
	}
	need(c.Allocator != nil, "Allocator is required")
	need(c.Truth != nil, "Truth is required")
	need(c.Members != nil, "Members is required")
	need(c.Log != nil, "Log is required")
	need(c.Origins != nil, "Origins is required")
	need(c.Answers != nil, "Answers is required")
	need(c.Partitions > 0, "Partitions must be above 0")
	need(c.FloorEntries >= 0, "FloorEntries must not be negative")
	need(c.MaxTail >= 0, "MaxTail must not be negative")
	need(c.Patience >= 0, "Patience must not be negative")
	need(c.LoadTimeout >= 0, "LoadTimeout must not be negative")
	c.MaxTail = cmp.Or(c.MaxTail, DefaultMaxTail)
	c.Patience = cmp.Or(c.Patience, DefaultPatience)
	c.LoadTimeout = cmp.Or(c.LoadTimeout, DefaultLoadTimeout)
	if c.FloorEntries == 0 {
		c.FloorEntries = DefaultFloorEntries
	}
	if c.Sequenced == "" {
		c.Sequenced = DefaultSequenced
	}
	if c.DeadLetter == "" {
		c.DeadLetter = DefaultDeadLetter
	}
	if c.UnreadPolicy == nil {
		c.UnreadPolicy = func(watermark.ConversationID) watermark.UnreadPolicy { return watermark.AdvanceOnSend }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}
