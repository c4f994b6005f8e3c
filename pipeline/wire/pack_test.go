package wire_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func origin(offset int64) watermark.Origin {
	return watermark.Origin{Partition: watermark.Partition{TopicID: "t", Number: 1}, Offset: offset}
}

func one(seq watermark.Seq, policy watermark.UnreadPolicy) watermark.Event {
	return watermark.MessagesSequenced{Policy: policy, Messages: []watermark.Message{message(seq)}}
}

func TestPackerMergesRuns(t *testing.T) {
	p := wire.NewPacker("group:g", 0)
	p.Add(origin(10), one(1, 0))
	p.Add(origin(11), one(2, 0))
	p.Add(origin(12)) // refused
	p.Add(origin(13), one(3, 1))
	p.Add(origin(14), watermark.Revoked{Seq: 1})
	p.Add(origin(15), one(4, 1))
	p.Add(origin(9), one(2, 1)) // came again behind its successors
	p.Add(watermark.Origin{}, watermark.MinSeqRaised{Min: 2})
	p.Add(origin(16))
	want := []watermark.Record{{
		Conversation: "group:g",
		Events: []watermark.Event{
			run(1, 2),
			one(3, 1),
			watermark.Revoked{Seq: 1},
			one(4, 1),
			one(2, 1),
			watermark.MinSeqRaised{Min: 2},
		},
		Inputs: []watermark.Origin{origin(16)},
	}}
	if d := cmp.Diff(want, p.Records()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := p.Records(); got != nil {
		t.Errorf("packed twice: %v", got)
	}
}

func TestPackerCutsAtTheMessageLimit(t *testing.T) {
	p := wire.NewPacker("group:g", 0)
	for s := watermark.Seq(1); s <= 501; s++ {
		p.Add(origin(int64(s)), one(s, 0))
	}
	recs := p.Records()
	if len(recs) != 3 {
		t.Fatalf("%d records", len(recs))
	}
	for i, last := range []watermark.Seq{200, 400, 501} {
		if d := cmp.Diff([]watermark.Event{run(watermark.Seq(200*i+1), last)}, recs[i].Events); d != "" {
			t.Errorf("record %d (-want +got):\n%s", i, d)
		}
		if d := cmp.Diff([]watermark.Origin{origin(int64(last))}, recs[i].Inputs); d != "" {
			t.Errorf("inputs of record %d (-want +got):\n%s", i, d)
		}
	}
}

func TestPackerKeepsAnInputTogether(t *testing.T) {
	p := wire.NewPacker("group:g", 0)
	for s := watermark.Seq(1); s < 200; s++ {
		p.Add(origin(int64(s)), one(s, 0))
	}
	// One message fits, this input's two do not.
	p.Add(origin(200), one(200, 0), watermark.ReadAdvanced{User: "a", Read: 1}, one(201, 0))
	recs := p.Records()
	if len(recs) != 2 || len(recs[1].Events) != 3 {
		t.Fatalf("%d records: %v", len(recs), recs)
	}
	if d := cmp.Diff([]watermark.Origin{origin(199)}, recs[0].Inputs); d != "" {
		t.Errorf("the first record accounts for an input that is in the second:\n%s", d)
	}
}

func TestPackerCutsAnInputThatFitsNowhere(t *testing.T) {
	p := wire.NewPacker("group:g", 0)
	p.Add(origin(1), one(1, 0))
	p.Add(origin(2), run(2, 450))
	recs := p.Records()
	total := 0
	for i, rec := range recs {
		for _, e := range rec.Events {
			total += len(e.(watermark.MessagesSequenced).Messages)
		}
		want := origin(1)
		if i == len(recs)-1 {
			want = origin(2)
		}
		if d := cmp.Diff([]watermark.Origin{want}, rec.Inputs); d != "" {
			t.Errorf("inputs of record %d (-want +got):\n%s", i, d)
		}
	}
	if len(recs) != 3 || total != 450 {
		t.Errorf("%d records with %d messages", len(recs), total)
	}
}

func TestPackerHasNoRecordWithoutEvents(t *testing.T) {
	p := wire.NewPacker("group:g", 0)
	p.Add(origin(1))
	p.Add(origin(2), watermark.MessagesSequenced{})
	if recs := p.Records(); recs != nil {
		t.Errorf("records = %v", recs)
	}
	// What was accounted for stays so.
	p.Add(watermark.Origin{}, watermark.MinSeqRaised{Min: 1})
	if d := cmp.Diff([]watermark.Origin{origin(2)}, p.Records()[0].Inputs); d != "" {
		t.Errorf("inputs (-want +got):\n%s", d)
	}
}

func TestPackerAccountsForTheHighestInput(t *testing.T) {
	p := wire.NewPacker("group:g", 0)
	p.Add(origin(10), one(2, 0))
	p.Add(origin(9), one(1, 0)) // came again behind its successor
	if d := cmp.Diff([]watermark.Origin{origin(10)}, p.Records()[0].Inputs); d != "" {
		t.Errorf("inputs (-want +got):\n%s", d)
	}
}

func TestPackerLeavesItsArgumentsAlone(t *testing.T) {
	msgs := make([]watermark.Message, 1, 4)
	msgs[0] = message(1)
	p := wire.NewPacker("group:g", 0)
	p.Add(origin(1), watermark.MessagesSequenced{Messages: msgs})
	p.Add(origin(2), one(2, 0))
	p.Records()
	if msgs[:2][1].Seq != 0 {
		t.Error("a message was written behind the caller's slice")
	}
}

// packed is what a property test put into a packer.
type packed struct {
	units []watermark.Event // messages one by one
	ends  []int             // for each input the number of units up to its last
}

// TestPackerKeepsOrderAndBounds packs anything and checks what every reader
// relies on.
func TestPackerKeepsOrderAndBounds(t *testing.T) {
	others := events.Filter(func(e watermark.Event) bool { _, ok := e.(watermark.MessagesSequenced); return !ok })
	rapid.Check(t, func(t *rapid.T) {
		p := wire.NewPacker("group:g", 0)
		var in packed
		var seq watermark.Seq
		for i := range rapid.IntRange(1, 12).Draw(t, "inputs") {
			var evs []watermark.Event
			for range rapid.IntRange(0, 3).Draw(t, "events") {
				if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
					e := carried(others.Draw(t, "event"))
					evs, in.units = append(evs, e), append(in.units, e)
					continue
				}
				r := watermark.MessagesSequenced{Policy: watermark.UnreadPolicy(rapid.IntRange(0, 1).Draw(t, "policy"))}
				size := rapid.SampledFrom([]int{1, 10, 10, 60_000, 300_000, 600_000}).Draw(t, "size")
				for range rapid.SampledFrom([]int{1, 2, 90}).Draw(t, "messages") {
					seq++
					m := watermark.Message{Seq: seq, Sender: "a", ClientID: "c", BodyType: watermark.BodyData, Body: zeros[:min(size, 3000)]}
					if len(r.Messages) == 0 {
						m.Body = zeros[:size]
					}
					r.Messages = append(r.Messages, m)
					in.units = append(in.units, watermark.MessagesSequenced{Policy: r.Policy, Messages: []watermark.Message{m}})
				}
				evs = append(evs, r)
			}
			p.Add(inputAt(i), evs...)
			in.ends = append(in.ends, len(in.units))
		}
		checkPacked(t, p.Records(), in)
	})
}

