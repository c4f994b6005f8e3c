package convert_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

func text(s string) *v1.SendMessage_Text { return &v1.SendMessage_Text{Text: s} }

func good() *v1.SendMessage {
	return &v1.SendMessage{Conversation: "single:a:b", Sender: "a", ClientMessageId: "c1", Body: text("hello")}
}

func TestSendToMessage(t *testing.T) {
	s := &v1.SendMessage{
		Conversation: "group:g1", Sender: "a", ClientMessageId: "c1", Kind: "card", Body: text("hello"),
		SendTimeMs: 1700000000000, Mentions: []string{"b", "c"}, Attributes: map[string]string{"k": "v"}, Device: "phone",
	}
	conv, m, err := convert.SendToMessage(s, convert.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := watermark.Message{
		Sender: "a", ClientID: "c1", Kind: "card", SendTime: 1700000000000, Mentions: []watermark.UserID{"b", "c"},
		Attributes: map[string]string{"k": "v"}, Device: "phone", BodyType: watermark.BodyText, Body: []byte("hello"),
	}
	want.Hash = want.SumHash()
	if d := cmp.Diff(want, m); conv != "group:g1" || d != "" {
		t.Errorf("%s (-want +got):\n%s", conv, d)
	}
}

func TestSendDefaults(t *testing.T) {
	s := good()
	s.ClientMessageId = ""
	_, m, err := convert.SendToMessage(s, convert.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind != "text" || m.ClientID != "" || m.SendTime != 0 || m.Seq != 0 || m.RecordTime != 0 {
		t.Errorf("message = %+v", m)
	}
}

func many(n int, f func(i int) string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

func attributes(n int) map[string]string {
	out := make(map[string]string)
	for i := range n {
		out[fmt.Sprint("k", i)] = "v"
	}
	return out
}

func nested(depth int) *structpb.Value {
	v := structpb.NewNullValue()
	for range depth {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	return v
}

func json(v *structpb.Value) *v1.SendMessage_Json { return &v1.SendMessage_Json{Json: v} }

func TestSendLimits(t *testing.T) {
	user := func(i int) string { return fmt.Sprint("u", i) }
	tests := []struct {
		name   string
		change func(*v1.SendMessage)
		reason string // empty: accepted
		field  string
	}{
		{"single", func(*v1.SendMessage) {}, "", ""},
		{"bad conversation", func(s *v1.SendMessage) { s.Conversation = "single:b:a" }, watermark.ReasonInvalid, "conversation:"},
		{"no conversation", func(s *v1.SendMessage) { s.Conversation = "" }, watermark.ReasonInvalid, "conversation:"},
		{"hash tag in the id", func(s *v1.SendMessage) { s.Conversation = "group:{x}" }, watermark.ReasonInvalid, "conversation:"},
		{"colon in the id", func(s *v1.SendMessage) { s.Conversation = "group:x:y" }, watermark.ReasonInvalid, "conversation:"},
		{"no sender", func(s *v1.SendMessage) { s.Sender = "" }, watermark.ReasonInvalid, "sender:"},
		{"colon in the sender", func(s *v1.SendMessage) { s.Conversation, s.Sender = "group:g", "a:b" }, watermark.ReasonInvalid, "sender:"},
		{"a third in a single", func(s *v1.SendMessage) { s.Sender = "c" }, watermark.ReasonNotParticipant, "sender:"},
		{"anybody in a group", func(s *v1.SendMessage) { s.Conversation, s.Sender = "group:g", "c" }, "", ""},
		{"client id of 64", func(s *v1.SendMessage) { s.ClientMessageId = strings.Repeat("x", 64) }, "", ""},
		{"client id of 65", func(s *v1.SendMessage) { s.ClientMessageId = strings.Repeat("x", 65) }, watermark.ReasonInvalid, "client_message_id:"},
		{"control in client id", func(s *v1.SendMessage) { s.ClientMessageId = "a\x00b" }, watermark.ReasonInvalid, "client_message_id:"},
		{"broken client id", func(s *v1.SendMessage) { s.ClientMessageId = "\xff" }, watermark.ReasonInvalid, "client_message_id:"},
		{"kind of 32", func(s *v1.SendMessage) { s.Kind = strings.Repeat("k", 32) }, "", ""},
		{"kind of 33", func(s *v1.SendMessage) { s.Kind = strings.Repeat("k", 33) }, watermark.ReasonInvalid, "kind:"},
		{"kind with a space", func(s *v1.SendMessage) { s.Kind = "a b" }, watermark.ReasonInvalid, "kind:"},
		{"kind of all", func(s *v1.SendMessage) { s.Kind = "AZaz09._-" }, "", ""},
		{"negative time", func(s *v1.SendMessage) { s.SendTimeMs = -1 }, watermark.ReasonInvalid, "send_time_ms:"},
		{"microseconds", func(s *v1.SendMessage) { s.SendTimeMs = 1700000000000000 }, watermark.ReasonInvalid, "send_time_ms:"},
		{"huge time", func(s *v1.SendMessage) { s.SendTimeMs = math.MaxInt64 }, watermark.ReasonInvalid, "send_time_ms:"},
		{"100 mentions", func(s *v1.SendMessage) { s.Mentions = many(100, user) }, "", ""},
		{"101 mentions", func(s *v1.SendMessage) { s.Mentions = many(101, user) }, watermark.ReasonInvalid, "mentions:"},
		{"bad mention", func(s *v1.SendMessage) { s.Mentions = []string{"b", "{c}"} }, watermark.ReasonInvalid, "mentions: entry 1"},
		{"32 attributes", func(s *v1.SendMessage) { s.Attributes = attributes(32) }, "", ""},
		{"33 attributes", func(s *v1.SendMessage) { s.Attributes = attributes(33) }, watermark.ReasonInvalid, "attributes:"},
		{"empty attribute key", func(s *v1.SendMessage) { s.Attributes = map[string]string{"": "v"} }, watermark.ReasonInvalid, "attributes:"},
		{"long attribute key", func(s *v1.SendMessage) { s.Attributes = map[string]string{strings.Repeat("k", 65): "v"} }, watermark.ReasonInvalid, "attributes:"},
		{"attribute value of 1024", func(s *v1.SendMessage) { s.Attributes = map[string]string{"k": strings.Repeat("v", 1024)} }, "", ""},
		{"attribute value of 1025", func(s *v1.SendMessage) { s.Attributes = map[string]string{"k": strings.Repeat("v", 1025)} }, watermark.ReasonInvalid, "attributes:"},
		{"broken attribute value", func(s *v1.SendMessage) { s.Attributes = map[string]string{"k": "\xff"} }, watermark.ReasonInvalid, "attributes:"},
		{"broken attribute key", func(s *v1.SendMessage) { s.Attributes = map[string]string{"\xff": "v"} }, watermark.ReasonInvalid, "attributes:"},
		{"device of 64", func(s *v1.SendMessage) { s.Device = strings.Repeat("d", 64) }, "", ""},
		{"device of 65", func(s *v1.SendMessage) { s.Device = strings.Repeat("d", 65) }, watermark.ReasonInvalid, "device:"},
		{"broken device", func(s *v1.SendMessage) { s.Device = "\xff" }, watermark.ReasonInvalid, "device:"},
		{"broken text", func(s *v1.SendMessage) { s.Body = text("\xff") }, watermark.ReasonInvalid, "text:"},
		{"text of 64 KiB", func(s *v1.SendMessage) { s.Body = text(strings.Repeat("x", 65536)) }, "", ""},
		{"text above 64 KiB", func(s *v1.SendMessage) { s.Body = text(strings.Repeat("x", 65537)) }, watermark.ReasonTooLarge, "text:"},
		{"data above 64 KiB", func(s *v1.SendMessage) { s.Body = &v1.SendMessage_Data{Data: make([]byte, 65537)} }, watermark.ReasonTooLarge, "data:"},
		{"json above 64 KiB", func(s *v1.SendMessage) { s.Body = json(structpb.NewStringValue(strings.Repeat("x", 65535))) }, watermark.ReasonTooLarge, "json:"},
		{"json NaN", func(s *v1.SendMessage) { s.Body = json(structpb.NewNumberValue(math.NaN())) }, watermark.ReasonInvalid, "json:"},
		{"json infinity inside", func(s *v1.SendMessage) {
			s.Body = json(structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewNumberValue(math.Inf(-1))}}))
		}, watermark.ReasonInvalid, "json:"},
		{"json without a value", func(s *v1.SendMessage) { s.Body = json(&structpb.Value{}) }, watermark.ReasonInvalid, "json:"},
		{"json nil", func(s *v1.SendMessage) { s.Body = json(nil) }, watermark.ReasonInvalid, "json:"},
		{"json broken string", func(s *v1.SendMessage) { s.Body = json(structpb.NewStringValue("\xff")) }, watermark.ReasonInvalid, "json:"},
		{"json deep", func(s *v1.SendMessage) { s.Body = json(nested(convert.MaxJSONDepth)) }, "", ""},
		{"json too deep", func(s *v1.SendMessage) { s.Body = json(nested(convert.MaxJSONDepth + 1)) }, watermark.ReasonInvalid, "json:"},
		{"no body", func(s *v1.SendMessage) { s.Body = nil }, watermark.ReasonInvalid, "body:"},
		{"empty text", func(s *v1.SendMessage) { s.Body = text("") }, watermark.ReasonInvalid, "text:"},
		{"no body but attributes", func(s *v1.SendMessage) { s.Body, s.Attributes = nil, attributes(1) }, "", ""},
		{"no body but a kind", func(s *v1.SendMessage) { s.Body, s.Kind = nil, "typing.done" }, "", ""},
		{"empty text but a kind", func(s *v1.SendMessage) { s.Body, s.Kind = text(""), "knock" }, "", ""},
		{"not a party and too large", func(s *v1.SendMessage) { s.Sender, s.Body = "c", text(strings.Repeat("x", 65537)) }, watermark.ReasonInvalid, "text:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := good()
			tt.change(s)
			_, _, err := convert.SendToMessage(s, convert.Limits{})
			if tt.reason == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			wantPoison(t, err, tt.reason, tt.field)
		})
	}
}

