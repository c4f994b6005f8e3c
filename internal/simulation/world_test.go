package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc/seqtest"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/storage/truth"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	advance watermark.ConversationID = "group:advance" // sending marks everything read
	keep    watermark.ConversationID = "group:keep"    // own messages do not count
	single  watermark.ConversationID = "single:A:B"
)

var (
	conversations = []watermark.ConversationID{advance, keep, single}
	users         = []watermark.UserID{"A", "B", "C"}
)

func policyOf(id watermark.ConversationID) watermark.UnreadPolicy {
	if id == keep {
		return watermark.KeepOnSend
	}
	return watermark.AdvanceOnSend
}

// world is what outlives every process.
type world struct {
	redis   *seqtest.Redis
	history *storagetest.Memory
	input   []wire.Record // toRedis
	log     []entry       // sequenced
	letters []wire.Record // deadLetter

	owned, projected int64 // committed offsets of the two groups
	large            bool  // loads bring only the members that were asked for
	stopped          bool  // history is
	now              time.Time
	note             func(format string, args ...any) // for who reads of a failure
}

// entry is a record of the sequenced log with what it says.
type entry struct {
	wire.Record
	said watermark.Record
}

func newWorld() *world {
	return &world{redis: seqtest.New(), history: storagetest.NewMemory(), now: time.UnixMilli(1_000_000)}
}

func (w *world) put(o wire.Out) {
	r := wire.Record{
		Topic: o.Topic, TopicID: "id-" + o.Topic, Time: w.now,
		Key: []byte(o.Key), Value: o.Value, Headers: o.Headers,
	}
	switch o.Topic {
	case wire.TopicToRedis:
		r.Offset = int64(len(w.input))
		w.input = append(w.input, r)
	case wire.TopicSequenced:
		r.Offset = int64(len(w.log))
		said, err := wire.DecodeRecord(r)
		if err != nil {
			panic(fmt.Sprintf("the log was given a record that it cannot hold: %v", err))
		}
		w.log = append(w.log, entry{r, said})
		w.note("log %d: %s %v inputs %v", r.Offset, said.Conversation, brief(said.Events), said.Inputs)
	case wire.TopicDeadLetter:
		r.Offset = int64(len(w.letters))
		w.letters = append(w.letters, r)
	default:
		panic("no such topic: " + o.Topic)
	}
}

// must is for encodings that cannot fail here.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (w *world) send(id watermark.ConversationID, u watermark.UserID, clientID, text string) {
	o := must(wire.EncodeSend(&v1.SendMessage{
		Conversation: string(id), Sender: string(u), ClientMessageId: clientID, Body: &v1.SendMessage_Text{Text: text},
	}, ""))
	o.Topic = wire.TopicToRedis
	w.put(o)
}

func (w *world) command(in watermark.Input) {
	o := must(wire.EncodeCommand(convert.InputToCommand(in)))
	o.Topic = wire.TopicToRedis
	w.put(o)
}

// terseBytes is room for a few messages.
const terseBytes = 300

// desk is a place at which one process after another works, with the real parts
// that a process has. Their ports lead to the actor that works there now.
type desk struct {
	w     *world
	actor *actor
	jobs  chan job
	holds bool // seqs that are perhaps not appended

	sequencer *toredis.Sequencer
	projector *tomongo.Projector
	truth     *truth.Truth
	service   *syncapi.Service
	terse     *syncapi.Service // with small answers
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	d := &desk{jobs: make(chan job)}
	go work(d.jobs)
	t.Cleanup(func() { close(d.jobs) })
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d.truth, err = truth.New(truth.Config{History: store{d}, Pin: d.pin, PinAll: d.pinAll, Log: "log"})
	check()
	d.sequencer, err = toredis.New(toredis.Config{
		Allocator: redis{d}, Truth: d.truth, Members: redis{d}, Log: kafka{d}, Origins: kafka{d}, Answers: redis{d},
		Partitions: 1, UnreadPolicy: policyOf, FloorEntries: 64, Logger: slog.New(slog.DiscardHandler),
	})
	check()
	d.projector, err = tomongo.New(tomongo.Config{
		History: store{d}, Hot: redis{d}, Owner: owner{d}, Log: kafka{d},
		WriteEvery: 200 * time.Millisecond, FlushMarks: 6, FlushEvery: time.Second,
		Now: func() time.Time { return d.w.now }, Logger: slog.New(slog.DiscardHandler),
	})
	check()
	service := syncapi.Config{Hot: redis{d}, Truth: d.truth, Log: marks{d}, Devices: storagetest.NewMemory(), NodeID: "node", MarkWindow: 1}
	d.service, err = syncapi.New(service)
	check()
	service.PageBytes = terseBytes
	d.terse, err = syncapi.New(service)
	check()
	return d
}

