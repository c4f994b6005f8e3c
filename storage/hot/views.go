package hot

import (
	"context"
	"fmt"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// Ask asks for one user's view of one conversation.
type Ask = watermark.Ask

var viewParts = []keyspace.Part{keyspace.Meta, keyspace.Members, keyspace.Read, keyspace.Receipt, keyspace.Own}

// Views gives what Redis may be believed about each ask, in order.
//
//   - Warm: the conversation (without Inputs), the member (without ChangedAt)
//     and, of a single conversation, the peer's receipt and window, all of one
//     moment.
//   - Partial: as Warm, but the user or the peer is not among the known
//     members, so that windows must not be used. Load them and MergeMembers.
//   - Cold: nothing else is set. Ask history and the tail.
//
// Marks are as they were raised, perhaps above what the user can see now. Own
// holds the own seqs above Read. Reading changes nothing, not even an expiry.
func (h *Hot) Views(ctx context.Context, asks []Ask) (views []watermark.View, err error) {
	defer h.observe("views", &err)()
	calls := make([]keyspace.Call, len(asks))
	for i, a := range asks {
		peer, _ := a.Conversation.Peer(a.User)
		calls[i] = h.call(viewScript, a.Conversation, viewParts, string(a.User), string(peer))
	}
	views = make([]watermark.View, len(asks))
	outcomes := make(map[string]int)
	for i, res := range h.runner.Run(ctx, calls) {
		if res.Err != nil {
			return nil, failed("view", asks[i].Conversation, res.Err)
		}
		v, outcome, err := decodeView(asks[i], res.Value)
		if err != nil {
			return nil, failed("view", asks[i].Conversation, err)
		}
		views[i] = v
		outcomes[outcome]++
	}
	for outcome, n := range outcomes {
		h.metrics.views.WithLabelValues(outcome).Add(float64(n))
	}
	return views, nil
}

// decodeView reads the reply of view.lua. outcome is "warm", "partial" or why
// the conversation is cold.
func decodeView(a Ask, value any) (v watermark.View, outcome string, err error) {
	r := newReply(value)
	v.ID, v.Member.User = a.Conversation, a.User
	outcome = r.text()
	switch outcome {
	case "cold":
		v.Temperature = watermark.Cold
		outcome = coldWord(r.text())
		return v, outcome, r.err
	case "partial":
		v.Temperature = watermark.Partial
	case "warm":
	default:
		return v, outcome, fmt.Errorf("%w: status %.20q", errReply, outcome)
	}
	v.Token = r.text()
	v.Min, v.Max = r.seq(), r.seq()
	v.Repair = watermark.Repaired{Number: r.number(), From: r.seq()}
	v.LastTime = r.number()
	v.Policy = watermark.UnreadPolicy(r.number())
	v.Member = r.member(a.User)
	v.Member.Read, v.Member.Receipt = r.seq(), r.seq()
	v.Member.Own = r.own()
	peer, single := a.Conversation.Peer(a.User)
	p := r.member(peer)
	v.PeerReceipt = r.seq()
	if single {
		v.PeerWindow = p.Window()
	}
	return v, outcome, r.err
}

// coldWord keeps the metric's label within a set.
func coldWord(why string) string {
	switch why {
	case "absent", "incarnation", keyspace.StateWarming:
		return why
	}
	return "other"
}
