package hot

import (
	"context"
	"fmt"
	"time"

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
// What a batch has decided is not told before the batch is settled, that is, in
// the sequenced log: see seqalloc's Settle. Views waits for one that is under
// way, up to Config.SettleWait; then the conversation counts as cold.
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
	outcomes := make([]string, len(asks))
	open := make([]int, len(asks)) // those that may say more when asked again
	for i := range open {
		open[i] = i
	}
	deadline := time.Now().Add(h.settled.wait)
	for pause := time.Millisecond; ; pause *= 2 {
		if open, err = h.viewAll(ctx, asks, calls, open, views, outcomes); err != nil {
			return nil, err
		}
		if len(open) == 0 || time.Now().Add(pause).After(deadline) {
			break
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("views: %w", keyspace.Classify(ctx.Err()))
		case <-timer.C:
		}
	}
	for _, i := range open {
		views[i], outcomes[i] = cold(asks[i]), unsettled
	}
	// A list has thousands of views and a handful of outcomes.
	counts := make(map[string]int)
	for _, outcome := range outcomes {
		counts[outcome]++
	}
	for outcome, n := range counts {
		h.metrics.views.WithLabelValues(outcome).Add(float64(n))
	}
	return views, nil
}

// unsettled is the outcome where a batch is under way for too long.
const unsettled = "unsettled"

func cold(a Ask) watermark.View {
	v := watermark.View{Temperature: watermark.Cold}
	v.ID, v.Member.User = a.Conversation, a.User
	return v
}

// viewAll asks for the views that todo names. It gives those whose conversation
// was in a batch of which nobody knows yet whether it stands in the log.
func (h *Hot) viewAll(ctx context.Context, asks []Ask, calls []keyspace.Call, todo []int, views []watermark.View, outcomes []string) (open []int, err error) {
	some := make([]keyspace.Call, len(todo))
	for k, i := range todo {
		some[k] = calls[i]
	}
	var places []place // of open
	for k, res := range h.runner.Run(ctx, some) {
		i := todo[k]
		if res.Err != nil {
			return nil, failed("view", asks[i].Conversation, res.Err)
		}
		v, p, outcome, err := decodeView(asks[i], res.Value)
		if err != nil {
			return nil, failed("view", asks[i].Conversation, err)
		}
		views[i], outcomes[i] = v, outcome
		if !h.settled.has(p) {
			open, places = append(open, i), append(places, p)
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	if err := h.learn(ctx); err != nil {
		return nil, err
	}
	var left []int
	for k, p := range places {
		if !h.settled.has(p) {
			left = append(left, open[k])
		}
	}
	return left, nil
}

// decodeView reads the reply of view.lua. outcome is "warm", "partial" or why
// the conversation is cold; p is the last batch that it was in.
func decodeView(a Ask, value any) (v watermark.View, p place, outcome string, err error) {
	r := newReply(value)
	v.ID, v.Member.User = a.Conversation, a.User
	outcome = r.text()
	switch outcome {
	case "cold":
		v.Temperature = watermark.Cold
		outcome = coldWord(r.text())
		return v, p, outcome, r.err
	case "partial":
		v.Temperature = watermark.Partial
	case "warm":
	default:
		return v, p, outcome, fmt.Errorf("%w: status %.20q", errReply, outcome)
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
	other := r.member(peer)
	v.PeerReceipt = r.seq()
	if single {
		v.PeerWindow = other.Window()
	}
	at := r.text()
	if r.err != nil {
		return v, p, outcome, r.err
	}
	p, err = parsePlace(at)
	return v, p, outcome, err
}

// coldWord keeps the metric's label within a set.
func coldWord(why string) string {
	switch why {
	case "absent", "incarnation", keyspace.StateWarming:
		return why
	}
	return "other"
}
