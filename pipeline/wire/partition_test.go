package wire_test

import (
	"testing"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// The hashes are those of Kafka's own test of Utils.murmur2.
func TestPartitionOfIsJavas(t *testing.T) {
	tests := []struct {
		key  string
		hash int32
	}{
		{"21", -973932308},
		{"foobar", -790332482},
		{"a-little-bit-long-string", -985981536},
		{"a-little-bit-longer-string", -1486304829},
		{"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971},
		{"abc", 479470107},
	}
	for _, tt := range tests {
		for _, n := range []int32{1, 2, 7, 12, 64, 1<<31 - 1} {
			if got, want := wire.PartitionOf(tt.key, n), (tt.hash&0x7fffffff)%n; got != want {
				t.Errorf("PartitionOf(%q, %d) = %d, want %d", tt.key, n, got, want)
			}
		}
	}
	for _, n := range []int32{0, -1} {
		if got := wire.PartitionOf("x", n); got != 0 {
			t.Errorf("PartitionOf(x, %d) = %d", n, got)
		}
	}
	if got := wire.PartitionOf("", 1<<31-1); got != 275646681 {
		t.Errorf("PartitionOf of the empty key = %d", got)
	}
}
