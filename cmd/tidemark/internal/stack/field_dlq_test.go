package stack_test

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/audit"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/deadletters"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// box opens the dead letters of the rig.
func (r *rig) box() *deadletters.Box {
	r.t.Helper()
	box, closing, err := stack.OpenDeadLetters(r.ctx(), r.emb.Config, testLogger(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := closing(); err != nil {
			r.t.Error(err)
		}
	})
	return box
}

// waiting gives the letters that f takes, once the workers have settled.
func (r *rig) waiting(f deadletters.Filter) (out []deadletters.Letter) {
	r.t.Helper()
	r.settle()
	var strange int
	for l, err := range r.box().List(r.ctx(), f, &strange) {
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, l)
	}
	if strange != 0 {
		r.t.Errorf("%d records on the topic of the dead letters are none", strange)
	}
	return out
}

func (r *rig) replay(o deadletters.Order, want int) {
	r.t.Helper()
	res, err := r.box().Replay(r.ctx(), o)
	if err != nil || res.Done != want || res.Failed != 0 {
		r.t.Fatalf("replay: %+v, %v, want %d done", res, err, want)
	}
}

// Letters whose cause is gone are sequenced behind what is there, each once and
// under the id that its first place gave it, also where Redis, or the worker,
// ends in between, and where a record stood on the wrong partition.
func TestReplayedLettersAreSequencedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const g, n = "group:dlq", 12
	r.join(g, "A", tidemarkv1.History_HISTORY_ALL)
	r.join(g, "B", tidemarkv1.History_HISTORY_NONE)
	r.leave(g, "B")
	anonymous := func(i int) string {
		return fmt.Sprintf(`{"conversation":%q,"sender":"B","text":"text %d"}`, g, i)
	}
	var lines []string
	for i := range n - 1 {
		lines = append(lines, anonymous(i))
	}
	r.produce(g, lines...)
	// One came under a key of its own, and reached its owner by being forwarded.
	r.produce(r.elsewhere(g), anonymous(n-1))
	r.send(g, "A", "first")

	letters := r.waiting(deadletters.Filter{})
	if len(letters) != n {
		t.Fatalf("%d letters, want %d", len(letters), n)
	}
	ids := map[string]string{} // text -> the client id that the first place gives
	for _, l := range letters {
		in, err := wire.Codec{}.DecodeInput(l.Record)
		if err != nil || l.Reason != "not_member" || l.Tries != 1 {
			t.Fatalf("%+v: %v", l, err)
		}
		ids[string(in.Message.Body)] = in.Message.ClientID
	}

	// The cause still stands: they come back, and wait.
	r.replay(deadletters.Order{Filter: deadletters.Filter{Conversation: g}}, n)
	again := r.waiting(deadletters.Filter{})
	if len(again) != n || again[0].Tries != 2 || !again[0].First.Equal(letters[0].First) {
		t.Fatalf("%d letters came back: %+v", len(again), again)
	}

	r.join(g, "B", tidemarkv1.History_HISTORY_ALL)
	var half deadletters.Filter
	for _, l := range again[:n/2] {
		half.Places = append(half.Places, deadletters.Place{Topic: l.Record.Topic, Partition: l.Record.Partition, Offset: l.Record.Offset})
	}
	r.replay(deadletters.Order{Filter: half}, n/2)
	r.settle()
	r.flush()
	r.restart(stack.ToRedis)
	r.replay(deadletters.Order{Filter: deadletters.Filter{Reason: "not_member"}}, n/2)
	if left := r.waiting(deadletters.Filter{}); len(left) != 0 {
		t.Errorf("%d letters are left", len(left))
	}
	check := func() {
		t.Helper()
		r.settle()
		msgs := r.pullAll("A", g, 1, 1000)
		wantSeqs(t, msgs, 1, n+1)
		seen := map[string]bool{}
		for _, m := range msgs[1:] {
			if want := ids[m.GetText()]; m.GetClientMessageId() != want || m.GetSender() != "B" || seen[want] {
				t.Errorf("seq %d is %q of %s under %s, want %s", m.GetSeq(), m.GetText(), m.GetSender(), m.GetClientMessageId(), want)
			}
			seen[m.GetClientMessageId()] = true
		}
	}
	check()
	// Forced, and with Redis lost once more: the same messages.
	r.flush()
	r.replay(deadletters.Order{Filter: deadletters.Filter{Handled: true}}, 2*n)
	check()
	if left := r.waiting(deadletters.Filter{}); len(left) != 0 {
		t.Errorf("%d letters came back", len(left))
	}
	if rep, err := r.roles[stack.Sync].stack.Audit(r.ctx(), stack.AuditConfig{ReadLog: true}, audit.Scope{}); err != nil || !rep.Clean() {
		t.Errorf("the audit is not clean: %+v, %v", rep, err)
	}
}