// hire lets a new process work there.
func (d *desk) hire() {
	d.holds = false
	d.actor = &actor{note: d.w.note, jobs: d.jobs, asked: make(chan *request)}
}

// redis is the desk's way to Redis.
type redis struct{ *desk }

func (r redis) Malloc(ctx context.Context, batches []watermark.Batch) (out []watermark.Allocation, err error) {
	err = r.actor.call("malloc", len(batches), func(n int) {
		out, _ = r.w.redis.Malloc(ctx, batches[:n])
		r.holds = true
	})
	return out, err
}

func (r redis) Begin(ctx context.Context, ids []watermark.ConversationID) (out []string, err error) {
	err = r.actor.call("begin", len(ids), func(n int) { out, _ = r.w.redis.Begin(ctx, ids[:n]) })
	return out, err
}

func (r redis) Install(ctx context.Context, loaded []watermark.Loaded) (out []bool, err error) {
	err = r.actor.call("install", len(loaded), func(n int) { out, _ = r.w.redis.Install(ctx, loaded[:n]) })
	return out, err
}

func (r redis) Settle(ctx context.Context, p watermark.Place) (number int64, err error) {
	err = r.actor.call("settle", 1, func(n int) {
		if n > 0 {
			number, _ = r.w.redis.Settle(ctx, p)
		}
	})
	return number, err
}

func (r redis) MergeMembers(ctx context.Context, loads []watermark.MemberLoad) (out []bool, err error) {
	err = r.actor.call("merge", len(loads), func(n int) { out, _ = r.w.redis.MergeMembers(ctx, loads[:n]) })
	return out, err
}

func (r redis) RaiseReads(ctx context.Context, rows []watermark.MemberRow) error {
	return r.actor.call("raise", len(rows), func(n int) { _ = r.w.redis.RaiseReads(ctx, rows[:n]) })
}

func (r redis) Views(ctx context.Context, asks []watermark.Ask) (out []watermark.View, err error) {
	err = r.actor.call("views", len(asks), func(n int) { out, _ = r.w.redis.Views(ctx, asks[:n]) })
	return out, err
}

func (r redis) Messages(ctx context.Context, spans []watermark.Span) (out [][]watermark.Message, err error) {
	err = r.actor.call("messages", len(spans), func(n int) { out, _ = r.w.redis.Messages(ctx, spans[:n]) })
	return out, err
}

func (r redis) Readers(ctx context.Context, id watermark.ConversationID, seq watermark.Seq, after watermark.Reader, limit int) (out watermark.Readership, err error) {
	err = r.actor.call("readers", 1, func(int) { out, _ = r.w.redis.Readers(ctx, id, seq, after, limit) })
	return out, err
}

func (r redis) PutAnswers(context.Context, []watermark.KeyedAnswer) error { return nil } // nobody waits here

func (r redis) Answers(_ context.Context, keys []watermark.AnswerKey) ([]*watermark.Answer, error) {
	return make([]*watermark.Answer, len(keys)), nil
}

// kafka appends.
type kafka struct{ *desk }

func (k kafka) Append(_ context.Context, outs []wire.Out) error {
	return k.actor.call("append "+outs[0].Topic, len(outs), func(n int) {
		for _, o := range outs[:n] {
			k.w.put(o)
		}
	})
}

// Reread is never asked: there is one partition, so nothing is forwarded.
func (kafka) Reread(context.Context, string, int32, []int64, func(wire.Record)) (int64, error) {
	panic("nothing was forwarded")
}

// owner hands back what lost its place.
type owner struct{ *desk }

func (o owner) Append(_ context.Context, inputs []watermark.Input) error {
	return o.actor.call("hand back", len(inputs), func(n int) {
		for _, in := range inputs[:n] {
			o.w.note("input %d: %s of %s", len(o.w.input), in.OpID, in.Conversation)
			o.w.command(in)
		}
	})
}

