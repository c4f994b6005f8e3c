// Package webhook hands notifications to a web service that the deployment
// chooses, and verifies them on its side.
//
// The form is that of Standard Webhooks (https://www.standardwebhooks.com), so
// that receivers in any language find a library that verifies it: a POST with
// JSON, and the headers webhook-id, webhook-timestamp and webhook-signature, the
// last being HMAC-SHA256 over "id.timestamp.body". Beyond that form
// tidemark-key-id names the key, so that keys can be changed without a gap, and
// idempotency-key repeats the id, which is the same at every attempt.
//
// A Sender and a Verifier are safe for concurrent use. docs/offline-push.md
// describes the body and what an answer means.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Headers of a request.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp" // seconds since 1970
	HeaderSignature = "webhook-signature" // "v1," and base64; several with spaces between
	HeaderKeyID     = "tidemark-key-id"
	HeaderIdem      = "idempotency-key"
)

// TypeMessage is the type of a notification of messages.
const TypeMessage = "message.notification"

// MinSecret is the least length of a secret, in bytes.
const MinSecret = 32

// Event is the body of a request.
type Event struct {
	Type string    `json:"type"` // TypeMessage
	Time time.Time `json:"timestamp"`
	Data Data      `json:"data"`
}

// Data is what a user is to be told.
type Data struct {
	// ID is that of the header: the idempotency key.
	ID           string `json:"id"`
	User         string `json:"user"`
	Conversation string `json:"conversation"`
	// FirstSeq and LastSeq are those of the messages that this stands for,
	// Messages how many they are.
	FirstSeq int64 `json:"first_seq"`
	LastSeq  int64 `json:"last_seq"`
	Messages int   `json:"messages"`
	// Mentioned tells that one of them mentions the user.
	Mentioned bool `json:"mentioned"`
	// Unread counts the user's unread messages in the conversation, Badge in all
	// that are not muted.
	Unread int64 `json:"unread"`
	Badge  int64 `json:"badge"`
	// CollapseKey is the same for all notifications of a conversation, which
	// replace each other.
	CollapseKey string  `json:"collapse_key"`
	Attempt     int     `json:"attempt"` // from 1
	Message     Message `json:"message"` // the last one
}

// Message is the last message of a notification.
type Message struct {
	Sender          string `json:"sender"`
	ClientMessageID string `json:"client_message_id"`
	Kind            string `json:"kind,omitempty"`
	// Text is the beginning of a text body, where the deployment sends any.
	Text string `json:"text,omitempty"`
	// Title and Body are what the message wants to be shown instead.
	Title  string `json:"title,omitempty"`
	Body   string `json:"body,omitempty"`
	TimeMs int64  `json:"time_ms"` // since 1970
}

// Config says where a Sender sends.
type Config struct {
	// URL is where to post. Required: https, or http.
	URL string
	// KeyID names the key, Secret is it, at least MinSecret bytes. Required.
	KeyID  string
	Secret []byte
	// UserAgent; empty: "tidemark".
	UserAgent string
	// Connections bounds those to the endpoint. 0: no limit.
	Connections int
	// Client sends. Nil: one of its own, which follows no redirect.
	Client *http.Client
}

// Sender posts notifications.
type Sender struct {
	cfg Config
}

// New checks cfg. All its faults are reported together.
func New(cfg Config) (*Sender, error) {
	var errs []error
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		errs = append(errs, errors.New("webhook: URL is no https or http URL")) // it may hold a password
	}
	if !headerWord(cfg.KeyID) {
		errs = append(errs, fmt.Errorf("webhook: KeyID %q must be 1-64 bytes of visible ASCII", cfg.KeyID))
	}
	if len(cfg.Secret) < MinSecret {
		errs = append(errs, fmt.Errorf("webhook: Secret has %d bytes, at least %d are needed", len(cfg.Secret), MinSecret))
	}
	if cfg.Connections < 0 {
		errs = append(errs, errors.New("webhook: Connections must not be negative"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "tidemark"
	}
	if cfg.Client == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxConnsPerHost, t.MaxIdleConnsPerHost = cfg.Connections, max(cfg.Connections, 2)
		// A signed body goes where the deployment said and nowhere else.
		cfg.Client = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return &Sender{cfg}, nil
}

// Close lets idle connections go.
func (s *Sender) Close() error {
	s.cfg.Client.CloseIdleConnections()
	return nil
}

func headerWord(s string) bool {
	return len(s) >= 1 && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// ParseSecret reads a secret as people keep it: "whsec_" and base64, as the
// libraries of Standard Webhooks want it, or the bytes themselves.
func ParseSecret(s string) ([]byte, error) {
	b64, ok := strings.CutPrefix(s, "whsec_")
	if !ok {
		return []byte(s), nil
	}
	b, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		return nil, errors.New("webhook: what follows whsec_ is no base64") // the error would show part of it
	}
	return b, nil
}

// Send posts n once.
func (s *Sender) Send(ctx context.Context, n *tooffline.Notification) error {
	now := time.Now()
	m := &n.Latest
	body, err := json.Marshal(Event{Type: TypeMessage, Time: now.UTC(), Data: Data{
		ID: n.ID, User: string(n.User), Conversation: string(n.Conversation), FirstSeq: int64(n.First), LastSeq: int64(n.Last),
		Messages: n.Messages, Mentioned: n.Mentioned, Unread: n.Unread, Badge: n.Badge, CollapseKey: n.Collapse(), Attempt: n.Try,
		Message: Message{
			Sender: string(m.Sender), ClientMessageID: m.ClientID, Kind: m.Kind, Text: m.Text, Title: m.Title, Body: m.Body,
			TimeMs: m.RecordTime.UnixMilli(),
		},
	}})
	if err != nil {
		return &tooffline.SendError{Final: true, Err: fmt.Errorf("webhook: encode: %w", err)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	stamp := strconv.FormatInt(now.Unix(), 10)
	h := req.Header
	h.Set("content-type", "application/json")
	h.Set("user-agent", s.cfg.UserAgent)
	h.Set(HeaderID, n.ID)
	h.Set(HeaderIdem, n.ID)
	h.Set(HeaderTimestamp, stamp)
	h.Set(HeaderKeyID, s.cfg.KeyID)
	if n.Trace.IsValid() {
		h.Set(wire.HeaderTrace, wire.Traceparent(n.Trace))
	}
	h.Set(HeaderSignature, "v1,"+base64.StdEncoding.EncodeToString(sign(s.cfg.Secret, n.ID, stamp, body)))
	resp, err := s.cfg.Client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which may hold a secret
		}
		return fmt.Errorf("webhook: post: %w", err)
	}
	defer resp.Body.Close()
	// So much is read that the connection can be used again.
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	return tooffline.OutcomeOf("webhook", resp.StatusCode, resp.Header)
}

func sign(secret []byte, id, stamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.", id, stamp)
	mac.Write(body)
	return mac.Sum(nil)
}
