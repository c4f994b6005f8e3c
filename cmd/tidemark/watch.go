package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"connectrpc.com/connect"
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
	token, err := a.tokenSource()
	if err != nil {
		return err
	}
	authority, err := a.authority()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	seen, known := 0, &knowing{Service: svc, seqs: map[string]int64{}, say: a.complain}
	c, err := client.New(client.Config{
		User: watermark.UserID(f.user), Device: f.device, Service: known, Newest: f.newest,
		Live: refusing{&client.WebSocket{
			URL: gateway.String(), User: watermark.UserID(f.user), Device: f.device, Token: token, TLS: authority,
			Lost: func(reason string) {
				a.complain(fmt.Errorf("the connection to the gateway is lost (%s), trying again", reason))
			},
			Back: func() { a.complain(errors.New("the connection to the gateway is back")) },
		}, stop},
		OnMessage: func(_ context.Context, u client.Update) error {
			known.message(u.Message)
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

// knowing remembers the latest seqs, and says once of each conversation when
// the server no longer has them: it then lost messages, or is another one. The
// client asks only from its one goroutine.
type knowing struct {
	client.Service
	seqs map[string]int64
	say  func(error)
}

func (k *knowing) message(m *tidemarkv1.Message) {
	k.seqs[m.GetConversation()] = max(k.seqs[m.GetConversation()], m.GetSeq())
}

// SyncConversations implements client.Service.
func (k *knowing) SyncConversations(ctx context.Context, req *tidemarkv1.SyncConversationsRequest) (*tidemarkv1.SyncConversationsResponse, error) {
	res, err := k.Service.SyncConversations(ctx, req)
	if err != nil {
		return res, err
	}
	for _, e := range slices.Concat(res.GetChanged(), res.GetRemoved()) {
		k.compare(e.GetWatermarks().GetConversation(), e.GetWatermarks().GetMaxSeq())
	}
	return res, nil
}

// GetWatermarks implements client.Service. The client asks here for what its
// list does not show; what the server does not know at all it has lost.
func (k *knowing) GetWatermarks(ctx context.Context, req *tidemarkv1.GetWatermarksRequest) (*tidemarkv1.GetWatermarksResponse, error) {
	res, err := k.Service.GetWatermarks(ctx, req)
	if err != nil {
		return res, err
	}
	for _, w := range res.GetWatermarks() {
		if e := w.GetError(); e == nil || e.GetCode() == connect.CodeNotFound.String() {
			k.compare(w.GetConversation(), w.GetMaxSeq())
		}
	}
	return res, nil
}

func (k *knowing) compare(conv string, last int64) {
	if had, ok := k.seqs[conv]; ok && last < had {
		k.say(fmt.Errorf("%s: the server's latest seq is %d, but %d was received before: it lost messages or is another one, and what it numbers up to %d is not shown", conv, last, had, had))
		delete(k.seqs, conv)
	}
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