// marks is the query service's way into the log.
type marks struct{ *desk }

func (m marks) AppendMarks(_ context.Context, id watermark.ConversationID, ms []watermark.ReadAdvanced) error {
	rec := watermark.Record{Conversation: id}
	for _, e := range ms {
		rec.Events = append(rec.Events, e)
	}
	value, err := wire.EncodeRecord(rec)
	if err != nil {
		return err
	}
	return m.actor.call("append mark", 1, func(int) {
		m.w.put(wire.Out{Topic: wire.TopicSequenced, Key: string(id), Value: value})
	})
}

func (m marks) AppendSend(context.Context, *v1.SendMessage, string) error { panic("producers send") }
func (m marks) AppendCommand(context.Context, *v1.Command) error          { panic("producers command") }

// store is the desk's way to history.
type store struct{ *desk }

func (s store) call(op string, n int, do func(n int)) error {
	if !s.w.stopped {
		return s.actor.call(op, n, do)
	}
	if err := s.actor.call(op+", which is stopped", n, func(int) {}); err != nil {
		return err
	}
	return errFailed
}

var writeSteps = []storagetest.Step{"", storagetest.StepRows, storagetest.StepRevokes, storagetest.StepMembers}

// Write does its parts one after another; a call that ends early has done some
// of them.
func (s store) Write(ctx context.Context, c watermark.Change) (out watermark.Written, err error) {
	op := "write"
	if len(c.Rows)+len(c.Revokes)+len(c.Conversations) == 0 {
		op = "write marks or windows"
	}
	err = s.call(op, len(writeSteps)+1, func(n int) {
		s.w.history.Fail = func(step storagetest.Step) error {
			if n <= len(writeSteps) && step == writeSteps[n-1] {
				return errFailed
			}
			return nil
		}
		out, _ = s.w.history.Write(ctx, c)
		s.w.history.Fail = nil
	})
	return out, err
}

func (s store) DeleteBelow(ctx context.Context, id watermark.ConversationID, seq watermark.Seq, _ int) (out int, err error) {
	err = s.call("delete", 1, func(int) { out, _ = s.w.history.DeleteBelow(ctx, id, seq, 2) })
	return out, err
}

func (s store) States(ctx context.Context, wants []watermark.Want) (out []*watermark.State, err error) {
	err = s.call("states", 1, func(int) {
		out, _ = s.w.history.States(ctx, wants)
		for i, st := range out {
			if s.w.large && !wants[i].Roster {
				st.Complete = false
				maps.DeleteFunc(st.Members, func(u watermark.UserID, _ watermark.Member) bool { return !slices.Contains(wants[i].Users, u) })
			}
		}
	})
	return out, err
}

func (s store) Messages(ctx context.Context, id watermark.ConversationID, in watermark.Interval, limit int) (out []watermark.Message, err error) {
	err = s.call("rows", 1, func(int) { out, _ = s.w.history.Messages(ctx, id, in, limit) })
	return out, err
}

func (s store) MembershipsOf(ctx context.Context, u watermark.UserID, after watermark.ConversationID, limit int) (out []watermark.MemberRow, err error) {
	err = s.call("memberships", 1, func(int) { out, _ = s.w.history.MembershipsOf(ctx, u, after, limit) })
	return out, err
}

func (s store) Conversations(ctx context.Context, ids []watermark.ConversationID) (out []watermark.Conversation, err error) {
	err = s.call("conversations", 1, func(int) { out, _ = s.w.history.Conversations(ctx, ids) })
	return out, err
}

func (s store) Peek(ctx context.Context, peeks []watermark.Peek) (out []watermark.Peeked, err error) {
	err = s.call("peek", 1, func(int) { out, _ = s.w.history.Peek(ctx, peeks) })
	return out, err
}

// tail is a pin: the log from toMongo's committed offset on.
type tail struct {
	*desk
	from int64
}

func (d *desk) pin(context.Context, []watermark.ConversationID) (truth.Pin, error) {
	t := &tail{desk: d}
	err := d.actor.call("pin", 1, func(int) { t.from = d.w.projected })
	return t, err
}

func (d *desk) pinAll(ctx context.Context) (truth.Pin, error) { return d.pin(ctx, nil) }

