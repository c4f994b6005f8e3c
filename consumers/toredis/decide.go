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

// decide has the script decide the lots. Conversations that are cold are
// loaded, unknown members too, and both are put to the script again; the warm
// ones are not asked twice. Where that cannot be loaded now the lots are stuck,
// and nothing of them was decided.
func (s *Stage) decide(ctx context.Context, lots []*lot) (settled, stuck []*lot, err error) {
	open := lots
	for range maxRounds {
		warm, rest, err := s.malloc(ctx, open)
		if err != nil {
			return nil, nil, err
		}
		settled, open = append(settled, warm...), rest
		if len(open) == 0 {
			return settled, nil, nil
		}
		loaded, err := s.load(ctx, open)
		if err != nil {
			return nil, nil, err
		}
		if !loaded {
			return settled, open, nil
		}
	}
	return nil, nil, fault.New(fault.Transient, "unsettled", fmt.Errorf(
		"toredis: %w within %d rounds: %d of %d, %s first", errUnsettled, maxRounds, len(open), len(lots), open[0].batch.Conversation))
}

// malloc has the script decide open, and tells which of them it could. The rest
// is cold, or has members that Redis does not know.
//
// A conversation with a message to resequence counts as cold until it is loaded
// anew: there history holds another message than Redis believes, so Redis was
// wrong about the conversation while it looked warm.
func (s *Stage) malloc(ctx context.Context, open []*lot) (settled, rest []*lot, err error) {
	var asked []*lot
	var batches []watermark.Batch
	for _, l := range open {
		if l.resequences > l.unlearned.commands {
			l.alloc = watermark.Allocation{Temperature: watermark.Cold, Why: whyResequence}
			rest = append(rest, l)
			continue
		}
		l.batch.Floor, _ = s.floors.Get(l.batch.Conversation)
		l.batch.Token = l.unlearned.token
		asked, batches = append(asked, l), append(batches, l.batch)
	}
	if len(asked) == 0 {
		return nil, rest, nil
	}
	allocs, err := s.cfg.Allocator.Malloc(ctx, batches)
	if err != nil {
		return nil, nil, fmt.Errorf("toredis: malloc %d conversations: %w", len(asked), err)
	}
	if err := counted("allocations", len(allocs), len(asked)); err != nil {
		return nil, nil, err
	}
	for i, l := range asked {
		l.alloc = allocs[i]
		if l.alloc.Temperature != watermark.Warm {
			rest = append(rest, l)
			continue
		}
		if err := counted("outcomes", len(l.alloc.Outcomes), len(l.batch.Inputs)); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", l.batch.Conversation, err)
		}
		settled = append(settled, l)
	}
	return settled, rest, nil
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

// raiseFloor remembers a seq that the log is known to have.
func (s *Stage) raiseFloor(id watermark.ConversationID, seq watermark.Seq) {
	if old, _ := s.floors.Peek(id); seq > old {
		s.floors.Add(id, seq)
	}
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

// memberLoad gives what a load of members of a warm conversation brought.
func memberLoad(a ask, st *watermark.State) watermark.MemberLoad {
	load := watermark.MemberLoad{Conversation: a.want.Conversation, Token: a.token, Complete: st.Complete}
	for _, u := range a.want.Users {
		if _, ok := st.Members[u]; !ok {
			load.Absent = append(load.Absent, u)
		}
	}
	load.Members = slices.SortedFunc(maps.Values(st.Members), func(a, b watermark.Member) int {
		return cmp.Compare(a.User, b.User)
	})
	return load
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
