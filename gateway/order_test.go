package gateway_test

import (
	"testing"

	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// Many publications are under way at once; those of one channel are not.
func TestOrderIsKeptOverRedis(t *testing.T) {
	w := newWorld()
	w.put(crowd, member("A", 0, 0))
	n := onRedis(t, w, 1, nil)[0]
	a, b := listen(t, n.url, "A", "", false), listen(t, n.url, "B", "", true)
	a.listens(t, 2)
	const all = 300
	var ds []gateway.Delivery
	for seq := int64(1); seq <= all; seq++ {
		ds = append(ds, gateway.Delivery{Users: []watermark.UserID{"B"}, Event: message(seq)})
		if seq <= 200 { // what waits for the first read of the members is bounded
			ds = append(ds, push(seq, 0))
		}
	}
	deliver(t, n.Gateway, ds...)
	b.gets(t, "the user", numbers(1, all)...)
	a.gets(t, "the crowd", numbers(1, 200)...)
}
