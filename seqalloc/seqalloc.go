// Package seqalloc is the owner's side of Redis: it gives messages their seqs,
// recognises what was decided or sent before, and moves windows, by one script
// call per conversation and batch.
//
// It promises:
//   - A batch is decided in input order and as a whole: either every input has
//     an outcome, or nothing was changed.
//   - Outcomes are a function of the conversation's state and the inputs alone.
//     An input that was decided before gets the same seq again, however late it
//     comes and however the batches are cut.
//   - It never decides on a state that cannot be believed: whatever Redis lost
//     or fell back to shows as Cold.
//
// It does not load the truth (Begin and Install are told it), does not append
// to any log, and does not know Kafka. Its types are safe for concurrent use;
// that batches of one conversation come one after the other is the caller's
// part, and breaking it costs no guarantee, only order.
//
// On failure an error is returned with its fault class; the batch may have been
// decided all the same, so the caller sends the same batch again. DESIGN.md
// says what a crash leaves behind and why.
package seqalloc

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultHotLog is how many messages of a conversation stand in Redis when
// nobody says.
const DefaultHotLog = 1000

// MaxHotLog bounds Config.HotLog.
const MaxHotLog = 10000

var (
	//go:embed plain.lua
	plainSource string
	//go:embed malloc.lua
	mallocSource string
	//go:embed begin.lua
	beginSource string
	//go:embed install.lua
	installSource string
)

// parts are the keys of every script here, in the order of its KEYS.
var parts = []keyspace.Part{
	keyspace.Meta, keyspace.Log, keyspace.Read, keyspace.Receipt, keyspace.Members,
	keyspace.IDs, keyspace.OldIDs, keyspace.Own, keyspace.Revoked, keyspace.Refused,
}

// plainParts are those of plain.lua.
var plainParts = []keyspace.Part{keyspace.Meta, keyspace.Log, keyspace.Members, keyspace.IDs, keyspace.OldIDs, keyspace.Read}

// Config says how to reach Redis and what to keep there.
type Config struct {
	// Redis is a client of a single server, of one behind Sentinel, or of a
	// Cluster. Required.
	Redis redis.UniversalClient
	// Space names the keys. The zero value is a deployment alone on its Redis.
	Space keyspace.Space
	// Append appends the two byte strings as which the hot log holds a message
	// that has no seq yet, and tells how long the first one is; a tombstone keeps
	// that alone. Required.
	Append func(b []byte, m *watermark.Message) (out []byte, header int)
	// HotLog is about how many messages of a conversation stand in Redis. 0:
	// DefaultHotLog. At most MaxHotLog.
	HotLog int
	// Registerer takes the metrics. nil: they are kept and shown to nobody.
	Registerer prometheus.Registerer
	// Now gives the time, which only decides when an expiry is renewed. nil:
	// time.Now.
	Now func() time.Time
}

// Allocator decides batches.
type Allocator struct {
	redis   redis.UniversalClient
	runner  *keyspace.Runner
	space   keyspace.Space
	encode  func([]byte, *watermark.Message) ([]byte, int)
	hotLog  int
	now     func() time.Time
	metrics *metrics

	plain, malloc, begin, install *keyspace.Script
}

// New checks cfg and reports everything that is wrong with it. It does not
// connect.
func New(cfg Config) (*Allocator, error) {
	var errs []error
	if cfg.Redis == nil {
		errs = append(errs, errors.New("no redis client"))
	}
	if cfg.Append == nil {
		errs = append(errs, errors.New("no message encoding"))
	}
	if cfg.HotLog < 0 || cfg.HotLog > MaxHotLog {
		errs = append(errs, fmt.Errorf("hot log of %d messages: must be 0..%d", cfg.HotLog, MaxHotLog))
	}
	errs = append(errs, cfg.Space.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("seqalloc: %w", err)
	}
	a := &Allocator{
		redis: cfg.Redis, runner: keyspace.NewRunner(cfg.Redis), space: cfg.Space, encode: cfg.Append,
		hotLog: cfg.HotLog, now: cfg.Now, metrics: newMetrics(cfg.Registerer),
		malloc:  keyspace.NewScript("malloc", constants()+mallocSource),
		begin:   keyspace.NewScript("begin", beginSource),
		install: keyspace.NewScript("install", installSource),
	}
	if a.hotLog == 0 {
		a.hotLog = DefaultHotLog
	}
	a.plain = keyspace.NewBareScript("plain", constants()+
		fmt.Sprintf("local EXPIRY, HOTLOG = %d, %d\n", a.space.ExpirySeconds(), a.hotLog)+plainSource)
	if a.now == nil {
		a.now = time.Now
	}
	return a, nil
}

// logSlack is how many messages more than Config.HotLog the hot log may reach
// before it is cut. Redis cuts whole nodes of a stream, which have 100 messages
// by its default, so trying more often would be for nothing.
const logSlack = 100

// constants gives the limits that the script shares with package watermark.
func constants() string {
	return fmt.Sprintf("local HORIZON, MAXSEQ, MAXOWN, MAXMEMBERSHIPS, KEPTOPS, MAXATTRIBUTES, SLACK = %d, %d, %d, %d, %d, %d, %d\n",
		watermark.DedupeHorizon, int64(watermark.MaxSeq), watermark.MaxOwn, watermark.MaxMemberships, watermark.KeptOps, watermark.MaxAttributes, logSlack)
}

// Malloc decides each batch and gives one allocation for each, in order. Batches
// of one conversation in one call are decided in order. It takes one round trip
// where all that plain.lua is asked for is plain, else two.
//
// When a call fails the error has the gravest of the calls' classes and no
// allocation is given, though some batches may have been decided: the caller
// sends all of them again, and what was decided comes back as Again.
func (a *Allocator) Malloc(ctx context.Context, batches []watermark.Batch) ([]watermark.Allocation, error) {
	d := a.newDecision(batches)
	d.run(ctx, d.sort())
	if len(d.errs) == 0 && len(d.turned) > 0 {
		again := d.turned
		d.turned = nil
		d.run(ctx, calls{long: again})
	}
	if err := gravest(d.errs); err != nil {
		return nil, err
	}
	return d.allocs, nil
}

// shownErrors is how many of a call's errors are spelled out.
const shownErrors = 3

// gravest joins errs under the class and reason of the gravest, which comes
// first.
func gravest(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	slices.SortStableFunc(errs, func(x, y error) int { return cmp.Compare(fault.ClassOf(y), fault.ClassOf(x)) })
	class, reason := fault.ClassOf(errs[0]), fault.ReasonOf(errs[0])
	if n := len(errs) - shownErrors; n > 0 {
		errs = append(errs[:shownErrors], fmt.Errorf("and %d more", n))
	}
	return fault.New(class, reason, errors.Join(errs...))
}
