package gateway_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkDeliver hands over what toPush does for 64 messages of 300 bytes, each
// to both users of a conversation: with nobody connected, and with a device that
// is one of the two each time, until it has received all of them.
func BenchmarkDeliver(b *testing.B) {
	const conversations = 64
	text := strings.Repeat("x", 300)
	event := func(i int, seq int64) *tidemarkv1.PushEvent {
		conv := string(watermark.SingleOf("ann", watermark.UserID(fmt.Sprint("bob", i))))
		return &tidemarkv1.PushEvent{Conversation: conv, MaxSeq: seq, Kind: &tidemarkv1.PushEvent_Message{Message: &tidemarkv1.Message{
			Conversation: conv, Seq: seq, Sender: "ann", ClientMessageId: fmt.Sprint("m", seq), Kind: "text", Body: &tidemarkv1.Message_Text{Text: text},
		}}}
	}
	deliveries := func(seq int64) []gateway.Delivery {
		out := make([]gateway.Delivery, conversations)
		for i := range out {
			out[i] = gateway.Delivery{Users: []watermark.UserID{"ann", watermark.UserID(fmt.Sprint("bob", i))}, Event: event(i, seq)}
		}
		return out
	}
	b.Run("nobody", func(b *testing.B) {
		g, _ := start(b, nil)
		eventually(b, "a node that runs", func() error { return g.Deliver(b.Context(), nil) })
		b.ReportAllocs()
		for seq := int64(1); b.Loop(); seq++ {
			deliver(b, g, deliveries(seq)...)
		}
	})
	b.Run("device", func(b *testing.B) {
		g, url := start(b, nil)
		c, _, err := websocket.DefaultDialer.DialContext(b.Context(), url, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		if err := c.WriteMessage(websocket.TextMessage, []byte(`{"id":1,"connect":{"data":{"user":"ann"}}}`)); err != nil {
			b.Fatal(err)
		}
		reads := func(marker string, want int) {
			if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
				b.Fatal(err)
			}
			for got := 0; got < want; {
				_, text, err := c.ReadMessage()
				if err != nil {
					b.Fatal(err)
				}
				got += strings.Count(string(text), marker)
			}
		}
		reads(`"connect"`, 1)
		b.ReportAllocs()
		for seq := int64(1); b.Loop(); seq++ {
			deliver(b, g, deliveries(seq)...)
			reads(`"clientMessageId"`, conversations)
		}
	})
}
