package seqalloc_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/watermark"
)

// model decides inputs one by one, in the plainest way there is. It knows what
// the log knows (state) and what only a warm conversation does (noted, hot).
type model struct {
	state   *watermark.State
	policy  watermark.UnreadPolicy
	noted   map[int64]string       // offset -> reason of a refusal, or "+"
	hot     map[watermark.Seq]bool // in the hot log, or revoked out of it
	revoked map[watermark.Seq]bool // those revoked out of it
}

func newModel(policy watermark.UnreadPolicy) *model {
	m := &model{state: watermark.NewState(group), policy: policy}
	m.state.Complete = true
	m.cool()
	return m
}

// cool forgets what a loss of Redis loses.
func (m *model) cool() {
	m.noted, m.hot, m.revoked = map[int64]string{}, map[watermark.Seq]bool{}, map[watermark.Seq]bool{}
	maps.DeleteFunc(m.state.Sent, func(_ watermark.SentKey, v watermark.Sent) bool {
		return v.Seq <= m.state.Max-watermark.DedupeHorizon
	})
}

func (m *model) batch(ins []watermark.Input) []watermark.Outcome {
	if m.isFresh(&ins[0]) {
		clear(m.noted)
	}
	outs := make([]watermark.Outcome, len(ins))
	for i := range ins {
		in := &ins[i]
		fresh := m.isFresh(in)
		o := &outs[i]
		note := m.noted[in.Origin.Offset]
		switch {
		case !fresh && note != "" && note != "+":
			*o = watermark.Outcome{Verdict: watermark.Refused, Reason: note}
		case in.Act == watermark.ActSend:
			*o = m.send(in, fresh)
		default:
			*o = m.command(in, fresh, note)
		}
		if fresh && o.Verdict == watermark.Refused {
			m.noted[in.Origin.Offset] = o.Reason
		}
		o.Min = m.state.Min
		if in.Act == watermark.ActSetPolicy {
			o.Override = m.state.Override
		}
		o.Policy = m.state.Override.Policy(m.policy)
		if read := m.state.Members[sender(in)].Read; o.Verdict == watermark.Again && in.Act == watermark.ActSend {
			o.Policy = watermark.AdvanceOnSend
			if read < o.Seq {
				o.Policy = watermark.KeepOnSend
			}
		}
		if o.Verdict == watermark.Refused || o.Verdict == watermark.Known {
			o.Seq = 0
		}
		m.state.Apply(watermark.Record{Conversation: group, Events: o.Events(in), Inputs: []watermark.Origin{in.Origin}})
	}
	return outs
}

func sender(in *watermark.Input) watermark.UserID {
	if in.Message == nil {
		return ""
	}
	return in.Message.Sender
}

func (m *model) isFresh(in *watermark.Input) bool {
	off, ok := m.state.Inputs[in.Origin.Partition]
	return !ok || in.Origin.Offset > off
}

func refuse(reason string) watermark.Outcome {
	return watermark.Outcome{Verdict: watermark.Refused, Reason: reason}
}

func (m *model) send(in *watermark.Input, fresh bool) watermark.Outcome {
	msg := in.Message
	member := m.state.Members[msg.Sender]
	sent, ok := m.state.Sent[watermark.SentKey{Sender: msg.Sender, ClientID: msg.ClientID}]
	switch {
	case !fresh && !ok:
		return watermark.Outcome{Verdict: watermark.Known}
	case !fresh && sent.Hash != msg.Hash, fresh && ok && sent.Seq > m.state.Max-watermark.DedupeHorizon && sent.Hash != msg.Hash:
		return refuse(watermark.ReasonIDReused)
	case !fresh:
		return watermark.Outcome{Verdict: watermark.Again, Seq: sent.Seq}
	case ok && sent.Seq > m.state.Max-watermark.DedupeHorizon:
		return watermark.Outcome{Verdict: watermark.Resent, Seq: sent.Seq}
	case !member.Open():
		return refuse(watermark.ReasonNotMember)
	}
	m.hot[m.state.Max+1] = true
	return watermark.Outcome{Seq: m.state.Max + 1}
}

func (m *model) command(in *watermark.Input, fresh bool, note string) watermark.Outcome {
	edge := m.state.Max
	verdict := watermark.Again
	if fresh {
		verdict = watermark.Accepted
	}
	switch in.Act {
	case watermark.ActRaiseMin:
		switch {
		case !fresh && m.state.Min == 0:
			return watermark.Outcome{Verdict: watermark.Known}
		case fresh && in.Seq > edge+1:
			return refuse(watermark.ReasonNoSuchSeq)
		}
		changed := fresh && in.Seq > m.state.Min
		if changed {
			m.state.Min = in.Seq
			maps.DeleteFunc(m.hot, func(s watermark.Seq, _ bool) bool { return s < in.Seq })
		}
		return watermark.Outcome{Verdict: verdict, Seq: edge, Changed: changed}
	case watermark.ActRevoke:
		return m.revoke(in, fresh, note)
	case watermark.ActSetPolicy:
		switch o := &m.state.Override; {
		case !fresh && o.Version == 0:
			return watermark.Outcome{Verdict: watermark.Known}
		case fresh && o.Choice != in.Policy:
			*o = watermark.PolicyChanged{Version: o.Version + 1, Choice: in.Policy}
			return watermark.Outcome{Verdict: verdict, Seq: edge, Changed: true}
		}
		return watermark.Outcome{Verdict: verdict, Seq: edge}
	}
	member := m.state.Members[in.User]
	member.User = in.User
	op, had := member.HasOp(in.OpID)
	if fresh && !had && in.Act == watermark.ActSetAttributes && (!member.Open() || !member.Known()) {
		return refuse(watermark.ReasonNotMember)
	}
	if !fresh && !member.Known() {
		return watermark.Outcome{Verdict: watermark.Known}
	}
	o := watermark.Outcome{Verdict: verdict, Seq: edge}
	if had {
		o.Seq = op.Edge
	}
	if fresh && !had {
		switch in.Act {
		case watermark.ActJoin:
			member, o.Changed, _ = member.Join(in.OpID, edge, in.History, in.Seq)
		case watermark.ActLeave:
			member, o.Changed = member.Leave(in.OpID, edge, in.Membership)
		case watermark.ActSetAttributes:
			var full bool
			if member, o.Changed, full = member.SetAttributes(in.OpID, edge, in.Attributes); full {
				return refuse(watermark.ReasonAttributesFull)
			}
		default:
			member, o.Changed = member.Clear(in.OpID, edge)
		}
	}
	member.Own, member.ChangedAt = nil, 0 // what an outcome does not carry
	o.Member = &member
	return o
}

