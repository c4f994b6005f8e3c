package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// step is a command of one user in one conversation and what may be seen from
// then on. The commands of a user in a conversation come one after another.
type step struct {
	t0, t1 int64
	seen   []history.Range
	known  bool // false: what became of the command, or of one before, is not known
	edge   int64
	clear  bool
}

// open is the end of a range that has none yet.
const open = never

// learnWindows follows the commands.
func (c *checker) learnWindows() {
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Join && op.Kind != history.Leave && op.Kind != history.Clear {
			continue
		}
		key := pair{op.User, op.Conversation}
		steps := c.windows[key]
		before := step{known: true, seen: []history.Range{{Begin: 1, End: open}}}
		first := len(steps) == 0
		if !first {
			before = steps[len(steps)-1]
		}
		if op.OK && !first && op.Edge < before.edge {
			c.violate("stale", op.T0, "%s in %s: edge %d of a %s after edge %d", op.User, op.Conversation, op.Edge, op.Kind, before.edge)
		}
		s := step{t0: op.T0, t1: op.T1, known: before.known && op.OK, edge: op.Edge, clear: op.Kind == history.Clear}
		if !op.OK {
			s.t1, s.edge = never, before.edge
		}
		switch op.Kind {
		case history.Join:
			if !first {
				s.seen = slices.Clone(before.seen)
			}
			s.seen = append(s.seen, history.Range{Begin: op.Edge + 1, End: open})
		case history.Leave:
			s.seen = capped(before.seen, op.Edge)
		case history.Clear:
			s.seen = raised(before.seen, op.Edge+1)
		}
		c.windows[key] = append(steps, s)
	}
}

func capped(in []history.Range, last int64) (out []history.Range) {
	for _, r := range in {
		if r.Begin <= last {
			out = append(out, history.Range{Begin: r.Begin, End: min(r.End, last)})
		}
	}
	return out
}

func raised(in []history.Range, first int64) (out []history.Range) {
	for _, r := range in {
		if r.End >= first {
			out = append(out, history.Range{Begin: max(r.Begin, first), End: r.End})
		}
	}
	return out
}

func contains(in []history.Range, seq int64) bool {
	return slices.ContainsFunc(in, func(r history.Range) bool { return r.Begin <= seq && seq <= r.End })
}

// told gives ranges for people.
func told(in []history.Range) string {
	if len(in) == 0 {
		return "nothing"
	}
	var out []string
	for _, r := range in {
		if r.End == open {
			out = append(out, fmt.Sprintf("%d...", r.Begin))
		} else {
			out = append(out, fmt.Sprintf("%d..%d", r.Begin, r.End))
		}
	}
	return strings.Join(out, ", ")
}

func size(in []history.Range) (n int64) {
	for _, r := range in {
		n += r.End - r.Begin + 1
	}
	return n
}

// mayBeSeen gives what may have been seen at the moments from t0 to t1, by each
// step that may have held then. What a step shows ends where the next one has
// its edge: later seqs came when it no longer held. Where nobody can tell it
// gives false.
func (c *checker) mayBeSeen(key pair, t0, t1 int64) ([]step, bool) {
	steps := c.windows[key]
	at := func(i int) step {
		s := step{known: true, seen: []history.Range{{Begin: 1, End: open}}}
		if i >= 0 {
			s = steps[i]
		}
		if i+1 < len(steps) && steps[i+1].known {
			s.seen = capped(s.seen, steps[i+1].edge)
		}
		return s
	}
	n := 0
	for n < len(steps) && steps[n].t1 < t0 {
		n++
	}
	out := []step{at(n - 1)}
	for ; n < len(steps) && steps[n].t0 <= t1; n++ {
		out = append(out, at(n))
	}
	return out, !slices.ContainsFunc(out, func(s step) bool { return !s.known })
}

// outside tests a page of a user with windows.
func (c *checker) outside(op *history.Op) {
	key := pair{op.User, op.Conversation}
	steps, ok := c.mayBeSeen(key, op.T0, op.T1)
	if !ok {
		return
	}
	for _, m := range op.Page.Messages {
		if !slices.ContainsFunc(steps, func(s step) bool { return contains(s.seen, m.Seq) }) {
			c.violate("window", op.T0, "%s was served seq %d of %s, but may see %s", op.User, m.Seq, op.Conversation, told(steps[len(steps)-1].seen))
			return
		}
	}
}

