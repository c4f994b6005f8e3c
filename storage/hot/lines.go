package hot

import (
	"fmt"
	"strings"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// list gives the items of a reply that is a list of n.
func list(v any, n int) ([]any, error) {
	items, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: %T instead of a list", errReply, v)
	}
	if len(items) != n {
		return nil, fmt.Errorf("%w: %d items instead of %d", errReply, len(items), n)
	}
	return items, nil
}

// lines walks through a text of lines. It stops at the first one that is not what
// was expected and keeps why. A list of thousands of views is one text for each
// instead of a list of values for each, which would be two allocations a value.
type lines struct {
	rest string
	at   int
	done bool // the last line was read
	err  error
}

func (l *lines) fail(err error) {
	if l.err == nil {
		l.err = fmt.Errorf("%w: line %d: %w", errReply, l.at, err)
	}
}

func (l *lines) text() string {
	if l.err != nil {
		return ""
	}
	if l.done {
		l.err = fmt.Errorf("%w: only %d lines", errReply, l.at)
		return ""
	}
	l.at++
	line, rest, more := strings.Cut(l.rest, "\n")
	l.rest, l.done = rest, !more
	return line
}

// end tells what was wrong, also that there are more lines than were read.
func (l *lines) end() error {
	if l.err == nil && !l.done {
		l.err = fmt.Errorf("%w: more than %d lines", errReply, l.at)
	}
	return l.err
}

// own reads own messages of one user, which are sorted, with "," between.
func (l *lines) own() []watermark.Seq {
	s := l.text()
	if s == "" {
		return nil
	}
	out := make([]watermark.Seq, 0, strings.Count(s, ",")+1)
	for x := range strings.SplitSeq(s, ",") {
		_, seq, err := keyspace.ParseOwnMember(x)
		if err != nil {
			l.fail(err)
			return nil
		}
		out = append(out, seq)
	}
	return out
}
