package seqtest

import (
	"context"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// Malloc is seqalloc's.
func (r *Redis) Malloc(_ context.Context, batches []watermark.Batch) ([]watermark.Allocation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]watermark.Allocation, len(batches))
	for i := range batches {
		out[i] = r.malloc(&batches[i])
	}
	return out, nil
}

func (r *Redis) malloc(b *watermark.Batch) watermark.Allocation {
	c, why := r.state(b.Conversation)
	switch {
	case c == nil:
	case b.Token != "" && b.Token != c.token:
		why = "token"
	case c.Max < b.Floor:
		why = "floor"
	case !c.logEndsAtMax():
		why = "counter"
	}
	if why != "" {
		return watermark.Allocation{Temperature: watermark.Cold, Why: why}
	}
	if unknown := c.unknown(b); len(unknown) > 0 {
		return watermark.Allocation{Temperature: watermark.Partial, Token: c.token, Unknown: unknown}
	}
	r.touch(b.Conversation)
	if b.Place.Number > 0 && (c.place.Partition != b.Place.Partition || c.place.Number < b.Place.Number) {
		c.place = b.Place
	}
	if c.fresh(b.Inputs[0].Origin) {
		clear(c.noted)
		clear(c.left)
	}
	d := &decision{conversation: c, policy: b.Policy, hotLog: r.HotLog, senders: make(map[watermark.UserID]int)}
	for i := range b.Inputs {
		d.outcomes = append(d.outcomes, d.decide(i, &b.Inputs[i]))
	}
	d.advance(b)
	c.rotate(r.HotLog)
	return watermark.Allocation{Outcomes: d.outcomes, Max: c.Max}
}

// logEndsAtMax tells whether the hot log, when it has anything, ends at the
// counter, but for what was revoked.
func (c *conversation) logEndsAtMax() bool {
	if len(c.log) == 0 {
		return true
	}
	last := slices.Max(slices.Collect(maps.Keys(c.log)))
	for s := last + 1; s <= c.Max; s++ {
		if _, ok := c.revoked[s]; !ok {
			return false
		}
	}
	return last <= c.Max
}

