package check

import (
	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// place is a seq of a conversation.
type place struct {
	conv string
	seq  int64
}

// revokes tests tombstones: nothing becomes one, and nothing is deleted, that
// nobody asked for, and what is one stays one.
func (c *checker) revokes() {
	asked := map[place]int64{}           // when it was first asked for
	gone := map[place]int64{}            // when it was certain
	raised := map[string][]*history.Op{} // what was asked to be deleted
	for i := range c.ops {
		op := &c.ops[i]
		at := place{op.Conversation, op.Seq}
		switch {
		case op.Kind == history.RaiseMin:
			raised[op.Conversation] = append(raised[op.Conversation], op)
		case op.Kind == history.Revoke:
			earliest(asked, at, op.T0)
			if op.OK {
				earliest(gone, at, op.T1)
			}
		case op.Kind == history.Pull && op.OK:
			for _, m := range op.Page.Messages {
				if m.Revoked {
					earliest(gone, place{op.Conversation, m.Seq}, op.T1)
				}
			}
		}
	}
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Pull || !op.OK {
			continue
		}
		for _, m := range op.Page.Messages {
			c.tombstone(op, m, asked, gone)
		}
		if c.windows[pair{op.User, op.Conversation}] == nil {
			c.deleted(op, raised[op.Conversation])
		}
	}
}

func earliest(in map[place]int64, at place, t int64) {
	if old, ok := in[at]; !ok || t < old {
		in[at] = t
	}
}

func (c *checker) tombstone(op *history.Op, m history.Message, asked, gone map[place]int64) {
	at := place{op.Conversation, m.Seq}
	since, ok := gone[at]
	if !m.Revoked {
		if ok && since < op.T0 {
			c.violate("revoked", op.T0, "%s seq %d: %q was served after it was revoked", op.Conversation, m.Seq, m.Text)
		}
		return
	}
	was := c.stood[op.Conversation][m.Seq]
	switch first, ok := asked[at]; {
	case !ok || first > op.T1:
		c.violate("revoked", op.T0, "%s seq %d is a tombstone, and nobody revoked it", op.Conversation, m.Seq)
	case m.Text != "":
		c.violate("revoked", op.T0, "%s seq %d is a tombstone and still says %q", op.Conversation, m.Seq, m.Text)
	case was == nil || was.sender != m.Sender || was.id != "" && was.id != m.ID:
		c.violate("revoked", op.T0, "%s seq %d is a tombstone of %s with id %q, which did not stand there", op.Conversation, m.Seq, m.Sender, m.ID)
	}
}

// deleted tests the minimum of a page: no higher than anybody had asked for. That
// it does not fall is tested with all that may only rise.
func (c *checker) deleted(op *history.Op, raised []*history.Op) {
	most := int64(1)
	for _, r := range raised {
		if r.T0 <= op.T1 {
			most = max(most, r.Seq)
		}
	}
	if op.Page.Min > most {
		c.violate("deleted", op.T0, "%s begins at %d, and nobody asked for more than %d", op.Conversation, op.Page.Min, most)
	}
}
