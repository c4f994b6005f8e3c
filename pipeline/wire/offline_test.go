package wire_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
	"google.golang.org/protobuf/proto"
)

func offline() wire.Offline {
	m := watermark.Message{
		Seq: 7, Sender: "A", ClientID: "c7", Kind: "text", RecordTime: 1700000000000,
		BodyType: watermark.BodyText, Body: []byte("hello"),
		Attributes: map[string]string{"push_title": "Ada", "push_body": "wrote", "secret": "x"},
	}
	return wire.OfflineOf("group:g", &m).For([]watermark.UserID{"B", "C"}, []watermark.UserID{"C", "Z", "C"})
}

func TestOfflineRoundTrips(t *testing.T) {
	want := offline()
	out, err := wire.EncodeOffline(want, "webhook")
	if err != nil {
		t.Fatal(err)
	}
	if out.Key != "group:g" || out.Partition != -1 {
		t.Errorf("out = %+v", out)
	}
	got, err := wire.DecodeOffline(wire.Record{Value: out.Value, Headers: out.Headers})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(wire.Offline{
		Conversation: "group:g", Seq: 7, Sender: "A", ClientID: "c7", Kind: "text", Text: "hello", Title: "Ada", Body: "wrote",
		RecordTime: time.UnixMilli(1700000000000).UTC(),
		Users:      []watermark.UserID{"B", "C"}, Mentions: []watermark.UserID{"C"},
	}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	rec := wire.Record{Headers: out.Headers}
	if v, ok := rec.Header(wire.HeaderEndpoint); !ok || string(v) != "webhook" {
		t.Errorf("endpoint %q, %v", v, ok)
	}
}

// What is shown of a message is its beginning, whole characters of it.
func TestOfflineTextsAreCutBetweenCharacters(t *testing.T) {
	m := watermark.Message{Seq: 1, Sender: "A", ClientID: "c", BodyType: watermark.BodyText, Body: []byte("x" + strings.Repeat("ü", 1000))}
	o := wire.OfflineOf("group:g", &m).For([]watermark.UserID{"B"}, nil)
	if len(o.Text) != wire.MaxOfflineText-1 || !utf8.ValidString(o.Text) {
		t.Errorf("%d bytes, valid %v", len(o.Text), utf8.ValidString(o.Text))
	}
	if _, err := wire.EncodeOffline(o, ""); err != nil {
		t.Error(err)
	}
	m.BodyType = watermark.BodyData
	if o := wire.OfflineOf("group:g", &m); o.Text != "" {
		t.Errorf("a body that is no text is shown: %q", o.Text)
	}
}

func TestOfflineIsRefusedWhereARuleIsBroken(t *testing.T) {
	for name, change := range map[string]func(*v1.OfflinePush){
		"conversation": func(o *v1.OfflinePush) { o.Conversation = "room:1" },
		"sender":       func(o *v1.OfflinePush) { o.Sender = "" },
		"client id":    func(o *v1.OfflinePush) { o.ClientMessageId = "" },
		"seq":          func(o *v1.OfflinePush) { o.Seq = 1 << 53 },
		"no user":      func(o *v1.OfflinePush) { o.Users, o.Mentions = nil, nil },
		"bad user":     func(o *v1.OfflinePush) { o.Users[0] = "a b" },
		"bad mention":  func(o *v1.OfflinePush) { o.Mentions[0] = "" },
		"users":        func(o *v1.OfflinePush) { o.Users = make([]string, wire.MaxOfflineUsers+1) },
		"mentions":     func(o *v1.OfflinePush) { o.Mentions = []string{"B", "C", "B"} },
		"time":         func(o *v1.OfflinePush) { o.RecordTimeMs = -1 },
		"text":         func(o *v1.OfflinePush) { o.Text = strings.Repeat("x", wire.MaxOfflineText+1) },
		"kind":         func(o *v1.OfflinePush) { o.Kind = strings.Repeat("x", 65) },
	} {
		t.Run(name, func(t *testing.T) {
			out, err := wire.EncodeOffline(offline(), "")
			if err != nil {
				t.Fatal(err)
			}
			api := new(v1.OfflinePush)
			if err := proto.Unmarshal(out.Value, api); err != nil {
				t.Fatal(err)
			}
			change(api)
			value, err := proto.Marshal(api)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := wire.DecodeOffline(wire.Record{Value: value}); fault.ClassOf(err) != fault.Poison || fault.ReasonOf(err) != watermark.ReasonInvalid {
				t.Errorf("err = %v", err)
			}
		})
	}
	if _, err := wire.DecodeOffline(wire.Record{Value: []byte{0xff, 0xff}}); fault.ReasonOf(err) != watermark.ReasonUndecodable {
		t.Errorf("err = %v", err)
	}
	o := offline()
	o.Users = nil
	if _, err := wire.EncodeOffline(o, ""); fault.ClassOf(err) != fault.Fatal {
		t.Errorf("err = %v", err)
	}
	if _, err := wire.EncodeOffline(offline(), "a/b"); fault.ClassOf(err) != fault.Fatal {
		t.Errorf("err = %v", err)
	}
}

func FuzzDecodeOffline(f *testing.F) {
	out, err := wire.EncodeOffline(offline(), "")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(out.Value)
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := wire.DecodeOffline(wire.Record{Value: b})
		if err != nil {
			if fault.ClassOf(err) != fault.Poison {
				t.Fatalf("class %v: %v", fault.ClassOf(err), err)
			}
			return
		}
		again, err := wire.EncodeOffline(o, "")
		if err != nil {
			t.Fatalf("decoded and not encoded: %v", err)
		}
		got, err := wire.DecodeOffline(wire.Record{Value: again.Value})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(o, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}
