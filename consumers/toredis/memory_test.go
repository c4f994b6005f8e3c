package toredis_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// flood is a deployment that keeps nothing: conversations whose id ends in w
// are warm, the others cold, and history is away until it is said to be back.
type flood struct {
	back     bool
	seqs     map[watermark.ConversationID]watermark.Seq
	loaded   map[watermark.ConversationID]bool
	appended int
}

func (f *flood) Malloc(_ context.Context, batches []watermark.Batch) ([]watermark.Allocation, error) {
	out := make([]watermark.Allocation, len(batches))
	for i, b := range batches {
		if id := b.Conversation; id[len(id)-1] != 'w' && !f.loaded[id] {
			out[i] = watermark.Allocation{Temperature: watermark.Cold, Why: "absent"}
			continue
		}
		for range b.Inputs {
			f.seqs[b.Conversation]++
			out[i].Outcomes = append(out[i].Outcomes, watermark.Outcome{Seq: f.seqs[b.Conversation]})
		}
	}
	return out, nil
}

func (f *flood) Begin(_ context.Context, ids []watermark.ConversationID) ([]string, error) {
	return make([]string, len(ids)), nil
}

func (f *flood) Install(_ context.Context, loaded []watermark.Loaded) ([]bool, error) {
	for _, l := range loaded {
		f.loaded[l.State.ID] = true
	}
	return make([]bool, len(loaded)), nil
}

func (f *flood) Load(_ context.Context, wants []watermark.Want) ([]*watermark.State, error) {
	if !f.back {
		return nil, errAway
	}
	out := make([]*watermark.State, len(wants))
	for i, w := range wants {
		out[i] = watermark.NewState(w.Conversation)
	}
	return out, nil
}

func (f *flood) Settle(_ context.Context, p watermark.Place) (int64, error) { return p.Number, nil }

func (f *flood) MergeMembers(_ context.Context, loads []watermark.MemberLoad) ([]bool, error) {
	return make([]bool, len(loads)), nil
}

func (f *flood) Append(_ context.Context, outs []wire.Out) error { f.appended += len(outs); return nil }

func (f *flood) Reread(context.Context, string, int32, []int64, func(wire.Record)) (int64, error) {
	return 0, nil
}

func (f *flood) PutAnswers(context.Context, []watermark.KeyedAnswer) error { return nil }

// Whatever comes, and however long history is away: what a partition holds stays
// within its bounds, and so does memory.
func TestOverloadLeavesMemoryFlat(t *testing.T) {
	const batches, perBatch, floors = 140, 500, 1000
	f := &flood{seqs: map[watermark.ConversationID]watermark.Seq{}, loaded: map[watermark.ConversationID]bool{}}
	reg := prometheus.NewRegistry()
	now := time.UnixMilli(0)
	seq, err := toredis.New(toredis.Config{
		Allocator: f, Truth: f, Members: f, Log: f, Origins: f, Answers: f, Partitions: 1, FloorEntries: floors,
		Logger: slog.New(slog.DiscardHandler), Registerer: reg, Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := seq.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	offset := int64(0)
	// Each batch is for the most part warm, with five records for cold ones.
	batch := func() []wire.Record {
		out := make([]wire.Record, perBatch)
		for i := range out {
			conv := fmt.Sprintf("group:%dw", offset%5000)
			if i%100 == 7 {
				conv = fmt.Sprintf("group:%dc", offset%300)
			}
			out[i] = wire.Record{
				Topic: wire.TopicToRedis, TopicID: "t", Offset: offset, Time: time.UnixMilli(offset), Key: []byte(conv),
				Value: fmt.Appendf(nil, `{"conversation":%q,"sender":"A","clientMessageId":"%d","text":"a text of some length, as people write them"}`, conv, offset),
			}
			offset++
		}
		return out
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var early int64
	var held []wire.Record // what the runner would hold: one batch
	full := 0
	for i := range batches {
		if held == nil {
			held = batch()
		}
		now = now.Add(time.Second)
		durable, err := s.Handle(t.Context(), held)
		switch {
		case err == nil:
			held = nil
		case fault.ReasonOf(err) == "parking_full":
			full++
		default:
			t.Fatal(err)
		}
		if durable > 8 {
			t.Fatalf("durable = %d above the lowest that is parked", durable)
		}
		if i == batches/8 {
			early = heap()
		}
	}
	late := heap()
	got := gather(t, reg)
	if n := value(t, got, "tidemark_toredis_parked_records{}"); n != toredis.MaxParkedRecords {
		t.Errorf("%v records are parked, want %d", n, toredis.MaxParkedRecords)
	}
	if full == 0 {
		t.Error("the parking was never full")
	}
	if grown := late - early; grown > 4<<20 {
		t.Errorf("memory grew by %d bytes, from %d, while nothing could be done", grown, early)
	}
	// History is back: what waited is done, and what comes is taken.
	f.back = true
	for range 40 {
		now = now.Add(10 * time.Second)
		if held == nil {
			held = batch()
		}
		if _, err := s.Handle(t.Context(), held); err == nil {
			held = nil
		}
		runtime.Gosched()
	}
	if n := value(t, gather(t, reg), "tidemark_toredis_parked_records{}"); n != 0 {
		t.Errorf("%v records are still parked", n)
	}
	if err := seq.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	if grown := heap() - early; grown > 8<<20 {
		t.Errorf("memory grew by %d bytes, from %d", grown, early)
	}
}
