//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// proxy stands between the workers and a service.
type proxy struct {
	name string
	*toxiproxy.Proxy
}

// newProxy starts a proxy.
func newProxy(name, upstream string) (*proxy, error) {
	// Some of its parts log to a logger of their own, at the finest level.
	zerolog.SetGlobalLevel(zerolog.Disabled)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p := &proxy{name, toxiproxy.NewProxy(server, name, addr, upstream)}
	return p, p.Start()
}

// to lets the proxy lead to another address. Connections are cut.
func (p *proxy) to(upstream string) error {
	if err := p.Update(&toxiproxy.Proxy{Listen: p.Listen, Upstream: upstream}); err != nil {
		return fmt.Errorf("proxy of %s: %w", p.name, err)
	}
	return p.Start()
}

// cut ends all connections and takes no new ones for a while.
func (p *proxy) cut(ctx context.Context, d time.Duration) error {
	p.Stop()
	_ = pause(ctx, d)
	return p.Start()
}

// poison puts a fault on every connection for a while, in both directions.
func (p *proxy) poison(ctx context.Context, kind, attributes string, d time.Duration) error {
	for _, stream := range []string{"upstream", "downstream"} {
		toxic := fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"toxicity":1,"attributes":%s}`, kind+stream, kind, stream, attributes)
		if _, err := p.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return fmt.Errorf("proxy of %s: %w", p.name, err)
		}
	}
	_ = pause(ctx, d)
	var err error
	for _, stream := range []string{"upstream", "downstream"} {
		if e := p.Toxics.RemoveToxic(context.WithoutCancel(ctx), kind+stream); e != nil {
			err = fmt.Errorf("proxy of %s: %w", p.name, e)
		}
	}
	return err
}

// given are the ports that freeAddr has given: who got one may not listen yet, or
// not at the moment.
var given sync.Map

// freeAddr gives an address that nobody listens on, below the ports that the
// kernel gives to clients.
func freeAddr() (string, error) {
	var err error
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		if _, taken := given.LoadOrStore(addr, true); taken {
			continue
		}
		var ln net.Listener
		if ln, err = net.Listen("tcp", addr); err == nil {
			return addr, ln.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}

// listens tells whether something takes connections at addr.
func listens(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
