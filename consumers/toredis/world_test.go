package toredis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc/seqtest"
	"github.com/tidemark-im/tidemark/watermark"
)

// errDied stands for the end of the process in the middle of a call.
var errDied = errors.New("died")

// How a call ends that is chosen to fail.
const (
	before  = "before"  // nothing of it was done
	partial = "partial" // the first half was
	after   = "after"   // all of it was, and nobody was told
)

// world is what outlives a worker: Kafka, Redis, and whoever waits. A read of
// the truth may be under way beside everything else, so calls of ports are
// locked against one another.
type world struct {
	mu         sync.Mutex
	down       atomic.Bool // the truth cannot be read
	partitions int32
	topics     map[string][][]wire.Record
	starts     map[int32]int64 // of toRedis: records below are gone
	redis      *seqtest.Redis
	answers    map[watermark.AnswerKey]watermark.Answer
	roster     bool // Truth brings all members, as for a small group
	mallocs    []watermark.Batch

	journal []string
	calls   int
	failAt  int // the number of the call that fails; 0: none
	failHow string
	failErr error
	onCall  func(op string) error
	failed  bool // the call that was chosen has failed
	now     time.Time
}

func newWorld(partitions int32) *world {
	redis := seqtest.New()
	redis.KeepUndo = 1
	return &world{
		partitions: partitions,
		topics:     make(map[string][][]wire.Record),
		starts:     make(map[int32]int64),
		redis:      redis,
		answers:    make(map[watermark.AnswerKey]watermark.Answer),
		roster:     true,
		failErr:    errDied,
		now:        time.UnixMilli(5_000_000),
	}
}

// on sets what is asked before each call of a port.
func (w *world) on(f func(op string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onCall = f
}

// step is one call of a port about n things, which do does up to a number of.
func (w *world) step(op string, n int, do func(n int)) error {
	w.mu.Lock()
	w.journal = append(w.journal, op)
	w.calls++
	onCall := w.onCall
	w.mu.Unlock()
	if onCall != nil {
		if err := onCall(op); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if op == "load" && w.down.Load() {
		return errAway
	}
	if w.calls != w.failAt {
		do(n)
		return nil
	}
	w.failed = true
	switch w.failHow {
	case partial:
		do(n / 2)
	case after:
		do(n)
	}
	return w.failErr
}

func (w *world) stage(t testing.TB, partition int32) *toredis.Stage {
	t.Helper()
	s, err := w.sequencer(t, func(*toredis.Config) {}).Stage(partition)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (w *world) sequencer(t testing.TB, change func(*toredis.Config)) *toredis.Sequencer {
	t.Helper()
	cfg := toredis.Config{
		Allocator: w, Truth: w, Members: w, Log: w, Origins: w, Answers: w, Partitions: w.partitions,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		Now:      func() time.Time { return w.now },
		Patience: time.Minute, // the world answers at once, the machine may not
	}
	change(&cfg)
	s, err := toredis.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Kafka.

func (w *world) put(o wire.Out) wire.Record {
	parts := w.topics[o.Topic]
	if parts == nil {
		parts = make([][]wire.Record, w.partitions)
		w.topics[o.Topic] = parts
	}
	p := o.Partition
	if p < 0 {
		p = wire.PartitionOf(o.Key, w.partitions)
	}
	r := wire.Record{
		Topic: o.Topic, TopicID: "id-" + o.Topic, Partition: p, Offset: int64(len(parts[p])),
		Time: time.UnixMilli(1_000_000 + int64(len(parts[p]))), Key: []byte(o.Key), Value: o.Value, Headers: o.Headers,
	}
	parts[p] = append(parts[p], r)
	return r
}

func (w *world) Append(_ context.Context, outs []wire.Out) error {
	topics := make(map[string]bool)
	for _, o := range outs {
		topics[o.Topic] = true
	}
	op := "append " + strings.Join(slices.Sorted(maps.Keys(topics)), ",")
	return w.step(op, len(outs), func(n int) {
		for _, o := range outs[:n] {
			w.put(o)
		}
	})
}

// Reread implements toredis.Origins. Up to starts, the log of a partition has
// given up its records.
func (w *world) Reread(_ context.Context, topic string, p int32, offsets []int64, each func(wire.Record)) (int64, error) {
	start := w.starts[p]
	err := w.step("reread", len(offsets), func(n int) {
		for _, offset := range offsets[:n] {
			if log := w.topics[topic][p]; offset >= start && offset < int64(len(log)) {
				each(log[offset])
			}
		}
	})
	return start, err
}

// send puts a message on toRedis, where a producer with the given partition
// puts it; -1: where it belongs.
func (w *world) send(t testing.TB, partition int32, conv, sender, id, text, caller string) wire.Record {
	t.Helper()
	out, err := wire.EncodeSend(&v1.SendMessage{
		Conversation: conv, Sender: sender, ClientMessageId: id, Body: &v1.SendMessage_Text{Text: text},
	}, caller)
	if err != nil {
		t.Fatal(err)
	}
	out.Topic, out.Partition = wire.TopicToRedis, partition
	return w.put(out)
}

func (w *world) command(t testing.TB, c *v1.Command) wire.Record {
	t.Helper()
	out, err := wire.EncodeCommand(c)
	if err != nil {
		t.Fatal(err)
	}
	out.Topic = wire.TopicToRedis
	return w.put(out)
}

func (w *world) input(p int32) []wire.Record { return w.topics[wire.TopicToRedis][p] }

// sequenced gives the decoded records of a partition of the sequenced log.
func (w *world) sequenced(t testing.TB, p int32) []watermark.Record {
	t.Helper()
	var out []watermark.Record
	if w.topics[wire.TopicSequenced] == nil {
		return nil
	}
	for _, r := range w.topics[wire.TopicSequenced][p] {
		rec, err := wire.DecodeRecord(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, rec)
	}
	return out
}

// letters gives the offset and reason of every dead letter.
func (w *world) letters(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, part := range w.topics[wire.TopicDeadLetter] {
		for _, r := range part {
			d, err := wire.DecodeDeadLetter(r)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%d@%d %s", d.Record.Partition, d.Record.Offset, d.Reason))
		}
	}
	return out
}

// Truth: the fold of the whole log.

func (w *world) Load(_ context.Context, wants []watermark.Want) ([]*watermark.State, error) {
	out := make([]*watermark.State, len(wants))
	err := w.step("load", len(wants), func(int) {
		for i, want := range wants {
			out[i] = w.fold(want)
		}
	})
	return out, err
}

func (w *world) fold(want watermark.Want) *watermark.State {
	st := watermark.NewState(want.Conversation)
	for _, part := range w.topics[wire.TopicSequenced] {
		for _, r := range part {
			rec, err := wire.DecodeRecord(r)
			if err != nil {
				panic(err)
			}
			if rec.Conversation == want.Conversation {
				st.Apply(rec)
			}
		}
	}
	st.Complete = w.roster
	if !w.roster {
		maps.DeleteFunc(st.Members, func(u watermark.UserID, _ watermark.Member) bool { return !slices.Contains(want.Users, u) })
	}
	return st
}

// Answers.

func (w *world) PutAnswers(_ context.Context, answers []watermark.KeyedAnswer) error {
	return w.step("answers", len(answers), func(n int) {
		for _, a := range answers[:n] {
			w.answers[a.Key] = a.Answer
		}
	})
}
