package stack_test

import (
	"fmt"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Somebody writes the header of a forward and names a place far along another
// partition; what other producers put there afterwards is sequenced all the same.
func TestAForgedOriginHidesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.start(stack.Sync, stack.ToRedis)
	const g = "group:forged"
	wrong := wire.PartitionOf(r.elsewhere(g), r.emb.Config.Kafka.Partitions)
	r.produce(r.elsewhere(g), line(g, "A", "1", "by the wrong partition"))
	r.settle()
	kafka, err := stack.Kafka(r.emb.Config, nil)
	if err != nil {
		t.Fatal(err)
	}
	topics, err := pipeline.EnsureTopics(r.ctx(), pipeline.TopicsConfig{Config: kafka, Create: true, Partitions: r.emb.Config.Kafka.Partitions})
	if err != nil {
		t.Fatal(err)
	}
	forged := r.outs(g, line(g, "A", "2", "with a header of its own"))
	forged[0].Headers = []wire.Header{{Key: wire.HeaderOrigin, Value: fmt.Appendf(nil, "%s/%d/%d/0", topics.ToRedis.ID, wrong, 1_000_000)}}
	if err := r.producer.Append(r.ctx(), forged); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.produce(r.elsewhere(g), line(g, "A", "3", "by the wrong partition too"))
	r.settle()
	r.settle() // what was forwarded
	var got []string
	for _, m := range r.pullAll("A", g, 1, 100) {
		got = append(got, m.GetClientMessageId())
	}
	if fmt.Sprint(got) != "[1 2 3]" {
		t.Errorf("messages %v, want 1 2 3", got)
	}
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters: %v", letters)
	}
}
