package pipeline_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Requests that fail for a while, as while a broker is restarted, do not end a scan; it
// gives each record once.
func TestAScanOutlivesABroker(t *testing.T) {
	c, cfg := cluster(t, 1)
	p := producer(t, cfg, "toRedis")
	for i := range 5 {
		if err := p.Append(within(t), []wire.Out{{Partition: 0, Key: fmt.Sprint("k", i), Value: []byte("v")}}); err != nil {
			t.Fatal(err)
		}
	}
	scan := func() (got []int64, err error) {
		for r, err := range pipeline.Scan(within(t), cfg, "toRedis") {
			if err != nil {
				return got, err
			}
			got = append(got, r.Offset)
		}
		return got, nil
	}
	fetch := []kmsg.Key{kmsg.Fetch}
	c.Fault(kfake.Fault{Keys: fetch, Err: kerr.FencedLeaderEpoch, Count: 3})
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.NotLeaderForPartition, Count: 3})
	if got, err := scan(); err != nil || !slices.Equal(got, []int64{0, 1, 2, 3, 4}) {
		t.Errorf("%v, %v", got, err)
	}
	// What does not heal does end it, at once.
	c.Fault(kfake.Fault{Keys: fetch, Err: kerr.TopicAuthorizationFailed, Count: -1})
	if got, err := scan(); err == nil || len(got) > 0 {
		t.Errorf("%v, %v, want an error", got, err)
	}
}

// A scan of a stretch gives what stands in it, and nothing that came since.
func TestScanOfAStretch(t *testing.T) {
	_, cfg := cluster(t, 2)
	p := producer(t, cfg, "toRedis")
	put := func(n int) {
		t.Helper()
		var outs []wire.Out
		for i := range n {
			outs = append(outs, wire.Out{Partition: int32(i % 2), Key: fmt.Sprint("k", i), Value: []byte("v")})
		}
		if err := p.Append(within(t), outs); err != nil {
			t.Fatal(err)
		}
	}
	put(10)
	ends := map[int32]int64{0: 5, 1: 5}
	put(4)
	scan := func(from, to map[int32]int64) (out []string, err error) {
		for r, err := range pipeline.ScanBetween(within(t), cfg, "toRedis", from, to) {
			if err != nil {
				return nil, err
			}
			out = append(out, fmt.Sprint(r.Partition, "/", r.Offset))
		}
		return out, nil
	}
	for name, tt := range map[string]struct {
		from, to map[int32]int64
		want     []string
	}{
		"since":          {ends, nil, []string{"0/5", "0/6", "1/5", "1/6"}},
		"between":        {map[int32]int64{0: 3, 1: 4}, ends, []string{"0/3", "0/4", "1/4"}},
		"of one only":    {map[int32]int64{0: 6, 1: 7}, nil, []string{"0/6"}},
		"behind the end": {map[int32]int64{0: 100, 1: 100}, nil, nil},
	} {
		if got, err := scan(tt.from, tt.to); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tt.want)
		}
	}
	if got, err := scan(nil, nil); err != nil || len(got) != 14 {
		t.Errorf("%v, %v", got, err)
	}
}
