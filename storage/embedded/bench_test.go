package embedded_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkWrite writes batches of 500 messages of 300 bytes as toMongo does,
// rows first and then marks, evenly over as many conversations as its name says.
func BenchmarkWrite(b *testing.B) {
	for _, convs := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("conversations=%d", convs), func(b *testing.B) { benchmarkWrite(b, convs) })
	}
}

func benchmarkWrite(b *testing.B, convs int) {
	s, err := embedded.New(embedded.Config{Path: filepath.Join(b.TempDir(), "h.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const batch = 500
	body := []byte(strings.Repeat("some words ", 28))[:300]
	input := watermark.Partition{TopicID: "AAAAAAAAAAAAAAAAAAAAAA"}
	top := make([]watermark.Seq, convs)
	n := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		var rows, marks watermark.Change
		last := map[int]bool{}
		for range batch {
			n++
			i := int(n*7919) % convs
			top[i]++
			id := watermark.SingleOf(watermark.UserID(fmt.Sprint("a", i)), watermark.UserID(fmt.Sprint("b", i)))
			m := watermark.Message{
				Seq: top[i], Sender: watermark.UserID(fmt.Sprint("a", i)), ClientID: fmt.Sprint("m", n), Kind: "text", SendTime: n, RecordTime: n,
				BodyType: watermark.BodyText, Body: body,
			}
			rows.Rows = append(rows.Rows, watermark.Row{Conversation: id, Message: m})
			if last[i] {
				continue
			}
			last[i] = true
			rows.Conversations = append(rows.Conversations, watermark.Conversation{
				ID: id, Max: top[i], LastTime: n, Inputs: map[watermark.Partition]int64{input: n},
			})
			marks.Members = append(marks.Members, watermark.MemberRow{Conversation: id, Member: watermark.Member{User: m.Sender, Read: top[i]}})
		}
		for _, c := range []watermark.Change{rows, marks} {
			if _, err := s.Write(b.Context(), c); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
}
