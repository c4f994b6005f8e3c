// Package importer writes into a history what another system exported: the
// conversations, messages and members of JSON lines, or of OpenIM's collections.
//
// Import promises:
//   - Nothing is written before all of the input was read once and checked: ids,
//     dense seqs, windows and marks inside the bounds, and that nothing else
//     stands in the target. Of a conversation with a fault nothing is imported;
//     without Config.SkipBad nothing at all is.
//   - It can be killed anywhere and be called again, any number of times: what
//     stands already is read and passed over. A later export of the same
//     conversations adds what came since.
//   - A conversation is written behind its rows and members, so that at every
//     moment it has what its bounds speak of.
//   - It overwrites nothing. A conversation that a deployment has decided about
//     is passed over where it holds all of the import, and a fault otherwise:
//     its seqs are given by Redis and by the log, which know nothing of rows that
//     are put below them.
//   - Memory is a few pages, and the users of one conversation.
//
// The input comes sorted by conversation, which is checked; Sort makes it so,
// with temporary files.
package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// DefaultPage is how many rows are read or written at once unless Config says
	// otherwise.
	DefaultPage = 500
	// DefaultReported is how many faults a Report names unless Config says
	// otherwise; it counts them all.
	DefaultReported = 50
)

// Target is a history that is written.
type Target interface {
	Positions(ctx context.Context) ([]watermark.Position, error)
	Write(ctx context.Context, c watermark.Change) (watermark.Written, error)
	Members(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) ([]watermark.Member, error)
	ScanConversations(ctx context.Context, after watermark.ConversationID, limit int) ([]watermark.Conversation, error)
	ScanRows(ctx context.Context, s watermark.RowScan) ([]watermark.StoredRow, error)
}

// ErrFaults is wrapped when the input has faults and nothing was imported.
var ErrFaults = errors.New("nothing was imported")

// ErrLive is wrapped when a deployment writes, or wrote, the target and
// Config.IntoLive is not set.
var ErrLive = errors.New("refused: the target is the history of a deployment")

// errChanged ends an import whose input is not what was checked.
var errChanged = errors.New("the input, or the target, changed while it was imported")

// Stage says what an import is about.
type Stage string

// The stages, in their order.
const (
	Checking  Stage = "checking"
	Importing Stage = "importing"
	Verifying Stage = "verifying"
)

// Config says what is imported.
type Config struct {
	Source Source
	To     Target
	// SkipBad imports the conversations without faults although others have some.
	SkipBad bool
	// IntoLive imports although the target is the history of a deployment. It is
	// for one whose roles are stopped with nothing left to be written, and whose
	// Redis is emptied before they start: what Redis learned of a conversation
	// while it was unknown would hide what was imported, and give seqs again.
	IntoLive bool
	// Page is how many rows are read or written at once; 0: DefaultPage, at most
	// watermark.MaxPage.
	Page int
	// Reported is how many faults the Report names; 0: DefaultReported.
	Reported int
	// Step is told how many entries of the input were passed. nil: nobody is.
	Step func(s Stage, entries int64)
}

func (c *Config) page() int { return min(cmp.Or(max(c.Page, 0), DefaultPage), watermark.MaxPage) }

func (c *Config) step(s Stage) {
	if c.Step != nil {
		c.Step(s, 1)
	}
}

// Counts counts what was read or written.
type Counts struct {
	Conversations int64 `json:"conversations"`
	Members       int64 `json:"members"`
	Messages      int64 `json:"messages"`
}

// Fault is why a conversation cannot be imported.
type Fault struct {
	// At is the place in the input.
	At           string `json:"at"`
	Conversation string `json:"conversation,omitempty"`
	Detail       string `json:"detail"`
}

// Report says what an import came to.
type Report struct {
	// Imported is what the target holds of the good conversations, as it was read
	// back at the end. Written is what of it did not stand before.
	Imported Counts `json:"imported"`
	Written  Counts `json:"written"`
	// Bad counts the conversations with faults, Live those that were passed over
	// since a deployment goes on with them and has all that the input has.
	Bad     int64   `json:"bad"`
	Live    int64   `json:"live"`
	Faulty  int64   `json:"faulty"`
	Faults  []Fault `json:"faults"`
	Skipped Skipped `json:"skipped"`
	// IntoLive tells that the target is the history of a deployment.
	IntoLive bool `json:"intoLive"`
}

// Source is an input that can be read several times.
type Source interface {
	open() (feed, error)
}

// feed gives the entries of an input, io.EOF behind the last.
type feed interface {
	next() (*entry, error)
	close() error
}

type kind int

const (
	headEntry kind = iota
	messageEntry
	memberEntry
)

// entry is what one line says. With a fault only place and conversation count.
type entry struct {
	at    string
	conv  string // as it was given, a conversation id or not
	kind  kind
	fault error

	head    head
	msg     watermark.Message // Seq 0: by its order
	order   *order
	hole    bool // msg stands for one that the other system lost
	member  memberSpec
	skipped Skipped
}

// head is what a conversation says of itself. A max of 0 is not said.
type head struct {
	min, max watermark.Seq
	policy   watermark.UnreadPolicy
	// given is how far the other system has set seqs aside, used or not.
	given watermark.Seq
}