func wantPoison(t *testing.T, err error, reason, field string) {
	t.Helper()
	if err == nil {
		t.Fatal("accepted")
	}
	if fault.ClassOf(err) != fault.Poison || fault.ReasonOf(err) != reason {
		t.Errorf("class %v, reason %q, want poison and %q: %v", fault.ClassOf(err), fault.ReasonOf(err), reason, err)
	}
	if !strings.Contains(err.Error(), field) {
		t.Errorf("the error does not name %q: %v", field, err)
	}
}

func TestSendNamesEveryFault(t *testing.T) {
	_, _, err := convert.SendToMessage(&v1.SendMessage{Conversation: "x", SendTimeMs: -1, Kind: "?"}, convert.Limits{})
	for _, field := range []string{"conversation:", "sender:", "send_time_ms:", "kind:"} {
		wantPoison(t, err, watermark.ReasonInvalid, field)
		if n := strings.Count(err.Error(), "\n"+field) + strings.Count(err.Error(), " "+field); n != 1 {
			t.Errorf("%s is named %d times: %v", field, n, err)
		}
	}
	_, _, err = convert.SendToMessage(nil, convert.Limits{})
	wantPoison(t, err, watermark.ReasonInvalid, "message:")
}

func TestSendErrorsShowNoContent(t *testing.T) {
	s := good()
	s.Body = text("secret\xff")
	s.Attributes = map[string]string{"k": "secret\xff"}
	if _, _, err := convert.SendToMessage(s, convert.Limits{}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error = %v", err)
	}
}