// unknown gives the members that must be known and are not.
func (c *conversation) unknown(b *watermark.Batch) (out []watermark.UserID) {
	for i := range b.Inputs {
		in := &b.Inputs[i]
		u := in.User
		switch {
		case unfit(in) != "":
			u = ""
		case in.Act == watermark.ActSend:
			u = in.Message.Sender
		case in.Member != nil:
			u = in.Member.User
		case in.Act == watermark.ActRevoke:
			u = in.Actor
		}
		if _, ok := c.members[u]; u != "" && !ok && !c.complete && !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	return out
}

// unfit gives why an input is refused whatever the conversation's state is.
func unfit(in *watermark.Input) string {
	u, reason := in.User, watermark.ReasonNotParticipant
	switch in.Act {
	case watermark.ActSend, watermark.ActResequence:
		if in.Message != nil {
			u = in.Message.Sender
		} else if in.Member != nil {
			u = in.Member.User
		}
	case watermark.ActRevoke:
		u, reason = in.Actor, watermark.ReasonNoSuchSeq
	}
	if u == "" || in.Conversation.Admits(u) {
		return ""
	}
	return reason
}

func (c *conversation) fresh(o watermark.Origin) bool {
	off, ok := c.Inputs[o.Partition]
	return !ok || o.Offset > off
}

// decision is one batch.
type decision struct {
	*conversation
	policy   watermark.UnreadPolicy
	hotLog   int
	outcomes []watermark.Outcome
	senders  map[watermark.UserID]int // the last message of each, under KeepOnSend
}

func (d *decision) decide(i int, in *watermark.Input) watermark.Outcome {
	fresh := d.fresh(in.Origin)
	note := ""
	if fresh {
		d.Merge(watermark.Conversation{Inputs: map[watermark.Partition]int64{in.Origin.Partition: in.Origin.Offset}})
	} else {
		note = d.noted[in.Origin]
	}
	var o watermark.Outcome
	switch reason := unfit(in); {
	case note != "" && note != "+":
		o = refused(note)
	case reason != "" && fresh:
		o = refused(reason)
	case reason != "":
		o.Verdict = watermark.Known
	case in.Act == watermark.ActSend:
		o = d.send(i, in, fresh)
	case in.Act == watermark.ActResequence:
		o = d.resequence(i, in, fresh)
	case in.Act == watermark.ActRaiseMin:
		o = d.raiseMin(in, fresh)
	case in.Act == watermark.ActSetPolicy:
		o = d.setPolicy(in, fresh)
	case in.Act == watermark.ActRevoke:
		o = d.revoke(in, fresh, note)
	case in.Act == watermark.ActWarm:
		if o.Seq = d.Max; !fresh {
			o = watermark.Outcome{Verdict: watermark.Known}
		}
	default:
		o = d.command(in, fresh)
	}
	if fresh && o.Verdict == watermark.Refused {
		d.noted[in.Origin] = o.Reason
	}
	o.Min = d.Min
	if in.Act == watermark.ActSetPolicy {
		o.Override = d.Override
	}
	if o.Verdict != watermark.Again || in.Message == nil {
		o.Policy = d.effective()
	}
	return o
}

// effective gives the policy that holds from here on.
func (d *decision) effective() watermark.UnreadPolicy { return d.Override.Policy(d.policy) }

// again is what is told of a message that was decided before. Which policy held
// for it its sender's mark tells.
func (d *decision) again(i int, u watermark.UserID, seq watermark.Seq) watermark.Outcome {
	o := watermark.Outcome{Verdict: watermark.Again, Seq: seq}
	if d.read[u] < seq {
		o.Policy = watermark.KeepOnSend
		d.senders[u] = i
	}
	return o
}

func (d *decision) setPolicy(in *watermark.Input, fresh bool) watermark.Outcome {
	switch p := &d.Override; {
	case !fresh && p.Version == 0:
		return watermark.Outcome{Verdict: watermark.Known}
	case !fresh:
		return watermark.Outcome{Verdict: watermark.Again, Seq: d.Max}
	case p.Choice != in.Policy:
		*p = watermark.PolicyChanged{Version: p.Version + 1, Choice: in.Policy}
		return watermark.Outcome{Seq: d.Max, Changed: true}
	}
	return watermark.Outcome{Seq: d.Max}
}

func refused(reason string) watermark.Outcome {
	return watermark.Outcome{Verdict: watermark.Refused, Reason: reason}
}

func (c *conversation) sent(m *watermark.Message) (watermark.Sent, bool) {
	k := watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}
	if v, ok := c.ids[k]; ok {
		return v, true
	}
	v, ok := c.oldIDs[k]
	return v, ok
}

func (d *decision) send(i int, in *watermark.Input, fresh bool) watermark.Outcome {
	m := in.Message
	sent, known := d.sent(m)
	sender := d.members[m.Sender]
	recent := known && sent.Seq > d.Max-watermark.DedupeHorizon
	switch {
	case !fresh && (!known || sent.Hash != m.Hash):
		return watermark.Outcome{Verdict: watermark.Known}
	case recent && sent.Hash != m.Hash:
		return refused(watermark.ReasonIDReused)
	case !fresh:
		return d.again(i, m.Sender, sent.Seq)
	case recent:
		return watermark.Outcome{Verdict: watermark.Resent, Seq: sent.Seq}
	case !sender.Open():
		return refused(watermark.ReasonNotMember)
	case d.Max >= watermark.MaxSeq:
		return refused(watermark.ReasonSeqsExhausted)
	}
	return watermark.Outcome{Seq: d.allocate(i, m)}
}

