package audit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/watermark"
)

// What an audit holds at once, whatever there is to audit.
const (
	// batchConversations are looked at together, workers of them side by side.
	batchConversations = 100
	workers            = 4
	// pageRows is how many rows, and entries of a hot log, one worker holds. A
	// body has at most 1 MiB.
	pageRows = 128
	// pageMembers is how many members one worker holds.
	pageMembers = 500
	// maxSuspicions may wait for their second look, and suspicionBytes of
	// messages with them, for each worker.
	maxSuspicions  = 1000
	suspicionBytes = 8 << 20
	// chunkRecords, chunkMessages and chunkBytes bound what of the log is
	// compared at once.
	chunkRecords  = 500
	chunkMessages = 2000
	chunkBytes    = 4 << 20
	// maxSeenTwice is how many members of a batch have their marks read again at
	// its end.
	maxSeenTwice = 5000
	// maxLosers is how many messages that lost their place are followed at once.
	maxLosers = 10_000
	// maxReported is how many faults are remembered so that another check does
	// not tell of the same one again.
	maxReported = 10_000
	// maxListed is how many findings of one kind in one conversation are handed
	// on one by one; further ones are counted.
	maxListed = 20
	// MaxSample is the most conversations of a sample, whose ids are held.
	MaxSample = 100_000
)

// DefaultPatience is how long the workers are waited for when nobody says.
const DefaultPatience = time.Minute

// History is what an audit reads of the history store.
type History interface {
	ConversationsAfter(ctx context.Context, after watermark.ConversationID, limit int) ([]watermark.ConversationID, error)
	Conversations(ctx context.Context, ids []watermark.ConversationID) ([]watermark.Conversation, error)
	Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error)
	Members(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) ([]watermark.Member, error)
	Roster(ctx context.Context, conv watermark.ConversationID, after watermark.UserID, limit int) ([]watermark.Member, error)
}

// Log is the part of the sequenced log that history's writer has committed, so
// that history has all of it.
type Log interface {
	// Size is about how many records there are.
	Size(ctx context.Context) (int64, error)
	// Records gives them, each partition in order. It goes on after an error of
	// class poison: every role passes over what is no record, and history's
	// writer makes a dead letter of it.
	Records(ctx context.Context) iter.Seq2[watermark.Record, error]
}

// Fence is where the workers stand.
type Fence interface {
	// Partition gives the partition of a conversation.
	Partition(conv watermark.ConversationID) int32
	// Pass waits until the workers have passed everything that stood in their
	// topics, on the given partitions, when it was called: what was published
	// has been sequenced, what was sequenced is in history, and what history's
	// writer handed back has gone the same way. When ctx ends, behind tells of
	// the partitions where that is not so yet.
	Pass(ctx context.Context, partitions []int32) (behind map[int32]error, err error)
}

// Config says what is audited and how.
type Config struct {
	// History is required.
	History History
	// Redis; nil: not looked at.
	Redis Redis
	// Log; nil: not read.
	Log Log
	// Fence is required.
	Fence Fence
	// Mender mends what can be mended. nil: nothing is changed.
	Mender *Mender
	// Patience is how long the workers are waited for, each time. 0:
	// DefaultPatience.
	Patience time.Duration
	// Rate is how many rows of history, members and records of the log are read
	// in a second. 0: as many as go.
	Rate int
	// Found takes each finding, one at a time. nil: they are only counted.
	Found func(Finding)
	// Progress is told how much of how much is done, one at a time; total is
	// about right. nil: nobody is told, and nothing is counted beforehand.
	Progress func(done, total int64)
	// Logger gets a line for each finding of a Patrol. nil: none.
	Logger *slog.Logger
	// Registerer takes the metrics. nil: they are counted and not shown.
	Registerer prometheus.Registerer
}

// Scope says what of a deployment is audited: the named conversations, or a
// sample of all, or, as the zero value says, everything.
type Scope struct {
	Conversations []watermark.ConversationID
	Sample        int
}

