package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	centrifugo "github.com/centrifugal/centrifuge-go"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// everybody of users is a member of tea, and of nothing else.
type everybody struct{ users []watermark.UserID }

func (e everybody) Members(_ context.Context, conv watermark.ConversationID, _ []watermark.UserID) (map[watermark.UserID]watermark.Member, bool, error) {
	out := make(map[watermark.UserID]watermark.Member)
	if conv == tea {
		for _, u := range e.users {
			out[u] = watermark.Member{User: u, Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}}}
		}
	}
	return out, true, nil
}

func (everybody) Crowds(_ context.Context, users []watermark.UserID) ([][]watermark.ConversationID, error) {
	return make([][]watermark.ConversationID, len(users)), nil
}

func TestTypingReachesTheOthers(t *testing.T) {
	members := everybody{[]watermark.UserID{"alice", "bob"}}
	g, err := gateway.New(gateway.Config{Authenticate: gateway.Trusting, Members: members, Crowds: members, Drain: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	serving, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- g.Run(serving) }()
	srv := httptest.NewServer(g.Handler())
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		srv.Close()
	}()
	url := "ws" + strings.TrimPrefix(srv.URL, "http") + "/connection/websocket"
	connect := func(user watermark.UserID) (*client.Client, <-chan *tidemarkv1.PushEvent) {
		events := make(chan *tidemarkv1.PushEvent, 100)
		c, err := client.New(client.Config{
			User: user, Service: newServer(), Live: &client.WebSocket{URL: url, User: user}, Logger: slog.New(slog.DiscardHandler),
			OnMessage: func(context.Context, client.Update) error { return nil },
			OnEvent: func(_ context.Context, e *tidemarkv1.PushEvent) error {
				select {
				case events <- e:
				default: // more of the same
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Typing(ctx, tea); !errors.Is(err, client.ErrNotConnected) {
			t.Errorf("before it is connected: %v", err)
		}
		life, end := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- c.Run(life) }()
		t.Cleanup(func() {
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return c, events
	}
	alice, own := connect("alice")
	carol, _ := connect("carol")
	_, events := connect("bob")
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for told := false; !told; {
		select {
		case e := <-events:
			told = true
			if n := e.GetTransient(); e.GetConversation() != tea || n.GetUser() != "alice" || n.GetKind() != client.KindTyping {
				t.Errorf("bob got %v", e)
			}
		case <-tick.C: // until both are connected
			if err := alice.Typing(ctx, tea); err != nil && !errors.Is(err, client.ErrNotConnected) && code(err) != 429 {
				t.Fatal(err)
			}
		case <-ctx.Done():
			t.Fatal("bob is not told")
		}
	}
	for {
		err := carol.SendTransient(ctx, tea, "reaction", []byte(`{"of":7}`))
		if errors.Is(err, client.ErrNotConnected) {
			<-tick.C
			continue
		}
		if code(err) != 403 {
			t.Errorf("who is no member: %v", err)
		}
		break
	}
	if err := alice.SendTransient(ctx, tea, "no kind", nil); code(err) != 400 {
		t.Errorf("a kind with a space: %v", err)
	}
	if len(own) > 0 {
		t.Errorf("alice is told what she types: %v", <-own)
	}
}

// code gives what the gateway refused with.
func code(err error) uint32 {
	if e, ok := errors.AsType[*centrifugo.Error](err); ok {
		return e.Code
	}
	return 0
}
