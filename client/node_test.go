package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// nodeEnv tells a copy of the test's own program that it is a node of a gateway,
// which says its address and runs until it is killed.
const nodeEnv = "TIDEMARK_CLIENT_TEST_NODE"

// nodeOf says which Redis and prefix the nodes of one gateway share.
type nodeOf struct{ Redis, Prefix string }

// crowded are the members of tea, a crowd: whoever asks.
type crowded struct{}

func (crowded) Members(_ context.Context, conv watermark.ConversationID, users []watermark.UserID) (map[watermark.UserID]watermark.Member, bool, error) {
	all, _, err := everybody{users}.Members(context.Background(), conv, nil)
	return all, false, err
}

func (crowded) Crowds(_ context.Context, users []watermark.UserID) ([][]watermark.ConversationID, error) {
	out := make([][]watermark.ConversationID, len(users))
	for i := range out {
		out[i] = []watermark.ConversationID{tea}
	}
	return out, nil
}

func (n nodeOf) config() gateway.Config {
	return gateway.Config{
		Authenticate: gateway.Trusting, Members: crowded{}, Crowds: crowded{}, Logger: slog.New(slog.DiscardHandler),
		Redis: gateway.Redis{Addresses: []string{n.Redis}}, Prefix: n.Prefix,
	}
}

func runNode(text string) error {
	var n nodeOf
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return err
	}
	g, err := gateway.New(n.config())
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: g.Handler(), ReadHeaderTimeout: time.Minute}
	failed := make(chan error, 2)
	go func() { failed <- g.Run(context.Background()) }()
	go func() { failed <- srv.Serve(l) }()
	fmt.Println(l.Addr())
	return <-failed
}

// asNode runs a node, if this is to be one, and tells whether it was.
func asNode() bool {
	text := os.Getenv(nodeEnv)
	if text == "" {
		return false
	}
	if err := runNode(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return true
}
