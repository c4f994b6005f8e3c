// Package apns hands notifications to Apple's devices, over HTTP/2 with a
// provider token (ES256), which the library that builds the requests makes and
// renews.
//
// A Sender is safe for concurrent use.
package apns

import (
	"context"
	"crypto/elliptic"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
	"github.com/sideshow/apns2"
	"github.com/sideshow/apns2/payload"
	"github.com/sideshow/apns2/token"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultURL is where Apple takes notifications; the sandbox has another one.
const DefaultURL = apns2.HostProduction

// ttl is how long Apple keeps a notification for a device that is off.
const ttl = 24 * time.Hour

// Config says as whom notifications are sent.
type Config struct {
	// Key is the .p8 file's content, KeyID and TeamID are what Apple calls key and
	// owner. Required.
	Key           []byte
	KeyID, TeamID string
	// Topic is the application's bundle id. Required.
	Topic string
	// URL is where notifications are sent. Empty: DefaultURL.
	URL string
	// Client sends. Nil: one of its own. It must speak HTTP/2.
	Client *http.Client
}

// Sender sends notifications.
type Sender struct {
	topic  string
	client *apns2.Client
}

// New checks cfg. All its faults are reported together. It connects to nothing.
func New(cfg Config) (*Sender, error) {
	var errs []error
	key, err := token.AuthKeyFromBytes(cfg.Key)
	if err != nil || key.Curve != elliptic.P256() {
		errs = append(errs, errors.New("apns: Key is no .p8 file with a P-256 key"))
	}
	if cfg.KeyID == "" || cfg.TeamID == "" || cfg.Topic == "" {
		errs = append(errs, errors.New("apns: KeyID, TeamID and Topic are required"))
	}
	if cfg.URL == "" {
		cfg.URL = DefaultURL
	}
	if u, err := url.Parse(cfg.URL); err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" {
		errs = append(errs, fmt.Errorf("apns: URL %q is no https URL without a path", cfg.URL))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c := apns2.NewTokenClient(&token.Token{AuthKey: key, KeyID: cfg.KeyID, TeamID: cfg.TeamID})
	c.Host, c.HTTPClient = cfg.URL, cfg.Client
	if c.HTTPClient == nil {
		c.HTTPClient = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	}
	return &Sender{topic: cfg.Topic, client: c}, nil
}

// Close lets idle connections go.
func (s *Sender) Close() error {
	s.client.HTTPClient.CloseIdleConnections()
	return nil
}

// Send tells each of n's devices once.
func (s *Sender) Send(ctx context.Context, n *tooffline.Notification) error {
	return tooffline.EachDevice(ctx, n, func(ctx context.Context, d watermark.Device) error {
		if _, err := hex.DecodeString(d.Token); err != nil {
			// It would stand in a path. Apple gives none that is not hexadecimal.
			return &tooffline.SendError{Final: true, Err: errors.New("apns: the token is not hexadecimal")}
		}
		res, err := s.client.PushWithContext(ctx, s.notification(n, d))
		if err != nil {
			if u, ok := errors.AsType[*url.Error](err); ok {
				err = u.Err // without the URL, which holds the token
			}
			return fmt.Errorf("apns: %w", err)
		}
		return meaning(res)
	})
}

func (s *Sender) notification(n *tooffline.Notification, d watermark.Device) *apns2.Notification {
	title, body := n.Shown()
	p := payload.NewPayload().AlertTitle(title).AlertBody(body).Badge(int(n.Badge)).Sound("default").ThreadID(n.Collapse()).MutableContent()
	for k, v := range n.Fields() {
		p.Custom(k, v)
	}
	return &apns2.Notification{
		// The same at every attempt.
		ApnsID:      uuid.NewSHA1(uuid.NameSpaceURL, []byte(n.ID+"/"+d.ID)).String(),
		CollapseID:  n.Collapse(),
		DeviceToken: d.Token, Topic: s.topic, Expiration: time.Now().Add(ttl), Priority: apns2.PriorityHigh,
		PushType: apns2.PushTypeAlert, Payload: p,
	}
}

// meaning says what an answer means. 410 alone is a device that is gone: a bad
// token or a wrong topic is refused, not forgotten, since with the wrong key,
// topic or environment all are.
func meaning(r *apns2.Response) error {
	if r.Sent() {
		return nil
	}
	said := &tooffline.SendError{Err: fmt.Errorf("apns: status %d %s", r.StatusCode, r.Reason)}
	switch r.StatusCode {
	case http.StatusGone:
		return fmt.Errorf("apns: %s: %w", r.Reason, tooffline.ErrGone)
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge:
		said.Final = true
	case http.StatusServiceUnavailable:
		said.Whole = true
	}
	return said
}
