package convert_test

import (
	"testing"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestPushEventCarriesEveryKind(t *testing.T) {
	for name, e := range map[string]watermark.Event{
		"message":  watermark.MessagesSequenced{Messages: []watermark.Message{{Seq: 7, Sender: "A", ClientID: "x", BodyType: watermark.BodyText, Body: []byte("hi")}}},
		"window":   watermark.WindowChanged{Member: watermark.Member{User: "A", Version: 1}},
		"min seq":  watermark.MinSeqRaised{Min: 3},
		"revoked":  watermark.Revoked{Seq: 3},
		"read":     watermark.ReadAdvanced{User: "A", Read: 3},
		"repaired": watermark.Repaired{Number: 3, From: 1},
	} {
		got := convert.PushEvent("group:g", e)
		if got.GetKind() == nil || got.GetConversation() != "group:g" {
			t.Errorf("%s: nothing is pushed: %v", name, got)
		}
	}
	m := convert.PushEvent("group:g", watermark.MessagesSequenced{Messages: []watermark.Message{{Seq: 7, Sender: "A", BodyType: watermark.BodyText, Body: []byte("hi")}}})
	if m.GetMessage().GetSeq() != 7 || m.GetMessage().GetText() != "hi" {
		t.Errorf("message: %v", m)
	}
}