// atRest gives what a user may see at the end.
func (c *checker) atRest(key pair) ([]history.Range, bool) {
	steps := c.windows[key]
	seen := []history.Range{{Begin: 1, End: open}}
	if len(steps) > 0 {
		last := steps[len(steps)-1]
		if !last.known {
			return nil, false
		}
		seen = last.seen
	}
	return raised(capped(seen, c.max[key.conv]), c.min[key.conv]), true
}

// numbers tests the watermarks at rest, and that members were served everything
// that they may see.
func (c *checker) numbers() {
	marked, sent := c.bounds()
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Watermarks || !op.OK || op.Phase == "" {
			continue
		}
		key := pair{op.User, op.Conversation}
		visible, ok := c.atRest(key)
		if !ok {
			continue
		}
		if len(c.windows[key]) > 0 && !slices.Equal(joined(op.Marks.Visible), joined(visible)) {
			c.violate("window", op.T0, "%s: %s can see %s of %s, should %s", op.Phase, op.User, told(op.Marks.Visible), op.Conversation, told(visible))
			continue
		}
		if want := size(raised(visible, op.Marks.Read+1)); op.Marks.Unread != want {
			c.violate("unread", op.T0, "%s: %s has %d unread in %s, should have %d: read %d of %s", op.Phase, op.User, op.Marks.Unread, op.Conversation, want, op.Marks.Read, told(visible))
		}
		if op.Marks.Read < sent[key].least {
			c.violate("fell", op.T0, "%s: %s has read %d in %s, but sent seq %d", op.Phase, op.User, op.Marks.Read, op.Conversation, sent[key].least)
		}
		if most := max(marked[key], sent[key].most); op.Marks.Read > most {
			c.violate("read", op.T0, "%s: %s has read %d in %s, but nothing asked for more than %d", op.Phase, op.User, op.Marks.Read, op.Conversation, most)
		}
	}
	c.withheld()
}

type limits struct{ least, most int64 }

// bounds gives the highest seq that each user asked to mark, and the highest
// that the user has sent.
func (c *checker) bounds() (marked map[pair]int64, sent map[pair]limits) {
	marked, sent = map[pair]int64{}, map[pair]limits{}
	for i := range c.ops {
		op := &c.ops[i]
		key := pair{op.User, op.Conversation}
		switch {
		case op.Kind == history.Mark:
			marked[key] = max(marked[key], op.Seq)
		case op.Kind == history.Clear && op.OK:
			marked[key] = max(marked[key], op.Edge)
		case op.Kind == history.Clear:
			marked[key] = never
		}
	}
	for _, m := range c.msgs {
		key := pair{m.sender, m.conv}
		l := sent[key]
		l.least, l.most = max(l.least, m.seq), max(l.most, m.seq)
		sent[key] = l
	}
	return marked, sent
}

// joined merges ranges that touch.
func joined(in []history.Range) (out []history.Range) {
	for _, r := range slices.SortedFunc(slices.Values(in), func(a, b history.Range) int { return cmp.Compare(a.Begin, b.Begin) }) {
		if n := len(out); n > 0 && out[n-1].End+1 >= r.Begin {
			out[n-1].End = max(out[n-1].End, r.End)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// withheld tests that those who have windows were served all of them at rest.
func (c *checker) withheld() {
	got := map[string]map[pair]map[int64]bool{}
	for i := range c.ops {
		op := &c.ops[i]
		key := pair{op.User, op.Conversation}
		if op.Kind != history.Pull || op.Phase == "" || !op.OK || c.windows[key] == nil {
			continue
		}
		if got[op.Phase] == nil {
			got[op.Phase] = map[pair]map[int64]bool{}
		}
		if got[op.Phase][key] == nil {
			got[op.Phase][key] = map[int64]bool{}
		}
		for _, m := range op.Page.Messages {
			got[op.Phase][key][m.Seq] = true
		}
	}
	for phase, pairs := range got {
		for key, seqs := range pairs {
			visible, ok := c.atRest(key)
			if !ok {
				continue
			}
			for _, r := range visible {
				for s := r.Begin; s <= r.End; s++ {
					if !seqs[s] {
						c.violate("withheld", 0, "%s: %s was not served seq %d of %s, but may see %s", phase, key.user, s, key.conv, told(visible))
						break
					}
				}
			}
		}
	}
}
