package toredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// maxRounds bounds how often one batch is put to the script. A conversation
// takes one round when it is warm, two when it is cold or a member is unknown,
// three when Redis was restarted in between; more means that something keeps
// taking the ground away, and the batch is better tried again after a pause.
const maxRounds = 5

const whyResequence = "resequence"

// errUnsettled is wrapped when maxRounds did not do.
var errUnsettled = errors.New("conversations did not stay warm")

// decide has the script decide every lot. Conversations that are cold are
// loaded, unknown members too, and both are put to the script again; the warm
// ones are not asked twice.
func (s *Stage) decide(ctx context.Context, lots []*lot) error {
	if err := s.unlearn(ctx, lots); err != nil {
		return err
	}
	open := lots
	for range maxRounds {
		if len(open) == 0 {
			return nil
		}
		cold, partial, err := s.malloc(ctx, open)
		if err != nil {
			return err
		}
		if err := s.warm(ctx, cold, func(l *lot) string { return l.alloc.Why }); err != nil {
			return err
		}
		if err := s.introduce(ctx, partial); err != nil {
			return err
		}
		open = slices.Concat(cold, partial)
	}
	if len(open) == 0 {
		return nil
	}
	return fault.New(fault.Transient, "unsettled", fmt.Errorf(
		"toredis: %w within %d rounds: %d of %d, %s first", errUnsettled, maxRounds, len(open), len(lots), open[0].batch.Conversation))
}

// unlearn makes conversations cold that have a message to resequence: there
// history holds another message than Redis believes, so Redis was wrong about
// the conversation while it looked warm.
func (s *Stage) unlearn(ctx context.Context, lots []*lot) error {
	var wrong []*lot
	for _, l := range lots {
		if l.resequences {
			wrong = append(wrong, l)
		}
	}
	return s.warm(ctx, wrong, func(*lot) string { return whyResequence })
}

func (s *Stage) malloc(ctx context.Context, open []*lot) (cold, partial []*lot, err error) {
	batches := make([]watermark.Batch, len(open))
	for i, l := range open {
		l.batch.Floor, _ = s.floors.Get(l.batch.Conversation)
		batches[i] = l.batch
	}
	allocs, err := s.cfg.Allocator.Malloc(ctx, batches)
	if err != nil {
		return nil, nil, fmt.Errorf("toredis: malloc %d conversations: %w", len(open), err)
	}
	if err := counted("allocations", len(allocs), len(open)); err != nil {
		return nil, nil, err
	}
	for i, l := range open {
		l.alloc = allocs[i]
		switch l.alloc.Temperature {
		case watermark.Cold:
			cold = append(cold, l)
		case watermark.Partial:
			partial = append(partial, l)
		default:
			if err := counted("outcomes", len(l.alloc.Outcomes), len(l.batch.Inputs)); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", l.batch.Conversation, err)
			}
		}
	}
	return cold, partial, nil
}

// warm loads cold conversations. Where the token no longer stands somebody
// else began in between; the next round finds out what became of it.
func (s *Stage) warm(ctx context.Context, lots []*lot, why func(*lot) string) error {
	if len(lots) == 0 {
		return nil
	}
	ids := make([]watermark.ConversationID, len(lots))
	wants := make([]watermark.Want, len(lots))
	for i, l := range lots {
		ids[i] = l.batch.Conversation
		wants[i] = watermark.Want{Conversation: ids[i], Users: users(&l.batch), Sent: true}
	}
	tokens, err := s.cfg.Allocator.Begin(ctx, ids)
	if err != nil {
		return fmt.Errorf("toredis: begin %d conversations: %w", len(ids), err)
	}
	states, err := s.cfg.Truth.Load(ctx, wants)
	if err != nil {
		return fmt.Errorf("toredis: load %d conversations: %w", len(ids), err)
	}
	if err := errors.Join(counted("tokens", len(tokens), len(lots)), counted("states", len(states), len(lots))); err != nil {
		return err
	}
	loaded := make([]watermark.Loaded, len(lots))
	for i, l := range lots {
		if err := s.checkFloor(ids[i], states[i]); err != nil {
			return err
		}
		loaded[i] = watermark.Loaded{Token: tokens[i], State: introduced(states[i], wants[i].Users)}
		s.metrics.coldLoads.WithLabelValues(whyWord(why(l))).Inc()
	}
	if _, err := s.cfg.Allocator.Install(ctx, loaded); err != nil {
		return fmt.Errorf("toredis: install %d conversations: %w", len(ids), err)
	}
	return nil
}

