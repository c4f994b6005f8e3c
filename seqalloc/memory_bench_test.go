package seqalloc_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// BenchmarkMemory tells what a conversation of two senders takes in a real Redis,
// in all and by key, after so many messages of 300 bytes:
//
//	TIDEMARK_TEST_REDIS=... go test -run '^$' -bench Memory -benchtime 1x ./seqalloc
func BenchmarkMemory(b *testing.B) {
	addr := os.Getenv(redisEnv)
	if addr == "" {
		return // the embedded one does not know what its keys take
	}
	for _, messages := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("messages=%d", messages), func(b *testing.B) {
			x := realRedis(b, addr)
			convs := groups(max(100, 2000/messages))
			x.warmAll(b, convs)
			for n := 0; n < messages; n += 10 {
				batches := make([]watermark.Batch, len(convs))
				for i, c := range convs {
					batches[i].Conversation = c
					for k := range min(10, messages) {
						in := x.send([]watermark.UserID{"alice", "bob"}[k%2], fmt.Sprintf("01HZX3K5M2N4P6Q8R0S2T4%06d", n+k))
						in.Message.Body = []byte(strings.Repeat("0123456789", 30))
						in.Message.Hash = in.Message.SumHash()
						batches[i].Inputs = append(batches[i].Inputs, in)
					}
				}
				if _, err := x.Malloc(b.Context(), batches); err != nil {
					b.Fatal(err)
				}
			}
			total := int64(0)
			for _, p := range []keyspace.Part{keyspace.Meta, keyspace.Log, keyspace.Read, keyspace.Members, keyspace.IDs, keyspace.OldIDs} {
				sum := int64(0)
				for _, c := range convs {
					n, err := x.client.MemoryUsage(b.Context(), x.space.Key(c, p), 0).Result()
					if err == nil { // there is such a key
						sum += n
					}
				}
				total += sum
				b.ReportMetric(float64(sum)/float64(len(convs)), "B-"+string(p))
			}
			b.ReportMetric(float64(total)/float64(len(convs)), "B/conversation")
			b.ReportMetric(float64(total)/float64(len(convs)*messages), "B/message")
			b.ReportMetric(0, "ns/op")
		})
	}
}
