package hot

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// Ask asks for one user's view of one conversation.
type Ask = watermark.Ask

var viewParts = []keyspace.Part{keyspace.Meta, keyspace.Members, keyspace.Read, keyspace.Receipt, keyspace.Own}

// viewsTogether is how many views one script call gives, where conversations can
// share one: it takes about 0.3 ms, during which nobody else is served.
const viewsTogether = 50

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
// way, up to Config.SettleWait, and then tells what it saw when it looked, whatever
// came after; else the conversation counts as cold.
//
// Marks are as they were raised, perhaps above what the user can see now. Own
// holds the own seqs above Read. Reading changes nothing, not even an expiry.
func (h *Hot) Views(ctx context.Context, asks []Ask) (views []watermark.View, err error) {
	defer h.observe("views", &err)()
	views = make([]watermark.View, len(asks))
	outcomes := make([]string, len(asks))
	all := make([]int, len(asks))
	for i := range all {
		all[i] = i
	}
	open, err := h.viewAll(ctx, asks, all, views, outcomes)
	if err == nil {
		err = h.await(ctx, asks, open, views, outcomes)
	}
	if err != nil {
		return nil, err
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

// A page of a list is asked for in several pipelines at once, so that views are
// read here while Redis makes the next ones.
const (
	viewEntries   = 125
	viewPipelines = 4
)

// unsettled is the outcome where a batch is under way for too long, or nobody can
// say any more what became of it.
const unsettled = "unsettled"

func cold(a Ask) watermark.View {
	v := watermark.View{Temperature: watermark.Cold}
	v.ID, v.Member.User = a.Conversation, a.User
	return v
}

// underWay is a view that may be told once its conversation's last batch stands
// in the log.
type underWay struct {
	ask   int
	batch place
}

// viewAll asks for the views that todo names. It gives those whose conversation
// was in a batch of which nobody knows yet whether it stands in the log.
func (h *Hot) viewAll(ctx context.Context, asks []Ask, todo []int, views []watermark.View, outcomes []string) ([]underWay, error) {
	parts := slices.Collect(slices.Chunk(todo, viewEntries))
	open := make([][]underWay, len(parts))
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(viewPipelines)
	for n, part := range parts {
		group.Go(func() (err error) {
			open[n], err = h.viewSome(asking, asks, part, views, outcomes)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(open...), nil
}

// Pauses between two questions after a batch that is under way: an append takes
// some milliseconds, and where workers are behind as long as a batch does.
const (
	settlePause    = time.Millisecond
	settlePauseMax = 16 * time.Millisecond
)

// await waits until the batches of open stand in the log, up to
// Config.SettleWait, and turns the views that may not be told then into cold
// ones. What was read before is told, not what is there by then: a busy
// conversation would be in the next batch.
func (h *Hot) await(ctx context.Context, asks []Ask, open []underWay, views []watermark.View, outcomes []string) error {
	open, err := h.underWay(ctx, open)
	if err != nil || len(open) == 0 {
		return err
	}
	waited := make([]int, len(open))
	for k, o := range open {
		waited[k] = o.ask
	}
	deadline := time.Now().Add(h.settled.wait)
	for pause := settlePause; len(open) > 0 && time.Now().Add(pause).Before(deadline); pause = min(2*pause, settlePauseMax) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("views: %w", keyspace.Classify(ctx.Err()))
		case <-timer.C:
		}
		if open, err = h.underWay(ctx, open); err != nil {
			return err
		}
	}
	drop := func(i int) { views[i], outcomes[i] = cold(asks[i]), unsettled }
	for _, o := range open {
		drop(o.ask)
	}
	waited = slices.DeleteFunc(waited, func(i int) bool { return views[i].Temperature == watermark.Cold })
	// A batch is settled without what its owner has parked, which it does with a
	// conversation that has become cold. One that is as warm as it was has nothing parked.
	now, why := make([]watermark.View, len(asks)), make([]string, len(asks))
	if _, err := h.viewAll(ctx, asks, waited, now, why); err != nil {
		return err
	}
	for _, i := range waited {
		if now[i].Token != views[i].Token {
			drop(i)
		}
	}
	return nil
}

// underWay asks how far the log is and gives those of open that may still not be
// told.
func (h *Hot) underWay(ctx context.Context, open []underWay) ([]underWay, error) {
	if len(open) == 0 {
		return nil, nil
	}
	if err := h.learn(ctx); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(open, func(o underWay) bool { return h.settled.has(o.batch) }), nil
}

// viewSome is viewAll for one pipeline.
func (h *Hot) viewSome(ctx context.Context, asks []Ask, todo []int, views []watermark.View, outcomes []string) (open []underWay, err error) {
	take := func(i int, p place, outcome string) {
		outcomes[i] = outcome
		if !h.settled.has(p) {
			open = append(open, underWay{i, p})
		}
	}
	if h.plainNext() {
		if todo, err = h.viewPlain(ctx, asks, todo, views, take); err != nil {
			return nil, err
		}
	}
	if err := h.viewScripted(ctx, asks, todo, views, take); err != nil {
		return nil, err
	}
	return open, nil
}

// viewScripted asks the script for the views that todo names.
func (h *Hot) viewScripted(ctx context.Context, asks []Ask, todo []int, views []watermark.View, take func(i int, p place, outcome string)) error {
	if len(todo) == 0 {
		return nil
	}
	calls, first := h.viewCalls(asks, todo)
	for c, res := range h.runner.Run(ctx, calls) {
		some := todo[first[c]:first[c+1]]
		var texts []any
		err := res.Err
		if err == nil {
			texts, err = list(res.Value, len(some))
		}
		if err != nil {
			return failed("view", asks[some[0]].Conversation, err)
		}
		for k, i := range some {
			text, _ := texts[k].(string)
			p, outcome, err := decodeView(&asks[i], text, &views[i])
			if err != nil {
				return failed("view", asks[i].Conversation, err)
			}
			take(i, p, outcome)
		}
	}
	return nil
}

// viewCalls gives the script calls for the asks that todo names: call c is about
// todo[first[c]:first[c+1]], asks of one user.
func (h *Hot) viewCalls(asks []Ask, todo []int) (calls []keyspace.Call, first []int) {
	together := 1
	if h.runner.Together() {
		together = viewsTogether
	}
	keys, peers := h.viewKeys(asks, todo)
	n := len(todo)/together + 1
	calls, first = make([]keyspace.Call, 0, n), make([]int, 0, n+1)
	for from := 0; from < len(todo); {
		user := asks[todo[from]].User
		to := from + 1
		for to < len(todo) && to-from < together && asks[todo[to]].User == user {
			to++
		}
		args := make([]any, 0, 2+to-from)
		args = append(args, h.space.Incarnation, string(user))
		for k := from; k < to; k++ {
			args = append(args, &peers[k])
		}
		calls = append(calls, keyspace.Call{
			Script: viewScript, Keys: keys[from*len(viewParts) : to*len(viewParts)], Args: args, Asks: true,
		})
		first = append(first, from)
		from = to
	}
	return calls, append(first, len(todo))
}

// viewKeys gives the keys of viewParts and the peer for the asks that todo names.
func (h *Hot) viewKeys(asks []Ask, todo []int) (keys, peers []string) {
	convs := make([]watermark.ConversationID, len(todo))
	peers = make([]string, len(todo))
	for k, i := range todo {
		convs[k] = asks[i].Conversation
		peer, _ := asks[i].Conversation.Peer(asks[i].User)
		peers[k] = string(peer)
	}
	return h.space.FlatKeys(convs, viewParts), peers
}

// decodeView reads one text of view.lua's reply into v. outcome is "warm",
// "partial" or why the conversation is cold; p is the last batch that it was in.
func decodeView(a *Ask, text string, v *watermark.View) (p place, outcome string, err error) {
	r := lines{rest: text}
	said := viewSaid{status: r.text()}
	switch said.status {
	case statusCold:
		said.why = r.text()
	case statusPartial, statusWarm:
		for _, field := range []*string{
			&said.token, &said.min, &said.max, &said.repair, &said.from, &said.time, &said.policy, &said.place,
			&said.member, &said.read, &said.receipt, &said.peer, &said.peerReceipt,
		} {
			*field = r.text()
		}
		said.own = r.own()
	}
	if err := r.end(); err != nil {
		return p, said.status, err
	}
	return said.view(a, v)
}
