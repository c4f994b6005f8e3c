//go:build real

package history_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkWrite writes messages of 300 bytes of 2,500 conversations in turn, in
// changes of as many rows as its name says, and what toMongo once wrote beside
// them, the bounds and marks of each change. One operation is a change.
func BenchmarkWrite(b *testing.B) {
	for _, rows := range []int{187, 1875, 7500} {
		for _, beside := range []bool{false, true} {
			name := fmt.Sprintf("rows=%d", rows)
			if beside {
				name += ",bounds"
			}
			b.Run(name, func(b *testing.B) { benchmarkWrite(b, rows, beside) })
		}
	}
}

func benchmarkWrite(b *testing.B, batch int, beside bool) {
	s := openStore(b, freshDatabase())
	body := []byte(strings.Repeat("some words ", 28))[:300]
	const convs = 2500
	top := make([]watermark.Seq, convs)
	n := int64(0)
	for b.Loop() {
		var c watermark.Change
		for range batch {
			i := int(n*7919) % convs
			n++
			top[i]++
			sender := watermark.UserID(fmt.Sprint("a", i))
			id := watermark.SingleOf(sender, watermark.UserID(fmt.Sprint("b", i)))
			c.Rows = append(c.Rows, watermark.Row{Conversation: id, Message: watermark.Message{
				Seq: top[i], Sender: sender, ClientID: fmt.Sprint("m", n), Kind: "text", SendTime: n, RecordTime: n, BodyType: watermark.BodyText, Body: body,
			}})
			if beside {
				c.Conversations = append(c.Conversations, watermark.Conversation{ID: id, Max: top[i], LastTime: n})
				c.Members = append(c.Members, watermark.MemberRow{Conversation: id, Member: watermark.Member{User: sender, Read: top[i]}})
			}
		}
		if _, err := s.Write(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
}
