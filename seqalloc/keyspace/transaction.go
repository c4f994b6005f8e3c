package keyspace

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Transaction is plain commands, the words of each, that a server runs one after
// another with nothing of anybody else between them. Words are of the kinds that
// Call.Args may have. All of them must read only: they may run more than once.
type Transaction [][]any

// Read runs transactions in one pipeline and gives their replies in order. token
// is the one that the server had all the while: given, or where that is "" its
// own, as it is known before and confirmed behind the last transaction; see Run,
// which says why that is enough.
//
// usable is false where nothing that came counts: where there is a Cluster, where
// no token is known yet, and where the server now has another one. Then and for a
// reply that is not OK the caller calls a script instead, which also gets the
// error that a server answers with. err is that of a server that did not answer,
// sorted by Classify.
func (r *Runner) Read(ctx context.Context, given string, all []Transaction) (replies []Reply, token string, usable bool, err error) {
	token = given
	if known := r.known.Load(); given == "" && known != nil {
		token = *known
	}
	if !r.single || token == "" {
		return nil, "", false, nil
	}
	size := 0
	for _, commands := range all {
		size += len(commands) + 1
	}
	cmds := make([]redis.Cmder, 0, size+len(all)+1)
	places := make([]queued, 0, size)
	answer := redis.NewStatusCmd(ctx, "multi")
	queue := func(words []any) {
		places = append(places, queued{answer, words})
		cmds = append(cmds, &places[len(places)-1])
	}
	answers := make([]*redis.RawCmd, len(all))
	for i, commands := range all {
		queue(multi)
		for _, words := range commands {
			queue(words)
		}
		answers[i] = redis.NewRawCmd(ctx, "exec")
		cmds = append(cmds, answers[i])
	}
	var info *redis.StringCmd
	if given == "" {
		info = redis.NewStringCmd(ctx, "info", "replication")
		cmds = append(cmds, info)
	}
	pipe := r.client.Pipeline()
	_ = pipe.BatchProcess(ctx, cmds...) // they are put into the pipeline, which cannot fail
	if _, err := pipe.Exec(ctx); err != nil {
		if _, answered := errors.AsType[redis.Error](err); !answered {
			return nil, "", false, fmt.Errorf("read: %w", Classify(err))
		}
	}
	if info != nil {
		if now, err := r.learn(info); err != nil || now != token {
			return nil, "", false, nil
		}
	}
	replies = make([]Reply, len(all))
	for i := range all {
		replies[i] = NewReply(string(answers[i].Val()), len(all[i]))
	}
	return replies, token, true, nil
}

var multi = []any{"multi"}

// queued is a command within a transaction. The server answers to it that it was
// queued, or why not, and then aborts the whole; so one answer serves for all,
// where one for each would be most of what there is to allocate.
type queued struct {
	*redis.StatusCmd
	words []any
}

// Args gives the words that are sent.
func (q *queued) Args() []any { return q.words }

// Name is for those who look at what is sent.
func (q *queued) Name() string { return fmt.Sprint(q.words[0]) }

// errWire is wrapped by the errors of a Reply.
var errWire = errors.New("unexpected answer")

// Reply walks through what a server answered to a transaction, as it stands on
// the wire: what it gives are parts of one text, where values of go-redis are two
// allocations each. It stops at the first item that is not what was expected.
type Reply struct {
	rest string
	err  error
}

// NewReply gives the reply whose text came for n commands.
func NewReply(text string, n int) Reply {
	r := Reply{rest: text}
	r.ListOf(n)
	return r
}

// Err tells what was not as expected.
func (r *Reply) Err() error { return r.err }

// End is Err, also where there is more than was read.
func (r *Reply) End() error {
	if r.err == nil && r.rest != "" {
		r.Fail(fmt.Errorf("%w: %d bytes behind the end", errWire, len(r.rest)))
	}
	return r.err
}

// Fail says that what was given is not what the caller expected. The first one to
// say so counts.
func (r *Reply) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = ""
}

func (r *Reply) fail(format, got string) { r.Fail(fmt.Errorf("%w: "+format, errWire, got)) }

// line gives the next line without its end; kind is its first byte.
func (r *Reply) line() (kind byte, line string) {
	end := strings.IndexByte(r.rest, '\n')
	if end < 2 || r.rest[end-1] != '\r' {
		r.fail("no line, but %.40q", r.rest)
		return 0, ""
	}
	kind, line, r.rest = r.rest[0], r.rest[1:end-1], r.rest[end+1:]
	return kind, line
}

// List enters a list and gives the number of its items, which are read next. It
// is what the server says and no reason to make room.
func (r *Reply) List() int {
	kind, line := r.line()
	n, err := strconv.Atoi(line)
	if kind != '*' || err != nil || n < 0 {
		r.fail("%.40q instead of a list", string(kind)+line)
		return 0
	}
	return n
}

// ListOf enters a list that must have n items.
func (r *Reply) ListOf(n int) {
	if got := r.List(); r.err == nil && got != n {
		r.Fail(fmt.Errorf("%w: %d items instead of %d", errWire, got, n))
	}
}

// Text gives the next item, a text or a number; ok is false where there is none.
func (r *Reply) Text() (text string, ok bool) {
	kind, line := r.line()
	switch kind {
	case '$':
		if line == "-1" {
			return "", false
		}
		n, err := strconv.Atoi(line)
		if err != nil || n < 0 || n > len(r.rest)-2 || r.rest[n:n+2] != "\r\n" {
			r.fail("a text of %.40q bytes", line)
			return "", false
		}
		text, r.rest = r.rest[:n], r.rest[n+2:]
		return text, true
	case ',', ':':
		return line, true
	case '_':
		return "", false
	}
	r.fail("%.40q instead of a text", string(kind)+line)
	return "", false
}
