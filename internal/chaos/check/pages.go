package check

import (
	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// pages tests each page by itself: against what was asked, and against the
// bounds that stand on it.
func (c *checker) pages() {
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Pull || !op.OK {
			continue
		}
		if why := wrong(op, c.windows[pair{op.User, op.Conversation}] != nil); why != "" {
			c.violate("page", op.T0, "%s asked %s for %d..%d: %s", op.User, op.Conversation, op.Begin, op.End, why)
		}
		c.outside(op)
	}
}

// wrong says what is wrong with a page, or nothing. Of somebody with windows
// seqs may be left out inside of what is covered.
func wrong(op *history.Op, windowed bool) string {
	p := op.Page
	last := int64(0)
	for i, m := range p.Messages {
		if i > 0 && (m.Seq > last) == op.Desc || m.Seq == last {
			return "the messages are not in order"
		}
		last = m.Seq
		if p.Covered == nil || m.Seq < p.Covered.Begin || m.Seq > p.Covered.End {
			return "a message lies outside of what is covered"
		}
		if m.Seq < p.Min || m.Seq > p.Max {
			return "a message lies outside of the bounds"
		}
	}
	if p.Covered != nil {
		if p.Covered.Begin < op.Begin || p.Covered.End > op.End {
			return "it covers more than was asked for"
		}
		if !windowed && int64(len(p.Messages)) != p.Covered.End-p.Covered.Begin+1 {
			return "it covers seqs that are not on it"
		}
	}
	if p.Rest != nil && (p.Rest.Begin < op.Begin || p.Rest.End > op.End || p.Rest.Begin > p.Rest.End ||
		p.Covered != nil && p.Rest.Begin <= p.Covered.End && p.Rest.End >= p.Covered.Begin) {
		return "its rest is not a part of what was asked for, beside what is covered"
	}
	if lo, hi := max(op.Begin, p.Min), min(op.End, p.Max); !windowed && p.Covered == nil && p.Rest == nil && lo <= hi {
		return "it is empty without a rest, though it says that something is there"
	}
	return ending(op)
}

// ending tests that "that is all" is only said when it is.
func ending(op *history.Op) string {
	p := op.Page
	if !p.IsEnd {
		return ""
	}
	if p.Rest != nil {
		return "it says that this is all, and has a rest"
	}
	first, last := op.Begin, op.End
	if p.Covered != nil {
		first, last = p.Covered.Begin, p.Covered.End
	}
	if !op.Desc && p.Covered != nil && last < p.Max || op.Desc && p.Covered != nil && first > p.Min {
		return "it says that this is all, though there is more that way"
	}
	if p.Covered == nil && (!op.Desc && first <= p.Max || op.Desc && last >= p.Min) && p.Min <= p.Max {
		return "it is empty and says that this is all, though there is more that way"
	}
	return ""
}