// allocate gives m the next seq.
func (d *decision) allocate(i int, in *watermark.Message) watermark.Seq {
	m := *in
	d.Max++
	m.Seq, d.Policy = d.Max, d.effective()
	d.LastTime = max(d.LastTime, m.RecordTime)
	d.log[m.Seq] = m
	if d.hotLog > 0 && len(d.log) > d.hotLog {
		delete(d.log, slices.Min(slices.Collect(maps.Keys(d.log))))
	}
	d.ids[watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}] = watermark.Sent{Seq: m.Seq, Hash: m.Hash}
	if d.Policy == watermark.KeepOnSend {
		d.addOwn(m.Sender, []watermark.Seq{m.Seq})
		d.senders[m.Sender] = i
	} else {
		d.read[m.Sender] = max(d.read[m.Sender], m.Seq)
	}
	return m.Seq
}

func (d *decision) resequence(i int, in *watermark.Input, fresh bool) watermark.Outcome {
	o := watermark.Outcome{Verdict: watermark.Again, Seq: d.Max}
	if in.Message == nil {
		m := d.members[in.Member.User]
		m.User = in.Member.User
		version := max(m.Version, in.Member.Version)
		switch {
		case fresh && version >= int64(watermark.MaxSeq):
			return refused(watermark.ReasonWindowFull)
		case fresh:
			if m = windowsOf(m); m.LastMembership == 0 {
				m.LastMembership, m.Memberships = 1, []watermark.Membership{{Number: 1}}
			}
			m.Version = version + 1
			d.members[m.User] = m
			o.Verdict, o.Changed = watermark.Accepted, true
		case !m.Known():
			return watermark.Outcome{Verdict: watermark.Known}
		}
		return d.repair(d.withMember(o, m), in)
	}
	sent, known := d.sent(in.Message)
	switch {
	case known && sent.Hash != in.Message.Hash && !fresh:
		return watermark.Outcome{Verdict: watermark.Known}
	case known && sent.Hash != in.Message.Hash:
		return refused(watermark.ReasonIDReused)
	case known && sent.Seq != in.Seq:
		o = d.again(i, in.Message.Sender, sent.Seq)
	case !fresh:
		return watermark.Outcome{Verdict: watermark.Known}
	case d.Max >= watermark.MaxSeq:
		return refused(watermark.ReasonSeqsExhausted)
	default:
		o = watermark.Outcome{Seq: d.allocate(i, in.Message)}
	}
	return d.repair(o, in)
}

func (d *decision) repair(o watermark.Outcome, in *watermark.Input) watermark.Outcome {
	if in.Repair > 0 && in.Seq > 0 {
		o.Repaired = &watermark.Repaired{Number: in.Repair, From: in.Seq}
		d.Repair.Merge(*o.Repaired)
	}
	return o
}

// withMember adds to o what it says of the command's user.
func (d *decision) withMember(o watermark.Outcome, m watermark.Member) watermark.Outcome {
	m = windowsOf(m)
	m.Read, m.Receipt = d.read[m.User], d.receipt[m.User]
	o.Member = &m
	return o
}

