package toredis

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// batch is what Handle was given, sorted.
type batch struct {
	lots    []*lot // in the order in which conversations first appear
	byConv  map[watermark.ConversationID]*lot
	late    []entry // of conversations of which earlier records are parked
	strays  []stray
	letters []letter      // of records that are in no lot
	hopped  int           // records that came by way of another partition
	forged  []wire.Record // that say so and did not
	room    slabs
}

// slabs are what the lots of a batch are made of, some at a time: most have one
// input, and three allocations for each would be a third of what a message takes.
type slabs struct {
	lots    []lot
	inputs  []watermark.Input
	records []wire.Record
}

const slabSize = 32

// lot gives an empty lot with room for one input.
func (s *slabs) lot() *lot {
	if len(s.lots) == 0 {
		s.lots, s.inputs, s.records = make([]lot, slabSize), make([]watermark.Input, slabSize), make([]wire.Record, slabSize)
	}
	l := &s.lots[0]
	l.batch.Inputs, l.records = s.inputs[0:0:1], s.records[0:0:1]
	s.lots, s.inputs, s.records = s.lots[1:], s.inputs[1:], s.records[1:]
	return l
}

// lot is the part of one conversation.
type lot struct {
	batch       watermark.Batch
	records     []wire.Record // one for each input
	alloc       watermark.Allocation
	resequences int // commands of that kind
	unlearned
}

// unlearned says how many resequence commands have had their conversation loaded
// anew, and by which warm-up: what Redis holds by another one they may not be
// decided on.
type unlearned struct {
	commands int
	token    string
}

// by takes note of the load that a brought.
func (u *unlearned) by(a ask) {
	if a.members || a.resequences == 0 {
		return
	}
	u.commands, u.token = max(u.commands, a.resequences), a.token
}

// stray is a record of another partition's conversation.
type stray struct {
	record wire.Record
	conv   watermark.ConversationID
}

// letter is a record on its way to the dead letters.
type letter struct {
	record        wire.Record
	reason, cause string
}

// sort decodes the records and groups what is to be decided by conversation.
// Errors are fatal, or of reading origins back.
func (s *Stage) sort(ctx context.Context, records []wire.Record) (*batch, error) {
	forged, err := s.forgeries(ctx, records)
	if err != nil {
		return nil, err
	}
	b := &batch{byConv: make(map[watermark.ConversationID]*lot)}
	for _, r := range records {
		if _, done := s.done[r.Offset]; done || s.parked.has(r.Offset) {
			continue
		}
		judged := r
		if _, ok := forged[r.Offset]; ok {
			judged = r.Unforwarded()
			b.forged = append(b.forged, r)
		}
		in, err := s.cfg.Codec.DecodeInput(judged)
		switch {
		case err != nil && fault.ClassOf(err) == fault.Poison:
			b.letters = append(b.letters, letter{r, fault.ReasonOf(err), err.Error()})
			continue
		case err != nil:
			return nil, fmt.Errorf("toredis: decode %s/%d@%d: %w", r.Topic, r.Partition, r.Offset, err)
		}
		if n := in.Origin.Partition.Number; n >= s.cfg.Partitions {
			// Input marks are kept for each partition that there is, and no more.
			cause := fmt.Sprintf("header %s: no forwarder wrote it: it names partition %d of a topic that has %d", wire.HeaderOrigin, n, s.cfg.Partitions)
			b.letters = append(b.letters, letter{r, watermark.ReasonInvalid, cause})
			continue
		}
		if home := wire.PartitionOf(string(in.Conversation), s.cfg.Partitions); home != s.partition {
			if r.IsForwarded() {
				// It would go round for ever. Stopping would not help either: the
				// record stands there after every restart, and anybody who may
				// produce can write one. Kept among the dead letters it can be
				// replayed once the workers agree again.
				cause := fmt.Sprintf("forwarded here from partition %d, but conversation %s belongs on %d: a forged header %s, or workers that disagree on the number of partitions",
					in.Origin.Partition.Number, in.Conversation, home, wire.HeaderOrigin)
				b.letters = append(b.letters, letter{r, watermark.ReasonWrongPartition, cause})
				continue
			}
			b.strays = append(b.strays, stray{r, in.Conversation})
			continue
		}
		if judged.IsForwarded() {
			b.hopped++
		}
		if s.parked.holds(in.Conversation) {
			b.late = append(b.late, entry{r, in})
			continue
		}
		s.admit(b, entry{r, in})
	}
	return b, nil
}

