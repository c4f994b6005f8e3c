package syncapi

import (
	"context"
	"slices"

	"connectrpc.com/connect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// maxMarked is how many seqs one MarkMessagesRead may name.
const maxMarked = 10_000

// markOf is a mark as a call asks for it.
type markOf struct {
	user, conversation, device string
	seq                        int64
	tellPeer                   bool // in single conversations
}

// SetReadSeq raises the caller's read watermark, for its own devices only.
func (s *Service) SetReadSeq(ctx context.Context, req *v1.SetReadSeqRequest) (*v1.ReadResponse, error) {
	return s.mark(ctx, markOf{
		user: req.GetUser(), conversation: req.GetConversation(), device: req.GetDevice(), seq: req.GetReadSeq(),
	})
}

// MarkConversationRead marks everything up to a seq read; in a single
// conversation the peer is told.
func (s *Service) MarkConversationRead(ctx context.Context, req *v1.MarkConversationReadRequest) (*v1.ReadResponse, error) {
	return s.mark(ctx, markOf{
		user: req.GetUser(), conversation: req.GetConversation(), device: req.GetDevice(), seq: req.GetReadSeq(),
		tellPeer: true,
	})
}

// MarkMessagesRead marks messages of a single conversation read and tells the
// peer; the highest of the seqs counts.
func (s *Service) MarkMessagesRead(ctx context.Context, req *v1.MarkMessagesReadRequest) (*v1.ReadResponse, error) {
	conv, err := conversationIn(req.GetConversation())
	if err != nil {
		return nil, err
	}
	if !conv.Single() {
		return nil, refuse(connect.CodeFailedPrecondition, reasonNotSingle,
			"%s is a group: messages are marked read one by one in single conversations only; use MarkConversationRead", conv)
	}
	seqs := req.GetSeqs()
	if n := len(seqs); n < 1 || n > maxMarked {
		return nil, invalid("seqs", "%d of them, 1 to %d are allowed", n, maxMarked)
	}
	if low := slices.Min(seqs); low < 1 {
		return nil, invalid("seqs", "%d is not a seq", low)
	}
	return s.mark(ctx, markOf{
		user: req.GetUser(), conversation: req.GetConversation(), device: req.GetDevice(), seq: slices.Max(seqs),
		tellPeer: true,
	})
}

// mark clamps m to what the user sees, appends it, raises it in Redis, and
// tells what stands. It is appended also when nothing rises by it: the mark
// that seems to stand already may be one whose append failed. What is appended
// is what stands then, so that nobody who follows the log sees a mark fall.
func (s *Service) mark(ctx context.Context, m markOf) (*v1.ReadResponse, error) {
	user, err := userIn(m.user)
	if err != nil {
		return nil, err
	}
	conv, err := conversationIn(m.conversation)
	if err != nil {
		return nil, err
	}
	if m.device != "" {
		if err := watermark.CheckKey("device", m.device); err != nil {
			return nil, inField("device", err)
		}
	}
	v, err := s.lookOne(ctx, user, conv)
	if err != nil {
		return nil, err
	}
	member := v.Member
	if read := watermark.ClampRead(v.visible, watermark.Seq(m.seq)); read > 0 {
		mark := watermark.ReadAdvanced{User: user, Read: max(read, member.Read), Device: m.device}
		if m.tellPeer && conv.Single() {
			mark.Receipt = max(read, member.Receipt)
		}
		if err := s.marks.mark(ctx, conv, mark); err != nil {
			return nil, err
		}
		member.RaiseRead(mark.Read)
		member.Receipt = max(member.Receipt, mark.Receipt)
	}
	return &v1.ReadResponse{
		ReadSeq:    int64(member.Read),
		ReceiptSeq: int64(member.Receipt),
		Unread:     watermark.Unread(v.visible, member.Read, member.Own),
	}, nil
}
