package tooffline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// Defaults of Config.
const (
	DefaultDelay         = 2 * time.Second
	DefaultMaxAge        = 24 * time.Hour
	DefaultTries         = 8
	DefaultConcurrency   = 32
	DefaultTimeout       = 10 * time.Second
	DefaultMaxPending    = 20_000
	DefaultFirstPause    = time.Second
	DefaultLongestPause  = 5 * time.Minute
	DefaultMaxRetryAfter = time.Hour
	DefaultBreakerAfter  = 10
	DefaultBreakerPause  = 15 * time.Second
)

// Notification is what a user is told.
type Notification struct {
	// ID is the same at every attempt, and for the same messages also after a
	// restart: the endpoint's idempotency key.
	ID           string
	Conversation watermark.ConversationID
	User         watermark.UserID
	// First and Last are the seqs of the first and the last message that it
	// stands for, Messages how many they are.
	First, Last watermark.Seq
	Messages    int
	// Mentioned tells that one of them mentions the user.
	Mentioned bool
	// Unread is the user's number of unread messages in the conversation, Badge
	// in all conversations together.
	Unread, Badge int64
	// Latest is the last message. Its users and mentions are not set.
	Latest wire.Offline
	// Devices are those of the user that are still to be told; none at an
	// endpoint that needs none.
	Devices []watermark.Device
	// Try counts the attempts, from 1.
	Try int
	// Trace is what the attempt belongs to, the last message's; not valid: none.
	Trace trace.SpanContext

	told, refused, gone []string
}

// Collapse names what replaces each other on a device: the conversation. It is
// at most 64 bytes, which is what vendors take.
func (n *Notification) Collapse() string { return collapseOf(n.Conversation) }

// Told notes that a device needs no other attempt.
func (n *Notification) Told(d watermark.Device) { n.told = append(n.told, d.ID) }

// Refused notes that a device will never take the notification: it needs no other
// attempt.
func (n *Notification) Refused(d watermark.Device) { n.refused = append(n.refused, d.ID) }

// Gone notes that a device's token is not good any more: it needs no other
// attempt, and its registration is taken away.
func (n *Notification) Gone(d watermark.Device) { n.gone = append(n.gone, d.ID) }

// Sender hands notifications to one endpoint.
type Sender interface {
	// Send hands over n and returns nil when the endpoint has taken it, for all
	// of its devices: those that have it already are said by Told. ctx ends
	// at the timeout of one attempt. An error without a SendError in it is tried
	// again. It is called by many goroutines at once, for different
	// notifications.
	Send(ctx context.Context, n *Notification) error
}

// SendError says what an endpoint's refusal means.
type SendError struct {
	// Final: the endpoint will never take this notification.
	Final bool
	// RetryAfter is how long the endpoint wants to be left alone; 0: it did not
	// say.
	RetryAfter time.Duration
	// Whole: RetryAfter is about the endpoint, not about this notification alone.
	Whole bool
	Err   error
}

// Error implements error.
func (e *SendError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *SendError) Unwrap() error { return e.Err }

// Standing is what a user sees of a conversation.
type Standing struct {
	Conversation watermark.Conversation
	Member       watermark.Member
	// Revoked tells that the message that was asked about is a tombstone.
	Revoked bool
}

// Store tells what users have seen.
type Store interface {
	// Look tells how user stands to conv, and whether the message at seq was
	// revoked.
	Look(ctx context.Context, conv watermark.ConversationID, user watermark.UserID, seq watermark.Seq) (Standing, error)
	// Badge counts the unread messages of user in all conversations that are not
	// muted.
	Badge(ctx context.Context, user watermark.UserID) (int64, error)
}

// Devices knows where users can be notified.
type Devices interface {
	// Devices gives the devices of user that belong to an endpoint of this kind.
	Devices(ctx context.Context, user watermark.UserID) ([]watermark.Device, error)
	// Forget takes a registration away, unless it was made anew with another
	// token than d's.
	Forget(ctx context.Context, user watermark.UserID, d watermark.Device) error
}

// Appender appends records and returns when they are acknowledged.
type Appender interface {
	Append(ctx context.Context, outs []wire.Out) error
}

