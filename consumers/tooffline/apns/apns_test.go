package apns_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/consumers/tooffline/apns"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is one that Apple got.
type request struct {
	device string
	header http.Header
	body   map[string]any
}

// apple takes notifications over HTTP/2 and checks who sends them.
type apple struct {
	srv    *httptest.Server
	key    *ecdsa.PrivateKey
	pem    []byte
	got    []request
	answer map[string]func(w http.ResponseWriter) // by device token
}

func newApple(t *testing.T) *apple {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a := &apple{key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), answer: map[string]func(http.ResponseWriter){}}
	a.srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.Method != http.MethodPost {
			t.Errorf("%s over %s", r.Method, r.Proto)
		}
		bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "bearer ")
		tok, err := jwt.ParseSigned(bearer, []jose.SignatureAlgorithm{jose.ES256})
		if !ok || err != nil {
			t.Errorf("provider token %q: %v", bearer, err)
			return
		}
		var claims jwt.Claims
		if err := tok.Claims(&key.PublicKey, &claims); err != nil || claims.Issuer != "TEAM123456" || tok.Headers[0].KeyID != "KEY1234567" ||
			claims.IssuedAt == nil || time.Since(claims.IssuedAt.Time()) > time.Hour {
			t.Errorf("claims %+v: %v", claims, err)
		}
		x := request{device: strings.TrimPrefix(r.URL.Path, "/3/device/"), header: r.Header}
		if err := json.NewDecoder(r.Body).Decode(&x.body); err != nil {
			t.Error(err)
		}
		a.got = append(a.got, x)
		if f := a.answer[x.device]; f != nil {
			f(w)
		}
	}))
	a.srv.EnableHTTP2 = true
	a.srv.StartTLS()
	t.Cleanup(a.srv.Close)
	return a
}

func (a *apple) config() apns.Config {
	return apns.Config{Key: a.pem, KeyID: "KEY1234567", TeamID: "TEAM123456", Topic: "org.example.chat", URL: a.srv.URL, Client: a.srv.Client()}
}

func (a *apple) sender(t *testing.T) *apns.Sender {
	t.Helper()
	s, err := apns.New(a.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func refuse(status int, reason string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"reason":%q,"timestamp":1700000000000}`, reason)
	}
}

func notification(tokens ...string) *tooffline.Notification {
	n := &tooffline.Notification{
		ID: "msg_1", Conversation: "group:g", User: "B", First: 3, Last: 5, Messages: 3, Unread: 4, Badge: 9, Try: 1,
		Latest: wire.Offline{Sender: "A", ClientID: "c5"},
	}
	for i, t := range tokens {
		n.Devices = append(n.Devices, watermark.Device{ID: fmt.Sprint("d", i), Platform: watermark.APNs, Token: t})
	}
	return n
}

func TestEachDeviceGetsANotification(t *testing.T) {
	a := newApple(t)
	s := a.sender(t)
	n := notification("aa01", "bb02")
	for range 2 {
		if err := s.Send(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.got) != 4 || a.got[0].device != "aa01" || a.got[1].device != "bb02" {
		t.Fatalf("%d requests", len(a.got))
	}
	h := a.got[1].header
	for name, want := range map[string]string{
		"apns-topic": "org.example.chat", "apns-collapse-id": n.Collapse(), "apns-priority": "10", "apns-push-type": "alert",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if s, err := strconv.ParseInt(h.Get("apns-expiration"), 10, 64); err != nil || s <= time.Now().Unix() {
		t.Errorf("expiration %d, %v", s, err)
	}
	if id := h.Get("apns-id"); len(id) != 36 || id == a.got[0].header.Get("apns-id") || id != a.got[3].header.Get("apns-id") {
		t.Errorf("apns-id %q must be the device's own, and the same at every attempt", id)
	}
	if d := cmp.Diff(map[string]any{
		"aps": map[string]any{
			"alert": map[string]any{"title": "A", "body": "New message"}, "badge": float64(9), "sound": "default",
			"thread-id": n.Collapse(), "mutable-content": float64(1),
		},
		"id": "msg_1", "conversation": "group:g", "user": "B", "sender": "A", "first_seq": "3", "last_seq": "5", "messages": "3",
		"unread": "4", "badge": "9", "mentioned": "false",
	}, a.got[1].body); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestWhatAppleAnswersDecides(t *testing.T) {
	for _, c := range []struct {
		status      int
		reason      string
		gone, final bool
		whole       bool
	}{
		{status: 410, reason: "Unregistered", gone: true},
		{status: 400, reason: "BadDeviceToken", final: true},
		{status: 400, reason: "DeviceTokenNotForTopic", final: true},
		{status: 413, reason: "PayloadTooLarge", final: true},
		{status: 403, reason: "InvalidProviderToken"},
		{status: 429, reason: "TooManyRequests"},
		{status: 500, reason: "InternalServerError"},
		{status: 503, reason: "Shutdown", whole: true},
	} {
		t.Run(c.reason, func(t *testing.T) {
			a := newApple(t)
			a.answer["bb02"] = refuse(c.status, c.reason)
			err := a.sender(t).Send(t.Context(), notification("aa01", "bb02"))
			said, _ := errors.AsType[*tooffline.SendError](err)
			switch {
			case c.gone && err != nil:
				t.Errorf("err = %v", err)
			case !c.gone && said == nil:
				t.Errorf("err = %v", err)
			case said != nil && (said.Final != c.final || said.Whole != c.whole || !strings.Contains(err.Error(), c.reason)):
				t.Errorf("said %+v", said)
			}
		})
	}
}

func TestATokenCannotLeadElsewhere(t *testing.T) {
	a := newApple(t)
	err := a.sender(t).Send(t.Context(), notification("../other", "aa01"))
	if said, _ := errors.AsType[*tooffline.SendError](err); said == nil || !said.Final || strings.Contains(err.Error(), "other") {
		t.Errorf("err = %v", err)
	}
	if len(a.got) != 1 || a.got[0].device != "aa01" {
		t.Errorf("got %+v", a.got)
	}
	a.srv.CloseClientConnections()
	a.srv.Close()
	if err := a.sender(t).Send(t.Context(), notification("aa01")); err == nil || strings.Contains(err.Error(), "aa01") {
		t.Errorf("the error shows a token: %v", err)
	}
}

func TestAllFaultsOfAConfigAreNamed(t *testing.T) {
	_, err := apns.New(apns.Config{Key: []byte("hush"), URL: "http://x/y"})
	for _, want := range []string{"Key", "TeamID", "Topic", "URL"} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s is not named in %v", want, err)
		}
	}
	if _, err := apns.New(newApple(t).config()); err != nil {
		t.Error(err)
	}
}
