package keyspace

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Reads is transactions of plain commands that only read: a server runs those of
// one transaction with nothing of anybody else between them, as it runs a script,
// and for less, since what calls a command from Lua costs as much as most
// commands. They may run more than once. Runner.Reads begins one, Run ends it.
type Reads struct {
	runner *Runner
	words  []any // of all commands, one after another
	from   int   // where those of the command begin that is being written
	queued []queued
	// What is answered to every MULTI, and to every command behind one.
	begun, answer *redis.StatusCmd
	cmds          []redis.Cmder
	exec          []*redis.RawCmd
	sizes         []int // commands of each transaction
}

// A list of 10,000 views is 40,000 commands; what they are written into is used
// again.
var allReads = sync.Pool{New: func() any { return new(Reads) }}

// Reads begins reads that are empty.
func (r *Runner) Reads(ctx context.Context) *Reads {
	reads := allReads.Get().(*Reads)
	reads.runner = r
	reads.begun, reads.answer = redis.NewStatusCmd(ctx), redis.NewStatusCmd(ctx)
	return reads
}

// Words adds words to a command, of the kinds that Call.Args may have.
func (r *Reads) Words(words ...any) { r.words = append(r.words, words...) }

// Command ends a command.
func (r *Reads) Command() {
	if len(r.sizes) == len(r.exec) { // the first of its transaction
		r.sizes = append(r.sizes, 0)
		r.queue(r.begun, multi)
	}
	r.queue(r.answer, r.words[r.from:len(r.words):len(r.words)])
	r.from = len(r.words)
	r.sizes[len(r.sizes)-1]++
}

// Transaction ends a transaction, which has a command at least.
func (r *Reads) Transaction(ctx context.Context) {
	exec := redis.NewRawCmd(ctx, "exec")
	r.exec = append(r.exec, exec)
	r.queue(nil, nil)
}

var multi = []any{"multi"}

func (r *Reads) queue(answer *redis.StatusCmd, words []any) {
	r.queued = append(r.queued, queued{answer, words})
}

// queued is a command within a transaction. The server answers to it that it was
// queued, or why not, and then it answers to the transaction that it was aborted.
// So one place serves for all these answers, where one for each would be most of
// what there is to allocate.
type queued struct {
	*redis.StatusCmd
	words []any
}

// Args gives the words that are sent.
func (q *queued) Args() []any { return q.words }

// Name is for those who look at what is sent.
func (q *queued) Name() string {
	name, _ := q.words[0].(string)
	return name
}

// Run runs the transactions in one pipeline and gives their replies, in order; r
// is not to be used any more. token is the one that the server had all the while:
// given, or where that is "" its own, as it is known before and confirmed behind
// the last transaction. Runner.Run says why that is enough.
//
// usable is false where nothing that came counts: on a Cluster, where no token is
// known yet, and where the server now has another one. Then, and for a reply that
// is not as it should be, the caller calls a script instead; that gets to know the
// token, or the error that the server answers with. err is that of a server that
// did not answer, sorted by Classify.
func (r *Reads) Run(ctx context.Context, given string) (replies []Reply, token string, usable bool, err error) {
	defer r.free()
	token = given
	if known := r.runner.known.Load(); given == "" && known != nil {
		token = *known
	}
	if !r.runner.single || token == "" {
		return nil, "", false, nil
	}
	var info *redis.StringCmd
	r.collect()
	if given == "" {
		info = redis.NewStringCmd(ctx, "info", "replication")
		r.cmds = append(r.cmds, info)
	}
	pipe := r.runner.client.Pipeline()
	_ = pipe.BatchProcess(ctx, r.cmds...) // they are put into the pipeline, which cannot fail
	_, err = pipe.Exec(ctx)
	_, answered := errors.AsType[redis.Error](err)
	_, refused := errors.AsType[redis.Error](r.begun.Err())
	switch {
	case refused:
		// What came behind it was run by itself, and gave who knows what.
		return make([]Reply, len(r.exec)), token, true, nil
	case err != nil && !answered:
		return nil, "", false, fmt.Errorf("read: %w", Classify(err))
	}
	if info != nil {
		if now, err := r.runner.learn(info); err != nil || now != token {
			return nil, "", false, nil
		}
	}
	replies = make([]Reply, len(r.exec))
	for i, exec := range r.exec {
		replies[i] = NewReply(string(exec.Val()), r.sizes[i])
	}
	return replies, token, true, nil
}

// collect makes one list of all commands. It comes last, since they have their
// place only then.
func (r *Reads) collect() {
	n := 0
	for i := range r.queued {
		if r.queued[i].words == nil {
			r.cmds = append(r.cmds, r.exec[n])
			n++
			continue
		}
		r.cmds = append(r.cmds, &r.queued[i])
	}
}

// free makes r anew. What it held must not stay because of it.
func (r *Reads) free() {
	clear(r.words)
	clear(r.queued)
	clear(r.cmds)
	clear(r.exec)
	*r = Reads{words: r.words[:0], queued: r.queued[:0], cmds: r.cmds[:0], exec: r.exec[:0], sizes: r.sizes[:0]}
	allReads.Put(r)
}
