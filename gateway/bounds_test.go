package gateway_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	centrifugo "github.com/centrifugal/centrifuge-go"
	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// TestANodeHasSoManyConnectionsAndNoMore: whoever comes beyond is told to come
// again, and has room when somebody has gone.
func TestANodeHasSoManyConnectionsAndNoMore(t *testing.T) {
	_, url := start(t, func(c *gateway.Config) { c.Connections = 2 })
	of := func(user string) *device { return newDevice(t, url, `{"user":"`+user+`"}`, centrifugo.Config{}) }
	first := of("A")
	await(t, "connected", first.connected)
	await(t, "connected", of("B").connected)
	c, _, err := websocket.DefaultDialer.DialContext(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.WriteMessage(websocket.TextMessage, []byte(`{"id":1,"connect":{"data":{"user":"C"}}}`)); err != nil {
		t.Fatal(err)
	}
	_, _, err = c.ReadMessage()
	if closed, ok := errors.AsType[*websocket.CloseError](err); !ok || closed.Code != 4001 || !strings.Contains(closed.Text, "no room") {
		t.Errorf("the third is told %v", err)
	}
	third := of("C")
	first.Close()
	await(t, "the third, once there is room", third.connected)
}

// TestCallsOfClientsAreBounded: while members cannot be read, calls beyond a bound
// are answered at once; those that are answered make room for as many.
func TestCallsOfClientsAreBounded(t *testing.T) {
	const beyond = 50
	w := newWorld()
	goOn := make(chan struct{})
	w.onRead = func(watermark.ConversationID, []watermark.UserID) error { <-goOn; return nil }
	n := startNode(t, func(c *gateway.Config) { c.Members, c.Crowds, c.TransientRate = w, nil, 10*gateway.MaxCalls })
	a := listen(t, n.url, "A", "", false)
	open := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(open) // before the node is stopped, which waits for what is under way
	var refused, others atomic.Int64
	var group errgroup.Group
	for i := range gateway.MaxCalls + beyond {
		group.Go(func() error {
			_, err := a.client.RPC(t.Context(), "transient", fmt.Appendf(nil, `{"conversation":"group:%d","kind":"typing"}`, i))
			if err != nil && strings.Contains(err.Error(), "503") {
				refused.Add(1)
			} else {
				others.Add(1) // nobody is a member
			}
			return nil
		})
	}
	eventually(t, "those beyond are answered", func() error { return isSeq(beyond, refused.Load()) })
	if got := others.Load(); got != 0 {
		t.Errorf("%d calls are answered while no member can be read", got)
	}
	open()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if refused.Load() != beyond || others.Load() != gateway.MaxCalls {
		t.Errorf("%d calls were refused, %d answered", refused.Load(), others.Load())
	}
	if _, err := a.client.RPC(t.Context(), "transient", []byte(`{"conversation":"group:0","kind":"typing"}`)); err == nil || strings.Contains(err.Error(), "503") {
		t.Errorf("a call after all of them: %v", err)
	}
}

// TestWhatWaitsOfAllCrowdsIsBounded in bytes: what comes beyond is told as a hint,
// and what is let out, or left behind by those who go, makes room.
func TestWhatWaitsOfAllCrowdsIsBounded(t *testing.T) {
	w := newWorld()
	w.put(crowd, member("A", 0, 0))
	n := withWorld(t, w)
	n.LimitWaiting(500)
	a := listen(t, n.url, "A", "", false)
	a.listens(t, 2)
	reading, goOn := make(chan struct{}, 1), make(chan struct{})
	w.mu.Lock()
	w.onRead = func(watermark.ConversationID, []watermark.UserID) error {
		select {
		case reading <- struct{}{}:
		default:
		}
		<-goOn
		return nil
	}
	w.mu.Unlock()
	deliver(t, n.Gateway, push(1, 10))
	<-reading
	for seq := int64(2); seq <= 100; seq++ {
		deliver(t, n.Gateway, push(seq, 10))
	}
	if got := n.Waiting(); got < 1 || got > 500 {
		t.Errorf("%d bytes wait, want at most 500", got)
	}
	close(goOn)
	eventually(t, "a hint", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.events) == 0 {
			return errAway
		}
		last := a.events[len(a.events)-1]
		return isSeq(100, last.GetMaxSeq()*boolInt(last.GetKind() == nil))
	})
	if got := len(a.seqs()); got < 1 || got > 90 {
		t.Errorf("%d messages were let out", got)
	}
	if got := n.Waiting(); got != 0 {
		t.Errorf("%d bytes wait when nothing does", got)
	}
	deliver(t, n.Gateway, push(101, 10))
	eventually(t, "afterwards", func() error { s := a.seqs(); return isSeq(101, s[len(s)-1]) })
}

// TestAConnectionSitsInSoManyCrowds and no more.
func TestAConnectionSitsInSoManyCrowds(t *testing.T) {
	w := newWorld()
	for i := range gateway.MaxCrowds + 5 {
		w.put(watermark.ConversationID(fmt.Sprint("group:", i)), member("A", 0, 0))
	}
	n := withWorld(t, w)
	a := listen(t, n.url, "A", "", false)
	a.listens(t, gateway.MaxCrowds+1) // its own channel besides
	eventually(t, "it is told", func() error { return isSeq(1, int64(n.metric(t, "tidemark_gateway_overfull_total"))) })
	eventually(t, "crowds", func() error { return isSeq(gateway.MaxCrowds, int64(n.metric(t, "tidemark_gateway_crowds"))) })
}
