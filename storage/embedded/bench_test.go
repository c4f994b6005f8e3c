package embedded_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkWrite writes batches of 500 messages of 300 bytes, rows with bounds
// first and then marks, evenly over as many conversations as its name says.
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

// BenchmarkGathered writes messages of 300 bytes as toMongo does for four partitions
// of 2,500 conversations each, in turn: rows in changes of as many as its name
// says, which is what a partition gathers (187 are 50 ms of 15,000 messages a
// second, 18,750 are five seconds), bounds and marks after 150,000 of them.
// The processor time of the process is told, the making of messages included.
func BenchmarkGathered(b *testing.B) {
	for _, rows := range []int{187, 1875, 3750, 7500, 18_750} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) { benchmarkGathered(b, rows) })
	}
}

func benchmarkGathered(b *testing.B, batch int) {
	s, err := embedded.New(embedded.Config{Path: filepath.Join(b.TempDir(), "h.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const partitions, convs, every = 4, 10_000, 150_000
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
	before := cpu(b)
	for at := 0; b.Loop(); at++ {
		var c watermark.Change
		for range batch {
			n++
			i := at%partitions*convs/partitions + int(n*7919)%(convs/partitions)
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
		if n/every != (n-int64(batch))/every {
			flush()
		}
	}
	flush()
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(n), "us/msg")
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
