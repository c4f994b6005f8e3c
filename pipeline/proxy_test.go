package pipeline_test

import (
	"net"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

type family = dto.MetricFamily

// proxy is the network before a fake broker. While it is down, connections are
// cut and new ones are closed at once.
type proxy struct {
	mu    sync.Mutex
	away  bool
	conns map[net.Conn]struct{}
}

func newProxy(testing.TB) *proxy { return &proxy{conns: make(map[net.Conn]struct{})} }

func (p *proxy) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	return &proxyListener{l, p}, err
}

func (p *proxy) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = true
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

func (p *proxy) up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = false
}

type proxyListener struct {
	net.Listener
	p *proxy
}

func (l *proxyListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.p.mu.Lock()
		if l.p.away {
			_ = c.Close()
			l.p.mu.Unlock()
			continue
		}
		l.p.conns[c] = struct{}{}
		l.p.mu.Unlock()
		return c, nil
	}
}
