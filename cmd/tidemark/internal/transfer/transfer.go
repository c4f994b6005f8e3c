// Package transfer copies a history from one store to another, whatever they
// are, and compares two histories.
//
// Copy promises:
//   - What it copies is all that the contract of a history lets anybody see:
//     messages with their tombstones, conversations with bounds, inputs, policy
//     and repair, members with windows, ops, marks and own messages, the client
//     ids that retention has left within the dedupe horizon, devices, and how far
//     history has the log. Content below a conversation's minimum is deleted for
//     everybody, and stays behind.
//   - It can be killed anywhere and be called again, any number of times: what
//     stands already is read and passed over, what is missing or has risen is
//     written. So a second call after a first one writes only what changed since.
//   - At every moment, also in the middle, a conversation in the target has all
//     the rows that its bounds speak of, provided they stood in the source. How
//     far it has the log is written last, and was read first: everything below
//     is there then.
//   - It overwrites nothing: where the target holds another message at a place,
//     or another state of a member's version, it stops.
//   - Memory is a few pages, however much there is.
//
// Copy may run while the source is written; what changes behind it is for the
// next call. Only Compare tells that two histories are the same, and only while
// neither is written.
//
// Compare reads both sides by itself and shares with Copy nothing but the order
// of keys. Passing faults of a store are waited for, for a minute each.
package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// patience is how long a store that is busy or away is waited for.
const patience = time.Minute

// DefaultPage is how many rows, members or conversations are handled at once
// unless Config says otherwise.
const DefaultPage = 500

// Source is a history that is read.
type Source interface {
	ScanConversations(ctx context.Context, after watermark.ConversationID, limit int) ([]watermark.Conversation, error)
	ScanRows(ctx context.Context, s watermark.RowScan) ([]watermark.StoredRow, error)
	ScanMembers(ctx context.Context, after watermark.MemberKey, limit int) ([]watermark.MemberRow, error)
	Positions(ctx context.Context) ([]watermark.Position, error)
	ScanDevices(ctx context.Context, after watermark.DeviceKey, limit int) ([]watermark.DeviceRow, error)
}

// Target is a history that is written.
type Target interface {
	Source
	Write(ctx context.Context, c watermark.Change) (watermark.Written, error)
	Conversations(ctx context.Context, ids []watermark.ConversationID) ([]watermark.Conversation, error)
	DeleteBelow(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, limit int) (deleted int, err error)
	PutDevice(ctx context.Context, user watermark.UserID, d watermark.Device) error
}

// ErrClash is wrapped where the target holds something else than the source
// where neither may replace the other: it is not a copy of this source.
var ErrClash = errors.New("the target holds something else")

// Counts counts what was read, written or found.
type Counts struct {
	Conversations int64 `json:"conversations"`
	Members       int64 `json:"members"`
	Messages      int64 `json:"messages"`
	Devices       int64 `json:"devices"`
}

// Sum adds up what Sizes counts too: all but devices.
func (c Counts) Sum() int64 { return c.Conversations + c.Members + c.Messages }

// Patiently calls f until it succeeds, fails for good, or a minute is over, and
// gives what it gave last. It is for stores that are busy or away for a moment.
func Patiently[T any](ctx context.Context, f func() (T, error)) (T, error) {
	return backoff.Retry(ctx, func() (T, error) {
		v, err := f()
		if err != nil && (fault.ClassOf(err) != fault.Transient || ctx.Err() != nil) {
			err = backoff.Permanent(err)
		}
		return v, err
	}, backoff.WithBackOff(backoff.NewExponentialBackOff()), backoff.WithMaxElapsedTime(patience))
}

// stream gives what stands behind one another, page by page.
type stream[T any] struct {
	fetch func(last *T) ([]T, error)
	have  []T
	last  *T
	ended bool
}

// peek gives the next one, nil at the end.
func (s *stream[T]) peek() (*T, error) {
	if len(s.have) == 0 && !s.ended {
		var err error
		if s.have, err = s.fetch(s.last); err != nil {
			return nil, err
		}
		s.ended = len(s.have) == 0
	}
	if s.ended {
		return nil, nil
	}
	return &s.have[0], nil
}

func (s *stream[T]) pass() {
	s.last, s.have = &s.have[0], s.have[1:]
}

