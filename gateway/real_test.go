//go:build real

package gateway_test

import (
	"crypto/rand"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// TestReal_OrderIsKeptOverACluster sends to a user and to a crowd in turn: of
// each what was sent first arrives first.
func TestReal_OrderIsKeptOverACluster(t *testing.T) {
	addresses := os.Getenv("TIDEMARK_TEST_REDIS_CLUSTER")
	if addresses == "" {
		t.Fatal(`TIDEMARK_TEST_REDIS_CLUSTER is not set; eval "$(deploy/local/up --redis-cluster)"`)
	}
	w := newWorld()
	w.put(crowd, member("A", 0, 0))
	prefix := "t" + strings.ToLower(rand.Text())
	onCluster := func(c *gateway.Config) {
		c.Members, c.Crowds, c.Presence = w, w, w
		c.Redis, c.Prefix = gateway.Redis{Addresses: strings.Split(addresses, ",")}, prefix
	}
	n := startNode(t, onCluster)
	a, b := listen(t, n.url, "A", "", false), listen(t, n.url, "B", "", true)
	a.listens(t, 2)
	cfg := gateway.Config{Authenticate: gateway.Trusting, Logger: slog.New(slog.DiscardHandler)}
	onCluster(&cfg)
	worker, err := gateway.New(cfg) // that only delivers
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	deliver(t, worker, push(1, 0), gateway.Delivery{Users: []watermark.UserID{"B"}, Event: message(1)})
	a.gets(t, "the crowd", 1) // its members are read once
	const all = 1000
	var ds []gateway.Delivery
	for seq := int64(2); seq <= all; seq++ {
		ds = append(ds, gateway.Delivery{Users: []watermark.UserID{"B"}, Event: message(seq)}, push(seq, 0))
	}
	deliver(t, worker, ds...)
	b.gets(t, "the user", numbers(1, all)...)
	a.gets(t, "the crowd", numbers(1, all)...)
}
