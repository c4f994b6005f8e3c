package tomongo

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// handBack sends to their owner the messages and windows that found another
// one in their place, and gives the messages, which raise no marks. Doing it
// again at a redelivery is harmless: the owner finds that the message stands
// elsewhere by then, and does nothing.
func (s *Stage) handBack(ctx context.Context, p *piece, w watermark.Written) (lost map[place]bool, err error) {
	if len(w.Rows) != len(p.change.Rows) {
		return nil, fault.New(fault.Fatal, "contract", fmt.Errorf("tomongo: %d fates for %d rows", len(w.Rows), len(p.change.Rows)))
	}
	var inputs []watermark.Input
	for i, fate := range w.Rows {
		if fate != watermark.Conflict {
			continue
		}
		row := &p.change.Rows[i]
		if lost == nil {
			lost = make(map[place]bool)
		}
		lost[place{row.Conversation, row.Message.Seq}] = true
		m := row.Message
		inputs = append(inputs, s.resequence(row.Conversation, p.rowAt[i], watermark.Input{Message: &m, Seq: m.Seq}))
	}
	messages := len(inputs)
	for _, i := range w.MemberConflicts {
		row := &p.change.Members[i]
		m := row.Member
		inputs = append(inputs, s.resequence(row.Conversation, p.memberAt[i], watermark.Input{Member: &m}))
	}
	if len(inputs) == 0 {
		return nil, nil
	}
	if err := s.cfg.Owner.Append(ctx, inputs); err != nil {
		return nil, err
	}
	s.metrics.conflicts.WithLabelValues("message").Add(float64(messages))
	s.metrics.conflicts.WithLabelValues("member").Add(float64(len(inputs) - messages))
	for _, in := range inputs {
		s.cfg.Logger.LogAttrs(ctx, slog.LevelError, "conflict handed back to the owner",
			slog.String("conversation", string(in.Conversation)), slog.Int("partition", int(s.partition)),
			slog.Int64("offset", in.Repair-1), slog.Int64("seq", int64(in.Seq)))
	}
	return lost, nil
}

// resequence fills in what all resequence commands have. The op id follows
// from the place of the conflict, so that a repeated command has the same one.
func (s *Stage) resequence(id watermark.ConversationID, offset int64, in watermark.Input) watermark.Input {
	in.Conversation, in.Act, in.Repair = id, watermark.ActResequence, offset+1
	in.OpID = fmt.Sprintf("resequence-%d-%d-%d", s.partition, offset, in.Seq)
	if in.Member != nil {
		in.OpID = fmt.Sprintf("resequence-%d-%d-v%d", s.partition, offset, in.Member.Version)
	}
	return in
}
