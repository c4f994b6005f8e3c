// Command chat is a device of a user, as small as one can be: what is typed as
// "<conversation> <text>" is sent, what comes is printed, and everything is kept
// in a file. Kill it at any point, type while the server is away, start it again:
// nothing is lost and nothing stands twice.
//
//	go run ./examples/chat --user alice --file alice.db
//
// It writes one line for each thing that happens, with fields between tabs:
// "queued" and the message's id when it is safe in the file, "sent" with id and
// seq, "refused" with id and reason, and "message" with conversation, seq, sender
// and text.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/client/sqlite"
	"github.com/tidemark-im/tidemark/watermark"
)

func main() {
	server := flag.String("server", "http://127.0.0.1:8080", "base `URL` of the sync API")
	gateway := flag.String("gateway", "ws://127.0.0.1:8081/connection/websocket", "`URL` of the gateway's WebSocket")
	user := flag.String("user", "", "whose device it is")
	device := flag.String("device", "chat", "name of this device")
	file := flag.String("file", "", "`file` that keeps its state")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := chat(ctx, *server, *gateway, *user, *device, *file); err != nil {
		fmt.Fprintln(os.Stderr, "chat:", err)
		os.Exit(1)
	}
}

// say prints lines one at a time.
type say struct{ mu sync.Mutex }

func (s *say) line(fields ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	words := make([]string, len(fields))
	for i, f := range fields {
		words[i] = fmt.Sprint(f)
	}
	fmt.Println(strings.Join(words, "\t"))
}

func chat(ctx context.Context, server, gateway, user, device, file string) (err error) {
	store, err := sqlite.New(sqlite.Config{Path: file, User: watermark.UserID(user)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	var out say
	// With authentication: an http.Client whose transport is client.Authorized, and
	// the Token of client.WebSocket.
	c, err := client.New(client.Config{
		User: watermark.UserID(user), Device: device,
		Service: tidemarkv1connect.NewSyncServiceClient(http.DefaultClient, server),
		Live:    &client.WebSocket{URL: gateway, User: watermark.UserID(user), Device: device},
		Store:   store, List: store, Outbox: store,
		OnMessage: func(ctx context.Context, u client.Update) error {
			if err := store.Keep(ctx, u); err != nil {
				return err
			}
			m := u.Message
			out.line("message", m.GetConversation(), m.GetSeq(), m.GetSender(), m.GetText())
			return nil
		},
		OnConversation: func(ctx context.Context, e *tidemarkv1.ConversationEntry, listed bool) error {
			if listed {
				return nil
			}
			return store.Forget(ctx, e.GetWatermarks().GetConversation(), e.GetWatermarks().GetVisible())
		},
		OnSent: func(_ context.Context, s client.Sent) error {
			if s.Err != nil {
				out.line("refused", s.Message.GetClientMessageId(), s.Err)
			} else {
				out.line("sent", s.Message.GetClientMessageId(), s.Seq)
			}
			return nil
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	go read(ctx, os.Stdin, c, &out) // ends with its input, or with the process
	return c.Run(ctx)
}

// read sends what is typed.
func read(ctx context.Context, in io.Reader, c *client.Client, out *say) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		conversation, text, _ := strings.Cut(lines.Text(), " ")
		id, err := c.Send(ctx, &tidemarkv1.SendMessage{Conversation: conversation, Body: &tidemarkv1.SendMessage_Text{Text: text}})
		if err != nil {
			fmt.Fprintln(os.Stderr, "chat:", err)
			continue
		}
		out.line("queued", id)
	}
}
