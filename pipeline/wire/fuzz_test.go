package wire_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func seedRecord(f *testing.F) []byte {
	f.Helper()
	b, err := wire.EncodeRecord(watermark.Record{
		Conversation: "single:a:b",
		Events: []watermark.Event{
			run(1, 2),
			watermark.WindowChanged{Member: watermark.Member{User: "a", Version: 2, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Upper: 4}}}, Cause: "leave"},
			watermark.MinSeqRaised{Min: 2}, watermark.Revoked{Seq: 1, By: "a", Time: 3},
			watermark.ReadAdvanced{User: "a", Read: 2, Receipt: 1}, watermark.Repaired{Number: 4, From: 1},
		},
		Inputs: []watermark.Origin{origin(4)},
	})
	if err != nil {
		f.Fatal(err)
	}
	return b
}

func FuzzDecodeInput(f *testing.F) {
	pb, js := binary(f, send()), asJSON(f, send())
	cmd, err := wire.EncodeCommand(convert.InputToCommand(watermark.Input{Conversation: "group:g", Act: watermark.ActJoin, User: "a", OpID: "o", History: watermark.HistoryFrom, Seq: 3}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pb, "", "", "", "", int64(0), int64(5))
	f.Add(js, "application/json", "", "sync-1", "Zm9vYmFyYmF6cXV4/1/2/3", int64(1), int64(-5))
	f.Add(cmd.Value, "", "command", "", "", int64(1<<62), int64(1<<62))
	f.Add([]byte(`{"conversation":"group:g","sender":"a","json":{"a":[1e400]}}`), "", "", "", "", int64(0), int64(0))
	f.Fuzz(func(t *testing.T, value []byte, content, kind, caller, origin string, offset, ms int64) {
		rec := record(value)
		rec.Offset, rec.Time = offset, time.UnixMilli(ms)
		for _, h := range []wire.Header{header("content-type", content), header("tidemark-type", kind), header("tidemark-caller", caller), header("tidemark-origin", origin)} {
			if len(h.Value) > 0 {
				rec.Headers = append(rec.Headers, h)
			}
		}
		in, err := wire.Codec{}.DecodeInput(rec)
		if err != nil {
			wantFuzzPoison(t, err)
			return
		}
		checkInput(t, in)
		// It means the same after a forward, and when it is written again.
		if !rec.IsForwarded() {
			out, err := wire.Forward(rec, in.Conversation)
			if err != nil {
				t.Fatal(err)
			}
			there := wire.Record{TopicID: rec.TopicID, Partition: rec.Partition + 1, Value: out.Value, Headers: out.Headers}
			got, err := wire.Codec{}.DecodeInput(there)
			if d := cmp.Diff(in, got); err != nil || d != "" {
				t.Fatalf("forwarded: %v (-here +there):\n%s", err, d)
			}
		}
		if in.Act == watermark.ActSend {
			return
		}
		out, err := wire.EncodeCommand(convert.InputToCommand(in))
		if err != nil {
			t.Fatal(err)
		}
		rec.Value, rec.Headers = out.Value, append(out.Headers, rec.Headers...)
		got, err := wire.Codec{}.DecodeInput(rec)
		if d := cmp.Diff(in, got); err != nil || d != "" {
			t.Fatalf("written again: %v (-want +got):\n%s", err, d)
		}
	})
}

// checkInput checks what the owner relies on.
func checkInput(t *testing.T, in watermark.Input) {
	t.Helper()
	if _, err := watermark.ParseConversationID(string(in.Conversation)); err != nil {
		t.Fatal(err)
	}
	if in.Origin.Offset < 0 || in.Origin.Partition.Number < 0 || in.Origin.Partition.TopicID == "" || in.Time < 0 || in.Seq < 0 || in.Seq > watermark.MaxSeq {
		t.Fatalf("input = %+v", in)
	}
	if in.Act != watermark.ActSend {
		return
	}
	m := *in.Message
	m.Seq = watermark.MaxSeq
	if m.Hash != m.SumHash() {
		t.Fatal("the hash is not the content's")
	}
	if !in.Conversation.Admits(m.Sender) {
		t.Fatalf("%s sends in %s", m.Sender, in.Conversation)
	}
	rec := watermark.Record{Conversation: in.Conversation, Events: []watermark.Event{watermark.MessagesSequenced{Messages: []watermark.Message{m}}}, Inputs: []watermark.Origin{in.Origin}}
	b, err := wire.EncodeRecord(rec)
	if err != nil {
		t.Fatalf("an accepted message cannot be logged: %v", err)
	}
	if len(b) > wire.DefaultMaxRecord {
		t.Fatalf("an accepted message takes %d bytes in the log", len(b))
	}
	if _, err := proto.Marshal(convert.MessageToAPI(in.Conversation, &m)); err != nil {
		t.Fatalf("an accepted message cannot be served: %v", err)
	}
}

func wantFuzzPoison(t *testing.T, err error) {
	t.Helper()
	if fault.ClassOf(err) != fault.Poison {
		t.Fatalf("not poison: %v", err)
	}
	switch fault.ReasonOf(err) {
	case watermark.ReasonUndecodable, watermark.ReasonInvalid, watermark.ReasonTooLarge, watermark.ReasonNotParticipant:
	default:
		t.Fatalf("reason %q: %v", fault.ReasonOf(err), err)
	}
	if len(err.Error()) > 16<<10 {
		t.Fatalf("an error of %d bytes", len(err.Error()))
	}
}

func FuzzDecodeRecord(f *testing.F) {
	b := seedRecord(f)
	f.Add(b, int64(0))
	f.Add(b[:len(b)/2], int64(7))
	f.Add([]byte{0x12, 0x80, 0x80, 0x80, 0x80, 0x40}, int64(-1))
	f.Fuzz(func(t *testing.T, value []byte, offset int64) {
		rec, err := wire.DecodeRecord(wire.Record{Value: value, Offset: offset})
		if err != nil {
			wantFuzzPoison(t, err)
			return
		}
		again, err := wire.EncodeRecord(rec)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		got, err := wire.DecodeRecord(wire.Record{Value: again, Offset: offset})
		if d := cmp.Diff(rec, got); err != nil || d != "" {
			t.Fatalf("written again: %v (-want +got):\n%s", err, d)
		}
		// The generated code must read the same from the same bytes.
		api := new(v1.SequencedRecord)
		if err := proto.Unmarshal(value, api); err != nil {
			// It refuses more: text in places that a later field replaced.
			return
		}
		if len(api.GetEvents()) != len(rec.Events) || api.GetConversation() != string(rec.Conversation) {
			t.Fatalf("the schema reads %v from what is read as %+v", api, rec)
		}
		for i, e := range api.GetEvents() {
			want, err := convert.EventFromAPI(e)
			if d := cmp.Diff(want, rec.Events[i]); err != nil || d != "" {
				t.Fatalf("event %d: %v (-schema +here):\n%s", i, err, d)
			}
		}
	})
}

func FuzzDecodeMessage(f *testing.F) {
	m := message(3)
	m.Attributes, m.Mentions = map[string]string{"k": "v"}, []watermark.UserID{"b"}
	header, body := wire.EncodeMessage(&m)
	f.Add(int64(3), header, body)
	f.Add(int64(3), header, []byte(nil))
	f.Add(int64(-1), body, header)
	f.Fuzz(func(t *testing.T, seq int64, header, body []byte) {
		m, err := wire.DecodeMessage(watermark.Seq(seq), header, body)
		if err != nil {
			wantFuzzPoison(t, err)
			return
		}
		h, b := wire.EncodeMessage(&m)
		got, err := wire.DecodeMessage(m.Seq, h, b)
		if d := cmp.Diff(m, got); err != nil || d != "" {
			t.Fatalf("written again: %v (-want +got):\n%s", err, d)
		}
		api := new(v1.LoggedMessage)
		if err := proto.Unmarshal(bytes.Join([][]byte{header, body}, nil), api); err != nil {
			return
		}
		api.Seq = seq
		want, err := convert.MessageFromLogged(api)
		if d := cmp.Diff(want, m); err != nil || d != "" {
			t.Fatalf("%v (-schema +here):\n%s", err, d)
		}
	})
}

func FuzzDecodeDeadLetter(f *testing.F) {
	out, err := wire.EncodeDeadLetter(letter())
	if err != nil {
		f.Fatal(err)
	}
	n := len(out.Headers)
	f.Add(out.Headers[n-2].Value, out.Headers[n-1].Value)
	f.Add([]byte(`{"offset":"9223372036854775807"}`), []byte("t/1/9223372036854775807/1"))
	f.Fuzz(func(t *testing.T, value, place []byte) {
		rec := wire.Record{Key: []byte("k"), Value: []byte("v"), Headers: []wire.Header{
			header("x", "y"), {Key: "tidemark-dead-letter", Value: value}, {Key: "tidemark-dead-letter-place", Value: place},
		}}
		d, err := wire.DecodeDeadLetter(rec)
		if err != nil {
			wantFuzzPoison(t, err)
			return
		}
		out, err := wire.EncodeDeadLetter(d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := wire.DecodeDeadLetter(wire.Record{Key: []byte(out.Key), Value: out.Value, Headers: out.Headers})
		if err != nil {
			t.Fatal(err)
		}
		// Reason and cause are cut, everything else stays.
		d.Reason, d.Cause = got.Reason, got.Cause
		if diff := cmp.Diff(d, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
