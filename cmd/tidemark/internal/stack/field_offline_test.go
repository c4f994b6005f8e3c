package stack_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/deadletters"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/consumers/tooffline/webhook"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

const hookSecret = "0123456789abcdef0123456789abcdef"

// hook is somebody else's web service, which verifies what it gets.
type hook struct {
	srv *httptest.Server

	mu     sync.Mutex
	status int // what it answers
	last   map[string]webhook.Data
	calls  int
	faults []error
	traces []string // what the requests belong to
}

func newHook(t *testing.T) *hook {
	h := &hook{status: http.StatusNoContent, last: make(map[string]webhook.Data)}
	v := webhook.Verifier{Keys: map[string][]byte{"k1": []byte(hookSecret)}, Window: time.Hour}
	h.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.calls++
		h.traces = append(h.traces, r.Header.Get("traceparent"))
		e, verr := v.Verify(r.Header, body)
		if err := errors.Join(err, verr); err != nil {
			h.faults = append(h.faults, err)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if h.status < 300 {
			h.last[e.Data.User+" in "+e.Data.Conversation] = e.Data
		}
		w.WriteHeader(h.status)
	}))
	t.Cleanup(h.srv.Close)
	return h
}

func (h *hook) answer(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

// told gives what users were told last, one line each.
func (h *hook) told() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, u := range slices.Sorted(maps.Keys(h.last)) {
		d := h.last[u]
		out = append(out, fmt.Sprintf("%s to %d, unread %d, badge %d, mentioned %v: %s", u, d.LastSeq, d.Unread, d.Badge, d.Mentioned, d.Message.Text))
	}
	return out
}

func (h *hook) configure(c *config.Config) {
	t := &c.ToOffline
	t.Enabled, t.Delay = true, 50*time.Millisecond
	t.FirstPause, t.LongestPause, t.Tries, t.BreakerPause = 10*time.Millisecond, 50*time.Millisecond, 3, 20*time.Millisecond
	t.Webhook.URL, t.Webhook.Secret = h.srv.URL, hookSecret
}

func (r *rig) attribute(user, conv, key, value string) {
	r.t.Helper()
	if _, err := r.syncClient().SetConversationAttributes(r.ctx(), &tidemarkv1.SetConversationAttributesRequest{
		User: user, Conversation: conv, Attributes: map[string]string{key: value}, OpId: r.op(),
	}); err != nil {
		r.t.Fatal(err)
	}
}

// presence does with a user's connection what a gateway does.
func (r *rig) presence(user string, do func(*hot.Hot, []hot.Connection) error) {
	r.t.Helper()
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: r.emb.Config.Redis.Addresses})
	h, err := hot.New(hot.Config{Redis: client, Space: keyspace.Space{Prefix: r.emb.Config.Redis.Prefix, Expiry: time.Hour}, Decode: wire.DecodeMessage})
	if err == nil {
		err = do(h, []hot.Connection{{User: watermark.UserID(user), Device: "d", Node: "n"}})
	}
	if err := errors.Join(err, client.Close()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) connected(user string) {
	r.t.Helper()
	r.presence(user, func(h *hot.Hot, c []hot.Connection) error { return h.Touch(r.ctx(), c, time.Now()) })
}

func (r *rig) disconnected(user string) {
	r.t.Helper()
	r.presence(user, func(h *hot.Hot, c []hot.Connection) error { return h.Gone(r.ctx(), c, time.Now()) })
}

// settleOffline waits until the endpoint's worker is done with everything.
func (r *rig) settleOffline() {
	r.t.Helper()
	topic := r.topic(wire.TopicOffline)
	ends, err := r.offsets.Ends(r.ctx(), topic)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.offsets.AwaitCommitted(r.ctx(), r.topic("tidemark-tooffline-webhook"), topic, ends); err != nil {
		r.t.Fatalf("tooffline does not catch up: %v", err)
	}
}

