package hot

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// errReply is returned when a script's reply is not of the form that its
// header states.
var errReply = errors.New("unexpected reply")

// reply walks through the reply of a script. It stops at the first item that is
// not what was expected and keeps why.
type reply struct {
	items []any
	at    int
	err   error
}

func newReply(v any) *reply {
	items, ok := v.([]any)
	if !ok {
		return &reply{err: fmt.Errorf("%w: %T instead of a list", errReply, v)}
	}
	return &reply{items: items}
}

func (r *reply) more() bool { return r.err == nil && r.at < len(r.items) }

func (r *reply) next() any {
	if r.err != nil {
		return nil
	}
	if r.at >= len(r.items) {
		r.err = fmt.Errorf("%w: only %d items", errReply, len(r.items))
		return nil
	}
	r.at++
	return r.items[r.at-1]
}

func (r *reply) text() string {
	v := r.next()
	s, ok := v.(string)
	if !ok && r.err == nil {
		r.err = fmt.Errorf("%w: item %d is a %T instead of a string", errReply, r.at, v)
	}
	return s
}

func (r *reply) number() int64 {
	v := r.next()
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, err := parseNumber(v)
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("%w: item %d: %w", errReply, r.at, err)
		}
		return n
	}
	if r.err == nil {
		r.err = fmt.Errorf("%w: item %d is a %T instead of a number", errReply, r.at, v)
	}
	return 0
}

func (r *reply) seq() watermark.Seq { return watermark.Seq(r.number()) }

// parseNumber reads a whole number as Redis writes it: "" for none, digits, or
// a score, which is a double of at most 2^53-1 and may come in exponent form.
func parseNumber(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != float64(int64(f)) {
		return 0, fmt.Errorf("%.40q is not a whole number", s)
	}
	return int64(f), nil
}

// member reads a member's text; "" is a user of whom nothing stands there.
func (r *reply) member(u watermark.UserID) watermark.Member {
	s := r.text()
	if s == "" || r.err != nil {
		return watermark.Member{User: u}
	}
	m, err := keyspace.ParseMember(u, s)
	if err != nil {
		r.err = fmt.Errorf("%w: member %s: %w", errReply, u, err)
	}
	return m
}