// Skipped counts what the other system has and Tidemark has not.
type Skipped struct {
	// Notifications are records of conversations of notifications, BelowMin
	// messages below a minimum, Unused seqs given to nobody behind the last
	// message, DeletedForOne messages that one user has hidden from himself.
	Notifications int64 `json:"notifications"`
	BelowMin      int64 `json:"belowMin"`
	Unused        int64 `json:"unused"`
	DeletedForOne int64 `json:"deletedForOne"`
	// Holes are seqs without a message that became tombstones, Lowered marks
	// above the last message that were set to it.
	Holes   int64 `json:"holes"`
	Lowered int64 `json:"lowered"`
}

func (s *Skipped) add(o Skipped) {
	s.Notifications += o.Notifications
	s.BelowMin += o.BelowMin
	s.Unused += o.Unused
	s.DeletedForOne += o.DeletedForOne
	s.Holes += o.Holes
	s.Lowered += o.Lowered
}

// Import brings what Source has into To and tells what came of it, also beside
// an error.
func Import(ctx context.Context, cfg Config) (*Report, error) {
	rep := &Report{Faults: []Fault{}}
	positions, err := transfer.Patiently(ctx, func() ([]watermark.Position, error) { return cfg.To.Positions(ctx) })
	if err != nil {
		return rep, fmt.Errorf("read the target: %w", err)
	}
	if rep.IntoLive = len(positions) > 0; rep.IntoLive && !cfg.IntoLive {
		return rep, fmt.Errorf("%w, it says how far it has %d partitions of the log; what is put into it behind the back of Redis and the log is not known there", ErrLive, len(positions))
	}
	bad := &bits{}
	if err := each(ctx, &pass{Config: cfg, stage: Checking, rep: rep, bad: bad}); err != nil {
		return rep, err
	}
	if rep.Faulty > 0 && (!cfg.SkipBad || bad.lost) {
		return rep, fmt.Errorf("%w: the input has %d faults in %d conversations", ErrFaults, rep.Faulty, rep.Bad)
	}
	p := &pass{Config: cfg, stage: Importing, rep: rep, bad: bad}
	if err := each(ctx, p); err != nil {
		return rep, err
	}
	if err := p.flush(ctx); err != nil {
		return rep, err
	}
	return rep, each(ctx, &pass{Config: cfg, stage: Verifying, rep: rep, bad: bad})
}

// each takes p through the input.
func each(ctx context.Context, p *pass) (err error) {
	f, err := p.Source.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	p.rows, p.convs = rowSeeker(ctx, p.To, p.page()), convSeeker(ctx, p.To, p.page())
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		e, err := f.next()
		if errors.Is(err, io.EOF) {
			return p.end(ctx)
		}
		if err != nil {
			return err
		}
		if err := p.entry(ctx, e); err != nil {
			return err
		}
		p.step(p.stage)
	}
}

// bits notes which conversations, by their number in the input, are bad.
type bits struct {
	words []uint64
	lost  bool // a line that says no conversation is bad
}

func (b *bits) set(i int64) {
	for int64(len(b.words)) <= i/64 {
		b.words = append(b.words, 0)
	}
	b.words[i/64] |= 1 << (i % 64)
}

func (b *bits) has(i int64) bool {
	return i/64 < int64(len(b.words)) && b.words[i/64]&(1<<(i%64)) != 0
}

// seeker finds what stands in the target at keys that ascend. It reads ahead,
// and jumps over what nobody asked for.
type seeker[K, T any] struct {
	fetch   func(want K) ([]T, error) // from want on
	key     func(*T) K
	compare func(a, b K) int
	have    []T
	ended   bool
}

// at gives what stands at want, nil for nothing. It stays valid until the next
// call.
func (s *seeker[K, T]) at(want K) (*T, error) {
	for {
		for len(s.have) > 0 {
			switch n := s.compare(s.key(&s.have[0]), want); {
			case n == 0:
				return &s.have[0], nil
			case n > 0:
				return nil, nil
			}
			s.have = s.have[1:]
		}
		if s.ended {
			return nil, nil
		}
		var err error
		if s.have, err = s.fetch(want); err != nil {
			return nil, fmt.Errorf("read the target: %w", err)
		}
		s.ended = len(s.have) == 0
	}
}

func rowSeeker(ctx context.Context, t Target, page int) *seeker[watermark.RowKey, watermark.StoredRow] {
	return &seeker[watermark.RowKey, watermark.StoredRow]{
		fetch: func(want watermark.RowKey) ([]watermark.StoredRow, error) {
			want.Seq--
			return transfer.Patiently(ctx, func() ([]watermark.StoredRow, error) {
				return t.ScanRows(ctx, watermark.RowScan{After: want, Limit: page})
			})
		},
		key:     (*watermark.StoredRow).Key,
		compare: watermark.RowKey.Compare,
	}
}

func convSeeker(ctx context.Context, t Target, page int) *seeker[watermark.ConversationID, watermark.Conversation] {
	return &seeker[watermark.ConversationID, watermark.Conversation]{
		fetch: func(want watermark.ConversationID) ([]watermark.Conversation, error) {
			// Just below want: no byte of an id is above \x7e.
			end := len(want) - 1
			after := want[:end] + watermark.ConversationID([]byte{want[end] - 1, 0x7f})
			return transfer.Patiently(ctx, func() ([]watermark.Conversation, error) { return t.ScanConversations(ctx, after, page) })
		},
		key:     func(c *watermark.Conversation) watermark.ConversationID { return c.ID },
		compare: cmp.Compare[watermark.ConversationID],
	}
}
