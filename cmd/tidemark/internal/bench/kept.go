package bench

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/watermark"
)

// Store is a history that is filled beforehand, and then read as the query service
// and a cold load do.
type Store interface {
	tomongo.History
	Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error)
	Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.Peeked, error)
	States(ctx context.Context, wants []watermark.Want) ([]*watermark.State, error)
	Roster(ctx context.Context, conv watermark.ConversationID, after watermark.UserID, limit int) ([]watermark.Member, error)
}

const (
	// bulkRows are written at once where history is filled.
	bulkRows = 5000
	// crowd is a group whose roster is read; it has no messages.
	crowd        = watermark.ConversationID("group:crowd")
	crowdMembers = 10_000
)

// keep fills history with what it holds beforehand of a partition's conversations:
// one after another, which takes a fraction of what it takes as they come.
func (f *feeder) keep(ctx context.Context) error {
	if f.cfg.Kept == 0 {
		return nil
	}
	var c watermark.Change
	flush := func() error {
		_, err := f.cfg.Writer.Write(ctx, c)
		c = watermark.Change{}
		return err
	}
	for k, i := range f.convs {
		id, a, b := f.w.conversation(i)
		for seq := watermark.Seq(1); seq <= watermark.Seq(f.cfg.Kept); seq++ {
			c.Rows = append(c.Rows, watermark.Row{Conversation: id, Message: f.keptMessage(i, a, b, seq)})
			if len(c.Rows) == bulkRows {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		f.seqs[k] = watermark.Seq(f.cfg.Kept)
		c.Conversations = append(c.Conversations, watermark.Conversation{ID: id, Max: f.seqs[k], LastTime: int64(f.cfg.Kept)})
		for _, u := range []watermark.UserID{a, b} {
			c.Members = append(c.Members, watermark.MemberRow{Conversation: id, Member: watermark.Member{User: u, Read: f.seqs[k] / 2}})
		}
		if k%1000 == 0 {
			f.cfg.Progress("filling history", int64(k), int64(len(f.convs)))
		}
	}
	if f.partition == 0 {
		for k := range crowdMembers {
			c.Members = append(c.Members, watermark.MemberRow{Conversation: crowd, Member: watermark.Member{
				User: left(k), Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}},
			}})
		}
	}
	return flush()
}

// keptMessage is as the stage writes one, with a client message id of its own.
func (f *feeder) keptMessage(conv int, a, b watermark.UserID, seq watermark.Seq) watermark.Message {
	sender := a
	if seq%2 == 0 {
		sender = b
	}
	n := uint64(conv)*131 + uint64(seq)
	from := int(n * 7919 % uint64(len(f.w.body)-f.cfg.Size))
	return watermark.Message{
		Seq: seq, Sender: sender, ClientID: fmt.Sprintf("k%d-%d", conv, seq), Kind: "text", SendTime: int64(seq), RecordTime: int64(seq), Device: "bench",
		BodyType: watermark.BodyText, Body: []byte(f.w.body[from : from+f.cfg.Size]),
	}
}

// Reads of one kind, and how many make an operation.
type reads struct {
	name string
	do   func(ctx context.Context) error
}

// readsOf are what is asked of a history of so many messages in a conversation.
func (c *StageConfig) readsOf() []reads {
	s, w := c.Writer.(Store), c.people()
	rng := rand.New(rand.NewPCG(1, 3))
	id := func() (watermark.ConversationID, watermark.UserID) {
		conv, a, _ := w.conversation(rng.IntN(max(c.Conversations, 1)))
		return conv, a
	}
	top := watermark.Seq(c.Kept)
	return []reads{
		{"a page of 10 messages", func(ctx context.Context) error {
			conv, _ := id()
			_, err := s.Messages(ctx, conv, watermark.Interval{First: max(top-9, 1), Last: top}, 10)
			return err
		}},
		{"a peek of 100 conversations", func(ctx context.Context) error {
			peeks := make([]watermark.Peek, 100)
			for i := range peeks {
				peeks[i].Conversation, peeks[i].User = id()
				peeks[i].Last, peeks[i].Mentions = top, watermark.Intervals{{First: max(top/2, 1), Last: top}}
			}
			_, err := s.Peek(ctx, peeks)
			return err
		}},
		{"a cold load of 100 conversations", func(ctx context.Context) error {
			wants := make([]watermark.Want, 100)
			for i := range wants {
				wants[i].Conversation, _ = id()
				wants[i].Sent = true
			}
			_, err := s.States(ctx, wants)
			return err
		}},
		{"a roster of 100 members", func(ctx context.Context) error {
			_, err := s.Roster(ctx, crowd, left(rng.IntN(crowdMembers)), 100)
			return err
		}},
	}
}
