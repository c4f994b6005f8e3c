package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	centrifugo "github.com/centrifugal/centrifuge-go"
	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// ErrNotConnected is returned, wrapped, by what needs a connection when there is
// none.
var ErrNotConnected = errors.New("not connected to the gateway")

// WebSocket is a Live and a Passer over the gateway's WebSocket. It must not be
// copied after its first use.
type WebSocket struct {
	// URL is the gateway's, for example
	// ws://127.0.0.1:8081/connection/websocket. Required.
	URL string
	// User and Device are told to a gateway that trusts its callers.
	User   watermark.UserID
	Device string
	// Token, if set, is asked for at every connect, and before the one that was
	// given expires.
	Token TokenSource
	// TLS says whose certificates are believed of a wss URL. nil: the system's
	// authorities'.
	TLS *tls.Config
	// Lost, if set, is called when a connection that stood is lost, with the
	// reason, and Back when it stands again. Calls come one at a time.
	Lost func(reason string)
	Back func()

	conn atomic.Pointer[centrifugo.Client] // of the Stream that runs
}

// How long a connection may take to stand, and a frame to be written, on a slow
// line.
const (
	handshakeTimeout = 15 * time.Second
	writeTimeout     = 5 * time.Second
)

// Stream implements Live. It returns an error only when the gateway refuses
// the connection for good.
func (w *WebSocket) Stream(ctx context.Context, connected func(), event func(*tidemarkv1.PushEvent)) error {
	who, err := json.Marshal(map[string]string{"user": string(w.User), "device": w.Device})
	if err != nil {
		return fmt.Errorf("client: encode connect data: %w", err)
	}
	cfg := centrifugo.Config{Data: who, Name: "tidemark-go", HandshakeTimeout: handshakeTimeout, WriteTimeout: writeTimeout, TLSConfig: w.TLS}
	if w.Token != nil {
		cfg.GetToken = func(centrifugo.ConnectionTokenEvent) (string, error) { return w.Token(ctx) }
	}
	c := centrifugo.NewJsonClient(w.URL, cfg)
	w.conn.Store(c)
	defer func() {
		w.conn.CompareAndSwap(c, nil)
		c.Close()
	}()
	refused := make(chan error, 1)
	c.OnDisconnected(func(e centrifugo.DisconnectedEvent) {
		select {
		case refused <- fmt.Errorf("client: gateway closed the connection: %s (code %d)", e.Reason, e.Code):
		default:
		}
	})
	w.tellLost(c)
	c.OnSubscribed(func(e centrifugo.ServerSubscribedEvent) {
		// What a device may have missed of a crowd before it had its seat, the
		// gateway tells by an event.
		if !strings.Contains(e.Channel, "crowd:") {
			connected()
		}
	})
	c.OnPublication(func(e centrifugo.ServerPublicationEvent) {
		ev := &tidemarkv1.PushEvent{}
		// What this version cannot read is found by the next comparison of
		// watermarks.
		if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(e.Data, ev) != nil {
			connected()
			return
		}
		event(ev)
	})
	// An error is that of the first attempt, and others follow by themselves.
	_ = c.Connect()
	select {
	case <-ctx.Done():
		return nil
	case err := <-refused:
		return err
	}
}

// tellLost calls Lost and Back. The driver tells of the first connect alike,
// and its handlers run one at a time.
func (w *WebSocket) tellLost(c *centrifugo.Client) {
	stood, lost := false, false
	c.OnConnecting(func(e centrifugo.ConnectingEvent) {
		if stood && !lost {
			lost = true
			if w.Lost != nil {
				w.Lost(e.Reason)
			}
		}
	})
	c.OnConnected(func(centrifugo.ConnectedEvent) {
		if lost && w.Back != nil {
			w.Back()
		}
		stood, lost = true, false
	})
}

// Pass implements Passer: ErrNotConnected, or what the gateway refused, whose
// code is that of a *centrifuge.Error of centrifuge-go: 400 invalid, 403 no
// member, 429 too many, 503 not at the moment.
func (w *WebSocket) Pass(ctx context.Context, conversation, kind string, data json.RawMessage) error {
	c := w.conn.Load()
	if c == nil || c.State() != centrifugo.StateConnected {
		return ErrNotConnected
	}
	ask, err := json.Marshal(struct {
		Conversation string          `json:"conversation"`
		Kind         string          `json:"kind"`
		Data         json.RawMessage `json:"data,omitempty"`
	}{conversation, kind, data})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = c.RPC(ctx, "transient", ask)
	return err
}