// command is Join, Leave, Clear and SetAttributes.
func (d *decision) command(in *watermark.Input, fresh bool) watermark.Outcome {
	m := d.members[in.User]
	m.User = in.User
	op, had := m.HasOp(in.OpID)
	o := watermark.Outcome{Verdict: watermark.Again, Seq: d.Max}
	if had {
		o.Seq = op.Edge
	}
	if !fresh {
		if !m.Known() {
			return watermark.Outcome{Verdict: watermark.Known}
		}
		if was, ok := d.left[in.Origin]; ok {
			m = was
		}
		return d.withMember(o, m)
	}
	o.Verdict = watermark.Accepted
	if had {
		d.left[in.Origin] = windowsOf(m)
		return d.withMember(o, m)
	}
	if in.Act == watermark.ActSetAttributes && !m.Listed(in.Conversation) {
		return refused(watermark.ReasonNotMember)
	}
	if m.Version >= int64(watermark.MaxSeq) {
		return refused(watermark.ReasonWindowFull)
	}
	full := false
	switch in.Act {
	case watermark.ActJoin:
		m, o.Changed, full = m.Join(in.OpID, d.Max, in.History, in.Seq)
	case watermark.ActLeave:
		m, o.Changed = m.Leave(in.OpID, d.Max, in.Membership)
	case watermark.ActSetAttributes:
		if m, o.Changed, full = m.SetAttributes(in.OpID, d.Max, in.Attributes); full {
			return refused(watermark.ReasonAttributesFull)
		}
	default:
		m, o.Changed = m.Clear(in.OpID, d.Max)
		d.raise(m.User, d.Max)
	}
	if full {
		return refused(watermark.ReasonWindowFull)
	}
	d.members[m.User] = windowsOf(m)
	d.left[in.Origin] = windowsOf(m)
	return d.withMember(o, m)
}

func (d *decision) raiseMin(in *watermark.Input, fresh bool) watermark.Outcome {
	switch {
	case !fresh && d.Min == 0:
		return watermark.Outcome{Verdict: watermark.Known}
	case !fresh:
		return watermark.Outcome{Verdict: watermark.Again, Seq: d.Max}
	case in.Seq > d.Max+1:
		return refused(watermark.ReasonNoSuchSeq)
	}
	o := watermark.Outcome{Seq: d.Max, Changed: in.Seq > d.Min}
	if o.Changed {
		d.Min = in.Seq
		maps.DeleteFunc(d.log, func(s watermark.Seq, _ watermark.Message) bool { return s < in.Seq })
	}
	return o
}

func (d *decision) revoke(in *watermark.Input, fresh bool, note string) watermark.Outcome {
	_, gone := d.revoked[in.Seq]
	actor := d.members[in.Actor]
	switch {
	case !fresh && note != "+" && !gone:
		return watermark.Outcome{Verdict: watermark.Known}
	case !fresh:
		return watermark.Outcome{Verdict: watermark.Again, Seq: d.Max}
	case in.Seq < 1, in.Seq > d.Max, in.Seq < d.Min, in.Actor != "" && !actor.Window().Contains(in.Seq):
		return refused(watermark.ReasonNoSuchSeq)
	}
	if m, ok := d.log[in.Seq]; ok && !gone {
		d.revoked[in.Seq] = m.Tombstone(watermark.Revoked{Seq: in.Seq, By: in.Actor, Time: in.Time})
		delete(d.log, in.Seq)
	} else if !gone {
		d.noted[in.Origin] = "+"
	}
	return watermark.Outcome{Seq: d.Max, Changed: !gone}
}

// advance drops the oldest own messages of who has too many.
func (d *decision) advance(b *watermark.Batch) {
	for u, i := range d.senders {
		o := &d.outcomes[i]
		read := watermark.Seq(0)
		switch n := len(d.own[u]) - watermark.MaxOwn; {
		case n > 0:
			read = d.own[u][n-1]
			d.raise(u, read)
		case n == 0 && (o.Verdict != watermark.Accepted || b.Inputs[i].Act != watermark.ActSend):
			read = d.read[u]
		}
		if read > 0 {
			o.Advance = &watermark.ReadAdvanced{User: u, Read: read}
		}
	}
}

// rotate lets go of ids and tombstones that nobody asks for any more.
func (c *conversation) rotate(hotLog int) {
	if c.Max-c.start < watermark.DedupeHorizon {
		return
	}
	c.oldIDs, c.ids, c.start = c.ids, make(map[watermark.SentKey]watermark.Sent), c.Max
	maps.DeleteFunc(c.revoked, func(s watermark.Seq, _ watermark.Message) bool {
		return s <= c.Max-watermark.Seq(hotLog)-watermark.DedupeHorizon
	})
}
