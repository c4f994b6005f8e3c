package topush

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/watermark"
)

// Defaults of Config.
const (
	DefaultCacheMembers = 200_000
	DefaultMaxAge       = 5 * time.Minute
	DefaultMaxUsers     = 1000
	DefaultCrowdAbove   = watermark.SmallGroup
	DefaultLaneCost     = 1000
	DefaultQueueBytes   = 4 << 20
)

// crowdTTL is how long a conversation stays a crowd before its members are
// enlisted again, which mends lists that Redis lost a part of. Half of it has
// passed when that is done.
const crowdTTL = 24 * time.Hour

// Truth reads history and the tail of the sequenced log.
type Truth interface {
	// Load answers each want, in order.
	Load(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error)
}

// Mark is how far a conversation has been pushed.
type Mark = watermark.PushMark

// Marks keeps marks where another process finds them.
type Marks interface {
	// Pushed gives the marks of ids, in order, zero where there is none.
	Pushed(ctx context.Context, ids []watermark.ConversationID) ([]Mark, error)
	// RaisePushed raises marks, and never lowers one. After an error those that
	// it was given come again, all of them to be renewed.
	RaisePushed(ctx context.Context, marks []Mark) error
}

// Crowds keeps which conversations are so large that what happens in them is
// published once, for all members who are connected, and not to each of them:
// each member has such a conversation on its list, where a gateway finds it when
// the member connects.
type Crowds interface {
	// Enlist puts a conversation on each user's list, for longer than ttl.
	Enlist(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID, ttl time.Duration) error
	// Delist takes it off.
	Delist(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) error
	// StandCrowd notes that all members are enlisted, for ttl.
	StandCrowd(ctx context.Context, conv watermark.ConversationID, ttl time.Duration) error
	// FallCrowd takes the note away.
	FallCrowd(ctx context.Context, conv watermark.ConversationID) error
	// StandingCrowds tells for how long the note of each stands yet. 0: it does
	// not, or lists may have been lost since.
	StandingCrowds(ctx context.Context, convs []watermark.ConversationID) ([]time.Duration, error)
}

// Reach says whom a Delivery goes to.
type Reach int

const (
	// ToUsers is to each of Users.
	ToUsers Reach = iota
	// ToCrowd is to all members who are connected, as far as their windows
	// contain the seq of the message or revoke.
	ToCrowd
	// Change tells gateways that the window in Event has changed.
	Change
	// Seat tells gateways that Users are members of the crowd.
	Seat
	// Dissolve tells gateways that the conversation is no crowd any more.
	Dissolve
)

// Place is how far the windows of a conversation have come on the sequenced log.
type Place struct {
	// Log is the log's topic id.
	Log string
	// Changed is the offset plus 1 of the last change of a window up to the
	// delivery, itself included, or of something after it; 0: none.
	Changed int64
	// Before is, for a Change, what Changed was before it.
	Before int64
}

// Delivery is one event for some users of a conversation.
type Delivery struct {
	Conversation watermark.ConversationID
	Reach        Reach
	Users        []watermark.UserID // of ToUsers and Seat; at most Config.MaxUsers, ascending
	// All gives those whom a ToCrowd concerns, in order, connected or not. It may
	// be called until Deliver returns, and costs as much as there are members.
	All iter.Seq[watermark.UserID]
	// Place is of ToCrowd and Change.
	Place Place
	// Event is what happened; a MessagesSequenced has exactly one message. Nil:
	// there is more, up to Max, than was handed off.
	Event watermark.Event
	// Max is the highest seq of the conversation that the users may know of;
	// 0: nothing is said about it.
	Max    watermark.Seq
	Repair watermark.Repaired
	// ExceptDevice of ExceptUser already knows: the device that sent the
	// message or made the mark. Empty: none.
	ExceptUser   watermark.UserID
	ExceptDevice string
	// Trace is what the message belongs to; not valid: none.
	Trace trace.SpanContext
}

// Deliverer hands events to the gateway and to offline push.
type Deliverer interface {
	// Deliver takes deliveries, those of one conversation in order. After an
	// error any part of them may have been delivered.
	Deliver(ctx context.Context, deliveries []Delivery) error
}

// Config says what a Pusher works with. The three ports are required.
type Config struct {
	Truth     Truth
	Marks     Marks
	Deliverer Deliverer
	// Offline takes messages for those who may be absent. Nil: nobody is told.
	Offline Offline

	// OfflineMembers is the number of recipients above which only those whom a
	// message mentions are offered to Offline. 0: DefaultOfflineMembers.
	OfflineMembers int
	// CacheMembers bounds the members that one partition keeps in memory, all
	// conversations together, and once more those of conversations that wait out of
	// the way of the others. One that is larger by itself is kept alone. 0:
	// DefaultCacheMembers.
	CacheMembers int
	// MaxAge is how old a record of the sequenced log may be to be delivered
	// live. 0: DefaultMaxAge.
	MaxAge time.Duration
	// MaxUsers bounds the users of one Delivery. 0: DefaultMaxUsers.
	MaxUsers int
	// Crowds keeps which conversations are published once. Nil: none is.
	Crowds Crowds
	// CrowdAbove is the number of present members above which a conversation
	// becomes a crowd. 0: DefaultCrowdAbove.
	CrowdAbove int
	// CrowdBelow is the number below which it ceases to be one. 0: three quarters
	// of CrowdAbove. It must not be above it.
	CrowdBelow int
	// LaneCost is the number of publications above which what a batch has of one
	// conversation leaves the way of the others. 0: DefaultLaneCost.
	LaneCost int
	// QueueBytes bounds what waits there of one conversation, and eight times as
	// much of all. What comes beyond is not handed off: when the queue is empty
	// the members are told that there is more. Where there is no room for another
	// conversation the partition waits. 0: DefaultQueueBytes.
	QueueBytes int
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
	// Logger gets one line for each record that cannot be decoded. Nil:
	// slog.Default().
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept but registered nowhere.
	Registerer prometheus.Registerer
}

func (c *Config) fill() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("topush: config: %s", what))
		}
	}
	need(c.Truth != nil, "Truth is required")
	need(c.Marks != nil, "Marks is required")
	need(c.Deliverer != nil, "Deliverer is required")
	need(c.CacheMembers >= 0, "CacheMembers must not be negative")
	need(c.MaxAge >= 0, "MaxAge must not be negative")
	need(c.MaxUsers >= 0, "MaxUsers must not be negative")
	need(c.CrowdAbove >= 0 && c.CrowdBelow >= 0, "CrowdAbove and CrowdBelow must not be negative")
	need(c.LaneCost >= 0, "LaneCost must not be negative")
	need(c.QueueBytes >= 0, "QueueBytes must not be negative")
	need(c.OfflineMembers >= 0, "OfflineMembers must not be negative")
	if c.OfflineMembers == 0 {
		c.OfflineMembers = DefaultOfflineMembers
	}
	if c.CacheMembers == 0 {
		c.CacheMembers = DefaultCacheMembers
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxUsers == 0 {
		c.MaxUsers = DefaultMaxUsers
	}
	if c.CrowdAbove == 0 {
		c.CrowdAbove = DefaultCrowdAbove
	}
	if c.CrowdBelow == 0 {
		c.CrowdBelow = c.CrowdAbove * 3 / 4
	}
	need(c.CrowdBelow <= c.CrowdAbove, "CrowdBelow must not be above CrowdAbove")
	if c.LaneCost == 0 {
		c.LaneCost = DefaultLaneCost
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = DefaultQueueBytes
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}
