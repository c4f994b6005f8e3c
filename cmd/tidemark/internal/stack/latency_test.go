package stack_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// TestHowLongAMessageTakes: each message is measured once at each point, from
// the time of its record, also when it is delivered or sent again.
func TestHowLongAMessageTakes(t *testing.T) {
	const conv, n = "group:late", 10
	r := startAll(t, nil)
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf(`{"conversation":%q,"sender":"A","clientMessageId":"%d","text":"text","sendTimeMs":1}`, conv, i))
	}
	outs := r.outs(conv, lines...)
	for i := range outs {
		outs[i].Time = time.Now().Add(-time.Minute)
	}
	for range 2 { // the second time they are known
		if err := r.producer.Append(r.ctx(), outs); err != nil {
			t.Fatal(err)
		}
		r.settle()
	}
	for _, c := range []struct {
		role stack.Role
		name string
	}{
		{stack.ToRedis, "tidemark_toredis_sequenced_seconds"},
		{stack.ToMongo, "tidemark_tomongo_persisted_seconds"},
		{stack.ToPush, "tidemark_topush_pushed_seconds"},
	} {
		families, err := r.roles[c.role].registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range families {
			if f.GetName() != c.name {
				continue
			}
			found = true
			h := f.GetMetric()[0].GetHistogram()
			if got := h.GetSampleCount(); got != n {
				t.Errorf("%s: %d messages, want %d", c.name, got, n)
			}
			if got := h.GetSampleSum(); got < 60*n || got > (60+patience.Seconds())*n {
				t.Errorf("%s: %v s for %d messages that are a minute old", c.name, got, n)
			}
		}
		if !found {
			t.Errorf("%s is not there", c.name)
		}
	}
}
