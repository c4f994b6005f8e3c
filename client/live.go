package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"

	centrifugo "github.com/centrifugal/centrifuge-go"
	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// WebSocket is a Live over the gateway's WebSocket.
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
}

// Stream implements Live. It returns an error only when the gateway refuses
// the connection for good.
func (w WebSocket) Stream(ctx context.Context, connected func(), event func(*tidemarkv1.PushEvent)) error {
	who, err := json.Marshal(map[string]string{"user": string(w.User), "device": w.Device})
	if err != nil {
		return fmt.Errorf("client: encode connect data: %w", err)
	}
	cfg := centrifugo.Config{Data: who, Name: "tidemark-go", TLSConfig: w.TLS}
	if w.Token != nil {
		cfg.GetToken = func(centrifugo.ConnectionTokenEvent) (string, error) { return w.Token(ctx) }
	}
	c := centrifugo.NewJsonClient(w.URL, cfg)
	defer c.Close()
	refused := make(chan error, 1)
	c.OnDisconnected(func(e centrifugo.DisconnectedEvent) {
		select {
		case refused <- fmt.Errorf("client: gateway closed the connection: %s (code %d)", e.Reason, e.Code):
		default:
		}
	})
	w.tellLost(c)
	c.OnSubscribed(func(centrifugo.ServerSubscribedEvent) { connected() })
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
	if err := c.Connect(); err != nil {
		return fmt.Errorf("client: connect to the gateway: %w", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-refused:
		return err
	}
}

// tellLost calls Lost and Back. The driver tells of the first connect alike,
// and its handlers run one at a time.
func (w WebSocket) tellLost(c *centrifugo.Client) {
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