func TestSendBodyLimit(t *testing.T) {
	tests := []struct {
		limit, body int
		ok          bool
	}{{5, 5, true}, {5, 6, false}, {1 << 30, 1 << 20, true}, {1 << 30, 1<<20 + 1, false}, {-1, 1 << 16, true}}
	for _, tt := range tests {
		s := good()
		s.Body = text(strings.Repeat("x", tt.body))
		if _, _, err := convert.SendToMessage(s, convert.Limits{MaxBody: tt.limit}); (err == nil) != tt.ok {
			t.Errorf("limit %d, body %d: %v", tt.limit, tt.body, err)
		}
	}
}

func TestSendCanonicalJSON(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"sorted and compact", `{ "b" : 1.0, "a": [true, null, "x"] }`, `{"a":[true,null,"x"],"b":1}`},
		{"no HTML escapes", `"<a href=\"x\">&"`, `"<a href=\"x\">&"`},
		{"null", `null`, `null`},
		{"large", `1e300`, `1e+300`},
		{"line break at the end", `"x\n"`, `"x\n"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var v structpb.Value
			if err := v.UnmarshalJSON([]byte(tt.in)); err != nil {
				t.Fatal(err)
			}
			s := good()
			s.Body = json(&v)
			conv, m, err := convert.SendToMessage(s, convert.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if string(m.Body) != tt.want || m.BodyType != watermark.BodyJSON {
				t.Errorf("body = %s", m.Body)
			}
			back := convert.MessageToAPI(conv, &m).GetJson()
			if d := cmp.Diff(v.AsInterface(), back.AsInterface()); d != "" {
				t.Errorf("back (-want +got):\n%s", d)
			}
		})
	}
}

func TestMessageToAPI(t *testing.T) {
	m := watermark.Message{
		Seq: 7, Sender: "a", ClientID: "c", Kind: "text", SendTime: 5, RecordTime: 6, Device: "d",
		Mentions: []watermark.UserID{"b"}, Attributes: map[string]string{"k": "v"}, BodyType: watermark.BodyText, Body: []byte("x"),
	}
	got := convert.MessageToAPI("single:a:b", &m)
	if got.GetConversation() != "single:a:b" || got.GetSeq() != 7 || got.GetSender() != "a" || got.GetClientMessageId() != "c" ||
		got.GetKind() != "text" || got.GetSendTimeMs() != 5 || got.GetDevice() != "d" || got.GetText() != "x" ||
		len(got.GetMentions()) != 1 || got.GetAttributes()["k"] != "v" || got.GetRevoked() {
		t.Errorf("message = %v", got)
	}

	stone := m.Tombstone(watermark.Revoked{Seq: 7, By: "b", Time: 9})
	stone.Body, stone.Attributes, stone.BodyType = m.Body, m.Attributes, m.BodyType // even if a store kept them
	got = convert.MessageToAPI("single:a:b", &stone)
	if !got.GetRevoked() || got.GetRevokedBy() != "b" || got.GetRevokedTimeMs() != 9 || got.GetSeq() != 7 || got.GetSender() != "a" {
		t.Errorf("tombstone = %v", got)
	}
	if got.GetBody() != nil || got.GetMentions() != nil || got.GetAttributes() != nil {
		t.Errorf("tombstone has content: %v", got)
	}
}

func TestMessageToAPISurvivesBrokenBodies(t *testing.T) {
	for _, m := range []watermark.Message{
		{BodyType: watermark.BodyText, Body: []byte("\xff")},
		{BodyType: watermark.BodyJSON, Body: []byte(`{"a":`)},
		{BodyType: watermark.BodyJSON},
		{BodyType: watermark.BodyData, Body: []byte("x")},
	} {
		if got := convert.MessageToAPI("group:g", &m); string(got.GetData()) != string(m.Body) || got.GetBody() == nil {
			t.Errorf("%q as %d: %v", m.Body, m.BodyType, got)
		}
	}
}
