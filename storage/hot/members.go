package hot

import (
	"context"
	"fmt"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// Load is what a load of members brought.
type Load = watermark.MemberLoad

// callArgs is about how many arguments one script call takes: it runs for a few
// milliseconds, and nobody else is served meanwhile.
const callArgs = 4000

// MergeMembers makes loaded members known to Redis and tells, for each load,
// whether it was taken over: it is not when the conversation is not warm, or
// was warmed up again since the load began, which is nobody's fault; ask again.
//
// Windows are merged by version, marks by max and own seqs by union, so a load
// that is older than what Redis has does no harm.
func (h *Hot) MergeMembers(ctx context.Context, loads []Load) (merged []bool, err error) {
	defer h.observe("merge_members", &err)()
	merged = make([]bool, len(loads))
	var calls []keyspace.Call
	var of, large []int // the load that a call is of; loads of several calls
	for i := range loads {
		merged[i] = loads[i].Token != ""
		if !merged[i] {
			continue
		}
		own := h.mergeCalls(&loads[i])
		calls = append(calls, own...)
		for range own {
			of = append(of, i)
		}
		if len(own) > 1 && loads[i].Complete {
			large = append(large, i)
		}
	}
	if err := h.mergeAll(ctx, loads, calls, of, merged); err != nil {
		return nil, err
	}
	// A roster of several calls is complete when all of them are known to have
	// worked, not before.
	calls, of = nil, nil
	for _, i := range large {
		if merged[i] {
			calls = append(calls, h.mergeCall(&loads[i], &mergeArgs{complete: true}))
			of = append(of, i)
		}
	}
	if err := h.mergeAll(ctx, loads, calls, of, merged); err != nil {
		return nil, err
	}
	h.countMerges(merged)
	return merged, nil
}

func (h *Hot) mergeAll(ctx context.Context, loads []Load, calls []keyspace.Call, of []int, merged []bool) error {
	if len(calls) == 0 {
		return nil
	}
	for k, res := range h.runner.Run(ctx, calls) {
		i := of[k]
		status, _ := res.Value.(string)
		switch {
		case res.Err != nil:
			return failed("members", loads[i].Conversation, res.Err)
		case status == "stale":
			merged[i] = false
		case status != "merged":
			return failed("members", loads[i].Conversation, fmt.Errorf("%w: %v", errReply, res.Value))
		}
	}
	return nil
}

func (h *Hot) countMerges(merged []bool) {
	for _, ok := range merged {
		outcome := "stale"
		if ok {
			outcome = "merged"
		}
		h.metrics.merges.WithLabelValues(outcome).Inc()
	}
}

// mergeArgs collects the arguments of one call of merge.lua.
type mergeArgs struct {
	complete bool
	members  int
	args     []any // of the members, then the absent users
}

func (a *mergeArgs) add(c watermark.ConversationID, m *watermark.Member) {
	own := m.Own
	if n := len(own) - watermark.MaxOwn; n > 0 {
		own = own[n:]
	}
	a.members++
	a.args = append(a.args, string(m.User), keyspace.MemberText(m), score(m.Read), receipt(c, m), len(own))
	for _, s := range own {
		a.args = append(a.args, score(s))
	}
}

// mergeCalls cuts a load into calls. A load that fits one call is merged whole
// in that one.
func (h *Hot) mergeCalls(l *Load) []keyspace.Call {
	var calls []keyspace.Call
	var a mergeArgs
	flush := func() {
		calls = append(calls, h.mergeCall(l, &a))
		a = mergeArgs{}
	}
	for i := range l.Members {
		if len(a.args) >= callArgs {
			flush()
		}
		a.add(l.Conversation, &l.Members[i])
	}
	for _, u := range l.Absent {
		if len(a.args) >= callArgs {
			flush()
		}
		a.args = append(a.args, string(u))
	}
	a.complete = l.Complete && len(calls) == 0
	if len(a.args) > 0 || a.complete {
		flush()
	}
	return calls
}

func (h *Hot) mergeCall(l *Load, a *mergeArgs) keyspace.Call {
	complete := "0"
	if a.complete {
		complete = "1"
	}
	args := append([]any{l.Token, h.space.ExpirySeconds(), complete, a.members}, a.args...)
	return h.call(mergeScript, l.Conversation, sharedExpiry, args...)
}
