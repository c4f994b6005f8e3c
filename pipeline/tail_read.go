package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// rereadBytes is about how much is fetched to get one record back.
const rereadBytes = 64 << 10

func partitionFor(id watermark.ConversationID, partitions int) int32 {
	return wire.PartitionOf(string(id), int32(partitions))
}

// read folds records into v until nobody needs more. There is one reader for a
// view at a time.
func (t *Tail) read(v *tailView) {
	defer t.memory.done(v)
	pause := 20 * time.Millisecond
	for {
		from, more := v.behind()
		if !more {
			return
		}
		// Room for what is fetched is asked for first, so that who stands in line
		// holds nothing.
		release, err := t.memory.room(t.ctx, v, int64(t.conf.FetchBytes))
		next, entries := from, []tailEntry(nil)
		if err == nil {
			next, entries, err = t.readOnce(v, from)
			release()
			if err == nil {
				err = t.foldIn(v, from, next, entries)
			}
		}
		if errors.Is(err, ErrTailMemory) {
			if t.ctx.Err() != nil {
				v.stop(errTailClosed())
			}
			if fault.ReasonOf(err) != ReasonTailAlone {
				return // nobody waits for it
			}
			v.tooLarge(err)
			continue // nobody wants more, unless somebody has come since
		}
		if err == nil && next == from {
			err = fmt.Errorf("partition %d at %d: %w", v.partition, from, errNoRecords)
		}
		if err == nil {
			pause = 20 * time.Millisecond
			continue
		}
		if fault.ClassOf(err) == fault.Fatal || t.ctx.Err() != nil {
			v.stop(err)
			return
		}
		if !v.failed(err) {
			return
		}
		if !tailSleep(t.ctx, pause) {
			v.stop(errTailClosed())
			return
		}
		pause = min(2*pause, time.Second)
	}
}

func (t *Tail) readOnce(v *tailView, from int64) (next int64, entries []tailEntry, err error) {
	f, err := fetchRecords(t.fetch, t.conf.Topic, v.partition, from, t.conf.FetchBytes)
	if errors.Is(err, sarama.ErrOffsetOutOfRange) {
		return from, nil, t.outOfRange(v, from)
	}
	if err != nil {
		return from, nil, sortError(err)
	}
	return f.next, t.decode(f.records), nil
}

// foldIn folds what was read from from up to below next, some records at a time,
// each when there is room for all that they can take.
func (t *Tail) foldIn(v *tailView, from, next int64, entries []tailEntry) error {
	const atOnce = 64
	for {
		n, to := min(len(entries), atOnce), next
		if n < len(entries) {
			to = entries[n-1].offset + 1
		}
		room := int64(0)
		for i := range entries[:n] {
			room += reckon(entries[i].record)
		}
		release, err := t.memory.room(t.ctx, v, room)
		if err != nil {
			return err
		}
		v.fold(from, to, entries[:n])
		release()
		if entries = entries[n:]; len(entries) == 0 {
			return nil
		}
		from = to
	}
}

// decode decodes records and keeps their messages at hand. A record that cannot
// be decoded is passed over: history's writer meets it too and sets it aside.
func (t *Tail) decode(records []wire.Record) []tailEntry {
	out := make([]tailEntry, len(records))
	var decoder wire.Decoder
	for i := range records {
		out[i].offset = records[i].Offset
		rec, err := decoder.Record(records[i])
		if err != nil {
			t.metrics.undecodable.Inc()
			t.log.Error("a record of the sequenced log cannot be decoded, the tail passes over it",
				"topic", t.conf.Topic, "partition", records[i].Partition, "offset", records[i].Offset, "error", err)
			continue
		}
		out[i].record = &rec
		t.cache.put(tailPlace{records[i].Partition, rec.Offset}, messagesOf(&rec))
		t.metrics.folded.Inc()
	}
	return out
}

// outOfRange finds out why the log does not hold offset from. When history has
// everything up to the log's start by now, only an old pin is affected: the
// view is given up and that pin is void. Otherwise records are gone that
// history never had.
func (t *Tail) outOfRange(v *tailView, from int64) error {
	start, err := listedOffset(t.fetch, t.conf.Topic, v.partition, sarama.OffsetOldest)
	if err != nil {
		return sortError(err)
	}
	if from >= start {
		// Beyond the end: the next request's look at the end tells.
		return fmt.Errorf("partition %d of %s has no offset %d yet", v.partition, t.conf.Topic, from)
	}
	offsets, err := committedOffsets(t.fetch, t.conf.Group, t.conf.Topic, []int32{v.partition})
	if err != nil {
		return sortError(err)
	}
	committed := offsets[v.partition]
	if committed == noOffset || committed >= start {
		v.giveUp(errTailGivenUp(v.partition))
		return errTailGivenUp(v.partition)
	}
	return fault.New(fault.Fatal, ReasonLogLost, fmt.Errorf(
		"partition %d of %s begins at %d, but group %s has taken only what is below %d: retention deleted records before history had them",
		v.partition, t.conf.Topic, start, t.conf.Group, committed))
}

