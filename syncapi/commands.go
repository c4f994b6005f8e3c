package syncapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// Send appends a message for its conversation's owner, and waits for the seq
// when asked to.
func (s *Service) Send(ctx context.Context, req *v1.SendRequest) (*v1.SendResponse, error) {
	if req.GetMessage() == nil {
		return nil, invalid("message", "it is missing")
	}
	conv, m, err := convert.SendToMessage(req.GetMessage(), s.cfg.Limits)
	if err != nil {
		return nil, inField("message", err)
	}
	if err := s.maySend(ctx, conv, m.Sender); err != nil {
		return s.sentBefore(ctx, req, conv, &m, err)
	}
	message := req.GetMessage()
	if m.ClientID == "" {
		message = proto.CloneOf(message)
		message.ClientMessageId = uuid.NewString()
		m.ClientID = message.ClientMessageId
	}
	res := &v1.SendResponse{ClientMessageId: m.ClientID}
	if !req.GetWaitForSeq() {
		return res, s.cfg.Log.AppendSend(ctx, message, "")
	}
	key := watermark.AnswerKey{Conversation: conv, Caller: s.poller.caller(), OpID: string(m.Sender) + "/" + m.ClientID}
	again := fmt.Sprintf("the message is accepted and will get its seq; sending it again with client_message_id %q is safe", m.ClientID)
	a, err := s.await(ctx, key, again, func() error { return s.cfg.Log.AppendSend(ctx, message, key.Caller) })
	if err != nil {
		return nil, err
	}
	if a.Seq < 1 {
		return nil, unavailable(reasonSeqUnknown, again)
	}
	res.Seq, res.Duplicate = int64(a.Seq), a.Verdict == watermark.Resent
	return res, nil
}

// sentBefore answers a sender whose window is closed by now: a message that
// stands was sent again because its answer was lost, and is answered as the owner
// would, who finds it before it asks for the window. All others are refused. A
// closed window is only told of when all that was decided before it is in the log,
// so what is not there was refused, or is another message.
func (s *Service) sentBefore(ctx context.Context, req *v1.SendRequest, conv watermark.ConversationID, m *watermark.Message, refused error) (*v1.SendResponse, error) {
	if m.ClientID == "" || fault.ReasonOf(refused) != watermark.ReasonNotMember {
		return nil, refused
	}
	within, cancel := context.WithTimeout(ctx, s.cfg.LoadTimeout)
	defer cancel()
	states, err := s.cfg.Truth.Load(within, []watermark.Want{{Conversation: conv, Users: []watermark.UserID{m.Sender}, Sent: true}})
	if err != nil {
		return nil, err
	}
	stands, ok := states[0].Sent[watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}]
	if !ok || stands.Hash != m.Hash {
		return nil, refused
	}
	res := &v1.SendResponse{ClientMessageId: m.ClientID}
	if req.GetWaitForSeq() {
		res.Seq, res.Duplicate = int64(stands.Seq), true
	}
	return res, nil
}

// await enters the waiting room, appends, and gives the owner's answer. again
// tells the caller what holds when the answer does not come.
func (s *Service) await(ctx context.Context, key watermark.AnswerKey, again string, appendIt func() error) (watermark.Answer, error) {
	w, err := s.poller.enter(key)
	if err != nil {
		return watermark.Answer{}, err
	}
	defer s.poller.leave(w)
	if err := appendIt(); err != nil {
		return watermark.Answer{}, err
	}
	a, err := s.poller.wait(ctx, w, s.cfg.AnswerTimeout)
	switch {
	case errors.Is(err, errStopping):
		return a, unavailable(reasonStopping, again)
	case errors.Is(err, errNoAnswer), errors.Is(err, context.DeadlineExceeded):
		return a, refuse(connect.CodeDeadlineExceeded, reasonNoAnswer, "no answer in time: %s", again)
	case err != nil:
		return a, err
	case a.Verdict == watermark.Refused:
		return a, refuse(codeOf(a.Reason), a.Reason, "refused: %s", a.Reason)
	}
	return a, nil
}

// Join opens a window for a user.
func (s *Service) Join(ctx context.Context, req *v1.JoinRequest) (*v1.CommandResponse, error) {
	return s.command(ctx, &v1.Command{
		Conversation: req.GetConversation(), OpId: req.GetOpId(), Actor: req.GetActor(),
		Kind: &v1.Command_Join{Join: &v1.JoinCommand{User: req.GetUser(), History: req.GetHistory(), From: req.GetFrom()}},
	}, nil)
}

// Leave closes a user's window at the current maximum.
func (s *Service) Leave(ctx context.Context, req *v1.LeaveRequest) (*v1.CommandResponse, error) {
	return s.command(ctx, &v1.Command{
		Conversation: req.GetConversation(), OpId: req.GetOpId(), Actor: req.GetActor(),
		Kind: &v1.Command_Leave{Leave: &v1.LeaveCommand{User: req.GetUser(), Membership: req.GetMembership()}},
	}, nil)
}

// Clear hides from one user everything up to the current maximum.
func (s *Service) Clear(ctx context.Context, req *v1.ClearRequest) (*v1.CommandResponse, error) {
	return s.command(ctx, &v1.Command{
		Conversation: req.GetConversation(), OpId: req.GetOpId(), Actor: itself(req.GetUser()),
		Kind: &v1.Command_Clear{Clear: &v1.ClearCommand{User: req.GetUser()}},
	}, nil)
}

