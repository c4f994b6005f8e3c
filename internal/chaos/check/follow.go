package check

import (
	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// followed tests what connected devices showed: every message that their user
// may see at the end, once, in order.
func (c *checker) followed() {
	shown := map[pair]map[int64]bool{}
	last := map[pair]int64{}
	for i := range c.ops {
		op := &c.ops[i]
		if op.Kind != history.Follow {
			continue
		}
		if !op.OK {
			c.violate("followed", op.T0, "the device of %s showed %s", op.User, op.Err)
			continue
		}
		key := pair{op.User, op.Conversation}
		if shown[key] == nil {
			shown[key] = map[int64]bool{}
		}
		if op.Seq <= last[key] {
			c.violate("followed", op.T0, "the device of %s showed seq %d of %s after seq %d", op.User, op.Seq, op.Conversation, last[key])
		}
		last[key], shown[key][op.Seq] = op.Seq, true
		if m := c.msgs[op.Text]; m == nil || m.conv != op.Conversation || m.seq != 0 && m.seq != op.Seq {
			c.violate("followed", op.T0, "the device of %s showed %q at seq %d of %s", op.User, op.Text, op.Seq, op.Conversation)
		}
		c.leaked(key, op)
	}
	for key, seqs := range shown {
		visible, ok := c.atRest(key)
		for _, r := range visible {
			for s := r.Begin; ok && s <= r.End; s++ {
				if !seqs[s] {
					c.violate("followed", 0, "the device of %s never showed seq %d of %s", key.user, s, key.conv)
					break
				}
			}
		}
	}
}

// leaked tests a message that a device showed against all that its user was
// ever allowed to see by then: what was on its way may arrive after a kick.
func (c *checker) leaked(key pair, op *history.Op) {
	steps, ok := c.mayBeSeen(key, 0, op.T1)
	if len(steps) > 1 {
		steps = steps[1:] // before the first command the user had no device
	}
	for _, s := range steps {
		if contains(s.seen, op.Seq) {
			return
		}
	}
	if ok {
		c.violate("window", op.T0, "the device of %s showed seq %d of %s", op.User, op.Seq, op.Conversation)
	}
}