// A call that is killed between its appends is gone on with by the next one.
func TestReplayThatIsKilledGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const g, n = "group:kill", 30
	r.join(g, "A", tidemarkv1.History_HISTORY_ALL)
	r.join(g, "B", tidemarkv1.History_HISTORY_NONE)
	r.leave(g, "B")
	var lines []string
	for i := range n {
		lines = append(lines, line(g, "B", fmt.Sprint("m-", i), "x"))
	}
	r.produce(g, lines...)
	if got := len(r.waiting(deadletters.Filter{})); got != n {
		t.Fatalf("%d letters", got)
	}
	r.join(g, "B", tidemarkv1.History_HISTORY_ALL)
	kafka, err := stack.Kafka(r.emb.Config, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		ctx, kill := context.WithCancel(r.ctx())
		mortal := &killer{Producer: r.producer, kill: kill}
		mortal.left.Store(9)
		box, err := deadletters.New(deadletters.Config{
			Log: scanner{r.offsets, kafka}, Appender: mortal, Topic: r.topic(wire.TopicDeadLetter),
			Input: r.topic(wire.TopicToRedis), Sequenced: r.topic(wire.TopicSequenced),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := box.Replay(ctx, deadletters.Order{}); err == nil {
			t.Error("it was not killed")
		}
		kill()
	}
	if _, err := r.box().Replay(r.ctx(), deadletters.Order{}); err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, rec := range r.records(wire.TopicToRedis) {
		if id := wire.ReplayedLetter(&rec); id != "" {
			times[id]++
		}
	}
	for id, n := range times {
		if n != 1 {
			t.Errorf("%s was appended %d times", id, n)
		}
	}
	if len(times) != n {
		t.Errorf("%d letters were appended, want %d", len(times), n)
	}
	if left := r.waiting(deadletters.Filter{}); len(left) != 0 {
		t.Errorf("%d letters are left", len(left))
	}
	wantSeqs(t, r.pullAll("A", g, 1, 1000), 1, n)
}

// scanner reads topics.
type scanner struct {
	*pipeline.Offsets
	kafka pipeline.Config
}

func (s scanner) Scan(ctx context.Context, topic string, from, to map[int32]int64) iter.Seq2[wire.Record, error] {
	return pipeline.ScanBetween(ctx, s.kafka, topic, from, to)
}

// killer ends a call after some appends.
type killer struct {
	*pipeline.Producer
	kill context.CancelFunc
	left atomic.Int32
}

func (k *killer) Append(ctx context.Context, outs []wire.Out) error {
	err := k.Producer.Append(ctx, outs)
	if k.left.Add(-1) <= 0 {
		k.kill()
	}
	return err
}

// A command that was refused is decided by its op id when it comes again, once.
func TestReplayedCommandsAreAppliedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const g = "group:cmd"
	out, err := wire.EncodeCommand(&tidemarkv1.Command{
		Conversation: g, OpId: "op-revoke", Actor: "A", Kind: &tidemarkv1.Command_Revoke{Revoke: &tidemarkv1.RevokeCommand{Seq: 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	out.Topic = r.topic(wire.TopicToRedis)
	r.send(g, "A", "m-1")
	if err := r.producer.Append(r.ctx(), []wire.Out{out}); err != nil {
		t.Fatal(err)
	}
	letters := r.waiting(deadletters.Filter{})
	if len(letters) != 1 || letters[0].Reason != "no_such_seq" || letters[0].Kind != "command" || letters[0].ClientID != "op-revoke" {
		t.Fatalf("got %+v", letters)
	}
	r.send(g, "A", "m-2")
	r.replay(deadletters.Order{Filter: deadletters.Filter{Reason: "no_such_seq"}}, 1)
	if left := r.waiting(deadletters.Filter{}); len(left) != 0 {
		t.Errorf("%d letters are left", len(left))
	}
	msgs := r.pullAll("A", g, 1, 10)
	wantSeqs(t, msgs, 1, 2)
	if msgs[0].GetRevoked() || !msgs[1].GetRevoked() || msgs[1].GetRevokedBy() != "A" {
		t.Errorf("got %v", msgs)
	}
}
