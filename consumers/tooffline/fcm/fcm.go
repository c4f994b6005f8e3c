// Package fcm hands notifications to devices through Firebase Cloud Messaging,
// HTTP v1. The message is Google's own type, and the access token comes from a
// service account's key by Google's own library.
//
// A Sender is safe for concurrent use. A token that cannot be had is no device's
// fault: the attempt is made again.
package fcm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"golang.org/x/sync/singleflight"
	api "google.golang.org/api/fcm/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/watermark"
)

// DefaultURL is where Firebase takes messages.
const DefaultURL = "https://fcm.googleapis.com/"

const (
	scope = "https://www.googleapis.com/auth/firebase.messaging"
	// ttl is how long Firebase keeps a message for a device that is off.
	ttl = 24 * time.Hour
	// tokenTimeout bounds fetching an access token.
	tokenTimeout = 10 * time.Second
)

// Config says as whom messages are sent.
type Config struct {
	// Credentials are the JSON key of a service account. Required.
	Credentials []byte
	// Project; empty: that of the key.
	Project string
	// URL is where messages are sent. Empty: DefaultURL.
	URL string
	// Client sends, and fetches access tokens. Nil: one of its own.
	Client *http.Client
}

// Sender sends messages.
type Sender struct {
	parent string
	client *http.Client
	calls  *api.ProjectsMessagesService
	tokens oauth2.TokenSource
	flight singleflight.Group
}

var projectID = regexp.MustCompile(`^[a-z0-9:.-]{1,63}$`)

// New checks cfg. It connects to nothing.
func New(cfg Config) (*Sender, error) {
	conf, err := google.JWTConfigFromJSON(cfg.Credentials, scope)
	if err != nil {
		return nil, errors.New("fcm: the credentials are no JSON key of a service account") // the cause might show some of it
	}
	var key struct {
		Project string `json:"project_id"`
	}
	if err := json.Unmarshal(cfg.Credentials, &key); err == nil && cfg.Project == "" {
		cfg.Project = key.Project
	}
	if !projectID.MatchString(cfg.Project) {
		return nil, fmt.Errorf("fcm: project %q is not the id of one", cfg.Project)
	}
	if cfg.URL == "" {
		cfg.URL = DefaultURL
	}
	if cfg.Client == nil {
		cfg.Client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	}
	fetcher := *cfg.Client
	fetcher.Timeout = tokenTimeout
	// The library keeps this context for as long as it lives; it carries the
	// client and nothing else.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &fetcher)
	svc, err := api.NewService(ctx, option.WithHTTPClient(cfg.Client), option.WithEndpoint(cfg.URL), option.WithUserAgent("tidemark"))
	if err != nil {
		return nil, fmt.Errorf("fcm: %w", err)
	}
	return &Sender{parent: "projects/" + cfg.Project, client: cfg.Client, calls: svc.Projects.Messages, tokens: conf.TokenSource(ctx)}, nil
}

// Close lets idle connections go.
func (s *Sender) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Send tells each of n's devices once.
func (s *Sender) Send(ctx context.Context, n *tooffline.Notification) error {
	token, err := s.token(ctx)
	if err != nil {
		return err
	}
	return tooffline.EachDevice(ctx, n, func(ctx context.Context, d watermark.Device) error {
		call := s.calls.Send(s.parent, &api.SendMessageRequest{Message: message(n, d)}).Context(ctx)
		call.Header().Set("Authorization", "Bearer "+token)
		_, err := call.Do()
		return meaning(err)
	})
}

// token gives an access token. The library's call knows no context: whoever is
// out of time leaves it, and the next one finds what came of it.
func (s *Sender) token(ctx context.Context) (string, error) {
	got := s.flight.DoChan("", func() (any, error) { return s.tokens.Token() })
	select {
	case r := <-got:
		if r.Err != nil {
			return "", fmt.Errorf("fcm: access token: %w", hushed(r.Err))
		}
		return r.Val.(*oauth2.Token).AccessToken, nil
	case <-ctx.Done():
		return "", fmt.Errorf("fcm: access token: %w", ctx.Err())
	}
}

// hushed leaves out what an answer of the token's issuer holds.
func hushed(err error) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok && e.Response != nil {
		return fmt.Errorf("status %d", e.Response.StatusCode)
	}
	return err
}

func message(n *tooffline.Notification, d watermark.Device) *api.Message {
	title, body := n.Shown()
	return &api.Message{
		Token:        d.Token,
		Data:         n.Fields(),
		Notification: &api.Notification{Title: title, Body: body},
		Android: &api.AndroidConfig{
			CollapseKey: n.Collapse(), Priority: "HIGH", Ttl: fmt.Sprintf("%.0fs", ttl.Seconds()),
			Notification: &api.AndroidNotification{Tag: n.Collapse(), NotificationCount: n.Badge},
		},
		Apns: &api.ApnsConfig{
			Headers: map[string]string{"apns-collapse-id": n.Collapse()},
			Payload: googleapi.RawMessage(fmt.Sprintf(`{"aps":{"badge":%d,"sound":"default","thread-id":%q}}`, n.Badge, n.Collapse())),
		},
	}
}

// meaning says what an answer means: only what Firebase says is unregistered is
// gone. A token of another sender's is refused, not forgotten: with the wrong
// credentials all are.
func meaning(err error) error {
	e, ok := errors.AsType[*googleapi.Error](err)
	if !ok {
		return err
	}
	code := fcmCode(e)
	said := &tooffline.SendError{Err: fmt.Errorf("fcm: status %d %s", e.Code, code), RetryAfter: tooffline.RetryAfter(e.Header, time.Now())}
	switch {
	case code == "UNREGISTERED":
		return fmt.Errorf("fcm: %w", tooffline.ErrGone)
	case code == "SENDER_ID_MISMATCH", e.Code == http.StatusBadRequest:
		said.Final = true
	case e.Code == http.StatusTooManyRequests, e.Code == http.StatusServiceUnavailable:
		said.Whole = true
	}
	return said
}

// fcmCode gives Firebase's own word for an error.
func fcmCode(e *googleapi.Error) string {
	for _, d := range e.Details {
		m, _ := d.(map[string]any)
		kind, _ := m["@type"].(string)
		if code, ok := m["errorCode"].(string); ok && strings.HasSuffix(kind, "fcm.v1.FcmError") {
			return code
		}
	}
	return ""
}
