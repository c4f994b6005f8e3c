package audit_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	wm "github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func msg(seq wm.Seq, id string) wm.Message {
	m := wm.Message{Seq: seq, Sender: "ann", ClientID: id, BodyType: wm.BodyText, Body: []byte(id), RecordTime: int64(seq)}
	m.Hash = m.SumHash()
	return m
}

// world is a history with a Redis, a log and workers that do as a test says.
type world struct {
	*storagetest.Memory
	log []wm.Record

	// Each may be nil: Redis is cold, everything has been passed.
	heads func(wm.ConversationID) audit.Head
	known func(wm.ConversationID, wm.UserID) audit.Known
	pass  func([]int32) map[int32]error

	held []wm.ConversationID // by Redis

	mu sync.Mutex
	// called sees every question to history, and may change the answer.
	called       func(what string)
	members      func([]wm.Member) []wm.Member
	mostRows     int
	mostMembers  int
	mostLimit    int
	mostConvs    int
	passed       int
	conversation func(wm.Conversation) wm.Conversation
}

func newWorld() *world { return &world{Memory: storagetest.NewMemory()} }

// fill writes a conversation of n messages and as many members as named.
func (w *world) fill(t testing.TB, conv wm.ConversationID, n int, users ...wm.UserID) {
	t.Helper()
	var c wm.Change
	for s := wm.Seq(1); s <= wm.Seq(n); s++ {
		c.Rows = append(c.Rows, wm.Row{Conversation: conv, Message: msg(s, fmt.Sprint("m", s))})
	}
	for _, u := range users {
		c.Members = append(c.Members, wm.MemberRow{Conversation: conv, Member: wm.Member{User: u, Read: 1}})
	}
	c.Conversations = []wm.Conversation{{ID: conv, Max: wm.Seq(n)}}
	if _, err := w.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func (w *world) config() audit.Config {
	cfg := audit.Config{History: w, Fence: w}
	if w.heads != nil {
		cfg.Redis = redis{w}
	}
	if w.log != nil {
		cfg.Log = w
	}
	return cfg
}

func (w *world) note(what string, most *int, n, limit int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*most, w.mostLimit = max(*most, n), max(w.mostLimit, limit)
	if w.called != nil {
		w.called(what)
	}
}

func (w *world) Messages(ctx context.Context, c wm.ConversationID, in wm.Interval, limit int) ([]wm.Message, error) {
	out, err := w.Memory.Messages(ctx, c, in, limit)
	w.note("messages", &w.mostRows, len(out), limit)
	return out, err
}

func (w *world) Roster(ctx context.Context, c wm.ConversationID, after wm.UserID, limit int) ([]wm.Member, error) {
	out, err := w.Memory.Roster(ctx, c, after, limit)
	w.note("roster", &w.mostMembers, len(out), limit)
	return out, err
}

func (w *world) Members(ctx context.Context, c wm.ConversationID, users []wm.UserID) ([]wm.Member, error) {
	out, err := w.Memory.Members(ctx, c, users)
	w.note("members", &w.mostMembers, len(users), 0)
	if w.members != nil {
		out = w.members(out)
	}
	return out, err
}

func (w *world) Conversations(ctx context.Context, ids []wm.ConversationID) ([]wm.Conversation, error) {
	out, err := w.Memory.Conversations(ctx, ids)
	w.note("conversations", &w.mostConvs, len(ids), 0)
	for i := range out {
		if w.conversation != nil {
			out[i] = w.conversation(out[i])
		}
	}
	return out, err
}

func (w *world) Partition(c wm.ConversationID) int32 { return int32(c[len(c)-1]) % 2 }

func (w *world) Pass(_ context.Context, partitions []int32) (map[int32]error, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed++
	if w.pass == nil {
		return nil, nil
	}
	return w.pass(partitions), nil
}

func (w *world) Size(context.Context) (int64, error) { return int64(len(w.log)), nil }

func (w *world) Records(context.Context) iter.Seq2[wm.Record, error] {
	return func(yield func(wm.Record, error) bool) {
		for _, r := range w.log {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// redis is the Redis of a world, without hot logs.
type redis struct{ *world }

func (r redis) Heads(_ context.Context, convs []wm.ConversationID) ([]audit.Head, error) {
	out := make([]audit.Head, len(convs))
	for i, c := range convs {
		out[i] = r.heads(c)
	}
	return out, nil
}

func (r redis) Conversations(context.Context) iter.Seq2[[]wm.ConversationID, error] {
	return func(yield func([]wm.ConversationID, error) bool) {
		if len(r.held) > 0 {
			yield(slices.Clone(r.held), nil)
		}
	}
}

func (r redis) Entries(context.Context, wm.ConversationID, wm.Interval) ([]audit.Entry, bool, error) {
	return nil, true, nil
}

func (r redis) Known(_ context.Context, c wm.ConversationID, users []wm.UserID) ([]audit.Known, bool, error) {
	if r.known == nil {
		return nil, false, nil
	}
	out := make([]audit.Known, len(users))
	for i, u := range users {
		out[i] = r.known(c, u)
	}
	return out, true, nil
}

func (r redis) Users(context.Context, wm.ConversationID, uint64) ([]wm.UserID, uint64, error) {
	return nil, 0, nil
}