var zeros = make([]byte, 1<<20)

// inputAt spreads inputs over two partitions.
func inputAt(i int) watermark.Origin {
	return watermark.Origin{Partition: watermark.Partition{TopicID: "t", Number: int32(i % 2)}, Offset: int64(i)}
}

func checkPacked(t *rapid.T, recs []watermark.Record, in packed) {
	done := 0
	for _, rec := range recs {
		messages, before := 0, done
		for _, e := range rec.Events {
			r, ok := e.(watermark.MessagesSequenced)
			if !ok {
				if d := cmp.Diff(in.units[done], e); d != "" {
					t.Fatalf("unit %d (-want +got):\n%s", done, d)
				}
				done++
				continue
			}
			for _, m := range r.Messages {
				want, ok := in.units[done].(watermark.MessagesSequenced)
				if !ok || want.Policy != r.Policy || want.Messages[0].Seq != m.Seq {
					t.Fatalf("unit %d: seq %d stands where %v should", done, m.Seq, in.units[done])
				}
				done++
				messages++
			}
		}
		b, err := wire.EncodeRecord(rec)
		if err != nil {
			t.Fatal(err)
		}
		if messages > wire.MaxRecordMessages || (len(b) > wire.MaxRecordBytes && done-before > 1) {
			t.Fatalf("a record of %d messages and %d bytes", messages, len(b))
		}
		for _, o := range rec.Inputs {
			for i := int(o.Offset); i >= 0; i -= 2 {
				if in.ends[i] > done {
					t.Fatalf("after %d units input %d is accounted for, which ends at %d", done, i, in.ends[i])
				}
			}
		}
	}
	if done != len(in.units) {
		t.Fatalf("%d of %d units", done, len(in.units))
	}
	if len(recs) == 0 {
		return
	}
	n := len(in.ends)
	want := []watermark.Origin{inputAt(n - 1)}
	if n > 1 {
		want = append(want, inputAt(n-2))
	}
	slices.SortFunc(want, func(a, b watermark.Origin) int { return int(a.Partition.Number - b.Partition.Number) })
	if d := cmp.Diff(want, recs[len(recs)-1].Inputs); d != "" {
		t.Fatalf("the last record does not account for every input (-want +got):\n%s", d)
	}
}
