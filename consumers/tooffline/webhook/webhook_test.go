package webhook_test

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/consumers/tooffline/webhook"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = []byte("0123456789abcdef0123456789abcdef")

func notification() *tooffline.Notification {
	return &tooffline.Notification{
		ID: "msg_1", Conversation: "group:g", User: "B", First: 3, Last: 5, Messages: 3, Mentioned: true, Unread: 4, Badge: 9, Try: 2,
		Latest: wire.Offline{Sender: "A", ClientID: "c5", Kind: "text", Text: "hello <b>", Title: "Ada", Body: "wrote", RecordTime: time.UnixMilli(1700000000123)},
	}
}

// received is a request as it came.
type received struct {
	header http.Header
	body   []byte
}

// endpoint gives an endpoint that answers with answer, and what it got.
func endpoint(t *testing.T, answer http.HandlerFunc) (*webhook.Sender, func() []received) {
	t.Helper()
	var mu sync.Mutex
	var got []received
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		got = append(got, received{r.Header, body})
		mu.Unlock()
		if r.Method != http.MethodPost || r.URL.Path != "/push" {
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
		if answer != nil {
			answer(w, r)
		}
	}))
	s, err := webhook.New(webhook.Config{URL: srv.URL + "/push", KeyID: "k1", Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		srv.Close()
	})
	return s, func() []received {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

func TestWhatIsSentIsVerified(t *testing.T) {
	s, got := endpoint(t, nil)
	n := notification()
	if err := s.Send(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	r := got()[0]
	if r.header.Get(webhook.HeaderIdem) != "msg_1" || r.header.Get("content-type") != "application/json" {
		t.Errorf("header %v", r.header)
	}
	v := webhook.Verifier{Keys: map[string][]byte{"k0": []byte("another"), "k1": secret}}
	e, err := v.Verify(r.header, r.body)
	if err != nil {
		t.Fatal(err)
	}
	if time.Since(e.Time) > time.Hour {
		t.Errorf("time %v", e.Time)
	}
	if d := cmp.Diff(webhook.Event{Type: webhook.TypeMessage, Time: e.Time, Data: webhook.Data{
		ID: "msg_1", User: "B", Conversation: "group:g", FirstSeq: 3, LastSeq: 5, Messages: 3, Mentioned: true, Unread: 4, Badge: 9,
		CollapseKey: n.Collapse(), Attempt: 2,
		Message: webhook.Message{Sender: "A", ClientMessageID: "c5", Kind: "text", Text: "hello <b>", Title: "Ada", Body: "wrote", TimeMs: 1700000000123},
	}}, *e); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if c := n.Collapse(); c == "" || len(c) > 64 || strings.Contains(c, "g:") {
		t.Errorf("collapse key %q", c)
	}
}

// The form is that of Standard Webhooks: their own library takes it.
func TestTheLibraryOfStandardWebhooksTakesIt(t *testing.T) {
	s, got := endpoint(t, nil)
	if err := s.Send(t.Context(), notification()); err != nil {
		t.Fatal(err)
	}
	wh, err := standard.NewWebhook("whsec_" + base64.StdEncoding.EncodeToString(secret))
	if err != nil {
		t.Fatal(err)
	}
	r := got()[0]
	if err := wh.Verify(r.body, r.header); err != nil {
		t.Error(err)
	}
	if err := wh.Verify(append(r.body, ' '), r.header); err == nil {
		t.Error("a changed body is taken")
	}
}

func TestWhatWasTamperedWithIsRefused(t *testing.T) {
	s, got := endpoint(t, nil)
	if err := s.Send(t.Context(), notification()); err != nil {
		t.Fatal(err)
	}
	r := got()[0]
	stamp, err := strconv.ParseInt(r.header.Get(webhook.HeaderTimestamp), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	sent := time.Unix(stamp, 0)
	for _, c := range []struct {
		name   string
		want   error // nil: taken
		now    time.Time
		change func(h http.Header, body []byte) []byte
	}{
		{name: "as it is"},
		{name: "body", want: webhook.ErrSignature, change: func(_ http.Header, b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		{name: "shorter body", want: webhook.ErrSignature, change: func(_ http.Header, b []byte) []byte { return b[:len(b)-1] }},
		{name: "id", want: webhook.ErrSignature, change: func(h http.Header, b []byte) []byte { h.Set(webhook.HeaderID, "msg_2"); return b }},
		{name: "time", want: webhook.ErrSignature, change: func(h http.Header, b []byte) []byte {
			h.Set(webhook.HeaderTimestamp, strconv.FormatInt(stamp+1, 10))
			return b
		}},
		{name: "no signature", want: webhook.ErrUnsigned, change: func(h http.Header, b []byte) []byte { h.Del(webhook.HeaderSignature); return b }},
		{name: "no id", want: webhook.ErrUnsigned, change: func(h http.Header, b []byte) []byte { h.Del(webhook.HeaderID); return b }},
		{name: "no time", want: webhook.ErrUnsigned, change: func(h http.Header, b []byte) []byte { h.Del(webhook.HeaderTimestamp); return b }},
		{name: "other version", want: webhook.ErrSignature, change: func(h http.Header, b []byte) []byte {
			h.Set(webhook.HeaderSignature, strings.Replace(h.Get(webhook.HeaderSignature), "v1,", "v2,", 1))
			return b
		}},
		{name: "one right among others", change: func(h http.Header, b []byte) []byte {
			h.Set(webhook.HeaderSignature, "v1,AAAA v1a,x "+h.Get(webhook.HeaderSignature))
			return b
		}},
		{name: "unknown key", want: webhook.ErrUnknownKey, change: func(h http.Header, b []byte) []byte { h.Set(webhook.HeaderKeyID, "k9"); return b }},
		{name: "another key", want: webhook.ErrSignature, change: func(h http.Header, b []byte) []byte { h.Set(webhook.HeaderKeyID, "k2"); return b }},
		{name: "key without secret", want: webhook.ErrUnknownKey, change: func(h http.Header, b []byte) []byte { h.Set(webhook.HeaderKeyID, "k3"); return b }},
		{name: "almost too old", now: sent.Add(5 * time.Minute)},
		{name: "too old", want: webhook.ErrWindow, now: sent.Add(5*time.Minute + time.Second)},
		{name: "from the future", want: webhook.ErrWindow, now: sent.Add(-5*time.Minute - time.Second)},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, body := maps.Clone(r.header), append([]byte(nil), r.body...)
			if c.change != nil {
				body = c.change(h, body)
			}
			if c.now.IsZero() {
				c.now = sent
			}
			v := webhook.Verifier{Keys: map[string][]byte{"k1": secret, "k2": []byte("fedcba9876543210fedcba9876543210"), "k3": nil}, Now: func() time.Time { return c.now }}
			if _, err := v.Verify(h, body); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("err = %v, want %v", err, c.want)
			}
		})
	}
}

func TestAnAnswerDecides(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		final  bool
		after  time.Duration
		ok     bool
	}{
		{name: "taken", ok: true, answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }},
		{name: "refused", final: true, answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) }},
		{name: "busy", after: 30 * time.Second, answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusTooManyRequests)
		}},
		// A signed body does not go where an answer points.
		{name: "sent elsewhere", answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}},
		{name: "broken off", answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, got := endpoint(t, c.answer)
			err := s.Send(t.Context(), notification())
			if (err == nil) != c.ok || len(got()) != 1 {
				t.Fatalf("err = %v after %d requests", err, len(got()))
			}
			said, _ := errors.AsType[*tooffline.SendError](err)
			if said == nil {
				said = &tooffline.SendError{}
			}
			if said.Final != c.final || said.RetryAfter != c.after {
				t.Errorf("said %+v", said)
			}
			if err != nil && strings.Contains(err.Error(), "http://") {
				t.Errorf("the error shows the URL: %v", err)
			}
		})
	}
}

func TestAnEndpointThatHangsIsLeft(t *testing.T) {
	release := make(chan struct{})
	s, _ := endpoint(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Send(ctx, notification()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}

func TestAllFaultsOfAConfigAreNamed(t *testing.T) {
	_, err := webhook.New(webhook.Config{URL: "ftp://user:hush@x", KeyID: "a b", Secret: []byte("short"), Connections: -1})
	for _, want := range []string{"URL", "KeyID", "Secret", "Connections"} {
		if err == nil || !strings.Contains(err.Error(), want+" ") {
			t.Errorf("%s is not named in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hush") {
		t.Errorf("the error shows a secret: %v", err)
	}
	b, err := webhook.ParseSecret("whsec_" + base64.StdEncoding.EncodeToString(secret))
	if err != nil || string(b) != string(secret) {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := webhook.ParseSecret("plain"); err != nil || string(b) != "plain" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := webhook.ParseSecret("whsec_hush!"); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("err = %v", err)
	}
}
