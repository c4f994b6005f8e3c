package pipeline

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// DefaultFetchEvery is the least time between two fetches of a group.
const DefaultFetchEvery = 2 * time.Millisecond

// fetchKey is the number of the Fetch request in Kafka's protocol.
const fetchKey = 1

// paced makes the connections of a group, on which a fetch leaves at the soonest
// every after the one before it.
//
// Kafka answers a fetch as soon as there is one record, and sarama sends the next
// one as soon as it has delivered. At 1,000 messages a second each message so
// makes a round of its own through every role (a fetch, a script call, an append,
// two more fetches, a transaction), and the rounds eat two cores. Records that
// come while a fetch is held back share its round. A record that comes after a
// pause waits for nothing, since the fetch that awaits it is with Kafka already;
// nothing ticks while nothing comes.
//
// sarama has no such setting. Its Fetch.Min lets Kafka wait for more bytes, also
// for the only record of a quiet hour, up to MaxWaitTime, which would then have
// to be as short as this and be a tick. So the connection does it: sarama writes
// a request in one piece, whose fifth and sixth byte tell what it is. Whatever
// follows on the connection waits too, which is far less than behind the fetch
// that Kafka holds.
type paced struct {
	net.Dialer
	every time.Duration
	tls   *tls.Config // nil: plain TCP
}

// pace lets a group's fetches leave no sooner than every. TLS moves in here, as
// what it makes of a request cannot be read.
func pace(s *sarama.Config, every time.Duration) {
	d := &paced{Dialer: net.Dialer{Timeout: s.Net.DialTimeout, KeepAlive: s.Net.KeepAlive}, every: every}
	if s.Net.TLS.Enable {
		d.tls = s.Net.TLS.Config
		s.Net.TLS.Enable, s.Net.TLS.Config = false, nil
	}
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, d
}

// Dial implements the interface that sarama has for proxies.
func (d *paced) Dial(network, addr string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	if d.tls != nil {
		conf := d.tls.Clone()
		if conf.ServerName == "" {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				_ = conn.Close()
				return nil, fmt.Errorf("name of broker %q: %w", addr, err)
			}
			conf.ServerName = host
		}
		conn = tls.Client(conn, conf)
	}
	return newPacedConn(conn, d.every), nil
}

type pacedConn struct {
	net.Conn
	every  time.Duration
	last   time.Time // of the last fetch; sarama writes one request at a time
	once   sync.Once
	closed chan struct{}
}

func newPacedConn(conn net.Conn, every time.Duration) *pacedConn {
	return &pacedConn{Conn: conn, every: every, closed: make(chan struct{})}
}

// Write implements net.Conn.
func (c *pacedConn) Write(b []byte) (int, error) {
	if len(b) >= 6 && binary.BigEndian.Uint16(b[4:]) == fetchKey {
		c.rest()
		c.last = time.Now()
	}
	return c.Conn.Write(b)
}

func (c *pacedConn) rest() {
	left := c.every - time.Since(c.last)
	if left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.closed:
	}
}

// Close implements net.Conn.
func (c *pacedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
