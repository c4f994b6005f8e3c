package stack_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// patience is how long anything may take on a busy machine.
const patience = 60 * time.Second

// rig is the embedded stack of one test: servers that stand for the length of
// the test, and roles that are started, stopped and killed one by one.
type rig struct {
	t        testing.TB
	emb      *stack.Embedded
	roles    map[stack.Role]*running
	producer *pipeline.Producer
	offsets  *pipeline.Offsets
	svc      tidemarkv1connect.SyncServiceClient
	ops      int
	messages int // that countsOf and brokenIsCounted have sent

	// onOpen, if not nil, alters the configuration of one role as it starts.
	onOpen func(stack.Role, *config.Config)
}

type running struct {
	stack    *stack.Stack
	registry *prometheus.Registry
	cancel   context.CancelFunc
	done     chan error
}

// newRig starts the servers. change, if not nil, alters the configuration of
// every role.
func newRig(t testing.TB, change func(*config.Config)) *rig {
	t.Helper()
	base := config.Default()
	base.ToMongo.FlushInterval = 50 * time.Millisecond
	base.Sync.AnswerTimeout = patience
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{DataDir: t.TempDir(), Base: &base})
	if err != nil {
		t.Fatal(err)
	}
	onServices(t, &emb.Config)
	if change != nil {
		change(&emb.Config)
	}
	r := &rig{t: t, emb: emb, roles: map[stack.Role]*running{}}
	kafka, err := stack.Kafka(emb.Config, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pipeline.EnsureTopics(t.Context(), pipeline.TopicsConfig{Config: kafka, Create: true, Partitions: emb.Config.Kafka.Partitions}); err != nil {
		t.Fatal(err)
	}
	if r.producer, err = pipeline.NewProducer(pipeline.ProducerConfig{Config: kafka, Topic: r.topic(wire.TopicToRedis)}); err != nil {
		t.Fatal(err)
	}
	if r.offsets, err = pipeline.NewOffsets(pipeline.OffsetsConfig{Config: kafka}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.stop(stack.Roles()...)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(r.producer.Close(ctx), r.offsets.Close(), emb.Cluster.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// startAll starts every role.
func startAll(t testing.TB, change func(*config.Config)) *rig {
	t.Helper()
	r := newRig(t, change)
	r.start(stack.Roles()...)
	return r
}

// ctx bounds one step of a test.
func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	r.t.Cleanup(cancel)
	return ctx
}

// start starts roles, each as a process of its own would, and waits until they
// are ready. toPush and the gateway share one, as they do without a broker.
func (r *rig) start(roles ...stack.Role) {
	r.t.Helper()
	if slices.Contains(roles, stack.ToPush) || slices.Contains(roles, stack.Gateway) {
		roles = slices.DeleteFunc(slices.Clone(roles), func(x stack.Role) bool { return x == stack.ToPush || x == stack.Gateway })
		r.open(stack.ToPush, stack.ToPush, stack.Gateway)
	}
	for _, role := range roles {
		r.open(role, role)
	}
}

func (r *rig) open(name stack.Role, roles ...stack.Role) {
	r.t.Helper()
	registry := telemetry.NewRegistry()
	cfg := r.emb.Config
	if r.onOpen != nil {
		r.onOpen(name, &cfg)
	}
	s, err := stack.Open(r.ctx(), stack.Config{Config: cfg, Roles: roles, Logger: testLogger(r.t), Registry: registry})
	if err != nil {
		r.t.Fatalf("open %s: %v", name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{stack: s, registry: registry, cancel: cancel, done: make(chan error, 1)}
	go func() { run.done <- s.Run(ctx) }()
	if err := s.Health().Await(r.ctx()); err != nil {
		cancel()
		r.t.Fatalf("start %s: %v", name, errors.Join(err, <-run.done))
	}
	r.roles[name] = run
	if name == stack.Sync {
		r.svc = tidemarkv1connect.NewSyncServiceClient(http.DefaultClient, s.SyncURL())
	}
}

// stop stops roles cleanly; one that does not run is passed over.
func (r *rig) stop(roles ...stack.Role) {
	r.t.Helper()
	for _, role := range roles {
		run := r.roles[role]
		if run == nil {
			continue
		}
		delete(r.roles, role)
		run.cancel()
		if err := errors.Join(<-run.done, run.stack.Close()); err != nil {
			r.t.Errorf("stop %s: %v", role, err)
		}
	}
}

// restart stops roles and starts them again.
func (r *rig) restart(roles ...stack.Role) {
	r.t.Helper()
	r.stop(roles...)
	r.start(roles...)
}

// settle waits until every running worker has handled and committed all that
// stands in its topic. toRedis comes first, since it writes what the others
// read.
func (r *rig) settle() {
	r.t.Helper()
	for _, g := range []struct {
		role  stack.Role
		topic string
	}{{stack.ToRedis, wire.TopicToRedis}, {stack.ToMongo, wire.TopicSequenced}, {stack.ToPush, wire.TopicSequenced}} {
		if r.roles[g.role] == nil {
			continue
		}
		topic := r.topic(g.topic)
		ends, err := r.offsets.Ends(r.ctx(), topic)
		if err != nil {
			r.t.Fatal(err)
		}
		if err := r.offsets.AwaitCommitted(r.ctx(), r.topic("tidemark-"+string(g.role)), topic, ends); err != nil {
			r.t.Fatalf("%s does not catch up: %v", g.role, err)
		}
	}
}

// produce puts JSON messages on toRedis as an outside producer does: one line
// each, keyed by conversation.
func (r *rig) produce(conv string, lines ...string) {
	r.t.Helper()
	if err := r.producer.Append(r.ctx(), r.outs(conv, lines...)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) outs(conv string, lines ...string) []wire.Out {
	outs := make([]wire.Out, len(lines))
	for i, l := range lines {
		outs[i] = wire.Out{Topic: r.topic(wire.TopicToRedis), Partition: -1, Key: conv, Value: []byte(l)}
	}
	return outs
}

// line gives a JSON message.
func line(conv, sender, id, text string) string {
	return fmt.Sprintf(`{"conversation":%q,"sender":%q,"clientMessageId":%q,"text":%q}`, conv, sender, id, text)
}

// send sends through the query service and gives the seq.
func (r *rig) send(conv, sender, id string) int64 {
	r.t.Helper()
	res, err := r.svc.Send(r.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
		Conversation: conv, Sender: sender, ClientMessageId: id, Body: &tidemarkv1.SendMessage_Text{Text: "text of " + id},
	}})
	if err != nil {
		r.t.Fatalf("send %s to %s: %v", id, conv, err)
	}
	return res.GetSeq()
}

// pull pulls one range.
func (r *rig) pull(user string, p *tidemarkv1.PullRange) *tidemarkv1.PullPage {
	r.t.Helper()
	res, err := r.svc.Pull(r.ctx(), &tidemarkv1.PullRequest{User: user, Ranges: []*tidemarkv1.PullRange{p}})
	if err != nil {
		r.t.Fatalf("pull: %v", err)
	}
	return res.GetPages()[0]
}

// pullAll follows rest over begin..end and gives the messages, oldest first.
func (r *rig) pullAll(user, conv string, begin, end int64) []*tidemarkv1.Message {
	r.t.Helper()
	var out []*tidemarkv1.Message
	for {
		page := r.pull(user, &tidemarkv1.PullRange{Conversation: conv, Begin: begin, End: end, Num: 1000, Keep: tidemarkv1.Keep_KEEP_NEAR_BEGIN})
		if page.GetError() != nil {
			r.t.Fatalf("pull %s %d..%d: %v", conv, begin, end, page.GetError())
		}
		out = append(out, page.GetMessages()...)
		if page.GetRest() == nil {
			return out
		}
		begin = page.GetRest().GetBegin()
	}
}

// marks gives a user's watermarks in a conversation.
func (r *rig) marks(user, conv string) *tidemarkv1.Watermarks {
	r.t.Helper()
	w := r.marksIfAny(user, conv)
	if w.GetError() != nil {
		r.t.Fatalf("watermarks of %s in %s: %v", user, conv, w.GetError())
	}
	return w
}

// marksIfAny is marks, for a conversation that may not be known yet.
func (r *rig) marksIfAny(user, conv string) *tidemarkv1.Watermarks {
	r.t.Helper()
	res, err := r.svc.GetWatermarks(r.ctx(), &tidemarkv1.GetWatermarksRequest{User: user, Conversations: []string{conv}})
	if err != nil {
		r.t.Fatalf("watermarks of %s in %s: %v", user, conv, err)
	}
	return res.GetWatermarks()[0]
}

// read marks a conversation read and gives what stands.
func (r *rig) read(user, conv string, seq int64) *tidemarkv1.ReadResponse {
	r.t.Helper()
	res, err := r.svc.SetReadSeq(r.ctx(), &tidemarkv1.SetReadSeqRequest{User: user, Conversation: conv, ReadSeq: seq})
	if err != nil {
		r.t.Fatalf("mark %s read to %d by %s: %v", conv, seq, user, err)
	}
	return res
}

// topic gives the name that a topic, or a group, has for this rig.
func (r *rig) topic(name string) string { return r.emb.Config.Kafka.TopicPrefix + name }

func (r *rig) op() string { r.ops++; return fmt.Sprint("op-", r.ops) }

func (r *rig) join(conv, user string, h tidemarkv1.History) *tidemarkv1.CommandResponse {
	r.t.Helper()
	res, err := r.svc.Join(r.ctx(), &tidemarkv1.JoinRequest{Conversation: conv, User: user, History: h, OpId: r.op()})
	if err != nil {
		r.t.Fatalf("join of %s to %s: %v", user, conv, err)
	}
	return res
}

func (r *rig) leave(conv, user string) *tidemarkv1.CommandResponse {
	r.t.Helper()
	res, err := r.svc.Leave(r.ctx(), &tidemarkv1.LeaveRequest{Conversation: conv, User: user, OpId: r.op()})
	if err != nil {
		r.t.Fatalf("leave of %s from %s: %v", user, conv, err)
	}
	return res
}

func (r *rig) clear(conv, user string) *tidemarkv1.CommandResponse {
	r.t.Helper()
	res, err := r.svc.Clear(r.ctx(), &tidemarkv1.ClearRequest{Conversation: conv, User: user, OpId: r.op()})
	if err != nil {
		r.t.Fatalf("clear of %s by %s: %v", conv, user, err)
	}
	return res
}

// deadLetters reads the whole dead letter topic.
func (r *rig) deadLetters() []wire.DeadLetter {
	r.t.Helper()
	var out []wire.DeadLetter
	for _, rec := range r.records(wire.TopicDeadLetter) {
		d, err := wire.DecodeDeadLetter(rec)
		if err != nil {
			r.t.Fatalf("dead letter: %v", err)
		}
		out = append(out, d)
	}
	return out
}

// log reads the sequenced log of a conversation.
func (r *rig) log(conv string) []watermark.Record {
	r.t.Helper()
	var out []watermark.Record
	for _, rec := range r.records(wire.TopicSequenced) {
		d, err := wire.DecodeRecord(rec)
		if err != nil {
			r.t.Fatalf("sequenced record at %d/%d: %v", rec.Partition, rec.Offset, err)
		}
		if string(d.Conversation) == conv {
			out = append(out, d)
		}
	}
	return out
}

// records reads all records of a topic, partition by partition.
func (r *rig) records(topic string) []wire.Record {
	r.t.Helper()
	var recs []wire.Record
	for rec, err := range pipeline.Scan(r.ctx(), pipeline.Config{Brokers: r.emb.Config.Kafka.Brokers}, r.topic(topic)) {
		if err != nil {
			r.t.Fatalf("read topic %s: %v", topic, err)
		}
		recs = append(recs, rec)
	}
	return recs
}

// eventually polls until ok, and fails with what it last said.
func (r *rig) eventually(what string, ok func() error) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: %v", what, err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// wantSeqs checks that messages have the seqs from..to, each once and in order.
func wantSeqs(t testing.TB, msgs []*tidemarkv1.Message, from, to int64) {
	t.Helper()
	got := make([]int64, len(msgs))
	for i, m := range msgs {
		got[i] = m.GetSeq()
	}
	var want []int64
	for s := from; s <= to; s++ {
		want = append(want, s)
	}
	if !slices.Equal(got, want) {
		t.Errorf("seqs = %v, want %d..%d", got, from, to)
	}
}

// testLogger writes what goes wrong to a file that is shown when the test
// fails.
func testLogger(t testing.TB) *slog.Logger {
	f, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		if t.Failed() {
			b, _ := os.ReadFile(f.Name())
			t.Logf("%s:\n%s", filepath.Base(f.Name()), b[max(0, len(b)-4000):])
		}
	})
	return slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// within waits, longer than settle does, until a role has taken all of a topic.
func (r *rig) within(role stack.Role, topic string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Minute)
	defer cancel()
	ends, err := r.offsets.Ends(ctx, r.topic(topic))
	if err == nil {
		err = r.offsets.AwaitCommitted(ctx, r.topic("tidemark-"+string(role)), r.topic(topic), ends)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}
