package wire_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

var origins = rapid.Custom(func(t *rapid.T) watermark.Origin {
	return watermark.Origin{
		Partition: watermark.Partition{TopicID: rapid.SampledFrom([]string{"t1", "t2"}).Draw(t, "topic"), Number: rapid.Int32Range(0, 1<<31-1).Draw(t, "partition")},
		Offset:    rapid.Int64Range(0, 1<<63-1).Draw(t, "offset"),
	}
})

var records = rapid.Custom(func(t *rapid.T) watermark.Record {
	rec := watermark.Record{Conversation: convs.Draw(t, "conversation"), Offset: rapid.Int64Range(0, 1<<50).Draw(t, "offset")}
	for _, e := range rapid.SliceOfN(events, 0, 4).Draw(t, "events") {
		rec.Events = append(rec.Events, carried(e))
	}
	rec.Inputs = append(rec.Inputs, rapid.SliceOfN(origins, 0, 3).Draw(t, "inputs")...)
	return rec
})

// carried gives an event without what the log does not carry.
func carried(e watermark.Event) watermark.Event {
	w, ok := e.(watermark.WindowChanged)
	if !ok {
		return e
	}
	w.Member.Own = nil
	if len(w.Member.Memberships) == 0 {
		w.Member.Memberships = nil
	}
	return w
}

// asAPI is what the generated code makes of a record.
func asAPI(rec watermark.Record) *v1.SequencedRecord {
	out := &v1.SequencedRecord{Conversation: string(rec.Conversation)}
	for _, e := range rec.Events {
		out.Events = append(out.Events, convert.EventToAPI(e))
	}
	for _, o := range rec.Inputs {
		out.Inputs = append(out.Inputs, &v1.Origin{TopicId: o.Partition.TopicID, Partition: o.Partition.Number, Offset: o.Offset})
	}
	return out
}

func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := records.Draw(t, "record")
		b, err := wire.EncodeRecord(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := wire.DecodeRecord(wire.Record{Offset: want.Offset, Value: b})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
		// What is written by hand here must be what the schema says.
		api := new(v1.SequencedRecord)
		if err := proto.Unmarshal(b, api); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(asAPI(want), api, protocmp.Transform()); d != "" {
			t.Fatalf("not as the schema (-want +got):\n%s", d)
		}
		// And what others write by the schema must be read here.
		b, err = proto.Marshal(asAPI(want))
		if err != nil {
			t.Fatal(err)
		}
		if got, err = wire.DecodeRecord(wire.Record{Offset: want.Offset, Value: b}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("from the schema (-want +got):\n%s", d)
		}
	})
}

func TestDecodedRecordsOwnTheirMemory(t *testing.T) {
	want := watermark.Record{Conversation: "group:g", Events: []watermark.Event{run(1, 3)}}
	b, err := wire.EncodeRecord(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.DecodeRecord(wire.Record{Value: b})
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] = 0xff
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("changed with the record's value:\n%s", d)
	}
}

func message(seq watermark.Seq) watermark.Message {
	m := watermark.Message{
		Seq: seq, Sender: "a", ClientID: fmt.Sprint("c", seq), Kind: "text", SendTime: 1, RecordTime: 2,
		BodyType: watermark.BodyText, Body: []byte("hello"),
	}
	m.Hash = m.SumHash()
	return m
}

func run(first, last watermark.Seq) watermark.MessagesSequenced {
	var out watermark.MessagesSequenced
	for s := first; s <= last; s++ {
		out.Messages = append(out.Messages, message(s))
	}
	return out
}

