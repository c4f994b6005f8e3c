package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

var at = time.UnixMilli(1700000000123)

func record(value []byte, headers ...wire.Header) wire.Record {
	return wire.Record{Topic: "toRedis", TopicID: "Zm9vYmFyYmF6cXV4", Partition: 3, Offset: 42, Time: at, Key: []byte("some key"), Value: value, Headers: headers}
}

func header(k, v string) wire.Header { return wire.Header{Key: k, Value: []byte(v)} }

func send() *v1.SendMessage {
	return &v1.SendMessage{Conversation: "single:a:b", Sender: "a", ClientMessageId: "c1", Body: &v1.SendMessage_Text{Text: "hello"}}
}

func binary(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func asJSON(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantInput() watermark.Input {
	m := watermark.Message{
		Sender: "a", ClientID: "c1", Kind: "text", SendTime: at.UnixMilli(), RecordTime: at.UnixMilli(),
		BodyType: watermark.BodyText, Body: []byte("hello"),
	}
	m.Hash = m.SumHash()
	return watermark.Input{
		Conversation: "single:a:b", Act: watermark.ActSend, Actor: "a", Time: at.UnixMilli(), Message: &m,
		Origin: watermark.Origin{Partition: watermark.Partition{TopicID: "Zm9vYmFyYmF6cXV4", Number: 3}, Offset: 42},
	}
}

func TestDecodeInputReadsBothForms(t *testing.T) {
	pb, js := binary(t, send()), asJSON(t, send())
	tests := []struct {
		name string
		rec  wire.Record
	}{
		{"binary", record(pb)},
		{"binary, said so", record(pb, header("content-type", "application/protobuf"))},
		{"binary, other name", record(pb, header("content-type", "application/x-protobuf"))},
		{"json by its first byte", record(js)},
		{"json, said so", record(append([]byte(" \n"), js...), header("content-type", "Application/JSON; charset=utf-8"))},
		{"the last header counts", record(js, header("content-type", "application/protobuf"), header("content-type", "application/json"))},
		{"empty headers say nothing", record(js, header("content-type", ""), header("tidemark-type", ""), header("tidemark-caller", ""))},
		{"an unknown header", record(js, header("traceparent", "x"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := wire.Codec{}.DecodeInput(tt.rec)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(wantInput(), got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestDecodeInputIgnoresTheKey(t *testing.T) {
	for _, key := range [][]byte{nil, {}, []byte("group:other"), {0xff}} {
		rec := record(binary(t, send()))
		rec.Key = key
		if _, err := (wire.Codec{}).DecodeInput(rec); err != nil {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

func TestDecodeInputRefuses(t *testing.T) {
	group := func(conv string) []byte {
		s := send()
		s.Conversation = conv
		return binary(t, s)
	}
	pb := binary(t, send())
	tests := []struct {
		name   string
		rec    wire.Record
		reason string
		says   string
	}{
		{"no value", record(nil), watermark.ReasonUndecodable, "empty"},
		{"no value of a command", record(nil, header("tidemark-type", "command")), watermark.ReasonUndecodable, "empty"},
		{"noise", record([]byte{0xff, 0xff}), watermark.ReasonUndecodable, "binary protobuf"},
		{"noise as a command", record([]byte{0xff, 0xff}, header("tidemark-type", "command")), watermark.ReasonUndecodable, "Command"},
		{"broken json", record([]byte(`{"conversation":`)), watermark.ReasonUndecodable, "JSON"},
		{"json with an unknown field", record([]byte(`{"conversation":"group:g","clientMsgId":"x"}`)), watermark.ReasonUndecodable, `"clientMsgId"`},
		{"binary said to be json", record(pb, header("content-type", "application/json")), watermark.ReasonUndecodable, "JSON"},
		{"unknown content type", record(pb, header("content-type", "text/plain")), watermark.ReasonUndecodable, "content-type"},
		{"unknown type", record(pb, header("tidemark-type", "order")), watermark.ReasonUndecodable, "tidemark-type"},
		{"colon in the id", record(group("group:a:b")), watermark.ReasonInvalid, "conversation"},
		{"hash tag in the id", record(group("group:{a}")), watermark.ReasonInvalid, "conversation"},
		{"a third", record(group("single:b:c")), watermark.ReasonNotParticipant, "sender"},
		{"bad caller", record(pb, header("tidemark-caller", "\x00")), watermark.ReasonInvalid, "tidemark-caller"},
		{"bad origin", record(pb, header("tidemark-origin", "x")), watermark.ReasonUndecodable, "tidemark-origin"},
		{"origin without topic", record(pb, header("tidemark-origin", "/1/2/3")), watermark.ReasonUndecodable, "tidemark-origin"},
		{"origin at a negative offset", record(pb, header("tidemark-origin", "t/1/-2/3")), watermark.ReasonUndecodable, "offset"},
		{"origin at a huge partition", record(pb, header("tidemark-origin", "t/4294967296/2/3")), watermark.ReasonUndecodable, "partition"},
		{"origin too long", record(pb, header("tidemark-origin", strings.Repeat("t", 65)+"/1/2/3")), watermark.ReasonUndecodable, "topic id"},
		{"origin in another topic", record(pb, header("tidemark-origin", "t/1/2/3")), watermark.ReasonInvalid, "topic id"},
		{"origin in its own partition", record(pb, header("tidemark-origin", "Zm9vYmFyYmF6cXV4/3/9223372036854775807/3")), watermark.ReasonInvalid, "partition 3"},
		{"negative offset", func() wire.Record { r := record(pb); r.Offset = -1; return r }(), watermark.ReasonInvalid, "offset"},
		{"negative partition", func() wire.Record { r := record(pb); r.Partition = -1; return r }(), watermark.ReasonInvalid, "partition"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := wire.Codec{}.DecodeInput(tt.rec)
			wantPoison(t, err, tt.reason, tt.says)
		})
	}
}

func wantPoison(t *testing.T, err error, reason, says string) {
	t.Helper()
	if err == nil {
		t.Fatal("accepted")
	}
	if fault.ClassOf(err) != fault.Poison || fault.ReasonOf(err) != reason {
		t.Errorf("class %v, reason %q, want poison and %q: %v", fault.ClassOf(err), fault.ReasonOf(err), reason, err)
	}
	if !strings.Contains(err.Error(), says) {
		t.Errorf("the error does not say %q: %v", says, err)
	}
}

func TestDecodeInputErrorsShowNoContent(t *testing.T) {
	for _, value := range []string{
		`{"conversation":"group:g","mentions":"secret"}`,
		`{"conversation":"group:g","sendTimeMs":"secret"}`,
		`{"conversation":"group:g","text":"a" "secret"}`,
		`{"text": secret}`,
	} {
		_, err := wire.Codec{}.DecodeInput(record([]byte(value)))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func TestDecodeInputNeedsATopicID(t *testing.T) {
	for _, id := range []string{"", "a/b", strings.Repeat("t", 65)} {
		rec := record(binary(t, send()))
		rec.TopicID = id
		if _, err := (wire.Codec{}).DecodeInput(rec); fault.ClassOf(err) != fault.Fatal {
			t.Errorf("topic id %q: %v", id, err)
		}
	}
}

func TestDecodeInputChecksSizes(t *testing.T) {
	s := send()
	s.Body = &v1.SendMessage_Text{Text: strings.Repeat("x", 5000)}
	rec := record(binary(t, s))
	_, err := wire.Codec{Limits: convert.Limits{MaxBody: 4999}}.DecodeInput(rec)
	wantPoison(t, err, watermark.ReasonTooLarge, "text")
	_, err = wire.Codec{MaxRecord: 5000}.DecodeInput(rec)
	wantPoison(t, err, watermark.ReasonTooLarge, "sequenced log")
	if _, err := (wire.Codec{MaxRecord: 6000}).DecodeInput(rec); err != nil {
		t.Error(err)
	}
	s.Body = &v1.SendMessage_Data{Data: make([]byte, 1<<20)}
	_, err = wire.Codec{Limits: convert.Limits{MaxBody: 1 << 20}}.DecodeInput(record(binary(t, s)))
	wantPoison(t, err, watermark.ReasonTooLarge, "1000000")
}

func TestDecodeInputKeepsGivenTimes(t *testing.T) {
	s := send()
	s.SendTimeMs = 7
	in, err := wire.Codec{}.DecodeInput(record(binary(t, s)))
	if err != nil || in.Message.SendTime != 7 || in.Message.RecordTime != at.UnixMilli() {
		t.Errorf("message = %+v, %v", in.Message, err)
	}
	for _, when := range []time.Time{{}, time.UnixMilli(-1), time.UnixMilli(-1 << 62)} {
		rec := record(binary(t, send()))
		rec.Time = when
		if in, err = (wire.Codec{}).DecodeInput(rec); err != nil || in.Time != 0 || in.Message.RecordTime != 0 {
			t.Errorf("time %v: %+v, %v", when, in, err)
		}
	}
}

func TestDerivedClientIDs(t *testing.T) {
	s := send()
	s.ClientMessageId = ""
	id := func(change func(*wire.Record)) string {
		t.Helper()
		rec := record(binary(t, s))
		change(&rec)
		in, err := wire.Codec{}.DecodeInput(rec)
		if err != nil {
			t.Fatal(err)
		}
		return in.Message.ClientID
	}
	base := id(func(*wire.Record) {})
	// Pinned: it must be the same after an upgrade, while records wait.
	if base != "auto-187887e179e207277b6a3786f4c5bf76" {
		t.Errorf("client id = %q", base)
	}
	if err := watermark.CheckKey("id", base); err != nil {
		t.Error(err)
	}
	same := id(func(r *wire.Record) { r.Key, r.Topic = []byte("x"), "y" })
	if same != base {
		t.Errorf("a redelivery has id %q, then %q", base, same)
	}
	for name, change := range map[string]func(*wire.Record){
		"topic":     func(r *wire.Record) { r.TopicID = "other" },
		"partition": func(r *wire.Record) { r.Partition++ },
		"offset":    func(r *wire.Record) { r.Offset++ },
		"time":      func(r *wire.Record) { r.Time = r.Time.Add(time.Millisecond) },
	} {
		if id(change) == base {
			t.Errorf("another %s has the same id", name)
		}
	}
}

func TestForwardKeepsWhatTheRecordMeans(t *testing.T) {
	nameless := send()
	nameless.ClientMessageId = ""
	command, err := wire.EncodeCommand(&v1.Command{Conversation: "single:a:b", OpId: "o", Kind: &v1.Command_Clear{Clear: &v1.ClearCommand{User: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, rec := range map[string]wire.Record{
		"binary":  record(binary(t, nameless), header("tidemark-caller", "sync-1")),
		"json":    record(asJSON(t, nameless)),
		"command": record(command.Value, command.Headers...),
	} {
		t.Run(name, func(t *testing.T) {
			want, err := wire.Codec{}.DecodeInput(rec)
			if err != nil {
				t.Fatal(err)
			}
			if rec.IsForwarded() || rec.Hops() != 0 {
				t.Error("it counts as forwarded before it was")
			}
			out, err := wire.Forward(rec, want.Conversation)
			if err != nil {
				t.Fatal(err)
			}
			if out.Key != "single:a:b" || out.Partition != -1 || out.Topic != "toRedis" {
				t.Errorf("out = %+v", out)
			}
			there := wire.Record{Topic: "toRedis", TopicID: rec.TopicID, Partition: 9, Offset: 1000, Time: at.Add(time.Hour), Key: []byte(out.Key), Value: out.Value, Headers: out.Headers}
			if !there.IsForwarded() || there.Hops() != 1 {
				t.Error("it does not count as forwarded")
			}
			got, err := wire.Codec{}.DecodeInput(there)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("it means something else there (-here +there):\n%s", d)
			}
			if _, err := wire.Forward(there, want.Conversation); fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != watermark.ReasonWrongPartition {
				t.Errorf("a second hop: %v", err)
			}
		})
	}
}

// A message that is handed back is bounded as one that is sent: given a seq and
// refused by the log it would stop its owner for ever.
func TestAMessageHandedBackMustFitTheLog(t *testing.T) {
	m := wantInput().Message
	m.Body = []byte(strings.Repeat("x", wire.DefaultMaxRecord-1000))
	in := watermark.Input{Conversation: "single:a:b", Act: watermark.ActResequence, OpID: "o", Seq: 1, Repair: 1, Message: m}
	decode := func() error {
		out, err := wire.EncodeCommand(convert.InputToCommand(in))
		if err != nil {
			t.Fatal(err)
		}
		_, err = wire.Codec{}.DecodeInput(asRecord(out))
		return err
	}
	wantPoison(t, decode(), watermark.ReasonTooLarge, "bytes")
	m.Body = m.Body[:wire.DefaultMaxRecord-10_000]
	if err := decode(); err != nil {
		t.Error(err)
	}
}

func asRecord(out wire.Out) wire.Record {
	rec := record(out.Value, out.Headers...)
	rec.Key = []byte(out.Key)
	return rec
}

func TestEncodeSend(t *testing.T) {
	out, err := wire.EncodeSend(send(), "sync-1")
	if err != nil {
		t.Fatal(err)
	}
	want := wantInput()
	want.Caller = "sync-1"
	got, err := wire.Codec{}.DecodeInput(asRecord(out))
	if d := cmp.Diff(want, got); err != nil || d != "" || out.Key != "single:a:b" || out.Partition != -1 {
		t.Errorf("%+v, %v (-want +got):\n%s", out, err, d)
	}

	nameless := send()
	nameless.ClientMessageId = ""
	if _, err := wire.EncodeSend(nameless, ""); err != nil {
		t.Error(err)
	}
	_, err = wire.EncodeSend(nameless, "sync-1")
	wantPoison(t, err, watermark.ReasonInvalid, "client_message_id")
	_, err = wire.EncodeSend(send(), strings.Repeat("x", 65))
	wantPoison(t, err, watermark.ReasonInvalid, "caller")
	broken := send()
	broken.Sender = "\xff"
	_, err = wire.EncodeSend(broken, "")
	wantPoison(t, err, watermark.ReasonInvalid, "UTF-8")
}

func TestEncodeCommand(t *testing.T) {
	want := watermark.Input{
		Conversation: "group:g", Act: watermark.ActLeave, User: "a", Membership: 2, OpID: "o", Caller: "sync-1", Actor: "b",
		Origin: wantInput().Origin, Time: at.UnixMilli(),
	}
	out, err := wire.EncodeCommand(convert.InputToCommand(want))
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.Codec{}.DecodeInput(asRecord(out))
	if d := cmp.Diff(want, got); err != nil || d != "" || out.Key != "group:g" || out.Partition != -1 {
		t.Errorf("%+v, %v (-want +got):\n%s", out, err, d)
	}
	_, err = wire.EncodeCommand(&v1.Command{Conversation: "\xff"})
	wantPoison(t, err, watermark.ReasonInvalid, "UTF-8")
}

func TestCommandsTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := commands.Draw(t, "command")
		if want.Member != nil {
			w := carried(watermark.WindowChanged{Member: *want.Member}).(watermark.WindowChanged)
			want.Member = &w.Member
		}
		want.Origin, want.Time = wantInput().Origin, at.UnixMilli()
		out, err := wire.EncodeCommand(convert.InputToCommand(want))
		if err != nil {
			t.Fatal(err)
		}
		got, err := wire.Codec{}.DecodeInput(asRecord(out))
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Fatalf("%v (-want +got):\n%s", err, d)
		}
	})
}
