package gateway_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/watermark"
)

// For whom nobody listens nothing is made, where that can be known: a node that
// shares its broker with others does not know who is connected there.
func TestWhoIsReachable(t *testing.T) {
	g, url := start(t, nil)
	all := []watermark.UserID{"A", "B", "C"}
	if got := g.Reachable(all); len(got) != 0 {
		t.Errorf("%v are reachable before anybody is connected", got)
	}
	connect(t, url, "C", "phone")
	connect(t, url, "A", "")
	connect(t, url, "A", "laptop")
	if d := cmp.Diff([]watermark.UserID{"A", "C"}, g.Reachable(all)); d != "" {
		t.Errorf("reachable (-want +got):\n%s", d)
	}
	if d := cmp.Diff(all, onRedis(t, newWorld(), 1, nil)[0].Reachable(all)); d != "" {
		t.Errorf("over Redis (-want +got):\n%s", d)
	}
}
