package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

// StageConfig says what a stage is fed with, by itself, as fast as it takes it.
type StageConfig struct {
	// Stage is "toredis", "tomongo" or "topush".
	Stage string
	// PerConversation is b: the messages of one conversation in a batch. 1..Batch.
	PerConversation int
	// Conversations of all partitions, which take turns: so many batches come before
	// one gets its next messages. 0, or fewer than a batch has: those of a batch.
	Conversations int
	// Members of each conversation, which then is a group. 0: it is one of two users.
	Members int
	// Kept is how many messages of each conversation Writer holds before the stage
	// begins, 0..100000; then it is a Store.
	Kept int
	// Hot is the share of the records that goes to one conversation of each
	// partition beside the others' turns, 0..1.
	Hot float64
	// Batch is the records of a batch, 1..100000; Batches how many each partition
	// gets, at least 1. The first ones, which make conversations warm, do not
	// count.
	Batch, Batches int
	// Partitions is how many are worked on at once, at least 1.
	Partitions int
	// Size of a message's body, in bytes.
	Size int
	// Redis is needed by toredis, and used by topush. Prefix names its keys.
	Redis  redis.UniversalClient
	Prefix string
	// RedisAddress finds the process whose time is told. Empty: none.
	RedisAddress string
	// Writer takes what tomongo writes. nil: somebody who keeps nothing, so that
	// the stage alone is measured.
	Writer tomongo.History
	// Now is the clock of what tomongo gathers and holds back. nil: time.Now.
	Now func() time.Time
	// Calls counts what the stage asks for. nil: nobody does.
	Calls *Calls
	// Progress is told what goes on. nil: nobody is.
	Progress func(what string, done, total int64)
}

// Calls are what a stage asks of Kafka and of history.
type Calls struct {
	Appends, Records atomic.Int64 // to Kafka
	Writes           atomic.Int64 // to history
	Rows             atomic.Int64 // in them
	Marks, Bounds    atomic.Int64 // of members and of conversations, in them
	Tells            atomic.Int64 // read marks told to Redis
	Delivers         atomic.Int64 // to the gateway
}

// Reset sets all of them to 0.
func (c *Calls) Reset() {
	for _, n := range []*atomic.Int64{&c.Appends, &c.Records, &c.Writes, &c.Rows, &c.Marks, &c.Bounds, &c.Tells, &c.Delivers} {
		n.Store(0)
	}
}

func (c *StageConfig) fill() error {
	var errs []error
	if !slices.Contains([]string{"toredis", "tomongo", "topush"}, c.Stage) {
		errs = append(errs, fmt.Errorf("stage %q is none of toredis, tomongo, topush, gateway", c.Stage))
	}
	if c.Batch < 1 || c.Batch > 100_000 || c.Batches < 1 || c.Partitions < 1 || c.Partitions > 1000 {
		errs = append(errs, errors.New("batch must be within 1..100000, batches from 1 on, partitions within 1..1000"))
	}
	if c.PerConversation < 1 || c.PerConversation > c.Batch {
		errs = append(errs, fmt.Errorf("messages of one conversation in a batch must be within 1..%d, are %d", c.Batch, c.PerConversation))
	}
	if c.Size < 1 || c.Size > maxSize {
		errs = append(errs, fmt.Errorf("size must be within 1..%d, is %d", maxSize, c.Size))
	}
	if c.Conversations < 0 || c.Conversations > maxConversations || c.Members < 0 || c.Members == 1 || c.Members > maxMemberships {
		errs = append(errs, fmt.Errorf("conversations must be within 0..%d, members 0 or within 2..%d", maxConversations, maxMemberships))
	}
	if !(c.Hot >= 0 && c.Hot <= 1) {
		errs = append(errs, fmt.Errorf("the share of a hot conversation must be within 0..1, is %g", c.Hot))
	}
	if len(errs) == 0 && float64(c.Batch)*float64(c.chunk())*float64(c.Partitions)*float64(c.Size+200) > maxPrepared {
		errs = append(errs, errors.New("so many records do not fit into memory beforehand; smaller batches"))
	}
	if _, ok := c.Writer.(Store); c.Kept < 0 || c.Kept > 100_000 || (c.Kept > 0 && !ok) {
		errs = append(errs, errors.New("messages that are kept beforehand must be within 0..100000, and need a history that can be read"))
	}
	if c.Stage == "toredis" && c.Redis == nil {
		errs = append(errs, errors.New("stage toredis needs a Redis"))
	}
	if c.Calls == nil {
		c.Calls = &Calls{}
	}
	if c.Progress == nil {
		c.Progress = func(string, int64, int64) {}
	}
	return invalid(errs...)
}

// StageReport is what a stage came to.
type StageReport struct {
	Machine         Machine       `json:"machine"`
	Stage           string        `json:"stage"`
	PerConversation int           `json:"per_conversation"`
	Batch           int           `json:"batch"`
	Partitions      int           `json:"partitions"`
	Messages        int           `json:"messages"`
	Time            time.Duration `json:"time_ns"`
	Rate            float64       `json:"messages_per_second"`
	Processes       []Usage       `json:"processes"`
	Counts          []Count       `json:"counts"`
	// RedisMemory is in use there at the end, in bytes. 0: there is no Redis.
	RedisMemory int64 `json:"redis_memory_bytes"`
}

// worker is one partition of a stage, with what it is fed.
type worker interface {
	Handle(ctx context.Context, records []wire.Record) (durable int64, err error)
	Close() error
}

// closing gives a worker without Close one.
type closing struct{ stage *topush.Stage }

