package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	gatewayPath    = "/connection/websocket"
	defaultGateway = "ws://127.0.0.1:8081" + gatewayPath
)

// errEnough ends a watch that has seen as many messages as it was to.
var errEnough = errors.New("enough")

type watchFlags struct {
	user, device, gateway string
	newest                int64
	count                 int
	events                bool
}

func newWatchCmd(a *app) *cobra.Command {
	f := watchFlags{}
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print the messages of a user as they come",
		Long: `Watch is a device of a user: it prints the latest messages of every conversation,
then each message as it comes, every one once and in order, also over broken
connections. It ends with SIGINT, or after --count messages.`,
		Example: `  tidemark watch --user alice
  tidemark watch --user alice --newest 0 -o json | jq -r .text
  tidemark watch --user alice --events`,
		GroupID: groupMessages,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.user, "user", "", "`user` whose messages are printed")
	flags.StringVar(&f.device, "device", "", "name of this `device`; what it sends is not pushed back to it")
	flags.StringVar(&f.gateway, "gateway", defaultGateway, "`URL` of the gateway's WebSocket")
	flags.Int64Var(&f.newest, "newest", 10, "`number` of earlier messages of each conversation to begin with; 0: all")
	flags.IntVar(&f.count, "count", 0, "end after this `number` of messages; 0: never")
	flags.BoolVar(&f.events, "events", false, "print reads, revokes and changes of windows too")
	require(cmd, "user")
	a.calls(cmd, func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) error { return a.watch(ctx, svc, f) })
	return cmd
}

func (a *app) watch(ctx context.Context, svc tidemarkv1connect.SyncServiceClient, f watchFlags) error {
	if f.newest < 0 || f.count < 0 {
		return usagef("--newest and --count must not be negative")
	}
	gateway, err := baseURL("gateway", f.gateway, "ws", "wss", "http", "https")
	if err != nil {
		return err
	}
	if s, ok := map[string]string{"http": "ws", "https": "wss"}[gateway.Scheme]; ok {
		gateway.Scheme = s
	}
	if gateway.Path == "" || gateway.Path == "/" {
		gateway.Path = gatewayPath
	}
	// The client waits for a server that is away. At start it is more likely
	// that the address is wrong.
	if _, err := svc.GetWatermarks(ctx, &tidemarkv1.GetWatermarksRequest{User: f.user, PageSize: 1}); err != nil {
		return err
	}
	if err := reachable(ctx, gateway.Host, gateway.Port(), gateway.Scheme); err != nil {
		return fmt.Errorf("--gateway %s: %w", gateway, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	seen := 0
	c, err := client.New(client.Config{
		User: watermark.UserID(f.user), Device: f.device, Service: svc, Newest: f.newest,
		Live: refusing{client.WebSocket{URL: gateway.String(), User: watermark.UserID(f.user), Device: f.device}, stop},
		OnMessage: func(_ context.Context, u client.Update) error {
			a.printUpdate(u)
			if seen++; seen == f.count {
				return errEnough
			}
			return nil
		},
		OnEvent: func(_ context.Context, e *tidemarkv1.PushEvent) error {
			if f.events {
				a.emit(e, func() { fmt.Fprintf(a.out, "%s\n", oneLine(pushText(e))) })
			}
			return nil
		},
		Logger: slog.New(slog.NewTextHandler(a.errOut, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (a *app) printUpdate(u client.Update) {
	m := u.Message
	a.emit(m, func() {
		again := ""
		if u.Again {
			again = "  (again, the conversation was repaired)"
		}
		fmt.Fprintf(a.out, "%s  %s #%d  %s: %s%s\n", clock(m.GetSendTimeMs()), m.GetConversation(), m.GetSeq(), m.GetSender(), oneLine(content(m)), again)
	})
}

// refusing ends the watch when the gateway refuses it for good; the client
// itself would go on without pushes.
type refusing struct {
	client.Live
	stop context.CancelCauseFunc
}

func (r refusing) Stream(ctx context.Context, connected func(), event func(*tidemarkv1.PushEvent)) error {
	err := r.Live.Stream(ctx, connected, event)
	if err != nil && ctx.Err() == nil {
		r.stop(err)
	}
	return err
}

func reachable(ctx context.Context, host, port, scheme string) error {
	if port == "" {
		port = map[string]string{"ws": "80", "wss": "443"}[scheme]
		host = net.JoinHostPort(host, port)
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	return conn.Close()
}
