package tooffline

import (
	"cmp"
	"container/heap"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// key is what notifications are collapsed by.
type key struct {
	conv watermark.ConversationID
	user watermark.UserID
}

// tracked is a record whose offset must not be committed while left is above 0.
type tracked struct {
	wire.Record // without its value
	left        int
	trace       trace.SpanContext
}

// note is a notification on its way.
type note struct {
	key  key
	due  time.Time
	at   int // place in the heap; -1: it is under way
	made time.Time

	first, last watermark.Seq
	seqs        map[watermark.Seq]bool // nil while there is one alone
	mentioned   bool
	latest      wire.Offline
	trace       trace.SpanContext // of the latest
	parts       []*tracked        // of which it stands for one user

	tries     int
	hurried   bool                        // the next try is the last: it holds up all others
	pauses    *backoff.ExponentialBackOff // of attempts
	lookPause *backoff.ExponentialBackOff // of looking at the user's state
	told      map[string]bool             // devices that need no other attempt
	// next gathers what comes while n is under way.
	next *note
}

// add takes another message into n.
func (n *note) add(o *wire.Offline, mentioned bool, t *tracked) {
	n.parts = append(n.parts, t)
	n.mentioned = n.mentioned || mentioned
	switch {
	case n.first == 0:
		n.first = o.Seq
	case n.seqs == nil && o.Seq != n.last:
		n.seqs = map[watermark.Seq]bool{n.last: true, o.Seq: true}
	case n.seqs != nil:
		n.seqs[o.Seq] = true
	}
	n.first = min(n.first, o.Seq)
	if o.Seq > n.last {
		n.last, n.latest, n.trace = o.Seq, *o, t.trace
		// It stands for more now, so whoever has seen it has not seen this.
		n.told = nil
	}
}

// join takes everything of o, which came later, into n.
func (n *note) join(o *note) {
	if o.seqs != nil || o.last != n.last {
		if n.seqs == nil {
			n.seqs = map[watermark.Seq]bool{n.last: true}
		}
		n.seqs[o.last] = true
		for s := range o.seqs {
			n.seqs[s] = true
		}
	}
	n.parts = append(n.parts, o.parts...)
	n.mentioned = n.mentioned || o.mentioned
	n.first = min(n.first, o.first)
	if o.last > n.last {
		n.last, n.latest, n.trace, n.told = o.last, o.latest, o.trace, nil
	}
}

// tell notes that devices need no other attempt.
func (n *note) tell(devices []string) {
	if n.told == nil {
		n.told = make(map[string]bool, len(devices))
	}
	for _, d := range devices {
		n.told[d] = true
	}
}

func (n *note) messages() int { return max(len(n.seqs), 1) }

// notification gives what is sent. The id follows from what the user will have
// been told of: it does not change with how the messages were gathered.
func (n *note) notification(endpoint string) *Notification {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%d", endpoint, n.key.conv, n.key.user, n.last))
	return &Notification{
		ID:           "msg_" + base64.RawURLEncoding.EncodeToString(sum[:18]),
		Conversation: n.key.conv, User: n.key.user, First: n.first, Last: n.last, Messages: n.messages(),
		Mentioned: n.mentioned, Latest: n.latest, Try: n.tries + 1, Trace: n.trace,
	}
}

// record gives the last of the records that n stands for.
func (n *note) record() *tracked {
	return slices.MaxFunc(n.parts, func(a, b *tracked) int { return cmp.Compare(a.Offset, b.Offset) })
}

// collapseOf is short enough for every vendor and shows no ids.
func collapseOf(c watermark.ConversationID) string {
	sum := sha256.Sum256([]byte(c))
	return hex.EncodeToString(sum[:16])
}

// queue holds waiting notes, the one that is due first on top.
type queue []*note

var _ heap.Interface = (*queue)(nil)

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}
func (q *queue) Push(x any) {
	n := x.(*note)
	n.at = len(*q)
	*q = append(*q, n)
}
func (q *queue) Pop() any {
	old := *q
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	n.at = -1
	return n
}

// pausesOf gives pauses that double from first to longest, with jitter, without
// end.
func pausesOf(first, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = first, longest
	b.Multiplier, b.RandomizationFactor = 2, 0.2
	b.Reset()
	return b
}
