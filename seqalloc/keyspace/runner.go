package keyspace

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

//go:embed prelude.lua
var prelude string

// pipelineCalls is the most calls of one pipeline: a round trip is long paid
// for by then, and the answers of a pipeline are held at once.
const pipelineCalls = 1000

// Script is a Lua script with the prelude before it.
type Script struct {
	name, source, sha string
}

// text gives what names the script in a call by a command of that name.
func (s *Script) text(command string) *string {
	if command == evalSHA {
		return &s.sha
	}
	return &s.source
}

// NewScript gives the script of a source without the prelude; name is used in
// errors.
func NewScript(name, source string) *Script { return NewBareScript(name, prelude+"\n"+source) }

// NewBareScript gives a script that does without the prelude, whose definitions
// cost some microseconds in each call.
func NewBareScript(name, source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{name: name, source: source, sha: hex.EncodeToString(sum[:])}
}

// Call is one call of a script. Where Runner.Together says no all keys must share
// one hash tag. It must not change before its result is there.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any // strings, byte slices and integers, or pointers to strings and integers
	// Asks tells that the first of Args is the incarnation, where "" stands for
	// the server's own. Such a call must be one that may be repeated.
	Asks bool
}

// asks tells whether the script would ask the server for its token.
func (c *Call) asks() bool {
	if !c.Asks || len(c.Args) == 0 {
		return false
	}
	switch given := c.Args[0].(type) {
	case string:
		return given == ""
	case *string:
		return *given == ""
	}
	return false
}

// Result is what a call gave: nil, int64, string, or []any of these.
type Result struct {
	Value any
	Err   error // sorted by Classify
}

// Runner runs scripts on a single Redis, one behind Sentinel, or a Cluster.
type Runner struct {
	client redis.UniversalClient
	// A pipeline of one goes over one connection, to one server.
	single bool
	// known is the token of the server that answered last; nil: none did.
	known atomic.Pointer[string]
}

// NewRunner gives a runner on client.
func NewRunner(client redis.UniversalClient) *Runner {
	_, single := client.(*redis.Client)
	return &Runner{client: client, single: single}
}

// Together tells whether keys of different hash tags may share a call: not on a
// Cluster, whose nodes have some of the slots each.
func (r *Runner) Together() bool { return r.single }

// Run runs all calls in one pipeline (one for every 1,000) and gives one
// result for each, in order. The calls are independent: one may fail and
// another succeed. A call whose answer was lost may have run.
//
// A server that does not know a script is taught it, and only the calls that
// it turned down are sent again.
//
// Calls that ask for the server's token are not left to ask by themselves, which
// costs a fifth of their time: they are told the one that is known, and the server
// is asked once, behind all of them. Only one server is ever a master under a
// token, for one stretch of time, since it makes a new one whenever it is started
// or promoted. So a master that still has behind the calls the token that was
// known before them had it meanwhile. Where it has another one nothing that was
// answered counts, and the same calls are sent again to ask by themselves; what
// they wrote under the old token is believed no more. On a Cluster, whose nodes
// have a token each, every call asks.
func (r *Runner) Run(ctx context.Context, calls []Call) []Result {
	results := make([]Result, len(calls))
	for first := 0; first < len(calls); first += pipelineCalls {
		last := min(first+pipelineCalls, len(calls))
		r.run(ctx, calls[first:last], results[first:last])
	}
	return results
}

// One runs a single call.
func (r *Runner) One(ctx context.Context, c Call) (any, error) {
	res := r.Run(ctx, []Call{c})[0]
	return res.Value, res.Err
}

func (r *Runner) run(ctx context.Context, calls []Call, results []Result) {
	todo := make([]int, len(calls))
	for i := range todo {
		todo[i] = i
	}
	todo = r.pipeline(ctx, calls, todo, results, evalSHA)
	if len(todo) == 0 {
		return
	}
	if err := r.load(ctx, calls, todo); err != nil {
		for _, i := range todo {
			results[i] = Result{Err: Classify(fmt.Errorf("load script %s: %w", calls[i].Script.name, err))}
		}
		return
	}
	todo = r.pipeline(ctx, calls, todo, results, evalSHA)
	if len(todo) == 0 {
		return
	}
	// A failover between loading and calling: now the source goes along.
	r.pipeline(ctx, calls, todo, results, eval)
}

// pipeline runs the calls named by todo and gives those whose script the server
// did not know.
func (r *Runner) pipeline(ctx context.Context, calls []Call, todo []int, results []Result, command string) []int {
	asks := r.single && slices.ContainsFunc(todo, func(i int) bool { return calls[i].asks() })
	if !asks {
		unknown, _ := r.send(ctx, calls, todo, results, command, nil)
		return unknown
	}
	unsaid := ""
	token := r.known.Load()
	if token == nil {
		token = &unsaid
	}
	unknown, stands := r.send(ctx, calls, todo, results, command, token)
	if stands {
		return unknown
	}
	unknown, _ = r.send(ctx, calls, todo, results, command, &unsaid)
	return unknown
}