func (s *Stage) checkFloor(id watermark.ConversationID, st *watermark.State) error {
	floor, _ := s.floors.Get(id)
	if st.Max >= floor {
		return nil
	}
	return fault.New(fault.Fatal, "log_lost_records", fmt.Errorf(
		"toredis: the log lost records: conversation %s ends at seq %d in history and log, but seq %d of it was acknowledged; "+
			"going on would give seqs a second time", id, st.Max, floor))
}

// introduced gives st with an explicit "never had a window" for each wanted
// user that the truth does not know, so that the script need not ask again.
func introduced(st *watermark.State, wanted []watermark.UserID) *watermark.State {
	out := *st
	out.Members = maps.Clone(st.Members)
	for _, u := range wanted {
		if _, ok := out.Members[u]; !ok {
			out.MergeMember(watermark.Member{User: u})
		}
	}
	return &out
}

// introduce loads members that warm conversations do not know.
func (s *Stage) introduce(ctx context.Context, lots []*lot) error {
	if len(lots) == 0 {
		return nil
	}
	wants := make([]watermark.Want, len(lots))
	for i, l := range lots {
		wants[i] = watermark.Want{Conversation: l.batch.Conversation, Users: l.alloc.Unknown}
		s.metrics.memberLoads.Add(float64(len(l.alloc.Unknown)))
	}
	ids := make([]watermark.ConversationID, len(lots))
	for i, l := range lots {
		ids[i] = l.batch.Conversation
	}
	// The tokens are read before the load: what it brings may be older than a
	// warm-up that another owner begins meanwhile.
	tokens, err := s.cfg.Members.Tokens(ctx, ids)
	if err != nil {
		return fmt.Errorf("toredis: read tokens of %d conversations: %w", len(ids), err)
	}
	states, err := s.cfg.Truth.Load(ctx, wants)
	if err != nil {
		return fmt.Errorf("toredis: load members of %d conversations: %w", len(lots), err)
	}
	if err := errors.Join(counted("tokens", len(tokens), len(lots)), counted("states", len(states), len(lots))); err != nil {
		return err
	}
	loads := make([]watermark.MemberLoad, len(states))
	for i, st := range states {
		load := watermark.MemberLoad{Conversation: ids[i], Token: tokens[i], Complete: st.Complete}
		for _, u := range wants[i].Users {
			if _, ok := st.Members[u]; !ok {
				load.Absent = append(load.Absent, u)
			}
		}
		load.Members = slices.SortedFunc(maps.Values(st.Members), func(a, b watermark.Member) int {
			return cmp.Compare(a.User, b.User)
		})
		loads[i] = load
	}
	// One that was not taken shows as cold or partial in the next round.
	if _, err := s.cfg.Members.MergeMembers(ctx, loads); err != nil {
		return fmt.Errorf("toredis: merge members of %d conversations: %w", len(loads), err)
	}
	return nil
}

// users gives everybody whose window the script needs to decide b.
func users(b *watermark.Batch) []watermark.UserID {
	var out []watermark.UserID
	if x, y, ok := b.Conversation.Users(); ok {
		out = append(out, x, y)
	}
	for i := range b.Inputs {
		in := &b.Inputs[i]
		if in.Message != nil {
			out = append(out, in.Message.Sender)
		}
		if in.Member != nil {
			out = append(out, in.Member.User)
		}
		out = append(out, in.User, in.Actor)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(u watermark.UserID) bool { return u == "" })
}

// counted catches an answer of the wrong length: going on would give one
// conversation's answer to another.
func counted(what string, got, want int) error {
	if got == want {
		return nil
	}
	return fault.New(fault.Fatal, "contract", fmt.Errorf("toredis: %d %s for %d asked", got, what, want))
}