func (m *model) revoke(in *watermark.Input, fresh bool, note string) watermark.Outcome {
	actor := m.state.Members[in.Actor]
	switch {
	case !fresh && note != "+" && !m.revoked[in.Seq]:
		return watermark.Outcome{Verdict: watermark.Known}
	case !fresh:
		return watermark.Outcome{Verdict: watermark.Again, Seq: m.state.Max}
	case in.Seq < 1, in.Seq > m.state.Max, in.Seq < m.state.Min, !actor.Window().Contains(in.Seq):
		return refuse(watermark.ReasonNoSuchSeq)
	}
	changed := !m.revoked[in.Seq]
	if changed && m.hot[in.Seq] {
		m.revoked[in.Seq] = true
	} else if changed {
		m.noted[in.Origin.Offset] = "+"
	}
	return watermark.Outcome{Seq: m.state.Max, Changed: changed}
}

// TestOutcomesAreAFunctionOfTheInputs lets model and script decide the same
// random stream: fresh batches, redeliveries from an earlier offset on, and
// losses of Redis.
func TestOutcomesAreAFunctionOfTheInputs(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		rapid.Check(t, func(r *rapid.T) {
			x.offset = 0
			x.policy = watermark.UnreadPolicy(rapid.IntRange(0, 1).Draw(r, "policy"))
			m := newModel(x.policy)
			x.warm(t, m.state)
			var all []watermark.Input
			for step := range rapid.IntRange(1, 12).Draw(r, "steps") {
				var ins []watermark.Input
				switch rapid.SampledFrom([]string{"fresh", "fresh", "redeliver", "lose"}).Draw(r, "step") {
				case "lose":
					m.cool()
					x.warm(t, m.state)
					continue
				case "redeliver":
					if len(all) > 0 {
						ins = slices.Clone(all[rapid.IntRange(max(0, len(all)-40), len(all)-1).Draw(r, "from"):])
						ins = ins[:rapid.IntRange(1, len(ins)).Draw(r, "to")]
					}
				}
				if end := len(all); len(ins) == 0 || ins[len(ins)-1].Origin == all[end-1].Origin {
					for i := range rapid.IntRange(1, 8).Draw(r, "inputs") {
						ins = append(ins, anyInput(r, x, m, step, i))
						all = append(all, ins[len(ins)-1])
					}
				}
				want := m.batch(ins)
				got := x.decide(t, ins...)
				if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
					r.Fatalf("step %d, inputs %+v (-want +got):\n%s", step, ins, d)
				}
				all = slices.DeleteFunc(all, func(in watermark.Input) bool { return in.Origin.Offset < x.offset-40 })
			}
		})
	})
}

func anyInput(r *rapid.T, x *fixture, m *model, step, i int) watermark.Input {
	users := rapid.SampledFrom([]watermark.UserID{"alice", "bob", "carol"})
	user := users.Draw(r, "user")
	op := fmt.Sprintf("op-%d", rapid.IntRange(step*10, step*10+i).Draw(r, "op"))
	seq := watermark.Seq(rapid.Int64Range(-1, int64(m.state.Max)+9).Draw(r, "seq"))
	switch rapid.SampledFrom([]string{"send", "send", "send", "send", "join", "leave", "clear", "min", "revoke", "attributes", "attributes", "policy"}).Draw(r, "act") {
	case "send":
		in := x.send(user, fmt.Sprint("m", rapid.IntRange(0, 30).Draw(r, "id")))
		if rapid.IntRange(0, 9).Draw(r, "other content") == 0 {
			in.Message.Kind = "other"
			in.Message.Hash = in.Message.SumHash()
		}
		return in
	case "join":
		return x.join(user, op, watermark.History(rapid.IntRange(0, 2).Draw(r, "history")), seq)
	case "leave":
		return x.leave(user, op, rapid.Int32Range(0, 3).Draw(r, "membership"))
	case "clear":
		return x.clear(user, op)
	case "min":
		return x.raiseMin(seq / 2)
	case "policy":
		in := x.raiseMin(1)
		in.Act, in.Seq, in.Policy = watermark.ActSetPolicy, 0, watermark.PolicyChoice(rapid.IntRange(0, 2).Draw(r, "choice"))
		return in
	case "attributes":
		in := x.clear(user, op)
		in.Act, in.Attributes = watermark.ActSetAttributes, map[string]string{}
		for range rapid.IntRange(1, 9).Draw(r, "attributes") {
			in.Attributes[fmt.Sprintf("a-%d.", rapid.IntRange(0, 20).Draw(r, "name"))] = rapid.SampledFrom([]string{"", "1", "é,;|%", "1"}).Draw(r, "value")
		}
		return in
	default:
		actor := rapid.SampledFrom([]watermark.UserID{"", user}).Draw(r, "actor")
		return x.revoke(actor, seq)
	}
}
