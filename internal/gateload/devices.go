package gateload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"
)

// dialing is how many connections are made at once.
const dialing = 64

// counters of the devices.
type counters struct{ connected, seated, received atomic.Int64 }

// Devices connects n devices to the gateway at addr, and answers the questions
// that Measure asks on in until it ends. It is the other process.
func Devices(addr string, n int, in io.Reader, out io.Writer) error {
	var c counters
	var reading sync.WaitGroup
	conns := make([]*websocket.Conn, n)
	dialed := make(chan error, 1)
	go func() {
		var group errgroup.Group
		group.SetLimit(dialing)
		for i := range conns {
			group.Go(func() (err error) {
				if conns[i], err = dial(addr, i); err == nil {
					reading.Go(func() { c.read(conns[i]) })
				}
				return err
			})
		}
		dialed <- group.Wait()
	}()
	questions := bufio.NewScanner(in)
	for questions.Scan() {
		select {
		case err := <-dialed:
			if err != nil {
				return err
			}
		default:
		}
		at := map[string]*atomic.Int64{"connected": &c.connected, "seated": &c.seated, "received": &c.received}[questions.Text()]
		if at == nil {
			return fmt.Errorf("what is %q?", questions.Text())
		}
		if _, err := fmt.Fprintln(out, at.Load()); err != nil {
			return err
		}
	}
	var errs []error
	for _, ws := range conns {
		if ws != nil {
			errs = append(errs, ws.Close())
		}
	}
	reading.Wait()
	return errors.Join(errs...)
}

func dial(addr string, i int) (*websocket.Conn, error) {
	hello := fmt.Appendf(nil, `{"id":1,"connect":{"data":{"user":%q,"device":"d"}}}`, user(i))
	dialer := websocket.Dialer{ReadBufferSize: 512, WriteBufferSize: 128, HandshakeTimeout: time.Minute}
	ws, _, err := dialer.Dial("ws://"+addr+"/connection/websocket", nil)
	if err != nil {
		return nil, err
	}
	return ws, ws.WriteMessage(websocket.TextMessage, hello)
}

// read counts what a device gets. A frame has several events in it when they
// come fast.
func (c *counters) read(ws *websocket.Conn) {
	for {
		_, frame, err := ws.ReadMessage()
		if err != nil {
			return
		}
		if bytes.HasPrefix(frame, ping) || bytes.Contains(frame, append([]byte("\n"), ping...)) {
			_ = ws.WriteMessage(websocket.TextMessage, ping) // one that fails shows at the next read
		}
		if bytes.Contains(frame, []byte(`"connect":{"client"`)) {
			c.connected.Add(1)
		}
		if bytes.Contains(frame, []byte(`"channel":"crowd:group:all","subscribe"`)) {
			c.seated.Add(1)
		}
		c.received.Add(int64(bytes.Count(frame, []byte(mark))))
	}
}

// ping stands in a line of its own, and is to be answered alike.
var ping = []byte("{}")

// mark stands once in each message, and in nothing else.
const mark = "clientMessageId"