// spareWords are slices of the words of a pipeline, used again; nobody has them any
// more when it was answered.
var spareWords = sync.Pool{New: func() any { return new([]any) }}

// maxSpare bounds what is kept of one for the next pipeline, in words.
const maxSpare = 1 << 17

// send sends the calls named by todo and gives those whose script the server did
// not know. Where token is not nil the calls that ask are told it; stands tells
// whether what they answered counts.
func (r *Runner) send(ctx context.Context, calls []Call, todo []int, results []Result, command string, token *string) (unknown []int, stands bool) {
	pipe := r.client.Pipeline()
	size := 0
	for _, i := range todo {
		size += 3 + len(calls[i].Keys) + len(calls[i].Args)
	}
	spare := spareWords.Get().(*[]any)
	args := slices.Grow(*spare, size) // of all calls, one after another
	defer func() {
		if size <= maxSpare {
			clear(args)
			*spare = args[:0]
			spareWords.Put(spare)
		}
	}()
	cmds := make([]*redis.Cmd, len(todo))
	for k, i := range todo {
		from := len(args)
		args = calls[i].words(args, command, token)
		cmds[k] = redis.NewCmd(ctx, args[from:len(args):len(args)]...)
		if len(calls[i].Keys) > 0 {
			cmds[k].SetFirstKeyPos(3)
		}
		_ = pipe.Process(ctx, cmds[k]) // it is put into the pipeline, which cannot fail
	}
	var info *redis.StringCmd
	if token != nil {
		info = pipe.Info(ctx, "replication")
	}
	_, execErr := pipe.Exec(ctx)
	var untold error
	stands = true
	if info != nil {
		var now string
		now, untold = r.learn(info)
		stands = untold != nil || *token == "" || now == *token
	}
	for k, i := range todo {
		value, err := cmds[k].Result()
		if untold != nil && *token != "" && calls[i].asks() && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			err = untold
		}
		switch {
		case errors.Is(err, redis.Nil):
			results[i] = Result{}
		case err != nil && redis.HasErrorPrefix(err, "NOSCRIPT"):
			unknown = append(unknown, i)
			results[i] = Result{Err: Classify(err)}
		case err != nil:
			results[i] = Result{Err: fmt.Errorf("script %s: %w", calls[i].Script.name, Classify(err))}
		case value == nil && execErr != nil:
			// Nobody answered this call and nobody said so.
			results[i] = Result{Err: fmt.Errorf("script %s: %w", calls[i].Script.name, Classify(execErr))}
		default:
			results[i] = Result{Value: value}
		}
	}
	return unknown, stands
}

// learn reads the token that a master says it has. Of others, and where there is
// none, nothing is known.
func (r *Runner) learn(info *redis.StringCmd) (token string, err error) {
	text, err := info.Result()
	if err != nil {
		return "", err
	}
	if _, rest, ok := strings.Cut(text, "master_replid:"); ok && strings.Contains(text, "role:master\r\n") {
		token, _, _ = strings.Cut(rest, "\r\n")
	}
	switch known := r.known.Load(); {
	case token == "":
		r.known.Store(nil)
	case known == nil || *known != token:
		r.known.Store(&token)
	}
	return token, nil
}

// The commands that call a script, by its hash or by its text.
const (
	evalSHA = "evalsha"
	eval    = "eval"
)

// words appends the words of a call. Those that stand somewhere are pointed to,
// since a word that is handed over by value costs an allocation.
func (c *Call) words(args []any, command string, token *string) []any {
	args = append(args, command, c.Script.text(command), len(c.Keys))
	for i := range c.Keys {
		args = append(args, &c.Keys[i])
	}
	if token != nil && c.asks() {
		return append(append(args, token), c.Args[1:]...)
	}
	return append(args, c.Args...)
}

// load teaches every master the scripts of the calls named by todo.
func (r *Runner) load(ctx context.Context, calls []Call, todo []int) error {
	seen := make(map[*Script]bool)
	for _, i := range todo {
		s := calls[i].Script
		if seen[s] {
			continue
		}
		seen[s] = true
		if err := r.loadOne(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) loadOne(ctx context.Context, s *Script) error {
	if c, ok := r.client.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
			return m.ScriptLoad(ctx, s.source).Err()
		})
	}
	return r.client.ScriptLoad(ctx, s.source).Err()
}
