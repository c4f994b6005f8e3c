package keyspace

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

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
