package embedded_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkActivity reads the order of a user's 10,000 conversations.
func BenchmarkActivity(b *testing.B) {
	s, err := embedded.New(embedded.Config{Path: filepath.Join(b.TempDir(), "h.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const n = 10_000
	input := watermark.Partition{TopicID: "AAAAAAAAAAAAAAAAAAAAAA"}
	for from := 0; from < n; from += 500 {
		var c watermark.Change
		for i := from; i < from+500; i++ {
			peer := watermark.UserID(fmt.Sprint("b", i))
			id := watermark.SingleOf("a", peer)
			c.Conversations = append(c.Conversations, watermark.Conversation{ID: id, Max: 1, LastTime: int64(i) + 1764476000000, Inputs: map[watermark.Partition]int64{input: int64(i)}})
			c.Members = append(c.Members, watermark.MemberRow{Conversation: id, Member: watermark.Member{User: "a", Read: 1}},
				watermark.MemberRow{Conversation: id, Member: watermark.Member{User: peer}})
		}
		if _, err := s.Write(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		var got int
		var after watermark.ConversationID
		for {
			rows, err := s.ActivityOf(b.Context(), "a", after, watermark.MaxPage)
			if err != nil {
				b.Fatal(err)
			}
			if got += len(rows); len(rows) < watermark.MaxPage {
				break
			}
			after = rows[len(rows)-1].Conversation
		}
		if got != n {
			b.Fatal(got)
		}
	}
}
