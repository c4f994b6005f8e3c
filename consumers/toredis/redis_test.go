package toredis_test

import (
	"context"
	"fmt"

	"github.com/tidemark-im/tidemark/watermark"
)

// conversation is what the world's Redis holds of one: a small sequential
// model of the script.
type conversation struct {
	token   string // set while warming
	warmed  string // the token of the warm-up that stands
	warm    bool
	state   watermark.State
	refused map[watermark.Origin]string
}

func (w *world) flushAll() { clear(w.redis) }

func (w *world) Begin(_ context.Context, ids []watermark.ConversationID) ([]string, error) {
	out := make([]string, len(ids))
	err := w.step("begin", len(ids), func(n int) {
		for i, id := range ids[:n] {
			w.tokens++
			out[i] = fmt.Sprint("token-", w.tokens)
			w.redis[id] = &conversation{token: out[i], refused: make(map[watermark.Origin]string)}
		}
	})
	return out, err
}

func (w *world) Install(_ context.Context, loaded []watermark.Loaded) ([]bool, error) {
	out := make([]bool, len(loaded))
	err := w.step("install", len(loaded), func(n int) {
		for i, l := range loaded[:n] {
			c := w.redis[l.State.ID]
			if c == nil || c.warm || c.token != l.Token {
				continue
			}
			c.warm, c.warmed, c.token, out[i] = true, l.Token, "", true
			c.state.Conversation.ID = l.State.ID
			c.state.Merge(l.State)
		}
	})
	return out, err
}

func (w *world) MergeMembers(_ context.Context, loads []watermark.MemberLoad) ([]bool, error) {
	out := make([]bool, len(loads))
	err := w.step("members", len(loads), func(n int) {
		for i, l := range loads[:n] {
			c := w.redis[l.Conversation]
			if c == nil || !c.warm || c.warmed != l.Token {
				continue
			}
			for _, m := range l.Members {
				c.state.MergeMember(m)
			}
			for _, u := range l.Absent {
				c.state.MergeMember(watermark.Member{User: u})
			}
			c.state.Complete, out[i] = c.state.Complete || l.Complete, true
		}
	})
	return out, err
}

func (w *world) Malloc(_ context.Context, batches []watermark.Batch) ([]watermark.Allocation, error) {
	out := make([]watermark.Allocation, len(batches))
	err := w.step("malloc", len(batches), func(n int) {
		for i, b := range batches[:n] {
			w.mallocs = append(w.mallocs, b)
			out[i] = w.script(b)
		}
	})
	return out, err
}

func (w *world) script(b watermark.Batch) watermark.Allocation {
	c := w.redis[b.Conversation]
	switch {
	case c == nil:
		return watermark.Allocation{Temperature: watermark.Cold, Why: "absent"}
	case !c.warm:
		return watermark.Allocation{Temperature: watermark.Cold, Why: "warming"}
	case c.state.Max < b.Floor:
		return watermark.Allocation{Temperature: watermark.Cold, Why: "floor"}
	}
	var unknown []watermark.UserID
	for _, in := range b.Inputs {
		u := in.User
		if in.Message != nil {
			u = in.Message.Sender
		}
		if _, ok := c.state.Members[u]; u != "" && !ok && !c.state.Complete {
			unknown = append(unknown, u)
		}
	}
	if len(unknown) > 0 {
		return watermark.Allocation{Temperature: watermark.Partial, Token: c.warmed, Unknown: unknown}
	}
	if len(b.Inputs) > 0 && !c.decided(b.Inputs[0].Origin) {
		clear(c.refused)
	}
	a := watermark.Allocation{}
	for i := range b.Inputs {
		in := &b.Inputs[i]
		o := c.decide(in, b.Policy)
		if o.Verdict == watermark.Refused {
			c.refused[in.Origin] = o.Reason
		}
		c.state.Apply(watermark.Record{Conversation: b.Conversation, Inputs: []watermark.Origin{in.Origin}})
		a.Outcomes = append(a.Outcomes, o)
	}
	a.Max = c.state.Max
	return a
}

func (c *conversation) decided(o watermark.Origin) bool {
	at, ok := c.state.Inputs[o.Partition]
	return ok && o.Offset <= at
}

func (c *conversation) decide(in *watermark.Input, policy watermark.UnreadPolicy) watermark.Outcome {
	if in.Act == watermark.ActSend || in.Act == watermark.ActResequence {
		return c.decideMessage(in, policy)
	}
	m := c.state.Members[in.User]
	m.User = in.User
	if op, ok := m.HasOp(in.OpID); ok {
		return watermark.Outcome{Verdict: watermark.Again, Seq: op.Edge, Member: &m}
	}
	if reason := c.refused[in.Origin]; reason != "" {
		return watermark.Outcome{Verdict: watermark.Refused, Reason: reason}
	}
	if c.decided(in.Origin) {
		return watermark.Outcome{Verdict: watermark.Known}
	}
	switch in.Act {
	case watermark.ActJoin:
		m, _, _ = m.Join(in.OpID, c.state.Max, in.History, in.Seq)
	case watermark.ActLeave:
		m, _ = m.Leave(in.OpID, c.state.Max, in.Membership)
	case watermark.ActRevoke:
		if in.Seq > c.state.Max {
			return watermark.Outcome{Verdict: watermark.Refused, Reason: watermark.ReasonNoSuchSeq}
		}
		return watermark.Outcome{Seq: c.state.Max, Changed: true}
	default:
		return watermark.Outcome{Seq: c.state.Max}
	}
	c.state.MergeMember(m)
	return watermark.Outcome{Seq: c.state.Max, Member: &m, Changed: true}
}

func (c *conversation) decideMessage(in *watermark.Input, policy watermark.UnreadPolicy) watermark.Outcome {
	m := *in.Message
	sent, found := c.state.Sent[watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}]
	if in.Act == watermark.ActResequence {
		if found && sent.Seq != in.Seq {
			return watermark.Outcome{Verdict: watermark.Known}
		}
		found = false
	}
	switch {
	case found && sent.Hash != m.Hash:
		return watermark.Outcome{Verdict: watermark.Refused, Reason: watermark.ReasonIDReused}
	case found && c.decided(in.Origin):
		return watermark.Outcome{Verdict: watermark.Again, Seq: sent.Seq}
	case found:
		return watermark.Outcome{Verdict: watermark.Resent, Seq: sent.Seq}
	case c.refused[in.Origin] != "":
		return watermark.Outcome{Verdict: watermark.Refused, Reason: c.refused[in.Origin]}
	case c.decided(in.Origin):
		return watermark.Outcome{Verdict: watermark.Known}
	}
	if who := c.state.Members[m.Sender]; !who.Open() {
		return watermark.Outcome{Verdict: watermark.Refused, Reason: watermark.ReasonNotMember}
	}
	m.Seq = c.state.Max + 1
	c.state.Apply(watermark.Record{Conversation: in.Conversation, Events: []watermark.Event{
		watermark.MessagesSequenced{Policy: policy, Messages: []watermark.Message{m}},
	}})
	out := watermark.Outcome{Seq: m.Seq}
	if in.Act == watermark.ActResequence {
		out.Repaired = &watermark.Repaired{Number: in.Repair, From: in.Seq}
	}
	return out
}