// Report says what was looked at and what came of it.
type Report struct {
	Conversations int `json:"conversations"`
	Messages      int `json:"messages"`
	Members       int `json:"members"`
	// Warm counts conversations that Redis could be believed about.
	Warm int `json:"warm"`
	// Records counts records of the log, 0 when it was not read.
	Records int `json:"records"`
	// Refused counts those among them that are none: dead letters.
	Refused int `json:"refused"`
	// Suspicions counts what had to be looked at twice.
	Suspicions int `json:"suspicions"`
	// Findings counts them by kind.
	Findings map[Kind]int `json:"findings"`
	Mended   int          `json:"mended"`
	// Undecided counts suspicions whose second look had to be given up, Behind
	// says why, by partition.
	Undecided int              `json:"undecided"`
	Behind    map[int32]string `json:"behind,omitempty"`
}

// Found gives the number of findings.
func (r *Report) Found() (n int) {
	for _, of := range r.Findings {
		n += of
	}
	return n
}

// Clean tells whether everything was judged and nothing is wrong.
func (r *Report) Clean() bool { return r.Found() == 0 && r.Undecided == 0 }

// ErrUnknown is returned when a named conversation is one that neither history
// nor Redis knows.
var ErrUnknown = errors.New("unknown conversation")

// Auditor audits. Make one with New.
type Auditor struct {
	cfg     Config
	metrics *metrics
	pace    *pacer

	mu       sync.Mutex
	report   Report
	queue    []suspicion
	bytes    int                // of messages in queue
	reported map[subject]bool   // at most maxReported
	listed   map[listing]int    // at most maxReported
	losers   map[loserKey]loser // at most maxLosers
	done     int64
	total    int64
}

// subject is what a finding is about.
type subject struct {
	kind Kind
	conv watermark.ConversationID
	seq  watermark.Seq
	user watermark.UserID
}

type listing struct {
	conv watermark.ConversationID
	kind Kind
}

// New checks cfg and gives an Auditor. All faults are reported together.
func New(cfg Config) (*Auditor, error) {
	var errs []error
	if cfg.History == nil {
		errs = append(errs, errors.New("no history"))
	}
	if cfg.Fence == nil {
		errs = append(errs, errors.New("no fence"))
	}
	if cfg.Mender != nil {
		errs = append(errs, cfg.Mender.check())
	}
	if cfg.Patience < 0 || cfg.Rate < 0 {
		errs = append(errs, fmt.Errorf("patience %s and rate %d must not be negative", cfg.Patience, cfg.Rate))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Auditor{cfg: cfg, metrics: newMetrics(cfg.Registerer), pace: &pacer{rate: cfg.Rate}}
	a.reset()
	return a, nil
}

func (a *Auditor) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.report = Report{Findings: map[Kind]int{}}
	a.queue, a.bytes, a.done, a.total = nil, 0, 0, 0
	a.reported, a.listed, a.losers = map[subject]bool{}, map[listing]int{}, map[loserKey]loser{}
}

// Run audits scope once. The report is there with an error too, as far as it
// got.
func (a *Auditor) Run(ctx context.Context, scope Scope) (*Report, error) {
	a.reset()
	err := a.run(ctx, scope)
	if err != nil {
		err = fmt.Errorf("audit: %w", err)
	}
	return a.snapshot(), err
}

func (a *Auditor) snapshot() *Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.report
	r.Findings, r.Behind = maps.Clone(r.Findings), maps.Clone(r.Behind)
	return &r
}

func (a *Auditor) run(ctx context.Context, scope Scope) error {
	ids, err := a.chosen(ctx, scope)
	if err != nil {
		return err
	}
	if a.cfg.Progress != nil {
		if err := a.measure(ctx, ids); err != nil {
			return err
		}
	}
	// The log first: what it says of a fault is more than what history alone
	// does.
	if a.cfg.Log != nil {
		if err := a.readLog(ctx, scope, ids); err != nil {
			return err
		}
	}
	for batch, err := range ids {
		if err == nil {
			err = a.lookAt(ctx, batch)
		}
		if err != nil {
			return err
		}
	}
	if len(scope.Conversations) == 0 && scope.Sample == 0 {
		if err := a.unknown(ctx); err != nil {
			return err
		}
	}
	if err := a.settleAll(ctx); err != nil {
		return err
	}
	return a.known(ctx, scope)
}

