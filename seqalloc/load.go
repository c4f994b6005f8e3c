package seqalloc

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// Loaded is what a cold load brought, with the token under which it began.
type Loaded = watermark.Loaded

// Begin makes each conversation empty and warming, and gives one fresh token
// for each, in order. A Begin or Install of somebody else that is under way
// comes to nothing by it.
func (a *Allocator) Begin(ctx context.Context, convs []watermark.ConversationID) ([]string, error) {
	calls := make([]keyspace.Call, len(convs))
	tokens := make([]string, len(convs))
	for i, c := range convs {
		tokens[i] = rand.Text()
		calls[i] = keyspace.Call{
			Script: a.begin,
			Keys:   a.space.Keys(c, parts...),
			Args:   []any{a.space.Incarnation, a.space.ExpirySeconds(), tokens[i]},
			Asks:   true,
		}
	}
	var errs []error
	for i, res := range a.runner.Run(ctx, calls) {
		if res.Err != nil {
			errs = append(errs, fmt.Errorf("begin warming of %s: %w", convs[i], res.Err))
		}
	}
	if err := gravest(errs); err != nil {
		return nil, err
	}
	return tokens, nil
}

// Install makes each conversation warm with its state, where the token still
// stands, and tells for each, in order, whether it did. Marks that were raised
// since Begin are kept. States are not changed and may be used on.
//
// An error leaves it open which of them were installed: the caller begins
// again.
func (a *Allocator) Install(ctx context.Context, loaded []Loaded) ([]bool, error) {
	calls := make([]keyspace.Call, len(loaded))
	now := a.now().UnixMilli()
	for i, l := range loaded {
		calls[i] = keyspace.Call{
			Script: a.install,
			Keys:   a.space.Keys(l.State.ID, parts...),
			Args:   a.installArgs(l, now),
			Asks:   true,
		}
	}
	installed := make([]bool, len(loaded))
	var errs []error
	for i, res := range a.runner.Run(ctx, calls) {
		err := res.Err
		n, ok := res.Value.(int64)
		if err == nil && !ok {
			err = fault.New(fault.Fatal, keyspace.ReasonScript, fmt.Errorf("reply of install is a %T", res.Value))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("install %s: %w", loaded[i].State.ID, err))
			continue
		}
		installed[i] = n == 1
		a.metrics.installs.WithLabelValues(installResult(n == 1)).Inc()
	}
	if err := gravest(errs); err != nil {
		return nil, err
	}
	return installed, nil
}

// installArgs gives the arguments of install.lua.
func (a *Allocator) installArgs(l Loaded, now int64) []any {
	s := l.State
	meta := metaFields(s, now)
	members, own := memberFields(s)
	ids := sentFields(s)
	args := make([]any, 0, 8+len(meta)+len(members)+len(own)+len(ids))
	args = append(args, a.space.Incarnation, a.space.ExpirySeconds(), l.Token,
		len(meta)/2, len(members)/4, len(own), len(ids)/2)
	args = append(args, meta...)
	args = append(args, members...)
	args = append(args, own...)
	return append(args, ids...)
}

func metaFields(s *watermark.State, now int64) []any {
	out := []any{
		"max", int64(s.Max), "min", int64(s.Min),
		"rn", s.Repair.Number, "rf", int64(s.Repair.From), "pol", int(s.Policy), "lt", s.LastTime,
		// See malloc.lua: no old generation, no ref, expiry set now.
		"own", fmt.Sprintf("%d 0 0 %d %d %d", s.Max, now, s.Policy, s.Override.Code()),
	}
	if s.Complete {
		out = append(out, "full", "1")
	}
	for p, off := range s.Inputs {
		out = append(out, "in:"+partitionName(p), off)
	}
	return out
}

func memberFields(s *watermark.State) (members, own []any) {
	for _, u := range slices.Sorted(maps.Keys(s.Members)) {
		m := s.Members[u]
		members = append(members, string(u), keyspace.MemberText(&m),
			strconv.FormatInt(int64(m.Read), 10), strconv.FormatInt(int64(m.Receipt), 10))
		for _, seq := range m.Own {
			if seq > m.Read {
				own = append(own, keyspace.OwnMember(u, seq))
			}
		}
	}
	return members, own
}

// sentFields leaves out what lies beyond the horizon: no resend of it counts.
func sentFields(s *watermark.State) []any {
	var out []any
	for k, v := range s.Sent {
		if v.Seq > s.Max-watermark.DedupeHorizon {
			out = append(out, sentField(k.Sender, k.ClientID), sentValue(v))
		}
	}
	return out
}
