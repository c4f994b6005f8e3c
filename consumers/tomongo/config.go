package tomongo

import (
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
	DefaultDeadLetter = wire.TopicDeadLetter
	DefaultInputs     = wire.TopicToRedis
	DefaultFlushMarks = 100_000
	DefaultFlushEvery = 15 * time.Second
	DefaultDeleteStep = 1000
)

// History is the durable projection of the sequenced log.
type History interface {
	// Write applies a change: rows, revokes, members, conversations, positions,
	// in that order. Writing again changes nothing. An error means that any part of it
	// may have been written.
	Write(ctx context.Context, change watermark.Change) (watermark.Written, error)
	// DeleteBelow deletes at most limit messages below seq and tells how many; 0
	// means that none are left. A store may have a lower limit of its own.
	DeleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (deleted int, err error)
}

// Hot is what Redis holds of read marks.
type Hot interface {
	// RaiseReads raises Read and Receipt of members where the conversation is
	// warm, and does nothing elsewhere.
	RaiseReads(ctx context.Context, rows []watermark.MemberRow) error
}

// Owner is where lost events are handed back: the toRedis topic, whose reader
// decides about their conversation.
type Owner interface {
	// Append returns nil once every input, all of them ActResequence, is
	// acknowledged as a command of the toRedis topic.
	Append(ctx context.Context, inputs []watermark.Input) error
}

// Log appends to Kafka.
type Log interface {
	// Append returns nil once every out is acknowledged by all in-sync
	// replicas.
	Append(ctx context.Context, outs []wire.Out) error
}

// Config says what a Projector works with. The four ports are required.
type Config struct {
	History History
	Hot     Hot
	Owner   Owner
	Log     Log

	// DeadLetter names the dead letter topic. Empty: DefaultDeadLetter.
	DeadLetter string
	// Inputs names the topic whose offsets are the inputs of the log's records.
	// Empty: DefaultInputs.
	Inputs string
	// WriteEvery is how long messages are gathered before they are written, 20,000
	// of them or 8 MiB at most. 0: each batch is written by itself.
	WriteEvery time.Duration
	// FlushMarks is after how many watermark advances what is coalesced is
	// written. 0: DefaultFlushMarks.
	FlushMarks int
	// FlushEvery is how long a bound or a mark may stay unwritten while records
	// keep coming; when none come, the runner's Flush does it. 0:
	// DefaultFlushEvery.
	FlushEvery time.Duration
	// DeleteStep bounds how many messages one step of a raised minimum deletes.
	// 0: DefaultDeleteStep.
	DeleteStep int
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
	// Logger gets one line for each conflict and dead letter. Nil:
	// slog.Default().
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept but registered nowhere.
	Registerer prometheus.Registerer
}

func (c *Config) fill() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("tomongo: config: %s", what))
		}
	}
	need(c.History != nil, "History is required")
	need(c.Hot != nil, "Hot is required")
	need(c.Log != nil, "Log is required")
	need(c.Owner != nil, "Owner is required")
	need(c.WriteEvery >= 0, "WriteEvery must not be negative")
	need(c.FlushMarks >= 0, "FlushMarks must not be negative")
	need(c.FlushEvery >= 0, "FlushEvery must not be negative")
	need(c.DeleteStep >= 0, "DeleteStep must not be negative")
	if c.DeadLetter == "" {
		c.DeadLetter = DefaultDeadLetter
	}
	if c.Inputs == "" {
		c.Inputs = DefaultInputs
	}
	if c.FlushMarks == 0 {
		c.FlushMarks = DefaultFlushMarks
	}
	if c.FlushEvery == 0 {
		c.FlushEvery = DefaultFlushEvery
	}
	if c.DeleteStep == 0 {
		c.DeleteStep = DefaultDeleteStep
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}