// chosen gives the conversations of scope, batch by batch; it may be walked
// more than once.
func (a *Auditor) chosen(ctx context.Context, scope Scope) (iter.Seq2[[]watermark.ConversationID, error], error) {
	switch {
	case len(scope.Conversations) > 0:
		return batches(slices.Compact(slices.Sorted(slices.Values(scope.Conversations)))), nil
	case scope.Sample > MaxSample:
		return nil, fmt.Errorf("a sample has at most %d conversations, not %d", MaxSample, scope.Sample)
	case scope.Sample > 0:
		ids, err := a.sample(ctx, scope.Sample)
		return batches(ids), err
	}
	return a.after(ctx, ""), nil
}

func batches(ids []watermark.ConversationID) iter.Seq2[[]watermark.ConversationID, error] {
	return func(yield func([]watermark.ConversationID, error) bool) {
		for part := range slices.Chunk(ids, batchConversations) {
			if !yield(part, nil) {
				return
			}
		}
	}
}

// after gives all conversations above an id, batch by batch.
func (a *Auditor) after(ctx context.Context, after watermark.ConversationID) iter.Seq2[[]watermark.ConversationID, error] {
	return func(yield func([]watermark.ConversationID, error) bool) {
		for {
			page, err := a.cfg.History.ConversationsAfter(ctx, after, batchConversations)
			if err != nil {
				yield(nil, fmt.Errorf("list conversations: %w", err))
				return
			}
			if len(page) == 0 || !yield(page, nil) {
				return
			}
			after = page[len(page)-1]
		}
	}
}

