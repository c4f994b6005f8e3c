package fcm_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/consumers/tooffline/fcm"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// google is Google as far as a sender meets it: it checks who asks for an access
// token, and that messages carry one.
type google struct {
	t    *testing.T
	srv  *httptest.Server
	key  *rsa.PrivateKey
	json []byte

	mu       sync.Mutex
	issued   int
	issuing  http.HandlerFunc // nil: it works
	messages []map[string]any
	answer   map[string]func(w http.ResponseWriter) // by token
}

func newGoogle(t *testing.T) *google {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	g := &google{t: t, key: key, answer: make(map[string]func(http.ResponseWriter))}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", g.token)
	mux.HandleFunc("POST /v1/projects/shop-1/messages:send", g.send)
	g.srv = httptest.NewServer(mux)
	t.Cleanup(g.srv.Close)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	g.json, err = json.Marshal(map[string]string{
		"type": "service_account", "project_id": "shop-1", "private_key_id": "kid-1", "client_email": "push@shop-1.example",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": g.srv.URL + "/token",
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *google) token(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	issuing := g.issuing
	g.mu.Unlock()
	if issuing != nil {
		issuing(w, r)
		return
	}
	tok, err := jwt.ParseSigned(r.FormValue("assertion"), []jose.SignatureAlgorithm{jose.RS256})
	if err != nil || r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
		g.t.Errorf("assertion: %v", err)
		return
	}
	var claims struct {
		jwt.Claims
		Scope string `json:"scope"`
	}
	if err := tok.Claims(&g.key.PublicKey, &claims); err != nil {
		g.t.Errorf("signature: %v", err)
	}
	if claims.Issuer != "push@shop-1.example" || claims.Scope != "https://www.googleapis.com/auth/firebase.messaging" || tok.Headers[0].KeyID != "kid-1" {
		g.t.Errorf("claims %+v of key %s", claims, tok.Headers[0].KeyID)
	}
	if err := claims.Validate(jwt.Expected{AnyAudience: jwt.Audience{g.srv.URL + "/token"}, Time: time.Now()}); err != nil {
		g.t.Error(err)
	}
	g.mu.Lock()
	g.issued++
	g.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"access_token":"access-%d","token_type":"Bearer","expires_in":3600}`, g.issued)
}

func (g *google) send(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req struct{ Message map[string]any }
	if err := errors.Join(err, json.Unmarshal(body, &req)); err != nil {
		g.t.Error(err)
	}
	if got := r.Header.Get("Authorization"); got != "Bearer access-1" {
		g.t.Errorf("authorization %q", got)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.messages = append(g.messages, req.Message)
	token, _ := req.Message["token"].(string)
	w.Header().Set("Content-Type", "application/json")
	if f := g.answer[token]; f != nil {
		f(w)
		return
	}
	fmt.Fprint(w, `{"name":"projects/shop-1/messages/1"}`)
}

// refuse answers as Firebase does.
func refuse(status int, code string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"code":%d,"message":"x","status":"Y","details":[{"@type":"type.googleapis.com/google.firebase.fcm.v1.FcmError","errorCode":%q}]}}`, status, code)
	}
}

func (g *google) sender() *fcm.Sender {
	g.t.Helper()
	s, err := fcm.New(fcm.Config{Credentials: g.json, URL: g.srv.URL + "/"})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = s.Close() })
	return s
}

func notification(tokens ...string) *tooffline.Notification {
	n := &tooffline.Notification{
		ID: "msg_1", Conversation: "group:g", User: "B", First: 3, Last: 5, Messages: 3, Mentioned: true, Unread: 4, Badge: 9, Try: 1,
		Latest: wire.Offline{Sender: "A", ClientID: "c5", Text: "hello"},
	}
	for i, t := range tokens {
		n.Devices = append(n.Devices, watermark.Device{ID: fmt.Sprint("d", i), Platform: watermark.FCM, Token: t})
	}
	return n
}

