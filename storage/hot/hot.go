// Package hot is what everybody but the owner does with Redis: views of
// conversations, messages of hot logs, members loaded on demand, read marks,
// answers, push marks, crowds and presence.
//
// It promises:
//   - What it says about a conversation comes from Redis only while Redis may
//     be believed about it: its meta stands, is warm, and names the incarnation
//     of the server that answers, which the server confirms in the same round
//     trip (see keyspace.Runner). The script that reads checks that; of views
//     that plain commands read, what came with them in one transaction is.
//   - Read marks only rise; a member's window never gets older.
//   - One call is one pipelined round trip for every 1,000 entries (a merge of
//     very many members takes two), and costs what there is, never what a
//     number in the request says.
//
// It does not allocate seqs, move windows or make a conversation warm (package
// seqalloc does), nor does it know history: Cold, Partial and missing messages
// mean "ask elsewhere".
//
// A Hot has no state but its client and is safe for concurrent use. Every error
// has a fault class; after one, some entries of the call may have taken effect,
// and all of them may be repeated without harm.
package hot

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// DefaultAnswerTTL is how long an answer waits when nobody says.
	DefaultAnswerTTL = 60 * time.Second
	// DefaultSettleWait is how long Views waits for a batch that is under way. An
	// append takes a few milliseconds, and some hundred where a worker is behind and
	// its batches are full; beyond that Kafka is in trouble, and the truth is asked
	// instead, which is to read the log beyond history: seconds of everybody's messages.
	DefaultSettleWait = 500 * time.Millisecond
	// DefaultPushedTTL is how long a push mark stays when nobody says.
	DefaultPushedTTL = 24 * time.Hour
)

// pipelineEntries is the most entries of one pipeline of plain commands.
const pipelineEntries = 1000

// Config is what a Hot needs.
type Config struct {
	// Redis is a single server, one behind Sentinel, or a Cluster. Required;
	// the caller closes it.
	Redis redis.UniversalClient
	// Space names the keys, as seqalloc does. The zero value is a deployment
	// alone on its Redis.
	Space keyspace.Space
	// Decode reads a message as the hot log holds it; body is nil for what is
	// left of a revoked one. Required.
	Decode func(seq watermark.Seq, header, body []byte) (watermark.Message, error)
	// AnswerTTL is how long an answer waits for its caller.
	// 0: DefaultAnswerTTL.
	AnswerTTL time.Duration
	// PushedTTL is how long a push mark outlives its last raise.
	// 0: DefaultPushedTTL.
	PushedTTL time.Duration
	// SettleWait is how long Views waits for a batch that is under way to be in
	// the sequenced log. 0: DefaultSettleWait.
	SettleWait time.Duration
	// Registerer takes the metrics. nil: they are not registered.
	Registerer prometheus.Registerer
}

// Hot reads and writes what Redis holds of conversations.
type Hot struct {
	redis     redis.UniversalClient
	space     keyspace.Space
	runner    *keyspace.Runner
	decode    func(watermark.Seq, []byte, []byte) (watermark.Message, error)
	answerTTL time.Duration
	pushedTTL time.Duration
	settled   settled
	metrics   *metrics
	// plainly tells that views are read by transactions of plain commands.
	plainly bool
	// scripted is for how many pipelines of views that is not tried.
	scripted atomic.Int32
}

// New checks cfg and gives a Hot. It starts nothing and asks Redis nothing.
func New(cfg Config) (*Hot, error) {
	var errs []error
	if cfg.Redis == nil {
		errs = append(errs, errors.New("config: Redis is missing"))
	}
	if cfg.Decode == nil {
		errs = append(errs, errors.New("config: Decode is missing"))
	}
	if cfg.AnswerTTL < 0 {
		errs = append(errs, fmt.Errorf("config: AnswerTTL %s is negative", cfg.AnswerTTL))
	}
	if cfg.PushedTTL < 0 {
		errs = append(errs, fmt.Errorf("config: PushedTTL %s is negative", cfg.PushedTTL))
	}
	if cfg.SettleWait < 0 {
		errs = append(errs, fmt.Errorf("config: SettleWait %s is negative", cfg.SettleWait))
	}
	errs = append(errs, cfg.Space.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fault.New(fault.Fatal, "config", fmt.Errorf("hot: %w", err))
	}
	h := &Hot{
		redis: cfg.Redis, space: cfg.Space, runner: keyspace.NewRunner(cfg.Redis), decode: cfg.Decode,
		answerTTL: cfg.AnswerTTL, pushedTTL: cfg.PushedTTL, metrics: newMetrics(cfg.Registerer),
	}
	h.plainly = h.runner.Together()
	h.settled.wait = cfg.SettleWait
	if h.settled.wait == 0 {
		h.settled.wait = DefaultSettleWait
	}
	if h.answerTTL == 0 {
		h.answerTTL = DefaultAnswerTTL
	}
	if h.pushedTTL == 0 {
		h.pushedTTL = DefaultPushedTTL
	}
	return h, nil
}

//go:embed *.lua
var sources embed.FS

var (
	viewScript     = script("view")
	messagesScript = script("messages")
	mergeScript    = script("merge")
	raiseScript    = script("raise")
	readersScript  = script("readers")
	crowdScript    = script("crowd")
)

func script(name string) *keyspace.Script {
	return keyspace.NewScript("hot/"+name, source("common")+"\n"+source(name))
}

func source(name string) string {
	b, err := sources.ReadFile(name + ".lua")
	if err != nil {
		panic(err) // the file is embedded, or the package does not compile
	}
	return string(b)
}

// sharedExpiry are the parts of a conversation that share one expiry, in the
// order in which the writing scripts name the first five.
var sharedExpiry = []keyspace.Part{
	keyspace.Meta, keyspace.Members, keyspace.Read, keyspace.Receipt, keyspace.Own,
	keyspace.Log, keyspace.Revoked, keyspace.IDs, keyspace.OldIDs, keyspace.Refused,
}

// call makes a script call on parts of conv; the incarnation is the first
// argument of every script that asks whether it may believe.
func (h *Hot) call(s *keyspace.Script, conv watermark.ConversationID, parts []keyspace.Part, args ...any) keyspace.Call {
	return keyspace.Call{
		Script: s, Keys: h.space.Keys(conv, parts...),
		Args: append([]any{h.space.Incarnation}, args...), Asks: true,
	}
}

// failed says what failed for which conversation. The class of err shows
// through; what was not sorted yet is sorted here.
func failed(act string, conv watermark.ConversationID, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, errReply) {
		err = fault.New(fault.Fatal, "reply", err)
	}
	return fmt.Errorf("%s of %s: %w", act, conv, keyspace.Classify(err))
}

// plain runs n plain commands, in pipelines of pipelineEntries. Errors are those
// of the commands; the caller reads them.
func (h *Hot) plain(ctx context.Context, n int, add func(p redis.Pipeliner, i int)) {
	for first := 0; first < n; first += pipelineEntries {
		p := h.redis.Pipeline()
		for i := first; i < min(first+pipelineEntries, n); i++ {
			add(p, i)
		}
		// Exec sets the error of each command that it could not run.
		_, _ = p.Exec(ctx)
	}
}

// score gives a mark as a sorted set takes it: within 0..MaxSeq.
func score(s watermark.Seq) int64 { return int64(min(max(s, 0), watermark.MaxSeq)) }

// receipt gives the receipt of a member, 0 in a group.
func receipt(c watermark.ConversationID, m *watermark.Member) int64 {
	if !c.Single() {
		return 0
	}
	return score(m.Receipt)
}
