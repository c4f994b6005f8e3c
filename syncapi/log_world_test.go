package syncapi_test

import (
	"context"
	"slices"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

func (l fakeLog) AppendSend(ctx context.Context, m *v1.SendMessage, caller string) error {
	if err := l.enter(ctx, "AppendSend"); err != nil {
		return err
	}
	defer l.mu.Unlock()
	id, msg, err := convert.SendToMessage(m, convert.Limits{})
	if err != nil {
		return err
	}
	a := l.sendLocked(l.talkLocked(id), msg)
	l.answerLocked(watermark.AnswerKey{Conversation: id, Caller: caller, OpID: string(msg.Sender) + "/" + msg.ClientID}, a)
	return nil
}

func (l fakeLog) AppendCommand(ctx context.Context, c *v1.Command) error {
	if err := l.enter(ctx, "AppendCommand"); err != nil {
		return err
	}
	defer l.mu.Unlock()
	in, err := convert.CommandToInput(c)
	if err != nil {
		return err
	}
	a := l.decideLocked(in)
	l.answerLocked(watermark.AnswerKey{Conversation: in.Conversation, Caller: in.Caller, OpID: in.OpID}, a)
	return nil
}

func (l fakeLog) AppendMarks(ctx context.Context, id convID, marks []watermark.ReadAdvanced) error {
	if err := l.enter(ctx, "AppendMarks"); err != nil {
		return err
	}
	defer l.mu.Unlock()
	l.appends = append(l.appends, slices.Clone(marks))
	t := l.talkLocked(id)
	at := l.appendLocked(id)
	for _, r := range marks {
		m := t.memberLocked(r.User)
		m.Merge(watermark.Member{User: r.User, Read: r.Read, Receipt: r.Receipt, ChangedAt: at})
		t.members[r.User] = m
		if r.Receipt > 0 {
			t.touchLocked(r.User, at)
		}
	}
	return nil
}