func TestEncodeRecordRefuses(t *testing.T) {
	bad := func(change func(*watermark.Message)) []watermark.Event {
		m := message(1)
		change(&m)
		return []watermark.Event{watermark.MessagesSequenced{Messages: []watermark.Message{m}}}
	}
	input := func(o watermark.Origin) []watermark.Origin { return []watermark.Origin{o} }
	for name, rec := range map[string]watermark.Record{
		"no conversation":  {},
		"no seq":           {Conversation: "group:g", Events: bad(func(m *watermark.Message) { m.Seq = 0 })},
		"a wild seq":       {Conversation: "group:g", Events: bad(func(m *watermark.Message) { m.Seq = watermark.MaxSeq + 1 })},
		"no client id":     {Conversation: "group:g", Events: bad(func(m *watermark.Message) { m.ClientID = "" })},
		"no sender":        {Conversation: "group:g", Events: bad(func(m *watermark.Message) { m.Sender = "" })},
		"broken device":    {Conversation: "group:g", Events: bad(func(m *watermark.Message) { m.Device = "\xff" })},
		"broken attribute": {Conversation: "group:g", Events: bad(func(m *watermark.Message) { m.Attributes = map[string]string{"k": "\xff"} })},
		"unknown body":     {Conversation: "group:g", Events: bad(func(m *watermark.Message) { m.BodyType = 9 })},
		"body of no type":  {Conversation: "group:g", Events: bad(func(m *watermark.Message) { m.BodyType = 0 })},
		"falling seqs":     {Conversation: "group:g", Events: []watermark.Event{watermark.MessagesSequenced{Messages: []watermark.Message{message(2), message(1)}}}},
		"nil event":        {Conversation: "group:g", Events: []watermark.Event{nil}},
		"revoke of 0":      {Conversation: "group:g", Events: []watermark.Event{watermark.Revoked{}}},
		"no topic":         {Conversation: "group:g", Inputs: input(watermark.Origin{})},
		"negative offset":  {Conversation: "group:g", Inputs: input(watermark.Origin{Partition: watermark.Partition{TopicID: "t"}, Offset: -1})},
	} {
		if _, err := wire.EncodeRecord(rec); fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != wire.ReasonUnencodable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeRecordRefuses(t *testing.T) {
	api := func(change func(*v1.SequencedRecord)) []byte {
		r := asAPI(watermark.Record{Conversation: "group:g", Events: []watermark.Event{run(1, 2)}})
		change(r)
		return binary(t, r)
	}
	first := func(r *v1.SequencedRecord) *v1.LoggedMessage { return r.GetEvents()[0].GetMessages().GetMessages()[0] }
	tests := []struct {
		name   string
		value  []byte
		reason string
	}{
		{"nothing", nil, watermark.ReasonInvalid},
		{"noise", []byte{0xff, 0xff}, watermark.ReasonUndecodable},
		{"cut off", api(func(*v1.SequencedRecord) {})[:60], watermark.ReasonUndecodable},
		{"bad conversation", api(func(r *v1.SequencedRecord) { r.Conversation = "g" }), watermark.ReasonInvalid},
		{"event of no kind", api(func(r *v1.SequencedRecord) { r.Events = append(r.Events, &v1.Event{}) }), watermark.ReasonInvalid},
		{"seq 0", api(func(r *v1.SequencedRecord) { first(r).Seq = 0 }), watermark.ReasonInvalid},
		{"negative seq", api(func(r *v1.SequencedRecord) { first(r).Seq = -1 }), watermark.ReasonInvalid},
		{"seq beyond", api(func(r *v1.SequencedRecord) { first(r).Seq = 1 << 53 }), watermark.ReasonInvalid},
		{"seqs that do not ascend", api(func(r *v1.SequencedRecord) { first(r).Seq = 2 }), watermark.ReasonInvalid},
		{"long hash", api(func(r *v1.SequencedRecord) { first(r).Hash = make([]byte, 17) }), watermark.ReasonInvalid},
		{"no hash", api(func(r *v1.SequencedRecord) { first(r).Hash = nil }), watermark.ReasonInvalid},
		{"no hash in the second", api(func(r *v1.SequencedRecord) { r.GetEvents()[0].GetMessages().GetMessages()[1].Hash = nil }), watermark.ReasonInvalid},
		{"unknown body type", api(func(r *v1.SequencedRecord) { first(r).BodyType = 4 }), watermark.ReasonInvalid},
		{"negative body type", api(func(r *v1.SequencedRecord) { first(r).BodyType = -1 }), watermark.ReasonInvalid},
		{"unknown policy", api(func(r *v1.SequencedRecord) { r.GetEvents()[0].GetMessages().Policy = 3 }), watermark.ReasonInvalid},
		{"wild time", api(func(r *v1.SequencedRecord) { first(r).RecordTimeMs = 1 << 62 }), watermark.ReasonInvalid},
		{"input without topic", api(func(r *v1.SequencedRecord) { r.Inputs = []*v1.Origin{{Offset: 1}} }), watermark.ReasonInvalid},
		{"input at a negative offset", api(func(r *v1.SequencedRecord) { r.Inputs = []*v1.Origin{{TopicId: "t", Offset: -1}} }), watermark.ReasonInvalid},
		{"input on a negative partition", api(func(r *v1.SequencedRecord) { r.Inputs = []*v1.Origin{{TopicId: "t", Partition: -1}} }), watermark.ReasonInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := wire.DecodeRecord(wire.Record{Value: tt.value})
			wantPoison(t, err, tt.reason, "offset 0")
		})
	}
	_, err := wire.DecodeRecord(wire.Record{Offset: -1, Value: api(func(*v1.SequencedRecord) {})})
	wantPoison(t, err, watermark.ReasonInvalid, "offset -1")
}

func TestStoredMessagesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := messages.Draw(t, "message")
		header, body := wire.EncodeMessage(&want)
		got, err := wire.DecodeMessage(want.Seq, header, body)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
		api := new(v1.LoggedMessage)
		if err := proto.Unmarshal(append(header, body...), api); err != nil {
			t.Fatal(err)
		}
		api.Seq = int64(want.Seq)
		if d := cmp.Diff(convert.LoggedFromMessage(&want), api, protocmp.Transform()); d != "" {
			t.Fatalf("not as the schema (-want +got):\n%s", d)
		}
		// A revoke keeps the header alone.
		stone, err := wire.DecodeMessage(want.Seq, header, nil)
		if err != nil {
			t.Fatal(err)
		}
		stone.Revoked = &watermark.Revoked{Seq: want.Seq}
		if d := cmp.Diff(want.Tombstone(watermark.Revoked{Seq: want.Seq}), stone); d != "" {
			t.Fatalf("without its body (-want +got):\n%s", d)
		}
	})
}

func TestDecodeMessageRefuses(t *testing.T) {
	m := message(5)
	header, body := wire.EncodeMessage(&m)
	tests := []struct {
		name         string
		seq          watermark.Seq
		header, body []byte
		reason       string
	}{
		{"seq 0", 0, header, body, watermark.ReasonInvalid},
		{"seq beyond", watermark.MaxSeq + 1, header, body, watermark.ReasonInvalid},
		{"no header", 5, nil, body, watermark.ReasonInvalid},
		{"noise in the header", 5, []byte{0xff}, body, watermark.ReasonUndecodable},
		{"noise in the body", 5, header, []byte{0xff}, watermark.ReasonUndecodable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := wire.DecodeMessage(tt.seq, tt.header, tt.body)
			wantPoison(t, err, tt.reason, fmt.Sprint("message ", tt.seq))
		})
	}
}
