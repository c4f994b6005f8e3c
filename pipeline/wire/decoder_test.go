package wire_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// What one decoder reads of many records is what it would read of each alone,
// also behind one that it cannot read; and one record is not another's.
func TestRecordsOfOneDecoderAreApart(t *testing.T) {
	var d wire.Decoder
	var got, want []watermark.Record
	for i := range 200 {
		at := watermark.Origin{Partition: watermark.Partition{TopicID: []string{"t", "u", "a longer one"}[i%3], Number: int32(i % 2)}, Offset: int64(i)}
		rec := watermark.Record{Conversation: "group:g", Events: []watermark.Event{run(watermark.Seq(i+1), watermark.Seq(i+1+i%4))}, Inputs: []watermark.Origin{at}}
		value, err := wire.EncodeRecord(rec)
		if err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			if _, err := d.Record(wire.Record{Value: value[:len(value)-30]}); err == nil {
				t.Error("half a record is one")
			}
		}
		r := wire.Record{Value: value, Offset: int64(i)}
		alone, err := wire.DecodeRecord(r)
		if err != nil {
			t.Fatal(err)
		}
		of, err := d.Record(r)
		if err != nil {
			t.Fatal(err)
		}
		of.Inputs = append(of.Inputs, at)
		alone.Inputs = append(alone.Inputs, at)
		got, want = append(got, of), append(want, alone)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-alone +together):\n%s", diff)
	}
}

// Origins are read by hand, to the same as by the generated code, whatever
// stands there.
func TestOriginsAreReadAsTheGeneratedCodeReadsThem(t *testing.T) {
	head, err := wire.EncodeRecord(watermark.Record{Conversation: "group:g", Events: []watermark.Event{run(1, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		var o []byte
		for range rapid.IntRange(0, 5).Draw(t, "fields") {
			num := protowire.Number(rapid.IntRange(1, 4).Draw(t, "number"))
			switch typ := protowire.Type(rapid.SampledFrom([]int{0, 0, 1, 2, 2, 5}).Draw(t, "type")); typ {
			case protowire.VarintType:
				o = protowire.AppendVarint(protowire.AppendTag(o, num, typ), rapid.Uint64().Draw(t, "int"))
			case protowire.Fixed64Type:
				o = protowire.AppendFixed64(protowire.AppendTag(o, num, typ), 1)
			case protowire.Fixed32Type:
				o = protowire.AppendFixed32(protowire.AppendTag(o, num, typ), 1)
			default:
				o = protowire.AppendBytes(protowire.AppendTag(o, num, typ), rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "bytes"))
			}
		}
		o = o[:len(o)-rapid.IntRange(0, min(2, len(o))).Draw(t, "cut")]
		value := protowire.AppendBytes(protowire.AppendTag(head[:len(head):len(head)], 3, protowire.BytesType), o)

		var api v1.SequencedRecord
		generated := proto.Unmarshal(value, &api)
		rec, err := wire.DecodeRecord(wire.Record{Value: value})
		if generated != nil {
			if err == nil {
				t.Fatalf("%x: read as %+v, the generated code says %v", o, rec.Inputs, generated)
			}
			return
		}
		in := api.GetInputs()[0]
		want := watermark.Origin{Partition: watermark.Partition{TopicID: in.GetTopicId(), Number: in.GetPartition()}, Offset: in.GetOffset()}
		good := want.Partition.TopicID != "" && want.Partition.Number >= 0 && want.Offset >= 0
		if good != (err == nil) {
			t.Fatalf("%x: %+v: %v", o, want, err)
		}
		if good && rec.Inputs[0] != want {
			t.Fatalf("%x: %+v, want %+v", o, rec.Inputs[0], want)
		}
	})
}