// admit adds a record to its conversation's lot.
func (s *Stage) admit(b *batch, e entry) {
	in := e.input
	l := b.byConv[in.Conversation]
	if l == nil {
		l = b.room.lot()
		l.batch.Conversation, l.batch.Policy = in.Conversation, s.cfg.UnreadPolicy(in.Conversation)
		b.byConv[in.Conversation] = l
		b.lots = append(b.lots, l)
	}
	l.batch.Inputs = append(l.batch.Inputs, in)
	l.records = append(l.records, e.record)
	if in.Act == watermark.ActResequence {
		l.resequences++
	}
}

// forward moves strays to where they belong. Those of one conversation go one
// after another, each acknowledged before the next: would the second arrive
// and the first be lost on the way, then the retry's first would stand behind
// an input mark that the second has raised, and be taken for decided.
func (s *Stage) forward(ctx context.Context, b *batch) error {
	var queues [][]stray
	at := make(map[watermark.ConversationID]int)
	for _, x := range b.strays {
		if _, done := s.settled[x.record.Offset]; done {
			continue
		}
		i, ok := at[x.conv]
		if !ok {
			i, queues = len(queues), append(queues, nil)
			at[x.conv] = i
		}
		queues[i] = append(queues[i], x)
	}
	return s.rounds(ctx, lengths(queues), func(q, n int) (wire.Out, error) {
		return wire.Forward(queues[q][n].record, queues[q][n].conv)
	}, func(q, n int) {
		s.settled[queues[q][n].record.Offset] = struct{}{}
		s.metrics.misrouted.Inc()
	})
}

// rounds appends the nth out of every queue together, for n = 0, 1, ...: what
// stands in one queue is acknowledged before the next of it is appended.
func (s *Stage) rounds(ctx context.Context, lengths []int, out func(queue, n int) (wire.Out, error), acked func(queue, n int)) error {
	for n := 0; ; n++ {
		var outs []wire.Out
		var queues []int
		for q, length := range lengths {
			if n >= length {
				continue
			}
			o, err := out(q, n)
			if err != nil {
				return err
			}
			outs, queues = append(outs, o), append(queues, q)
		}
		if len(outs) == 0 {
			return nil
		}
		if err := s.log(ctx, outs); err != nil {
			return err
		}
		for _, q := range queues {
			acked(q, n)
		}
	}
}

func lengths[T any](queues [][]T) []int {
	out := make([]int, len(queues))
	for i := range queues {
		out[i] = len(queues[i])
	}
	return out
}

// refusals gives the dead letters of what was refused. A refused command gets
// one only when nobody waits for its answer: either way somebody can find it.
func refusals(lots []*lot) []letter {
	var out []letter
	for _, l := range lots {
		for i := range l.batch.Inputs {
			in, o := &l.batch.Inputs[i], &l.alloc.Outcomes[i]
			if o.Verdict != watermark.Refused || (in.Message == nil && in.Caller != "") {
				continue
			}
			cause := fmt.Sprintf("refused by the owner of %s: %s", in.Conversation, o.Reason)
			out = append(out, letter{l.records[i], o.Reason, cause})
		}
	}
	return out
}

// bury appends the dead letters.
func (s *Stage) bury(ctx context.Context, letters []letter) error {
	var outs []wire.Out
	var fresh []letter
	for _, l := range letters {
		if _, done := s.settled[l.record.Offset]; done {
			continue
		}
		out, err := s.enclose(s.deadLetter(l))
		if err != nil {
			return err
		}
		outs, fresh = append(outs, out), append(fresh, l)
	}
	if len(outs) == 0 {
		return nil
	}
	err := s.log(ctx, outs)
	if fault.ClassOf(err) == fault.Poison {
		err = s.buryEach(ctx, fresh)
	}
	if err != nil {
		return err
	}
	for _, l := range fresh {
		s.settled[l.record.Offset] = struct{}{}
		s.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "record dead-lettered",
			slog.String("topic", l.record.Topic), slog.Int("partition", int(l.record.Partition)),
			slog.Int64("offset", l.record.Offset), slog.String("reason", l.reason))
	}
	return nil
}

