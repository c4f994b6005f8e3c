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
	// final says that everything was at rest.
	final bool
	// told is when it was known first.
	told int64
	// top is the conversation's maximum in the same answer; 0: it was not told.
	top  int64
	what string
}

// known are values in the order of t1, each the highest up to it.
type known []value

func knownOf(vs []value) known {
	out := slices.SortedFunc(slices.Values(vs), func(a, b value) int { return cmp.Compare(a.t1, b.t1) })
	for i := range out {
		out[i].told = out[i].t1
		if i > 0 && out[i-1].n >= out[i].n {
			t1 := out[i].t1
			out[i] = out[i-1]
			out[i].t1 = t1 // told stays
		}
	}
	return out
}

// before gives the highest value that was known before t.
func (k known) before(t int64) value {
	n, _ := slices.BinarySearchFunc(k, t, func(v value, t int64) int { return cmp.Compare(v.t1, t) })
	if n == 0 {
		return value{}
	}
	return k[n-1]
}

// numbersOf are the values of a run.
type numbersOf struct {
	maxes, mins     map[string][]value
	reads, receipts map[pair][]value
}

// monotone tests what may only rise: a value that was known before a read began
// is a lower bound for what the read gives.
func (c *checker) monotone() {
	all := numbersOf{map[string][]value{}, map[string][]value{}, map[pair][]value{}, map[pair][]value{}}
	for i := range c.ops {
		if c.ops[i].OK {
			all.add(&c.ops[i], c.windows[pair{c.ops[i].User, c.ops[i].Conversation}] != nil)
		}
	}
	for conv, vs := range all.maxes {
		c.answered[conv] = knownOf(slices.DeleteFunc(slices.Clone(vs), func(v value) bool { return !v.floor }))
		c.rising("max of "+conv, vs, func(v, best value) string {
			if v.final || v.n < c.answered[conv].before(v.t0).n {
				return "stale"
			}
			return "early"
		})
		c.taken(conv, knownOf(vs))
	}
	for conv, vs := range all.mins {
		c.rising("min of "+conv, vs, func(value, value) string { return "deleted" })
	}
	// A mark on what is not there now is hidden, as that is.
	fell := func(conv string) func(v, best value) string {
		return func(v, best value) string {
			if v.final || best.n <= cmp.Or(v.top, c.answered[conv].before(v.t0).n) {
				return "fell"
			}
			return "early"
		}
	}
	for who, vs := range all.reads {
		c.rising("read of "+who.user+" in "+who.conv, vs, fell(who.conv))
	}
	for who, vs := range all.receipts {
		c.rising("receipt of "+who.user+" in "+who.conv, vs, fell(who.conv))
	}
}

func (all numbersOf) add(op *history.Op, windowed bool) {
	who, conv := pair{op.User, op.Conversation}, op.Conversation
	v := func(n int64) value {
		return value{t0: op.T0, t1: op.T1, n: n, final: op.Phase != "", what: string(op.Kind) + " of " + op.User}
	}
	floor := func(n int64) value {
		v := v(n)
		v.floor = true
		return v
	}
	told := func(n int64) value {
		v := v(n)
		v.top = op.Marks.Max
		return v
	}
	switch op.Kind {
	case history.Send:
		if op.Seq > 0 {
			all.maxes[conv] = append(all.maxes[conv], floor(op.Seq))
		}
	case history.Join, history.Leave, history.Clear:
		all.maxes[conv] = append(all.maxes[conv], floor(op.Edge))
		if op.Kind == history.Clear {
			all.reads[who] = append(all.reads[who], floor(op.Edge))
		}
	case history.RaiseMin:
		all.mins[conv] = append(all.mins[conv], floor(op.Seq))
	case history.Pull:
		if !windowed {
			all.maxes[conv] = append(all.maxes[conv], v(op.Page.Max))
			all.mins[conv] = append(all.mins[conv], v(max(op.Page.Min, 1)))
		}
	case history.Watermarks:
		if !windowed {
			all.maxes[conv] = append(all.maxes[conv], v(op.Marks.Max))
		}
		all.reads[who] = append(all.reads[who], told(op.Marks.Read))
		if peer := peerOf(conv, op.User); peer != "" {
			key := pair{peer, conv}
			all.receipts[key] = append(all.receipts[key], told(op.Marks.Receipt))
		}
	case history.Mark:
		all.reads[who] = append(all.reads[who], v(op.Marks.Read))
		if op.Marks.Receipt > 0 {
			all.receipts[who] = append(all.receipts[who], v(op.Marks.Receipt))
		}
	}
}

// rising tests that vs only rise; rule says which rule one of them violates that
// is less than the best that was known.
func (c *checker) rising(what string, vs []value, rule func(v, best value) string) {
	k := knownOf(vs)
	for _, v := range vs {
		if best := k.before(v.t0); !v.floor && v.n < best.n {
			c.violate(rule(v, best), v.t0, "%s: %d (%s), but %d was known at %.3fs (%s)", what, v.n, v.what, best.n, float64(best.told)/1e9, best.what)
		}
	}
}

// taken tests that a mark was taken as far as it could be: up to what was known
// to be there. It is for users who can see everything.
func (c *checker) taken(conv string, maxes known) {
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Mark || !op.OK || op.Conversation != conv || c.windows[pair{op.User, conv}] != nil {
			continue
		}
		top := maxes.before(op.T0).n
		if op.Marks.Read >= min(op.Seq, top) {
			continue
		}
		rule := "early"
		if op.Marks.Read < min(op.Seq, c.answered[conv].before(op.T0).n) {
			rule = "fell"
		}
		c.violate(rule, op.T0, "%s marked %s to %d and was answered %d, though seq %d was known", op.User, conv, op.Seq, op.Marks.Read, top)
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