func (t *tail) States(_ context.Context, ids []watermark.ConversationID) (map[watermark.ConversationID]*watermark.State, error) {
	out := make(map[watermark.ConversationID]*watermark.State)
	err := t.actor.call("tail", 1, func(int) {
		for _, e := range t.w.log[t.from:] {
			id := e.said.Conversation
			if !slices.Contains(ids, id) {
				continue
			}
			if out[id] == nil {
				out[id] = watermark.NewState(id)
			}
			out[id].Apply(e.said)
		}
	})
	return out, err
}

func (t *tail) MembersOf(_ context.Context, u watermark.UserID) (out []watermark.ConversationID, err error) {
	err = t.actor.call("tail", 1, func(int) {
		for _, id := range conversations {
			st := watermark.NewState(id)
			for _, e := range t.w.log[t.from:] {
				if e.said.Conversation == id {
					st.Apply(e.said)
				}
			}
			if _, ok := st.Members[u]; ok {
				out = append(out, id)
			}
		}
	})
	return out, err
}

func (t *tail) Messages(_ context.Context, id watermark.ConversationID, in watermark.Interval, limit int) ([]watermark.Message, error) {
	rows := make(map[watermark.Seq]watermark.Message)
	err := t.actor.call("tail", 1, func(int) {
		for m := range messagesOf(t.w.log[t.from:], id) {
			if _, ok := rows[m.Seq]; !ok && in.Contains(m.Seq) {
				rows[m.Seq] = m
			}
		}
	})
	var out []watermark.Message
	for _, seq := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, rows[seq])
	}
	return out[:min(limit, len(out))], err
}

func (t *tail) Revokes(_ context.Context, id watermark.ConversationID, in watermark.Interval) (map[watermark.Seq]watermark.Revoked, error) {
	out := make(map[watermark.Seq]watermark.Revoked)
	err := t.actor.call("tail", 1, func(int) {
		for _, e := range t.w.log[t.from:] {
			for _, x := range e.said.Events {
				if r, ok := x.(watermark.Revoked); ok && e.said.Conversation == id && in.Contains(r.Seq) && out[r.Seq].At == 0 {
					r.At = e.said.Offset + 1
					out[r.Seq] = r
				}
			}
		}
	})
	return out, err
}

func (t *tail) Ends(context.Context) (out []int64, err error) {
	err = t.actor.call("ends", 1, func(int) { out = []int64{int64(len(t.w.log))} })
	return out, err
}

func (t *tail) Partition(watermark.ConversationID) int32 { return 0 }

func (t *tail) Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.TailPeek, error) {
	out := make([]watermark.TailPeek, len(peeks))
	for i, p := range peeks {
		rows, err := t.Messages(ctx, p.Conversation, watermark.Interval{First: 1, Last: watermark.MaxSeq}, watermark.MaxPage)
		if err != nil {
			return nil, err
		}
		for _, m := range rows {
			if m.Seq == p.Last {
				out[i].Last = &m
			}
			if slices.Contains(m.Mentions, p.User) && p.Mentions.Contains(m.Seq) {
				out[i].Mentions = append(out[i].Mentions, m.Seq)
			}
		}
		if out[i].Revokes, err = t.Revokes(ctx, p.Conversation, watermark.Interval{First: 1, Last: watermark.MaxSeq}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *tail) Release() {}

// messagesOf gives the messages of one conversation in the order of the log.
func messagesOf(log []entry, id watermark.ConversationID) func(func(watermark.Message) bool) {
	return func(yield func(watermark.Message) bool) {
		for _, e := range log {
			if e.said.Conversation != id {
				continue
			}
			for _, x := range e.said.Events {
				run, ok := x.(watermark.MessagesSequenced)
				if !ok {
					continue
				}
				for _, m := range run.Messages {
					if !yield(m) {
						return
					}
				}
			}
		}
	}
}

// brief is a record's events as a failure shows them.
type brief []watermark.Event

func (b brief) String() string {
	var out []string
	for _, e := range b {
		if run, ok := e.(watermark.MessagesSequenced); ok {
			for _, m := range run.Messages {
				out = append(out, fmt.Sprintf("%d %s/%s", m.Seq, m.Sender, m.ClientID))
			}
			continue
		}
		out = append(out, fmt.Sprintf("%T%+v", e, e))
	}
	return strings.Join(out, ", ")
}
