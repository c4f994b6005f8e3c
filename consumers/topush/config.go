package topush

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/watermark"
)

// Defaults of Config.
const (
	DefaultCacheMembers = 200_000
	DefaultMaxAge       = 5 * time.Minute
	DefaultMaxUsers     = 1000
)

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
	// RaisePushed raises marks, and never lowers one.
	RaisePushed(ctx context.Context, marks []Mark) error
}

// Delivery is one event for some users of a conversation.
type Delivery struct {
	Conversation watermark.ConversationID
	Users        []watermark.UserID // at most Config.MaxUsers, ascending
	// Event is what happened; a MessagesSequenced has exactly one message.
	Event watermark.Event
	// Max is the highest seq of the conversation that the users may know of;
	// 0: nothing is said about it.
	Max    watermark.Seq
	Repair watermark.Repaired
	// ExceptDevice of ExceptUser already knows: the device that sent the
	// message or made the mark. Empty: none.
	ExceptUser   watermark.UserID
	ExceptDevice string
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
	// conversations together. One that is larger by itself is kept alone. 0:
	// DefaultCacheMembers.
	CacheMembers int
	// MaxAge is how old a record of the sequenced log may be to be delivered
	// live. 0: DefaultMaxAge.
	MaxAge time.Duration
	// MaxUsers bounds the users of one Delivery. 0: DefaultMaxUsers.
	MaxUsers int
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
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}