func (c closing) Handle(ctx context.Context, r []wire.Record) (int64, error) {
	return c.stage.Handle(ctx, r)
}
func (c closing) Close() error { return c.stage.Close() }

func stageReport(cfg *StageConfig, before, after *snapshot, taken time.Duration) *StageReport {
	n := cfg.Batch * cfg.Batches * cfg.Partitions
	r := &StageReport{
		Machine: thisMachine(), Stage: cfg.Stage, PerConversation: cfg.PerConversation, Batch: cfg.Batch, Partitions: cfg.Partitions,
		Messages: n, Time: taken, Rate: float64(n) / taken.Seconds(), Processes: usage(before, after, float64(n)),
	}
	r.Counts = redisCounts(before.redis, after.redis, float64(n))
	if after.redis != nil {
		r.RedisMemory = after.redis.memory
	}
	return r
}

// stageOf gives what makes the workers of a stage.
func stageOf(cfg *StageConfig) (func(partition int32) (worker, error), error) {
	quiet := slog.New(slog.DiscardHandler)
	none := nothing{cfg.Calls, cfg.people()}
	var h *hot.Hot
	var alloc *seqalloc.Allocator
	if cfg.Redis != nil {
		var err error
		space := keyspace.Space{Prefix: cfg.Prefix}
		if h, err = hot.New(hot.Config{Redis: cfg.Redis, Space: space, Decode: wire.DecodeMessage}); err != nil {
			return nil, err
		}
		if alloc, err = seqalloc.New(seqalloc.Config{Redis: cfg.Redis, Space: space, Append: wire.AppendMessage}); err != nil {
			return nil, err
		}
	}
	switch cfg.Stage {
	case "toredis":
		s, err := toredis.New(toredis.Config{
			Allocator: alloc, Truth: none, Members: h, Log: none, Origins: none, Answers: h, Partitions: int32(cfg.Partitions), Logger: quiet,
		})
		if err != nil {
			return nil, err
		}
		return func(p int32) (worker, error) { return s.Stage(p) }, nil
	case "tomongo":
		var w tomongo.History = none
		if cfg.Writer != nil {
			w = cfg.Writer
		}
		s, err := tomongo.New(tomongo.Config{History: w, Hot: none, Owner: owned{}, Log: none, WriteEvery: 5 * time.Second, Now: cfg.Now, Logger: quiet})
		if err != nil {
			return nil, err
		}
		return func(p int32) (worker, error) { return s.Stage(p) }, nil
	}
	var marks topush.Marks = none
	if h != nil {
		marks = h
	}
	s, err := topush.New(topush.Config{Truth: none, Marks: marks, Deliverer: none, Logger: quiet})
	if err != nil {
		return nil, err
	}
	return func(p int32) (worker, error) {
		stage, err := s.Stage(p)
		return closing{stage}, err
	}, nil
}

// nothing is all that a stage works with and that keeps nothing.
type nothing struct {
	calls *Calls
	world *world
}

// Load implements the stages' Truth: nobody knows of any message, for sure.
func (n nothing) Load(_ context.Context, wants []watermark.Want) ([]*watermark.State, error) {
	out := make([]*watermark.State, len(wants))
	for i, w := range wants {
		out[i] = watermark.NewState(w.Conversation)
		out[i].Complete = true
		if a, b, ok := w.Conversation.Users(); ok {
			out[i].MergeMember(watermark.Member{User: a})
			out[i].MergeMember(watermark.Member{User: b})
			continue
		}
		for _, u := range n.world.membersOf(w.Conversation) {
			out[i].MergeMember(watermark.Member{User: u, Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}}})
		}
	}
	return out, nil
}

// Append implements the stages' Log.
func (nothing) Reread(context.Context, string, int32, []int64, func(wire.Record)) (int64, error) {
	return 0, nil
}

func (n nothing) Append(_ context.Context, outs []wire.Out) error {
	n.calls.Appends.Add(1)
	n.calls.Records.Add(int64(len(outs)))
	return nil
}

// Write implements tomongo.History.
func (n nothing) Write(_ context.Context, c watermark.Change) (watermark.Written, error) {
	n.calls.Writes.Add(1)
	n.calls.Rows.Add(int64(len(c.Rows)))
	n.calls.Marks.Add(int64(len(c.Members)))
	n.calls.Bounds.Add(int64(len(c.Conversations)))
	return watermark.Written{Rows: make([]watermark.Fate, len(c.Rows))}, nil
}

// DeleteBelow implements tomongo.History.
func (nothing) DeleteBelow(context.Context, watermark.ConversationID, watermark.Seq, int) (int, error) {
	return 0, nil
}

// RaiseReads implements tomongo.Hot.
func (n nothing) RaiseReads(context.Context, []watermark.MemberRow) error {
	n.calls.Tells.Add(1)
	return nil
}

// Pushed implements topush.Marks.
func (nothing) Pushed(_ context.Context, ids []watermark.ConversationID) ([]topush.Mark, error) {
	return make([]topush.Mark, len(ids)), nil
}

// RaisePushed implements topush.Marks.
func (nothing) RaisePushed(context.Context, []topush.Mark) error { return nil }

// Deliver implements topush.Deliverer.
func (n nothing) Deliver(context.Context, []topush.Delivery) error {
	n.calls.Delivers.Add(1)
	return nil
}

// owned implements tomongo.Owner.
type owned struct{}

// Append implements tomongo.Owner.
func (owned) Append(context.Context, []watermark.Input) error { return nil }