func TestEachDeviceGetsAMessage(t *testing.T) {
	g := newGoogle(t)
	s := g.sender()
	n := notification("t1", "t2")
	if err := s.Send(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if g.issued != 1 || len(g.messages) != 2 {
		t.Fatalf("%d access tokens for %d messages", g.issued, len(g.messages))
	}
	c := n.Collapse()
	want := map[string]any{
		"token": "t2", "notification": map[string]any{"title": "A", "body": "hello"},
		"data": map[string]any{
			"id": "msg_1", "conversation": "group:g", "user": "B", "sender": "A", "first_seq": "3", "last_seq": "5", "messages": "3",
			"unread": "4", "badge": "9", "mentioned": "true",
		},
		"android": map[string]any{"collapseKey": c, "priority": "HIGH", "ttl": "86400s", "notification": map[string]any{"tag": c, "notificationCount": float64(9)}},
		"apns": map[string]any{
			"headers": map[string]any{"apns-collapse-id": c},
			"payload": map[string]any{"aps": map[string]any{"badge": float64(9), "sound": "default", "thread-id": c}},
		},
	}
	if d := cmp.Diff(want, g.messages[1]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	n = notification("t1")
	n.Latest.Title, n.Latest.Body = "Ada", "wrote"
	if err := s.Send(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]any{"title": "Ada", "body": "wrote"}, g.messages[2]["notification"]); d != "" {
		t.Errorf("what the message wants to be shown (-want +got):\n%s", d)
	}
}

func TestWhatFirebaseAnswersDecides(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter)
		gone   bool
		final  bool
		whole  bool
	}{
		{name: "unregistered", answer: refuse(404, "UNREGISTERED"), gone: true},
		{name: "another sender's", answer: refuse(403, "SENDER_ID_MISMATCH"), final: true},
		{name: "bad message", answer: refuse(400, "INVALID_ARGUMENT"), final: true},
		{name: "quota", answer: refuse(429, "QUOTA_EXCEEDED"), whole: true},
		{name: "away", answer: refuse(503, "UNAVAILABLE"), whole: true},
		{name: "broken", answer: refuse(500, "INTERNAL")},
		{name: "not allowed", answer: refuse(401, "THIRD_PARTY_AUTH_ERROR")},
		{name: "no such project", answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGoogle(t)
			g.answer["bad"] = c.answer
			err := g.sender().Send(t.Context(), notification("good", "bad"))
			said, _ := errors.AsType[*tooffline.SendError](err)
			switch {
			case c.gone && err != nil:
				t.Errorf("err = %v", err)
			case !c.gone && said == nil:
				t.Errorf("err = %v", err)
			case said != nil && (said.Final != c.final || said.Whole != c.whole):
				t.Errorf("said %+v", said)
			case said != nil && c.whole && said.RetryAfter != 30*time.Second:
				t.Errorf("retry after %v", said.RetryAfter)
			}
			if err != nil && strings.Contains(err.Error(), "bad ") {
				t.Errorf("the error shows a token: %v", err)
			}
		})
	}
}

// An access token that cannot be had is no device's fault, and nobody waits for
// it longer than for an attempt.
func TestAccessTokensMayBeAway(t *testing.T) {
	g := newGoogle(t)
	g.issuing = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"error":"hush"}`)
	}
	s := g.sender()
	err := s.Send(t.Context(), notification("t1"))
	if said, _ := errors.AsType[*tooffline.SendError](err); err == nil || said != nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("err = %v", err)
	}
	release := make(chan struct{})
	g.mu.Lock()
	g.issuing = func(http.ResponseWriter, *http.Request) { <-release }
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Send(ctx, notification("t1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	g.mu.Lock()
	g.issuing = nil
	g.mu.Unlock()
	close(release)
	deadline := time.Now().Add(30 * time.Second)
	for err = errors.New("not tried"); err != nil; {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		err = s.Send(t.Context(), notification("t1"))
	}
}

func TestFaultsOfAConfigAreNamed(t *testing.T) {
	g := newGoogle(t)
	if _, err := fcm.New(fcm.Config{Credentials: []byte(`{"type":"hush"}`)}); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("err = %v", err)
	}
	if _, err := fcm.New(fcm.Config{Credentials: g.json, Project: "a/b"}); err == nil || !strings.Contains(err.Error(), "project") {
		t.Errorf("err = %v", err)
	}
}