// Messages gives messages of a conversation whose seqs lie in span: those of
// the tail, ascending, at most limit and at most watermark.MaxPage of them, the
// lowest first; a limit of 0 or less means the most. The first in the log
// stands for a seq. What the tail revokes comes as a tombstone. Their content
// must not be changed.
func (p *Pin) Messages(ctx context.Context, id watermark.ConversationID, span watermark.Interval, limit int) ([]watermark.Message, error) {
	if limit <= 0 || limit > watermark.MaxPage {
		limit = watermark.MaxPage
	}
	var out []watermark.Message
	for span.First = max(span.First, 1); len(out) < limit && !span.Empty(); {
		chunk, part, err := p.chunk(ctx, id, span, limit-len(out))
		if err != nil {
			return nil, err
		}
		if chunk.Empty() {
			break
		}
		out = append(out, part...)
		span.First = chunk.Last + 1
	}
	return out, nil
}

// chunk gives the messages of the first n seqs of span from the lowest on that
// the tail has any of, and which seqs those are; none when it is empty.
func (p *Pin) chunk(ctx context.Context, id watermark.ConversationID, span watermark.Interval, n int) (watermark.Interval, []watermark.Message, error) {
	var (
		chunk   = watermark.Interval{First: 1}
		refs    []tailRef
		revokes map[watermark.Seq]watermark.Revoked
		at      = p.partitionOf(id)
	)
	err := p.settle(ctx, []int32{at}, func(v *tailView) {
		low, ok := v.lowest(id, span)
		if !ok {
			return
		}
		chunk = watermark.Interval{First: low, Last: min(span.Last, low+watermark.Seq(n)-1)}
		refs = v.refs(id, chunk)
		revokes = v.revokes(id, chunk)
	})
	if err != nil || chunk.Empty() {
		return chunk, nil, err
	}
	found, err := p.tail.collect(ctx, at, refs, chunk)
	if err != nil {
		return chunk, nil, p.tail.counted(err)
	}
	out := make([]watermark.Message, 0, len(found))
	for _, m := range found {
		if r, ok := revokes[m.Seq]; ok {
			m = m.Tombstone(r)
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b watermark.Message) int { return int(a.Seq - b.Seq) })
	return chunk, out, nil
}

// collect reads the messages of span from the records that refs name, in log
// order; the first one stands.
func (t *Tail) collect(ctx context.Context, partition int32, refs []tailRef, span watermark.Interval) (map[watermark.Seq]watermark.Message, error) {
	found := make(map[watermark.Seq]watermark.Message)
	var reread map[int64][]watermark.Message
	for i, r := range refs {
		if taken(found, r.span.Intersect(span)) {
			continue
		}
		messages, ok := t.cache.get(tailPlace{partition, r.offset})
		if !ok {
			messages, ok = reread[r.offset]
		}
		if !ok {
			var err error
			if reread, err = t.reread(ctx, partition, refs[i:]); err != nil {
				return nil, err
			}
			messages = reread[r.offset]
		}
		for _, m := range messages {
			if _, ok := found[m.Seq]; !ok && span.Contains(m.Seq) {
				found[m.Seq] = m
			}
		}
	}
	return found, nil
}

// taken tells whether every seq of span, at most MaxPage of them, is found.
func taken(found map[watermark.Seq]watermark.Message, span watermark.Interval) bool {
	if span.Len() > int64(len(found)) {
		return false
	}
	for s := span.First; s <= span.Last; s++ {
		if _, ok := found[s]; !ok {
			return false
		}
	}
	return true
}

// reread gets the first of the records that refs name back from Kafka, and
// those of the others that come with it.
func (t *Tail) reread(ctx context.Context, partition int32, refs []tailRef) (map[int64][]watermark.Message, error) {
	wait, cancel, err := t.within(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	t.metrics.rereads.Inc()
	var f fetched
	done := make(chan error, 1)
	err = t.spawn(func() {
		done <- tailTries(t.ctx, 3, func() (err error) {
			f, err = fetchRecords(t.fetch, t.conf.Topic, partition, refs[0].offset, rereadBytes)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	select {
	case err := <-done:
		if errors.Is(err, sarama.ErrOffsetOutOfRange) {
			return nil, errTailGivenUp(partition) // the next pin tells whether history has it
		}
		if err != nil {
			return nil, sortError(err)
		}
	case <-wait.Done():
		return nil, t.waited(wait, nil)
	}
	return t.pick(partition, f.records, refs)
}

// pick decodes those of records that refs name and keeps them at hand.
func (t *Tail) pick(partition int32, records []wire.Record, refs []tailRef) (map[int64][]watermark.Message, error) {
	wanted := refs[0].offset
	out := make(map[int64][]watermark.Message)
	var decoder wire.Decoder
	for i := range records {
		for len(refs) > 0 && refs[0].offset < records[i].Offset {
			refs = refs[1:]
		}
		if len(refs) == 0 {
			break
		}
		if refs[0].offset != records[i].Offset {
			continue
		}
		rec, err := decoder.Record(records[i])
		if err != nil {
			return nil, fmt.Errorf("read again what could be decoded before: %w", err)
		}
		out[rec.Offset] = messagesOf(&rec)
		t.cache.put(tailPlace{partition, rec.Offset}, out[rec.Offset])
	}
	if _, ok := out[wanted]; !ok {
		return nil, fmt.Errorf("partition %d at %d: %w", partition, wanted, errNoRecords)
	}
	return out, nil
}

// messagesOf gives all messages of a record.
func messagesOf(rec *watermark.Record) []watermark.Message {
	var out []watermark.Message
	for _, e := range rec.Events {
		if run, ok := e.(watermark.MessagesSequenced); ok {
			out = append(out, run.Messages...)
		}
	}
	return out
}
