package simulation

import (
	"slices"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// model is what the inputs mean, decided one by one in their order, in lists.
// It shares the decoding of inputs with the real code, and nothing else.
type model struct {
	chats   map[watermark.ConversationID]*chat
	refused map[int64]string // offset of an input -> why
}

// chat is one conversation.
type chat struct {
	exists  bool                // something of it was accepted
	rows    []watermark.Message // in order; the one at index i has seq i+1
	revoked map[int]bool        // by index
	min     int
	people  map[watermark.UserID]*person
}

// person is one user in it.
type person struct {
	in      bool          // sees what comes
	stays   int32         // number of the latest membership
	row     bool          // history has a row of it
	known   bool          // had a command of its own
	can     []bool        // for each row whether it can be seen
	could   map[int]bool  // whether it ever could
	ops     []string      // the last ones
	seen    watermark.Seq // what it must have read by sending and clearing
	own     map[int]bool  // own messages that do not count as unread
	marks   watermark.Seq // the highest mark of its own, receipt what the peer was told
	receipt watermark.Seq
	acked   watermark.Seq // the highest mark that was answered
	asked   watermark.Seq // the highest mark that was asked for
}

func newModel() *model {
	m := &model{chats: make(map[watermark.ConversationID]*chat), refused: make(map[int64]string)}
	for _, id := range conversations {
		c := &chat{revoked: make(map[int]bool), people: make(map[watermark.UserID]*person)}
		for _, u := range users {
			if id.Admits(u) {
				c.people[u] = &person{in: true, could: make(map[int]bool), own: make(map[int]bool)}
			}
		}
		m.chats[id] = c
	}
	return m
}

// take decides one record of toRedis.
func (m *model) take(r wire.Record) {
	in := must(wire.Codec{}.DecodeInput(r))
	c := m.chats[in.Conversation]
	reason := ""
	switch in.Act {
	case watermark.ActSend:
		reason = c.send(in.Message, policyOf(in.Conversation))
	case watermark.ActRaiseMin:
		if int(in.Seq) > len(c.rows)+1 {
			reason = watermark.ReasonNoSuchSeq
		} else {
			c.min = max(c.min, int(in.Seq))
		}
	case watermark.ActRevoke:
		i := int(in.Seq) - 1
		switch actor := c.people[in.Actor]; {
		case i < 0, i >= len(c.rows), i+1 < c.min, actor != nil && !actor.can[i]:
			reason = watermark.ReasonNoSuchSeq
		default:
			c.revoked[i] = true
		}
	default:
		c.command(&in)
	}
	if reason != "" {
		m.refused[r.Offset] = reason
	} else {
		c.exists = true
	}
}

func (c *chat) send(msg *watermark.Message, policy watermark.UnreadPolicy) (reason string) {
	for i := range c.rows {
		if old := &c.rows[i]; old.Sender == msg.Sender && old.ClientID == msg.ClientID {
			if string(old.Body) != string(msg.Body) {
				return watermark.ReasonIDReused
			}
			return ""
		}
	}
	p := c.people[msg.Sender]
	if !p.in {
		return watermark.ReasonNotMember
	}
	row := *msg
	row.Seq = watermark.Seq(len(c.rows) + 1)
	c.rows = append(c.rows, row)
	if policy == watermark.KeepOnSend {
		p.own[len(c.rows)-1] = true
	} else {
		p.seen = row.Seq
	}
	p.row = true
	for _, q := range c.people {
		q.row = q.row || len(c.people) == 2 // both users of a single conversation have it
		q.can = append(q.can, q.in)
		if q.in {
			q.could[len(c.rows)-1] = true
		}
	}
	return ""
}

func (c *chat) command(in *watermark.Input) {
	p := c.people[in.User]
	if slices.Contains(p.ops, in.OpID) {
		return
	}
	if p.ops = append(p.ops, in.OpID); len(p.ops) > watermark.KeptOps {
		p.ops = p.ops[1:]
	}
	for _, q := range c.people {
		// Within its window lies what p has read, which the other one is shown.
		q.row = q.row || q == p || len(c.people) == 2
	}
	if !p.known && in.Act != watermark.ActJoin {
		p.stays = 1
	}
	switch in.Act {
	case watermark.ActJoin:
		if p.in && p.known {
			break
		}
		p.stays++
		if !p.known {
			clear(p.can)
		}
		for i := range p.can {
			if in.History == watermark.HistoryAll || in.History == watermark.HistoryFrom && i+1 >= int(in.Seq) {
				p.can[i], p.could[i] = true, true
			}
		}
		p.in = true
	case watermark.ActLeave:
		p.in = false
	case watermark.ActClear:
		clear(p.can)
		p.seen = max(p.seen, watermark.Seq(len(c.rows)))
	}
	p.known = true
}

// visible gives the seqs that p sees in the end.
func (c *chat) visible(p *person) (out []int64) {
	for i, ok := range p.can {
		if ok && i+1 >= c.min {
			out = append(out, int64(i+1))
		}
	}
	return out
}
