package stack_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// said is a message as it can be compared between the log and a pull.
type said struct {
	Seq                  int64
	Sender, ClientID, It string
}

// auditConversation checks that nothing of a conversation is missing, twice or
// in another's place, as auditConversations does, and gives its messages.
func auditConversation(r *rig, conv string) []said {
	r.t.Helper()
	return auditConversations(r, conv)[conv]
}

// auditConversations checks the two first guarantees by what anybody can see:
//   - The sequenced log has the seqs 1..n of a conversation without a hole, one
//     message at each, and each message at one. Where two claim a seq the first
//     one has it; the other stands elsewhere, and a repair tells from where to
//     pull again.
//   - Watermarks and pulls say the same, as Redis has it, and again when all
//     of Redis is gone.
//
// It gives each conversation's messages by seq.
func auditConversations(r *rig, convs ...string) map[string][]said {
	r.t.Helper()
	logs := map[string][]watermark.Record{}
	for _, rec := range r.records(wire.TopicSequenced) {
		d, err := wire.DecodeRecord(rec)
		if err != nil {
			r.t.Fatalf("sequenced record at %d/%d: %v", rec.Partition, rec.Offset, err)
		}
		logs[string(d.Conversation)] = append(logs[string(d.Conversation)], d)
	}
	out := map[string][]said{}
	for _, conv := range convs {
		out[conv] = auditLog(r.t, conv, logs[conv])
	}
	for _, when := range []string{"as it is", "with Redis empty"} {
		for _, conv := range convs {
			auditServed(r, when, conv, out[conv])
		}
		r.flush()
	}
	return out
}

func auditLog(t testing.TB, conv string, recs []watermark.Record) []said {
	t.Helper()
	var losers []said
	at, claimed := map[int64]said{}, map[string][]int64{}
	repairedFrom := int64(0)
	for _, rec := range recs {
		for _, e := range rec.Events {
			switch e := e.(type) {
			case watermark.Repaired:
				if repairedFrom == 0 || int64(e.From) < repairedFrom {
					repairedFrom = int64(e.From)
				}
			case watermark.MessagesSequenced:
				for _, m := range e.Messages {
					s := said{int64(m.Seq), string(m.Sender), m.ClientID, string(m.Body)}
					first, taken := at[s.Seq]
					if taken && first != s {
						losers = append(losers, s)
					}
					if !taken {
						at[s.Seq] = s
						claimed[s.Sender+"/"+s.ClientID] = append(claimed[s.Sender+"/"+s.ClientID], s.Seq)
					}
				}
			}
		}
	}
	out := make([]said, 0, len(at))
	for seq := int64(1); seq <= int64(len(at)); seq++ {
		s, ok := at[seq]
		if !ok {
			t.Errorf("%s: the log has %d seqs, but not %d", conv, len(at), seq)
		}
		out = append(out, s)
	}
	for id, seqs := range claimed {
		if len(seqs) > 1 {
			t.Errorf("%s: message %s stands at %v", conv, id, seqs)
		}
	}
	for _, s := range losers {
		if repairedFrom == 0 || repairedFrom > s.Seq {
			t.Errorf("%s: %v lost its place and no repair tells it (repaired from %d)", conv, s, repairedFrom)
		}
		if len(claimed[s.Sender+"/"+s.ClientID]) == 0 {
			t.Errorf("%s: %v lost its place and has no other", conv, s)
		}
	}
	return out
}

func auditServed(r *rig, when, conv string, want []said) {
	r.t.Helper()
	user := "auditor"
	if a, _, ok := watermark.ConversationID(conv).Users(); ok {
		user = string(a)
	}
	if got := r.marks(user, conv).GetMaxSeq(); got != int64(len(want)) {
		r.t.Errorf("%s, %s: max seq %d is served, the log has %d messages", conv, when, got, len(want))
	}
	got := make([]said, 0, len(want))
	for _, m := range r.pullAll(user, conv, 1, 1<<62) {
		got = append(got, said{m.GetSeq(), m.GetSender(), m.GetClientMessageId(), m.GetText()})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s, %s: what is pulled is not what the log says (-log +pulled):\n%s", conv, when, diff)
	}
}

// wantIDs checks the client message ids of messages, in order.
func wantIDs(t testing.TB, msgs []said, want ...string) {
	t.Helper()
	got := make([]string, len(msgs))
	for i, m := range msgs {
		got[i] = m.ClientID
	}
	if !slices.Equal(got, want) {
		t.Errorf("messages = %v, want %v", got, want)
	}
}

// numbered gives n messages of a sender as lines, with ids from prefix1 on.
func numbered(conv, sender, prefix string, n int) (lines, ids []string) {
	for i := 1; i <= n; i++ {
		id := fmt.Sprint(prefix, i)
		lines, ids = append(lines, line(conv, sender, id, "text of "+id)), append(ids, id)
	}
	return lines, ids
}

// device is a connected device that keeps every push it gets, twice if it comes
// twice.
type device struct {
	mu     sync.Mutex
	pushes []*tidemarkv1.PushEvent
}

// connect connects a device of a user to a gateway.
func (r *rig) connect(user, url string) *device {
	r.t.Helper()
	return r.connectDevice(user, "", url)
}

// connectDevice connects one that has a name.
func (r *rig) connectDevice(user, name, url string) *device {
	r.t.Helper()
	d := &device{}
	ctx, cancel := context.WithCancel(r.t.Context())
	connected, done := make(chan struct{}, 100), make(chan error, 1)
	go func() {
		done <- (&client.WebSocket{URL: url, User: watermark.UserID(user), Device: name}).Stream(ctx,
			func() { connected <- struct{}{} },
			func(e *tidemarkv1.PushEvent) {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.pushes = append(d.pushes, e)
			})
	}()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("stream of %s: %v", user, err)
		}
	})
	select {
	case <-connected:
	case <-r.ctx().Done():
		r.t.Fatalf("%s does not get connected", user)
	}
	return d
}

// messages gives the seqs and ids of the messages that were pushed, in order of
// arrival.
func (d *device) messages() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, e := range d.pushes {
		if m := e.GetMessage(); m != nil {
			out = append(out, fmt.Sprint(m.GetSeq(), " ", m.GetClientMessageId()))
		}
	}
	return out
}

// awaitPushed waits until a message has arrived, and checks that exactly these
// have by then.
func (r *rig) awaitPushed(d *device, want ...string) {
	r.t.Helper()
	_, last, _ := strings.Cut(want[len(want)-1], " ")
	r.eventually("pushes", func() error {
		if got := d.messages(); !slices.ContainsFunc(got, func(m string) bool { return strings.HasSuffix(m, " "+last) }) {
			return fmt.Errorf("%s is not there, only %s", last, strings.Join(got, ", "))
		}
		return nil
	})
	if diff := cmp.Diff(want, d.messages()); diff != "" {
		r.t.Errorf("pushed messages (-want +got):\n%s", diff)
	}
}
