package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Records are read back by where they stand, however far apart; what is beyond
// the end, or gone, is left out, and the log's start says which.
func TestRecordsAreReadBack(t *testing.T) {
	fake, cfg := cluster(t, 2)
	p := producer(t, cfg, "toRedis")
	for i := range 6 { // each larger than a fetch
		out := wire.Out{Partition: 1, Key: "k", Value: []byte(strings.Repeat(fmt.Sprint(i), 40<<10)), Headers: []wire.Header{{Key: "h", Value: []byte{byte(i)}}}}
		if err := p.Append(within(t), []wire.Out{out}); err != nil {
			t.Fatal(err)
		}
	}
	if err := fake.DeleteRecords("toRedis", 1, 2); err != nil {
		t.Fatal(err)
	}
	o, err := pipeline.NewOffsets(pipeline.OffsetsConfig{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	var got []string
	start, err := o.Reread(within(t), "toRedis", 1, []int64{0, 1, 2, 5, 6, 1 << 62}, func(r wire.Record) {
		got = append(got, fmt.Sprintf("%d %c %d", r.Offset, r.Value[0], r.Headers[0].Value[0]))
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"2 2 2", "5 5 5"}; start != 2 || !slices.Equal(got, want) {
		t.Errorf("start %d, records %q; want 2, %q", start, got, want)
	}
	if _, err := o.Reread(within(t), "toRedis", 9, []int64{0}, nil); err == nil {
		t.Error("no error for a partition that there is not")
	}
}