// join goes through two streams that are sorted alike and hands over what
// stands at one place: nil for a side that has nothing there. What it hands
// over stays valid until the next one.
func join[T any](a, b *stream[T], compare func(a, b *T) int, each func(a, b *T) error) error {
	for {
		x, err := a.peek()
		if err != nil {
			return fmt.Errorf("read the source: %w", err)
		}
		y, err := b.peek()
		if err != nil {
			return fmt.Errorf("read the target: %w", err)
		}
		if x == nil && y == nil {
			return nil
		}
		order := 0
		switch {
		case x == nil:
			order = 1
		case y == nil:
			order = -1
		default:
			order = compare(x, y)
		}
		if order < 0 {
			y = nil
		} else if order > 0 {
			x = nil
		}
		if err := each(x, y); err != nil {
			return err
		}
		if x != nil {
			a.pass()
		}
		if y != nil {
			b.pass()
		}
	}
}

// rowsOf streams the rows of conversations above after up to last.
func rowsOf(ctx context.Context, s Source, page int, after, last watermark.ConversationID) *stream[watermark.StoredRow] {
	return &stream[watermark.StoredRow]{fetch: func(row *watermark.StoredRow) ([]watermark.StoredRow, error) {
		scan := watermark.RowScan{After: watermark.RowKey{Conversation: after, Seq: watermark.MaxSeq}, Last: last, Limit: page}
		if row != nil {
			scan.After = row.Key()
		}
		return Patiently(ctx, func() ([]watermark.StoredRow, error) { return s.ScanRows(ctx, scan) })
	}}
}

func compareRows(a, b *watermark.StoredRow) int { return a.Key().Compare(b.Key()) }

func membersOf(ctx context.Context, s Source, page int) *stream[watermark.MemberRow] {
	return &stream[watermark.MemberRow]{fetch: func(last *watermark.MemberRow) ([]watermark.MemberRow, error) {
		var after watermark.MemberKey
		if last != nil {
			after = last.Key()
		}
		return Patiently(ctx, func() ([]watermark.MemberRow, error) { return s.ScanMembers(ctx, after, page) })
	}}
}

func positionsOf(ctx context.Context, s Source) ([]watermark.Position, error) {
	ps, err := Patiently(ctx, func() ([]watermark.Position, error) { return s.Positions(ctx) })
	slices.SortFunc(ps, comparePositions)
	return ps, err
}

func comparePositions(a, b watermark.Position) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.TopicID, b.TopicID), cmp.Compare(a.Number, b.Number))
}

func compareMembers(a, b *watermark.MemberRow) int { return a.Key().Compare(b.Key()) }

func conversationsAfter(ctx context.Context, s Source, page int, after watermark.ConversationID) ([]watermark.Conversation, error) {
	return Patiently(ctx, func() ([]watermark.Conversation, error) { return s.ScanConversations(ctx, after, page) })
}

// bounds are the minimum and maximum of conversations, as the source has them.
type bounds map[watermark.ConversationID]watermark.Interval

// standing says what a row counts for.
type standing int

const (
	served  standing = iota // it is whole
	kept                    // below the minimum, for its client id alone
	expired                 // below the minimum and behind the dedupe horizon: for nothing
)

func (b bounds) of(r *watermark.StoredRow) standing {
	in := b[r.Conversation]
	switch {
	case r.Message.Seq >= in.First:
		return served
	case r.Message.Seq > in.Last-watermark.DedupeHorizon:
		return kept
	}
	return expired
}

// piece is a stretch of conversations whose rows are read together.
type piece struct {
	convs       []watermark.Conversation
	after, last watermark.ConversationID // last is empty: to the end
	bounds      bounds
}

// piecePages is about how many pages of rows a piece has: a store may have to
// look at all of it for each of them.
const piecePages = 4

// pieces cuts a page of conversations, the one behind after, by the rows that
// they are likely to have. An empty page is one piece, to the end: rows may
// stand behind the last conversation.
func pieces(convs []watermark.Conversation, after watermark.ConversationID, page int) (out []piece) {
	for first := true; first || len(convs) > 0; first = false {
		p := piece{after: after, bounds: make(bounds)}
		n, rows := 0, int64(0)
		for ; n < len(convs) && (n == 0 || rows < int64(piecePages*page)); n++ {
			c := &convs[n]
			rows += int64(max(c.Max-max(c.Min, 1)+1, 0))
			p.bounds[c.ID] = watermark.Interval{First: c.Min, Last: c.Max}
			p.last = c.ID
		}
		p.convs, convs, after = convs[:n], convs[n:], p.last
		out = append(out, p)
	}
	return out
}