// log appends outs, which are of one topic, and lets others see how long that
// takes.
func (s *Stage) log(ctx context.Context, outs []wire.Out) error {
	s.condition.appending(outs[0].Topic, s.cfg.Now())
	defer s.condition.appending("", time.Time{})
	return s.cfg.Log.Append(ctx, outs)
}

// buryEach appends dead letters one by one, since Kafka will not take one of
// them. What tells where that one stands is small, so that much is kept of it.
func (s *Stage) buryEach(ctx context.Context, letters []letter) error {
	for _, l := range letters {
		d := s.deadLetter(l)
		err := s.send(ctx, d)
		if fault.ClassOf(err) == fault.Poison {
			err = s.send(ctx, d.WithoutContent(err))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) send(ctx context.Context, d wire.DeadLetter) error {
	out, err := s.enclose(d)
	if err != nil {
		return err
	}
	return s.log(ctx, []wire.Out{out})
}

func (s *Stage) deadLetter(l letter) wire.DeadLetter {
	now := s.cfg.Now()
	return wire.DeadLetter{Record: l.record, Reason: l.reason, Cause: l.cause, First: now, Last: now, Tries: 1}
}

func (s *Stage) enclose(d wire.DeadLetter) (wire.Out, error) {
	out, err := wire.EncodeDeadLetter(d)
	out.Topic = s.cfg.DeadLetter
	return out, err
}

// append puts what was decided on the sequenced log, and remembers the floors
// of what is acknowledged. A floor is the highest seq inside an acknowledged
// record, not the counter: the counter may include seqs that an owner before
// gave and never appended, and a truth without those has lost nothing.
func (s *Stage) append(ctx context.Context, lots []*lot) error {
	var queues [][]watermark.Record
	var traces [][][]wire.Traced
	room := make([]watermark.Record, len(lots)) // most make one record
	for i, l := range lots {
		if recs := pack(l, room[i:i+1:i+1]); len(recs) > 0 {
			queues, traces = append(queues, recs), append(traces, tracesOf(l, recs))
		}
	}
	return s.rounds(ctx, lengths(queues), func(q, n int) (wire.Out, error) {
		rec := queues[q][n]
		value, err := wire.EncodeRecord(rec)
		if err != nil {
			return wire.Out{}, err
		}
		out := wire.Out{Topic: s.cfg.Sequenced, Partition: s.partition, Key: string(rec.Conversation), Value: value}
		if traces[q] == nil {
			return out, nil
		}
		if t := traces[q][n]; wire.TracesFit(len(out.Key)+len(value)+traceRoom, len(t), cmp.Or(s.cfg.Codec.MaxRecord, wire.DefaultMaxRecord)) {
			out.Headers = wire.SequencedTraces(t)
		}
		return out, nil
	}, func(q, n int) {
		s.metrics.appended.Inc()
		id, high := queues[q][n].Conversation, highest(queues[q][n])
		s.raiseFloor(id, high)
	})
}

// pack gives the records of a lot, in order. An input without events needs no
// record of its own: a cold owner that does not know it decides it again, and
// to the same end. The records stand in room as long as it has any.
func pack(l *lot, room []watermark.Record) []watermark.Record {
	p := wire.NewPacker(l.batch.Conversation, len(l.batch.Inputs)).Into(room)
	for i := range l.batch.Inputs {
		in, out := &l.batch.Inputs[i], &l.alloc.Outcomes[i]
		if m, ok := out.Message(in); ok {
			p.AddMessage(in.Origin, out.Policy, m)
			continue
		}
		p.Add(in.Origin, out.Events(in)...)
	}
	return p.Records()
}

// traceRoom is left for what Kafka's driver adds to a record.
const traceRoom = 1024

// tracesOf gives the traces that each of a lot's records belongs to: those of
// the inputs that went into it, the first few, with the messages that came of
// them. nil: there are none.
func tracesOf(l *lot, recs []watermark.Record) [][]wire.Traced {
	if !slices.ContainsFunc(l.records, func(r wire.Record) bool { return len(r.Headers) > 0 }) {
		return nil
	}
	out := make([][]wire.Traced, len(recs))
	next := 0
	for i := range recs {
		for ; next < len(l.records) && accounts(&recs[i], l.batch.Inputs[next].Origin); next++ {
			if len(l.records[next].Headers) == 0 {
				continue
			}
			traces := wire.TracesOf(&l.records[next])
			if len(traces) == 0 {
				continue
			}
			m, _ := l.alloc.Outcomes[next].Message(&l.batch.Inputs[next])
			for _, sc := range traces {
				if len(out[i]) < wire.MaxTraces {
					out[i] = append(out[i], wire.Traced{SpanContext: sc, Seq: m.Seq})
				}
			}
		}
	}
	return out
}

// accounts tells whether rec accounts for the input of origin.
func accounts(rec *watermark.Record, origin watermark.Origin) bool {
	for _, in := range rec.Inputs {
		if in.Partition == origin.Partition {
			return origin.Offset <= in.Offset
		}
	}
	return false
}

// highest gives the highest seq of the messages in rec, 0 where it has none.
func highest(rec watermark.Record) watermark.Seq {
	var high watermark.Seq
	for _, e := range rec.Events {
		if run, ok := e.(watermark.MessagesSequenced); ok {
			high = max(high, run.Messages[len(run.Messages)-1].Seq)
		}
	}
	return high
}

// answer hands over what callers wait for. A message that is merely known is
// not answered: its fate was told before, and "known" would say less.
func (s *Stage) answer(ctx context.Context, lots []*lot) error {
	var answers []watermark.KeyedAnswer
	for _, l := range lots {
		for i := range l.batch.Inputs {
			in, out := &l.batch.Inputs[i], &l.alloc.Outcomes[i]
			if in.Caller == "" || (in.Message != nil && out.Verdict == watermark.Known) {
				continue
			}
			answers = append(answers, watermark.KeyedAnswer{Key: answerKey(in), Answer: out.Answer()})
		}
	}
	if len(answers) == 0 {
		return nil
	}
	return s.cfg.Answers.PutAnswers(ctx, answers)
}

func answerKey(in *watermark.Input) watermark.AnswerKey {
	op := in.OpID
	if in.Act == watermark.ActSend {
		op = string(in.Message.Sender) + "/" + in.Message.ClientID
	}
	return watermark.AnswerKey{Conversation: in.Conversation, Caller: in.Caller, OpID: op}
}

// countBatch counts a batch that is taken, and what was in no lot of it.
func (s *Stage) countBatch(b *batch) {
	s.metrics.conversations.Observe(float64(len(b.lots)))
	s.metrics.forwarded.Add(float64(b.hopped))
	for _, l := range b.letters {
		s.metrics.refused.WithLabelValues(reasonWord(l.reason)).Inc()
	}
}

// countLots counts lots that are done, once, however often they were tried.
func (s *Stage) countLots(lots []*lot, refused []letter) {
	m, now := s.metrics, s.cfg.Now()
	for _, l := range refused {
		m.refused.WithLabelValues(reasonWord(l.reason)).Inc()
	}
	for _, l := range lots {
		for i := range l.batch.Inputs {
			in, out := &l.batch.Inputs[i], &l.alloc.Outcomes[i]
			m.inputs.WithLabelValues(kindWord(in), verdictWord(out.Verdict)).Inc()
			if in.Act == watermark.ActSend && out.Verdict == watermark.Accepted {
				m.sequenced.Traced(in.Time, now, traceID(&l.records[i]))
			}
			if out.Verdict == watermark.Refused && in.Message == nil && in.Caller != "" {
				m.refused.WithLabelValues(reasonWord(out.Reason)).Inc()
			}
		}
	}
}

// traceID gives the id of the trace that a record belongs to, if that is kept.
func traceID(r *wire.Record) string {
	if len(r.Headers) == 0 {
		return ""
	}
	for _, sc := range wire.TracesOf(r) {
		if sc.IsSampled() {
			return sc.TraceID().String()
		}
	}
	return ""
}
