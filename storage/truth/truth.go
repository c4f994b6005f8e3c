package truth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultChunk is how many conversations one set of history queries is about
// when nobody says.
const DefaultChunk = 500

// History is what truth reads of a history store; storage/storagetest says
// what each method means.
type History interface {
	States(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error)
	Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error)
	MembershipsOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) ([]watermark.MemberRow, error)
	ActivityOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) ([]watermark.Activity, error)
	Conversations(ctx context.Context, ids []watermark.ConversationID) ([]watermark.Conversation, error)
	Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.Peeked, error)
}

// Pin holds the tail of some partitions of the sequenced log from toMongo's
// committed offset H on, as it stood when the pin was taken: nothing at or
// above H is let go before Release.
//
// Each read covers at least everything from H up to an end offset that is
// fetched after the call began.
type Pin interface {
	// States folds the tail per conversation. A conversation of which the tail
	// has nothing is absent.
	States(ctx context.Context, convs []watermark.ConversationID) (map[watermark.ConversationID]*watermark.State, error)
	// MembersOf gives the conversations of which the tail has anything about the
	// user, of the pinned partitions.
	MembersOf(ctx context.Context, user watermark.UserID) ([]watermark.ConversationID, error)
	// Messages gives the tail's messages of conv within in, ascending, at most
	// limit; of two at one seq the first in the log.
	Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error)
	// Revokes gives the tail's revokes of conv within in, also of messages that
	// only history has; of two of one message the first in the log.
	Revokes(ctx context.Context, conv watermark.ConversationID, in watermark.Interval) (map[watermark.Seq]watermark.Revoked, error)
	// Peek gives for each of peeks what the tail has of it, and all revokes of
	// the conversation that it has.
	Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.TailPeek, error)
	// Ends gives by partition the end offset that the log had at a moment after
	// the call; all partitions must be pinned. What is read afterwards covers
	// everything below.
	Ends(ctx context.Context) ([]int64, error)
	// Partition tells on which partition a conversation's records stand.
	Partition(conv watermark.ConversationID) int32
	Release()
}

// Config says where a Truth reads.
type Config struct {
	// History is required.
	History History
	// Pin pins the partitions of the given conversations. Required.
	Pin func(ctx context.Context, convs []watermark.ConversationID) (Pin, error)
	// PinAll pins all partitions. Required.
	PinAll func(ctx context.Context) (Pin, error)
	// Log names the incarnation of the sequenced log. Required.
	Log string
	// Chunk is how many conversations one set of history queries is about;
	// 0: DefaultChunk.
	Chunk int
	// Logger; nil: none.
	Logger *slog.Logger
	// Registerer takes the metrics; nil: they are counted and not shown.
	Registerer prometheus.Registerer
}

// Truth reads history ⊕ tail.
type Truth struct {
	cfg     Config
	metrics *metrics
}

// New makes a Truth. It reads nothing yet.
func New(cfg Config) (*Truth, error) {
	var errs []error
	if cfg.History == nil {
		errs = append(errs, errors.New("truth: History is missing"))
	}
	if cfg.Pin == nil {
		errs = append(errs, errors.New("truth: Pin is missing"))
	}
	if cfg.PinAll == nil {
		errs = append(errs, errors.New("truth: PinAll is missing"))
	}
	if cfg.Log == "" {
		errs = append(errs, errors.New("truth: Log is missing"))
	}
	if cfg.Chunk < 0 {
		errs = append(errs, fmt.Errorf("truth: Chunk is %d, must not be negative", cfg.Chunk))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Chunk == 0 {
		cfg.Chunk = DefaultChunk
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Truth{cfg: cfg, metrics: newMetrics(cfg.Registerer)}, nil
}

// Load gives the state of each wanted conversation, in the order of wants. A
// conversation of which nothing is known has a state with its ID and nothing
// else.
//
// State.Sent, where it was asked for, holds the client message ids of the last
// DedupeHorizon seqs; of an id that stands at two seqs, the higher one.
func (t *Truth) Load(ctx context.Context, wants []watermark.Want) (states []*watermark.State, err error) {
	defer t.metrics.observe("load", time.Now(), &err)
	if len(wants) == 0 {
		return nil, nil
	}
	convs := make([]watermark.ConversationID, len(wants))
	for i, w := range wants {
		convs[i] = w.Conversation
	}

	// The order of these three steps is the guarantee of this package.
	pin, err := t.cfg.Pin(ctx, convs)
	if err != nil {
		return nil, fmt.Errorf("pin the tail: %w", err)
	}
	defer pin.Release()
	states = make([]*watermark.State, 0, len(wants))
	for from := 0; from < len(wants); from += t.cfg.Chunk {
		chunk := wants[from:min(from+t.cfg.Chunk, len(wants))]
		part, err := t.cfg.History.States(ctx, chunk)
		if err != nil {
			return nil, fmt.Errorf("read history of %d conversations: %w", len(chunk), err)
		}
		if len(part) != len(chunk) {
			return nil, fmt.Errorf("history gave %d states for %d conversations", len(part), len(chunk))
		}
		states = append(states, part...)
	}
	tail, err := pin.States(ctx, convs)
	if err != nil {
		return nil, fmt.Errorf("read the tail: %w", err)
	}

	for i, s := range states {
		merge(s, tail[wants[i].Conversation], &wants[i])
	}
	t.metrics.conversations.Add(float64(len(wants)))
	return states, nil
}

// merge adds to what history says about a wanted conversation what the tail
// says, and leaves out what was not asked for.
func merge(s, tail *watermark.State, w *watermark.Want) {
	if tail != nil {
		s.Merge(tail)
	}
	if !s.Complete {
		keepMembers(s, w.Users)
	}
	if !w.Sent {
		s.Sent = nil
		return
	}
	for k, v := range s.Sent {
		if v.Seq <= s.Max-watermark.DedupeHorizon {
			delete(s.Sent, k)
		}
	}
}

// keepMembers drops members that nobody asked for. The tail has only what
// changed of them lately: a read mark without its window would look like a user
// who never had one, and who therefore may see everything.
func keepMembers(s *watermark.State, users []watermark.UserID) {
	var kept map[watermark.UserID]watermark.Member
	for _, u := range users {
		if m, ok := s.Members[u]; ok {
			if kept == nil {
				kept = make(map[watermark.UserID]watermark.Member, len(users))
			}
			kept[u] = m
		}
	}
	s.Members = kept
}