// RaiseMinSeq deletes everything below a seq, for everybody.
func (s *Service) RaiseMinSeq(ctx context.Context, req *v1.RaiseMinSeqRequest) (*v1.CommandResponse, error) {
	return s.command(ctx, &v1.Command{
		Conversation: req.GetConversation(), OpId: req.GetOpId(),
		Kind: &v1.Command_RaiseMinSeq{RaiseMinSeq: &v1.RaiseMinSeqCommand{MinSeq: req.GetMinSeq()}},
	}, nil)
}

// SetConversationAttributes sets what a member keeps about a conversation.
func (s *Service) SetConversationAttributes(ctx context.Context, req *v1.SetConversationAttributesRequest) (*v1.CommandResponse, error) {
	return s.command(ctx, &v1.Command{
		Conversation: req.GetConversation(), OpId: req.GetOpId(), Actor: itself(req.GetUser()),
		Kind: &v1.Command_SetAttributes{SetAttributes: &v1.SetAttributesCommand{User: req.GetUser(), Attributes: req.GetAttributes()}},
	}, nil)
}

// SetUnreadPolicy says how a conversation counts own messages, over the
// deployment's default.
func (s *Service) SetUnreadPolicy(ctx context.Context, req *v1.SetUnreadPolicyRequest) (*v1.CommandResponse, error) {
	return s.command(ctx, &v1.Command{
		Conversation: req.GetConversation(), OpId: req.GetOpId(),
		Kind: &v1.Command_SetPolicy{SetPolicy: &v1.SetPolicyCommand{Policy: req.GetPolicy()}},
	}, nil)
}

// Revoke replaces a message by a tombstone. An actor must be its sender and
// must see it; the deployment itself may revoke any.
func (s *Service) Revoke(ctx context.Context, req *v1.RevokeRequest) (*v1.CommandResponse, error) {
	c := &v1.Command{
		Conversation: req.GetConversation(), OpId: req.GetOpId(), Actor: req.GetActor(),
		Kind: &v1.Command_Revoke{Revoke: &v1.RevokeCommand{Seq: req.GetSeq()}},
	}
	c.OpId = orNew(c.OpId)
	in, err := convert.CommandToInput(c)
	if err != nil {
		return nil, ofCommand(err)
	}
	if in.Actor == "" {
		return s.command(ctx, c, nil)
	}
	actor, err := s.mayRevoke(ctx, in.Conversation, in.Actor, in.Seq)
	if err != nil {
		return nil, err
	}
	return s.command(ctx, c, actor)
}

// mayRevoke reads the row as Pull does. What the actor cannot see and what is
// another's are told apart by nothing.
func (s *Service) mayRevoke(ctx context.Context, conv watermark.ConversationID, actor watermark.UserID, seq watermark.Seq) (*watermark.Member, error) {
	p := &pull{s: s, user: actor, left: s.cfg.PageBytes}
	e := &entry{conv: conv, req: watermark.PageRequest{Begin: seq, End: seq, Num: 1}}
	p.entries = []*entry{e}
	if err := p.plan(ctx, p.entries); err != nil {
		return nil, err
	}
	if err := p.fetch(ctx); err != nil {
		return nil, err
	}
	if e.err != nil {
		return nil, e.err
	}
	if len(e.served) != 1 || e.served[0].GetSender() != string(actor) {
		return nil, refuse(connect.CodePermissionDenied, reasonNotSender, "seq %d is not a message of %s", seq, actor)
	}
	return &e.sight.Member, nil
}

// command appends c for the owner and gives its answer. actor is the member who
// orders it where c is not about a member.
func (s *Service) command(ctx context.Context, c *v1.Command, actor *watermark.Member) (*v1.CommandResponse, error) {
	c.OpId = orNew(c.OpId)
	c.Caller = s.poller.caller()
	in, err := convert.CommandToInput(c)
	if err != nil {
		return nil, ofCommand(err)
	}
	if err := s.mayCommand(ctx, in); err != nil {
		return nil, err
	}
	key := watermark.AnswerKey{Conversation: in.Conversation, Caller: c.Caller, OpID: c.OpId}
	again := fmt.Sprintf("the command is accepted and will be applied; repeating it with op_id %q is safe", c.OpId)
	a, err := s.await(ctx, key, again, func() error { return s.cfg.Log.AppendCommand(ctx, c) })
	if err != nil {
		return nil, err
	}
	first, last := s.boundsFor(ctx, a, cmp.Or(a.Member, actor))
	res := &v1.CommandResponse{MaxSeq: int64(last), MinSeq: int64(first), Changed: a.Changed, OpId: c.OpId}
	if a.Member != nil {
		res.Membership = a.Member.LastMembership
		res.Visible = convert.RangesToAPI(a.Member.Visible(a.Min, a.Seq))
		res.Attributes = a.Member.Attributes
	}
	return res, nil
}

// itself is user as who orders a command about itself. One that is no user's id
// is told at the field it came in.
func itself(user string) string {
	if _, err := watermark.ParseUserID(user); err != nil {
		return ""
	}
	return user
}

func orNew(id string) string {
	if id == "" {
		return uuid.NewString()
	}
	return id
}
