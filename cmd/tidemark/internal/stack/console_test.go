package stack_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

// The page reaches a gateway of another process through its own port, under the
// host that the browser asked for.
func TestTheConsoleGoesThroughToTheGateway(t *testing.T) {
	asked := make(chan *http.Request, 1)
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		line, err := rw.ReadString('\n')
		if err == nil {
			_, err = io.WriteString(conn, "heard "+line)
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(gateway.Close)
	for _, tc := range []struct {
		to     string
		status int
	}{
		{"ws" + strings.TrimPrefix(gateway.URL, "http") + "/connection/websocket", http.StatusSwitchingProtocols},
		{"ws://127.0.0.1:1/connection/websocket", http.StatusBadGateway},
		{"", http.StatusNotFound},
	} {
		host := served(t, func(c *config.Config) { c.Sync.Console.Enabled, c.Sync.Console.Gateway = true, tc.to })
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "GET /console/live HTTP/1.1\r\nHost: chat.example\r\nOrigin: http://chat.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		in := bufio.NewReader(conn)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != tc.status {
			t.Errorf("%q: %s, want %d", tc.to, res.Status, tc.status)
		}
		if res.StatusCode != http.StatusSwitchingProtocols {
			res.Body.Close()
			continue
		}
		if r := <-asked; r.URL.Path != "/connection/websocket" || r.Host != "chat.example" || r.Header.Get("Origin") != "http://chat.example" {
			t.Errorf("the gateway was asked for %s at %s, from %s", r.URL, r.Host, r.Header.Get("Origin"))
		}
		fmt.Fprintln(conn, "hello")
		if line, err := in.ReadString('\n'); err != nil || line != "heard hello\n" {
			t.Errorf("%q, %v", line, err)
		}
	}
}

// Where nobody asked for it there is none.
func TestTheConsoleIsOffByDefault(t *testing.T) {
	host := served(t, func(*config.Config) {})
	for _, p := range []string{"/console/", "/console", "/console/pipeline.json", "/console/app.js"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+p, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", p, res.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// served runs the role sync on servers of its own and gives its host and port.
func served(t *testing.T, change func(*config.Config)) string {
	t.Helper()
	base := config.Default()
	change(&base)
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{Base: &base, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { emb.Cluster.Close() })
	s, err := stack.Open(t.Context(), stack.Config{Config: emb.Config, Roles: []stack.Role{stack.Sync}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	_, host, _ := strings.Cut(s.SyncURL(), "://")
	return host
}