// Config says what a Worker works with. Endpoint, Sender, Store, DeadLetters
// and DeadLetter are required.
type Config struct {
	// Endpoint names the endpoint: 1-32 bytes of [a-z0-9-].
	Endpoint string
	Sender   Sender
	Store    Store
	// Devices knows the devices of users. Nil: the endpoint needs none.
	Devices Devices
	// DeadLetters takes what could not be delivered, to the topic DeadLetter.
	DeadLetters Appender
	DeadLetter  string

	// Delay is how long a notification waits for others of its conversation and
	// user, and for the user to read the message elsewhere. 0: DefaultDelay.
	// Negative: none.
	Delay time.Duration
	// Preview bounds the text of a message that leaves the deployment, in bytes.
	// 0: none does.
	Preview int
	// MaxAge is how old a message may be when its user is told for the first
	// time. 0: DefaultMaxAge.
	MaxAge time.Duration
	// Tries is how often a notification is attempted. 0: DefaultTries.
	Tries int
	// Concurrency bounds the attempts under way at once, of all partitions
	// together. 0: DefaultConcurrency.
	Concurrency int
	// Timeout bounds one attempt. 0: DefaultTimeout.
	Timeout time.Duration
	// MaxPending bounds the messages times users that one partition holds in
	// memory; a record that begins below it is held whole. 0: DefaultMaxPending.
	MaxPending int
	// FirstPause and LongestPause are those between attempts, which double and
	// are spread by a fifth. 0: DefaultFirstPause, DefaultLongestPause.
	FirstPause, LongestPause time.Duration
	// MaxRetryAfter bounds what an endpoint can ask for. 0: DefaultMaxRetryAfter.
	MaxRetryAfter time.Duration
	// BreakerAfter failures in a row open the circuit: no attempt is made for
	// BreakerPause, then one. 0: DefaultBreakerAfter, DefaultBreakerPause.
	BreakerAfter int
	BreakerPause time.Duration

	// Tracer begins a span for each attempt for a message that is traced. Nil:
	// none, and the trace is handed on as it came.
	Tracer trace.Tracer
	// Logger gets one line for each dead letter and each change of the circuit.
	// Nil: slog.Default().
	Logger *slog.Logger
	// Registerer takes the metrics, which carry the endpoint as a label. Nil:
	// they are kept but registered nowhere.
	Registerer prometheus.Registerer
}

var endpointName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func (c *Config) fill() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("tooffline: config: %s", what))
		}
	}
	need(endpointName.MatchString(c.Endpoint), fmt.Sprintf("Endpoint %q must be 1-32 bytes of [a-z0-9-]", c.Endpoint))
	need(c.Sender != nil, "Sender is required")
	need(c.Store != nil, "Store is required")
	need(c.DeadLetters != nil, "DeadLetters is required")
	need(c.DeadLetter != "", "DeadLetter is required")
	for _, f := range []struct {
		name  string
		value *int
		def   int
	}{
		{"Preview", &c.Preview, 0}, {"Tries", &c.Tries, DefaultTries}, {"Concurrency", &c.Concurrency, DefaultConcurrency},
		{"MaxPending", &c.MaxPending, DefaultMaxPending}, {"BreakerAfter", &c.BreakerAfter, DefaultBreakerAfter},
	} {
		need(*f.value >= 0, f.name+" must not be negative")
		if *f.value == 0 {
			*f.value = f.def
		}
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"MaxAge", &c.MaxAge, DefaultMaxAge}, {"Timeout", &c.Timeout, DefaultTimeout}, {"FirstPause", &c.FirstPause, DefaultFirstPause},
		{"LongestPause", &c.LongestPause, DefaultLongestPause}, {"MaxRetryAfter", &c.MaxRetryAfter, DefaultMaxRetryAfter},
		{"BreakerPause", &c.BreakerPause, DefaultBreakerPause},
	} {
		need(*f.value >= 0, f.name+" must not be negative")
		if *f.value == 0 {
			*f.value = f.def
		}
	}
	need(c.FirstPause <= c.LongestPause, "FirstPause must not exceed LongestPause")
	if c.Delay == 0 {
		c.Delay = DefaultDelay
	}
	c.Delay = max(c.Delay, 0)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}