// sample chooses n conversations, each with the same probability.
func (a *Auditor) sample(ctx context.Context, n int) ([]watermark.ConversationID, error) {
	var out []watermark.ConversationID
	seen := 0
	for batch, err := range a.after(ctx, "") {
		if err != nil {
			return nil, err
		}
		for _, id := range batch {
			seen++
			if len(out) < n {
				out = append(out, id)
			} else if i := rand.IntN(seen); i < n {
				out[i] = id
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// measure counts what there is to do.
func (a *Auditor) measure(ctx context.Context, ids iter.Seq2[[]watermark.ConversationID, error]) error {
	var total int64
	for batch, err := range ids {
		if err != nil {
			return err
		}
		convs, err := a.cfg.History.Conversations(ctx, batch)
		if err != nil {
			return fmt.Errorf("read conversations: %w", err)
		}
		for i := range convs {
			total += max(int64(convs[i].Max-max(convs[i].Min, 1)+1), 0)
		}
	}
	if a.cfg.Log != nil {
		n, err := a.cfg.Log.Size(ctx)
		if err != nil {
			return fmt.Errorf("measure the log: %w", err)
		}
		total += n
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total = total
	return nil
}

// advance notes n rows or records as done and waits for as long as the rate
// demands.
func (a *Auditor) advance(ctx context.Context, n int, count func(*Report)) error {
	a.mu.Lock()
	count(&a.report)
	a.done += int64(n)
	if a.cfg.Progress != nil {
		a.cfg.Progress(min(a.done, a.total), a.total)
	}
	a.mu.Unlock()
	return a.pace.wait(ctx, n)
}

// lookAt looks at one batch of conversations.
func (a *Auditor) lookAt(ctx context.Context, ids []watermark.ConversationID) error {
	// History before Redis: what history has, Redis must have, too.
	convs, err := a.conversations(ctx, ids)
	if err != nil {
		return err
	}
	heads, err := a.heads(ctx, ids)
	if err != nil {
		return err
	}
	marks := &seenMarks{}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range convs {
		g.Go(func() error { return a.conversation(gctx, convs[i], heads[i], marks) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := a.seeAgain(ctx, marks); err != nil {
		return err
	}
	a.metrics.conversations.Add(float64(len(ids)))
	return nil
}

func (a *Auditor) conversations(ctx context.Context, ids []watermark.ConversationID) ([]watermark.Conversation, error) {
	convs, err := a.cfg.History.Conversations(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read conversations: %w", err)
	}
	if len(convs) != len(ids) {
		return nil, fmt.Errorf("history gave %d conversations for %d", len(convs), len(ids))
	}
	return convs, nil
}

// heads gives what Redis says of each conversation; cold ones where Redis is
// not looked at.
func (a *Auditor) heads(ctx context.Context, ids []watermark.ConversationID) ([]Head, error) {
	if a.cfg.Redis == nil {
		return make([]Head, len(ids)), nil
	}
	heads, err := a.cfg.Redis.Heads(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read redis: %w", err)
	}
	return heads, nil
}

func (a *Auditor) conversation(ctx context.Context, conv watermark.Conversation, head Head, marks *seenMarks) error {
	a.mu.Lock()
	a.report.Conversations++
	if head.Warm {
		a.report.Warm++
	}
	a.mu.Unlock()
	if head.Warm {
		if err := a.compareBounds(ctx, conv, head); err != nil {
			return err
		}
	}
	above, err := a.rows(ctx, conv, head)
	if err != nil {
		return fmt.Errorf("rows of %s: %w", conv.ID, err)
	}
	// A maximum that is too low is one fault, not one more for each mark.
	conv.Max = max(conv.Max, above)
	if err := a.members(ctx, conv, head, marks); err != nil {
		return fmt.Errorf("members of %s: %w", conv.ID, err)
	}
	return nil
}

// compareBounds compares what history and Redis say of a conversation itself.
func (a *Auditor) compareBounds(ctx context.Context, conv watermark.Conversation, head Head) error {
	var found []suspicion
	if head.Max < conv.Max || head.Last > head.Max {
		found = append(found, suspicion{what: counter, seq: max(conv.Max, head.Last)})
	}
	if head.Max > conv.Max {
		found = append(found, suspicion{what: ahead, seq: head.Max})
	}
	if lowest(head.Min) != lowest(conv.Min) || head.Repair != conv.Repair.Number || head.Override != conv.Override {
		found = append(found, suspicion{what: bounds, conversation: conv, head: head})
	}
	for _, s := range found {
		s.conv = conv.ID
		if err := a.suspect(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// lowest gives a minimum as what it means: 0 and 1 are the same.
func lowest(s watermark.Seq) watermark.Seq { return max(s, 1) }

// known tells of named conversations that nobody knows: a name that was
// mistyped must not be found clean.
func (a *Auditor) known(ctx context.Context, scope Scope) error {
	var errs []error
	for part := range slices.Chunk(scope.Conversations, batchConversations) {
		convs, err := a.conversations(ctx, part)
		if err != nil {
			return err
		}
		heads, err := a.heads(ctx, part)
		if err != nil {
			return err
		}
		for i, c := range convs {
			if c.Exists() || heads[i].Warm {
				continue
			}
			rows, err := a.cfg.History.Messages(ctx, c.ID, everything, 1)
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				errs = append(errs, fmt.Errorf("%w: %s", ErrUnknown, c.ID))
			}
		}
	}
	return errors.Join(errs...)
}

var everything = watermark.Interval{First: 1, Last: watermark.MaxSeq}

// pacer keeps to a rate by waiting after the fact.
type pacer struct {
	rate int // a second; 0: any

	mu  sync.Mutex
	due time.Time // guarded by mu
}

func (p *pacer) wait(ctx context.Context, n int) error {
	if p.rate == 0 || n == 0 {
		return ctx.Err()
	}
	p.mu.Lock()
	now := time.Now()
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	pause := p.due.Sub(now)
	p.mu.Unlock()
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