func TestAbsentUsersAreToldByAWebhook(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	r := startAll(t, h.configure)
	t.Cleanup(func() { r.stop(stack.ToOffline) })
	const g = "group:g1"
	for _, u := range []string{"A", "B", "C", "D", "E", "F"} {
		r.join(g, u, tidemarkv1.History_HISTORY_NONE)
	}
	r.attribute("C", g, "muted", "1")
	r.attribute("D", g, "muted", "1")
	r.send("single:B:Z", "Z", "other") // counts in B's badge
	r.produce(g,
		`{"conversation":"group:g1","sender":"A","clientMessageId":"1","text":"one"}`,
		`{"conversation":"group:g1","sender":"A","clientMessageId":"2","text":"two","mentions":["D"]}`)
	r.settle()
	r.read("E", g, 2)
	r.leave(g, "F")
	r.send(g, "A", "3")
	r.settle() // all of it stands there before the worker begins
	r.start(stack.ToOffline)
	r.settleOffline()
	want := []string{
		"B in group:g1 to 3, unread 3, badge 4, mentioned false: text of 3",
		"B in single:B:Z to 1, unread 1, badge 4, mentioned false: text of other",
		"D in group:g1 to 3, unread 3, badge 0, mentioned true: text of 3",
		"E in group:g1 to 3, unread 1, badge 1, mentioned false: text of 3",
		"F in group:g1 to 2, unread 2, badge 0, mentioned false: two",
	}
	got := h.told()
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// Whoever is connected needs no notification.
	r.connected("B")
	before := h.calls
	r.send("single:A:B", "A", "live")
	r.settle()
	r.settleOffline()
	if h.calls != before {
		t.Errorf("a user who is connected was notified: %v", h.told())
	}
	r.disconnected("B")

	// Somebody has to mend the endpoint; its dead letters wait for that.
	h.answer(http.StatusInternalServerError)
	r.send("single:A:B", "A", "late")
	r.settle()
	r.settleOffline()
	letters := r.deadLetters()
	if len(letters) != 1 || letters[0].Reason != "undelivered" || letters[0].Tries != 3 {
		t.Fatalf("dead letters %+v", letters)
	}
	h.answer(http.StatusOK)
	r.replay(deadletters.Order{}, 1)
	r.settleOffline()
	if d := h.last["B in single:A:B"]; d.LastSeq != 2 || d.Attempt != 1 {
		t.Errorf("after the replay B was told %+v", d)
	}
	if len(h.faults) > 0 {
		t.Errorf("not verified: %v", h.faults)
	}

	// A worker that starts again tells nobody again.
	before = h.calls
	r.restart(stack.ToOffline)
	r.send("single:A:B", "A", "later")
	r.settle()
	r.settleOffline()
	if h.calls != before+1 || h.last["B in single:A:B"].LastSeq != 3 {
		t.Errorf("%d calls for one message, B was told %+v", h.calls-before, h.last["B in single:A:B"])
	}
}

// Devices that are registered by the sync API are notified by their vendor; one
// that the vendor says is gone is forgotten, and a vendor that hangs delays no
// other endpoint.
func TestRegisteredDevicesAreNotified(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	var hang atomic.Bool
	var mu sync.Mutex
	told := map[string]int{}
	hang.Store(true)
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"a","token_type":"Bearer","expires_in":3600}`)
	})
	mux.HandleFunc("POST /v1/projects/shop-1/messages:send", func(w http.ResponseWriter, r *http.Request) {
		var req struct{ Message struct{ Token string } }
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		if hang.Load() {
			<-release
			return
		}
		mu.Lock()
		defer mu.Unlock()
		told[req.Message.Token]++
		if req.Message.Token == "gone" {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":{"code":404,"details":[{"@type":"type.googleapis.com/google.firebase.fcm.v1.FcmError","errorCode":"UNREGISTERED"}]}}`)
			return
		}
		fmt.Fprint(w, `{"name":"x"}`)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	credentials, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "shop-1", "client_email": "push@shop-1.example", "token_uri": srv.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, credentials, 0o600); err != nil {
		t.Fatal(err)
	}
	r := startAll(t, func(c *config.Config) {
		h.configure(c)
		c.ToOffline.Timeout, c.ToOffline.Tries = time.Minute, 20
		c.ToOffline.FCM = config.FCM{CredentialsFile: file, URL: srv.URL + "/"}
	})
	t.Cleanup(func() { r.stop(stack.ToOffline) })
	for token, user := range map[string]string{"good": "B", "gone": "B", "of C": "C"} {
		if _, err := r.syncClient().RegisterDevice(r.ctx(), &tidemarkv1.RegisterDeviceRequest{
			User: user, Device: "device " + token, Platform: tidemarkv1.Platform_PLATFORM_FCM, Token: token,
		}); err != nil {
			t.Fatal(err)
		}
	}
	r.start(stack.ToOffline)
	r.send("single:A:B", "A", "1")
	r.settle()
	r.settleOffline() // the webhook's, while the vendor hangs
	if got := h.told(); len(got) != 1 {
		t.Errorf("the webhook was told %v", got)
	}
	hang.Store(false)
	close(release)
	ends, err := r.offsets.Ends(r.ctx(), r.topic(wire.TopicOffline))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.offsets.AwaitCommitted(r.ctx(), r.topic("tidemark-tooffline-fcm"), r.topic(wire.TopicOffline), ends); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if told["good"] != 1 || told["gone"] > 1 || told["of C"] != 0 {
		t.Errorf("told %v", told)
	}
	if got, err := r.history().DevicesOf(r.ctx(), "B"); err != nil || slices.ContainsFunc(got, func(d watermark.Device) bool { return d.Token == "gone" }) != (told["gone"] == 0) {
		t.Errorf("devices of B: %+v, %v", got, err)
	}
	if letters := r.deadLetters(); len(letters) > 0 {
		t.Errorf("dead letters %+v", letters)
	}
}
