package seqalloc_test

import (
	"slices"
	"testing"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// The place in a meta is that of the highest batch: whoever takes over cuts the
// same inputs into other batches, and what a dead owner decided beyond them must
// not be told before they are appended.
func TestThePlaceOfTheLastBatchOnlyRises(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		for _, tt := range []struct {
			place watermark.Place
			want  string
		}{
			{watermark.Place{}, ""},
			{watermark.Place{Partition: watermark.Partition{TopicID: "t", Number: 3}, Number: 1 << 40}, "t/3|1099511627776"},
			{watermark.Place{Partition: watermark.Partition{TopicID: "t", Number: 3}, Number: 9}, "t/3|1099511627776"},
			{watermark.Place{}, "t/3|1099511627776"},
			{watermark.Place{Partition: watermark.Partition{TopicID: "t", Number: 3}, Number: 1<<40 + 1}, "t/3|1099511627777"},
			// The topic was made with more partitions: other numbers.
			{watermark.Place{Partition: watermark.Partition{TopicID: "t", Number: 4}, Number: 7}, "t/4|7"},
		} {
			b := watermark.Batch{Conversation: x.conv, Inputs: x.sends("alice", 1), Place: tt.place}
			if a, err := x.Malloc(t.Context(), []watermark.Batch{b}); err != nil || a[0].Temperature != watermark.Warm {
				t.Fatalf("%+v, %v", a, err)
			}
			if got := x.client.HGet(t.Context(), x.key(keyspace.Meta), "bt").Val(); got != tt.want {
				t.Errorf("after a batch at %+v it is %q, want %q", tt.place, got, tt.want)
			}
		}
	})
}

func TestSettledPlacesOnlyRise(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		at := func(n int64) watermark.Place {
			return watermark.Place{Partition: watermark.Partition{TopicID: "t", Number: 3}, Number: n}
		}
		for _, tt := range [][2]int64{{0, 0}, {5, 5}, {3, 5}, {0, 5}, {1 << 52, 1 << 52}} {
			if got, err := x.Settle(t.Context(), at(tt[0])); err != nil || got != tt[1] {
				t.Errorf("after %d it is %d, %v, want %d", tt[0], got, err, tt[1])
			}
		}
		other := watermark.Place{Partition: watermark.Partition{TopicID: "t", Number: 4}, Number: 1}
		if got, err := x.Settle(t.Context(), other); err != nil || got != 1 {
			t.Errorf("another partition is at %d, %v", got, err)
		}
	})
}

// A batch that is decided again in two parts: the first is told the member as its
// own command left it. With the member as it is, the log would say that the
// window is open again before it is, and whoever begins with that log would take
// the message in between, which was refused.
func TestACommandDecidedAgainTellsTheMemberOfThen(t *testing.T) {
	onEachRedis(t, func(t *testing.T, x *fixture) {
		x.warm(t, fresh())
		ins := []watermark.Input{
			x.leave("bob", "op1", 0), x.send("bob", "between"), x.join("bob", "op2", watermark.HistoryAll, 0), x.clear("bob", "op3"),
		}
		first := x.decide(t, ins...)
		for n := 1; n <= len(ins); n++ {
			again := x.decide(t, ins[:n]...)
			for i, o := range again {
				if first[i].Member == nil {
					continue
				}
				if o.Member == nil || o.Member.Version != first[i].Member.Version || !slices.Equal(o.Member.Window(), first[i].Member.Window()) {
					t.Errorf("input %d of %d again: %+v, want %+v", i, n, o.Member, first[i].Member)
				}
			}
		}
	})
}
