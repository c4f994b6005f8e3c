package check

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// value is a number that was served, or that something acknowledged implies.
type value struct {
	t0, t1 int64
	n      int64
	// floor says that it only binds what comes later: it was not itself read.
	floor bool
	what  string
}

// monotone tests what may only rise: a value that was known before a read began
// is a lower bound for what the read gives.
func (c *checker) monotone() {
	maxes, reads, receipts := map[string][]value{}, map[pair][]value{}, map[pair][]value{}
	for i := range c.ops {
		op := &c.ops[i]
		if !op.OK {
			continue
		}
		who, windowed := pair{op.User, op.Conversation}, c.windows[pair{op.User, op.Conversation}] != nil
		v := func(n int64, floor bool) value {
			return value{t0: op.T0, t1: op.T1, n: n, floor: floor, what: string(op.Kind) + " of " + op.User}
		}
		switch op.Kind {
		case history.Send:
			if op.Seq > 0 {
				maxes[op.Conversation] = append(maxes[op.Conversation], v(op.Seq, true))
			}
		case history.Join, history.Leave, history.Clear:
			maxes[op.Conversation] = append(maxes[op.Conversation], v(op.Edge, true))
			if op.Kind == history.Clear {
				reads[who] = append(reads[who], v(op.Edge, true))
			}
		case history.Pull:
			if !windowed {
				maxes[op.Conversation] = append(maxes[op.Conversation], v(op.Page.Max, false))
			}
		case history.Watermarks:
			if !windowed {
				maxes[op.Conversation] = append(maxes[op.Conversation], v(op.Marks.Max, false))
			}
			reads[who] = append(reads[who], v(op.Marks.Read, false))
			if peer := peerOf(op.Conversation, op.User); peer != "" {
				receipts[pair{peer, op.Conversation}] = append(receipts[pair{peer, op.Conversation}], v(op.Marks.Receipt, false))
			}
		case history.Mark:
			reads[who] = append(reads[who], v(op.Marks.Read, false))
			if op.Marks.Receipt > 0 {
				receipts[who] = append(receipts[who], v(op.Marks.Receipt, false))
			}
		}
	}
	for conv, vs := range maxes {
		c.rising("stale", "max of "+conv, vs)
		c.taken(conv, vs)
	}
	for who, vs := range reads {
		c.rising("fell", "read of "+who.user+" in "+who.conv, vs)
	}
	for who, vs := range receipts {
		c.rising("fell", "receipt of "+who.user+" in "+who.conv, vs)
	}
}

// rising sorts vs by t0.
func (c *checker) rising(rule, what string, vs []value) {
	known := slices.SortedFunc(slices.Values(vs), func(a, b value) int { return cmp.Compare(a.t1, b.t1) })
	slices.SortFunc(vs, func(a, b value) int { return cmp.Compare(a.t0, b.t0) })
	var best value
	next := 0
	for _, v := range vs {
		for ; next < len(known) && known[next].t1 < v.t0; next++ {
			if known[next].n > best.n {
				best = known[next]
			}
		}
		if !v.floor && v.n < best.n {
			c.violate(rule, v.t0, "%s: %d (%s), but %d was known at %.3fs (%s)", what, v.n, v.what, best.n, float64(best.t1)/1e9, best.what)
		}
	}
}

// taken tests that a mark was taken as far as it could be: up to what was known
// to be there. It is for users who can see everything.
func (c *checker) taken(conv string, maxes []value) {
	known := slices.SortedFunc(slices.Values(maxes), func(a, b value) int { return cmp.Compare(a.t1, b.t1) })
	best := make([]int64, len(known)) // of all up to here
	for i, v := range known {
		best[i] = v.n
		if i > 0 {
			best[i] = max(best[i], best[i-1])
		}
	}
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Mark || !op.OK || op.Conversation != conv || c.windows[pair{op.User, conv}] != nil {
			continue
		}
		n, _ := slices.BinarySearchFunc(known, op.T0, func(v value, t int64) int { return cmp.Compare(v.t1, t) })
		if n == 0 {
			continue
		}
		if want := min(op.Seq, best[n-1]); op.Marks.Read < want {
			c.violate("fell", op.T0, "%s marked %s to %d and was answered %d, though seq %d was known", op.User, conv, op.Seq, op.Marks.Read, best[n-1])
		}
	}
}

// peerOf gives the other user of a single conversation.
func peerOf(conv, user string) string {
	parts := strings.Split(conv, ":")
	switch {
	case len(parts) != 3 || parts[0] != "single":
		return ""
	case parts[1] == user:
		return parts[2]
	case parts[2] == user:
		return parts[1]
	}
	return ""
}
