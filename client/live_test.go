package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// kept hands out the connections that it accepted, so that a test can break
// them.
type kept struct {
	net.Listener
	conns chan net.Conn
}

func (k *kept) Accept() (net.Conn, error) {
	c, err := k.Listener.Accept()
	if err == nil {
		k.conns <- c
	}
	return c, err
}

// A gateway that is not there yet is waited for.
func TestTheFirstAttemptMayFail(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "ws://" + l.Addr().String() + "/connection/websocket"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	connected, done := make(chan struct{}, 10), make(chan error, 1)
	go func() {
		done <- (&client.WebSocket{URL: url, User: "alice"}).Stream(ctx, func() { connected <- struct{}{} }, func(*tidemarkv1.PushEvent) {})
	}()
	// Its first connection is broken off before it stands.
	if c, err := l.Accept(); err != nil {
		t.Fatal(err)
	} else if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Authenticate: gateway.Trusting, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	go func() { ran <- g.Run(serving) }()
	srv := httptest.NewUnstartedServer(g.Handler())
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		srv.Close()
	}()
	select {
	case <-connected:
	case err := <-done:
		t.Fatalf("the stream has ended: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// nobody is a member of anything.
type nobody struct{}

func (nobody) Members(context.Context, watermark.ConversationID, []watermark.UserID) (map[watermark.UserID]watermark.Member, bool, error) {
	return nil, true, nil
}

func (nobody) Crowds(_ context.Context, users []watermark.UserID) ([][]watermark.ConversationID, error) {
	return make([][]watermark.ConversationID, len(users)), nil
}

func TestLostAndBackAreTold(t *testing.T) {
	g, err := gateway.New(gateway.Config{
		Authenticate: gateway.Trusting, Members: nobody{}, Crowds: nobody{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ran := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	go func() { ran <- g.Run(serving) }()
	srv := httptest.NewUnstartedServer(g.Handler())
	conns := &kept{Listener: srv.Listener, conns: make(chan net.Conn, 10)}
	srv.Listener = conns
	srv.Start()
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		srv.Close()
	}()

	said := make(chan string, 10)
	next := func(want string) {
		t.Helper()
		select {
		case got := <-said:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("%q is never told", want)
		}
	}
	live := &client.WebSocket{
		URL: "ws" + strings.TrimPrefix(srv.URL, "http") + "/connection/websocket", User: "alice",
		Lost: func(string) { said <- "lost" },
		Back: func() { said <- "back" },
	}
	streaming, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- live.Stream(streaming, func() { said <- "connected" }, func(*tidemarkv1.PushEvent) {})
	}()
	next("connected")
	// A first attempt may have come before the gateway ran: all are cut, and what is
	// closed already stays so.
	for n := len(conns.conns); n > 0; n-- {
		if err := (<-conns.conns).Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
	}
	next("lost")
	next("back")
	next("connected")
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
	select {
	case got := <-said:
		t.Errorf("%q is told at the end", got)
	default:
	}
}
