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
// evenly over as many conversations as its name says: rows with each batch, bounds
// and marks after 50 of them.
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
	flush := func() {
		var c watermark.Change
		for i, seq := range top {
			a, id := pair(i)
			c.Conversations = append(c.Conversations, watermark.Conversation{
				ID: id, Max: seq, LastTime: n, Inputs: map[watermark.Partition]int64{input: n},
			})
			c.Members = append(c.Members, watermark.MemberRow{Conversation: id, Member: watermark.Member{User: a, Read: seq}})
		}
		if _, err := s.Write(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for i := 1; b.Loop(); i++ {
		var c watermark.Change
		for range batch {
			n++
			i := int(n*7919) % convs
			top[i]++
			a, id := pair(i)
			c.Rows = append(c.Rows, watermark.Row{Conversation: id, Message: watermark.Message{
				Seq: top[i], Sender: a, ClientID: fmt.Sprint("m", n), Kind: "text", SendTime: n, RecordTime: n,
				BodyType: watermark.BodyText, Body: body,
			}})
		}
		if _, err := s.Write(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		if i%50 == 0 {
			flush()
		}
	}
	flush()
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
}

// pair names the n-th conversation of two users, and the first of them.
func pair(n int) (watermark.UserID, watermark.ConversationID) {
	a, b := watermark.UserID(fmt.Sprint("a", n)), watermark.UserID(fmt.Sprint("b", n))
	return a, watermark.SingleOf(a, b)
}

// BenchmarkReplay hands in again what stands already, without bounds, as after a
// process that was killed: batches of 500 rows over 10,000 conversations.
func BenchmarkReplay(b *testing.B) {
	s, err := embedded.New(embedded.Config{Path: filepath.Join(b.TempDir(), "h.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const batch, convs = 500, 10_000
	var changes []watermark.Change
	for at := 0; at < 2*convs; at += batch {
		var c watermark.Change
		for i := range batch {
			n := (at + i) % convs
			_, id := pair(n)
			c.Rows = append(c.Rows, watermark.Row{Conversation: id, Message: watermark.Message{
				Seq: watermark.Seq((at+i)/convs + 1), Sender: "a", ClientID: fmt.Sprint(at + i), Kind: "text", BodyType: watermark.BodyText, Body: []byte("words"),
			}})
		}
		if _, err := s.Write(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		changes = append(changes, c)
	}
	n := 0
	for b.Loop() {
		w, err := s.Write(b.Context(), changes[n%len(changes)])
		if err != nil {
			b.Fatal(err)
		}
		if w.Rows[0] != watermark.Replay {
			b.Fatalf("fate = %v", w.Rows[0])
		}
		n++
	}
	b.ReportMetric(float64(n*batch)/b.Elapsed().Seconds(), "msg/s")
}
