package tooffline_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	group  = watermark.ConversationID("group:g")
	single = watermark.ConversationID("single:A:B")
)

// world is what an endpoint's worker works with.
type world struct {
	t testing.TB

	mu sync.Mutex
	// answer is what the endpoint says; nil: it takes everything.
	answer  func(ctx context.Context, n *tooffline.Notification) error
	sent    []tooffline.Notification
	at      []time.Duration // when, since began
	began   time.Time
	busy    int
	busiest int

	standing map[watermark.UserID]tooffline.Standing
	lookErr  error
	looks    int
	badge    int64
	devices  map[watermark.UserID][]watermark.Device
	forgot   []string
	letters  []wire.DeadLetter
	buryErr  error

	log   *slog.Logger
	reg   *prometheus.Registry
	stage *tooffline.Stage
	log0  []wire.Record
}

func newWorld(t testing.TB) *world {
	return &world{
		t: t, began: time.Now(), standing: make(map[watermark.UserID]tooffline.Standing), reg: prometheus.NewRegistry(),
		devices: make(map[watermark.UserID][]watermark.Device), log: slog.New(slog.DiscardHandler),
	}
}

func (w *world) Send(ctx context.Context, n *tooffline.Notification) error {
	w.mu.Lock()
	w.sent, w.at = append(w.sent, *n), append(w.at, time.Since(w.began))
	w.busy++
	w.busiest = max(w.busiest, w.busy)
	answer := w.answer
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.busy--
		w.mu.Unlock()
	}()
	if answer == nil {
		return nil
	}
	return answer(ctx, n)
}

func (w *world) Look(_ context.Context, conv watermark.ConversationID, user watermark.UserID, seq watermark.Seq) (tooffline.Standing, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	st, ok := w.standing[user]
	if !ok {
		st.Conversation = watermark.Conversation{Max: 100}
	}
	st.Conversation.ID, st.Member.User = conv, user
	return st, w.lookErr
}

func (w *world) Badge(context.Context, watermark.UserID) (int64, error) { return w.badge, nil }

func (w *world) Devices(_ context.Context, user watermark.UserID) ([]watermark.Device, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.devices[user]), nil
}

func (w *world) Forget(_ context.Context, user watermark.UserID, d watermark.Device) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgot = append(w.forgot, string(user)+"/"+d.ID)
	w.devices[user] = slices.DeleteFunc(w.devices[user], func(x watermark.Device) bool { return x.ID == d.ID })
	return nil
}

// Append is the topic of the dead letters.
func (w *world) Append(_ context.Context, outs []wire.Out) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.buryErr != nil {
		return w.buryErr
	}
	for _, o := range outs {
		if o.Topic != wire.TopicDeadLetter {
			w.t.Errorf("appended to %q", o.Topic)
		}
		d, err := wire.DecodeDeadLetter(wire.Record{Key: []byte(o.Key), Value: o.Value, Headers: o.Headers})
		if err != nil {
			w.t.Error(err)
		}
		w.letters = append(w.letters, d)
	}
	return nil
}

func (w *world) config() tooffline.Config {
	return tooffline.Config{
		Endpoint: "webhook", Sender: w, Store: w, DeadLetters: w, DeadLetter: wire.TopicDeadLetter,
		Preview: 100, Logger: w.log, Registerer: w.reg,
	}
}

func (w *world) worker(change func(*tooffline.Config)) *tooffline.Worker {
	w.t.Helper()
	cfg := w.config()
	if change != nil {
		change(&cfg)
	}
	k, err := tooffline.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// begin claims the partition.
func (w *world) begin(change func(*tooffline.Config)) *tooffline.Worker {
	w.t.Helper()
	k := w.worker(change)
	w.claim(k)
	return k
}

func (w *world) claim(k *tooffline.Worker) {
	w.t.Helper()
	s, err := k.Stage(w.t.Context(), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.stage = s
}

func (w *world) close() {
	w.t.Helper()
	if err := w.stage.Close(); err != nil {
		w.t.Error(err)
	}
}

// tell appends a message for users to the log and hands it in.
func (w *world) tell(conv watermark.ConversationID, seq watermark.Seq, users ...watermark.UserID) int64 {
	w.t.Helper()
	return w.mention(conv, seq, nil, users...)
}

func (w *world) mention(conv watermark.ConversationID, seq watermark.Seq, mentions []watermark.UserID, users ...watermark.UserID) int64 {
	w.t.Helper()
	r := w.record(conv, seq, mentions, users...)
	return w.handle(r)
}

func (w *world) record(conv watermark.ConversationID, seq watermark.Seq, mentions []watermark.UserID, users ...watermark.UserID) wire.Record {
	w.t.Helper()
	m := watermark.Message{
		Seq: seq, Sender: "S", ClientID: fmt.Sprint("c", seq), Kind: "text", RecordTime: time.Now().UnixMilli(),
		BodyType: watermark.BodyText, Body: fmt.Appendf(nil, "message %d", seq),
	}
	out, err := wire.EncodeOffline(wire.OfflineOf(conv, &m).For(users, mentions), "")
	if err != nil {
		w.t.Fatal(err)
	}
	r := wire.Record{
		Topic: wire.TopicOffline, TopicID: "topic", Offset: int64(len(w.log0)), Time: time.Now(),
		Key: []byte(out.Key), Value: out.Value, Headers: out.Headers,
	}
	w.log0 = append(w.log0, r)
	return r
}

func (w *world) handle(records ...wire.Record) int64 {
	w.t.Helper()
	durable, err := w.stage.Handle(w.t.Context(), records)
	if err != nil {
		w.t.Fatalf("Handle: %v", err)
	}
	return durable
}

// after lets time pass and gives what is durable then.
func (w *world) after(d time.Duration) int64 {
	w.t.Helper()
	// What the test has read so far, it has read before what comes.
	w.mu.Lock()
	w.began = w.began.Add(0)
	w.mu.Unlock()
	time.Sleep(d) // in a bubble: no time of ours
	synctest.Wait()
	durable, err := w.stage.Flush(w.t.Context())
	if err != nil {
		w.t.Fatalf("Flush: %v", err)
	}
	return durable
}

// told gives what was sent, one line each: user, the seqs, how many.
func (w *world) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, n := range w.sent {
		out = append(out, fmt.Sprintf("%s %d-%d x%d", n.User, n.First, n.Last, n.Messages))
	}
	return out
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

var errDown = errors.New("endpoint is down")

// hang answers when the attempt's time is over.
func hang(ctx context.Context, _ *tooffline.Notification) error {
	<-ctx.Done()
	return ctx.Err()
}

// bubble runs f where time passes at once.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
