package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	rpc "connectrpc.com/connect"
	"github.com/gorilla/websocket"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

func (n *node) admin(token string) tidemarkv1connect.GatewayServiceClient {
	return tidemarkv1connect.NewGatewayServiceClient(bearer(token), n.http)
}

// bearer is an HTTP client that sends a token.
type bearer string

func (b bearer) Do(r *http.Request) (*http.Response, error) {
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultClient.Do(r)
}

func TestWhoIsConnectedIsKnownOnEveryNode(t *testing.T) {
	w := newWorld()
	nodes := onRedis(t, w, 2, nil)
	phone := listen(t, nodes[0].url, "A", "phone", false)
	web := listen(t, nodes[1].url, "A", "web", false)
	presence := func(want ...string) {
		t.Helper()
		eventually(t, "presence", func() error {
			res, err := nodes[1].admin("").Presence(t.Context(), &tidemarkv1.PresenceRequest{Users: []string{"A", "B"}})
			if err != nil {
				return err
			}
			a, b := res.GetUsers()[0], res.GetUsers()[1]
			if b.GetOnline() || b.GetLastSeenMs() != 0 || a.GetUser() != "A" {
				return fmt.Errorf("users = %v", res.GetUsers())
			}
			if !slices.Equal(a.GetDevices(), want) || a.GetOnline() != (len(want) > 0) || a.GetLastSeenMs() == 0 {
				return fmt.Errorf("A = %v, want devices %v", a, want)
			}
			return nil
		})
	}
	presence("phone", "web")
	phone.client.Close()
	presence("web")
	// A node that stops tells of all that it had.
	nodes[1].stop()
	nodes = nodes[:1]
	web.client.Close()
	if res, err := nodes[0].admin("").Presence(t.Context(), &tidemarkv1.PresenceRequest{Users: []string{"A"}}); err != nil || res.GetUsers()[0].GetOnline() {
		t.Errorf("presence = %v, %v", res, err)
	}
}

func TestAnAdministratorEndsConnectionsOnEveryNode(t *testing.T) {
	nodes := onRedis(t, newWorld(), 2, nil)
	phone := listen(t, nodes[0].url, "A", "phone", false)
	web := listen(t, nodes[1].url, "A", "web", false)
	other := listen(t, nodes[1].url, "B", "web", false)
	end := func(req *tidemarkv1.DisconnectUserRequest) {
		t.Helper()
		if _, err := nodes[0].admin("").DisconnectUser(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	// The one that may come back does.
	end(&tidemarkv1.DisconnectUserRequest{User: "A", Device: "web", MayReturn: true})
	eventually(t, "the device comes back", func() error {
		web.mu.Lock()
		defer web.mu.Unlock()
		if !slices.Contains(web.ends, "ended by an administrator, come again") || web.subs == 0 {
			return fmt.Errorf("ended by %q, on %d channels", web.ends, web.subs)
		}
		return nil
	})
	end(&tidemarkv1.DisconnectUserRequest{User: "A"})
	for name, l := range map[string]*listener{"phone": phone, "web": web} {
		eventually(t, name+" is told to stay away", func() error {
			l.mu.Lock()
			defer l.mu.Unlock()
			return isSeq(4500, int64(l.ended))
		})
	}
	deliver(t, nodes[0].Gateway, gateway.Delivery{Users: []watermark.UserID{"A", "B"}, Event: message(1)})
	other.gets(t, "another user", 1)
	if got := nodes[0].metric(t, "tidemark_gateway_connections"); got != 0 {
		t.Errorf("%v connections are left", got)
	}
}

func TestOnlyAdministratorsMayAskAndEnd(t *testing.T) {
	n := startNode(t, func(c *gateway.Config) {
		c.Presence = newWorld()
		c.Admin = func(_ context.Context, token string) error {
			switch token {
			case "admin":
				return nil
			case "user":
				return gateway.ErrNotAdmin
			case "old":
				return gateway.ErrExpired
			case "away":
				return errAway
			}
			return fmt.Errorf("%w: unknown token", gateway.ErrRefused)
		}
	})
	for token, want := range map[string]rpc.Code{
		"admin": 0, "user": rpc.CodePermissionDenied, "old": rpc.CodeUnauthenticated,
		"": rpc.CodeUnauthenticated, "away": rpc.CodeUnavailable,
	} {
		_, asked := n.admin(token).Presence(t.Context(), &tidemarkv1.PresenceRequest{})
		_, ended := n.admin(token).DisconnectUser(t.Context(), &tidemarkv1.DisconnectUserRequest{User: "A"})
		for _, err := range []error{asked, ended} {
			if err == nil && want == 0 {
				continue
			}
			if got := rpc.CodeOf(err); got != want {
				t.Errorf("token %q: %v, want code %v", token, err, want)
			}
		}
	}
	for _, users := range [][]string{{"a:b"}, make([]string, 1001)} {
		if _, err := n.admin("admin").Presence(t.Context(), &tidemarkv1.PresenceRequest{Users: users}); rpc.CodeOf(err) != rpc.CodeInvalidArgument {
			t.Errorf("%d users: %v", len(users), err)
		}
	}
	if _, err := n.admin("admin").DisconnectUser(t.Context(), &tidemarkv1.DisconnectUserRequest{}); rpc.CodeOf(err) != rpc.CodeInvalidArgument {
		t.Errorf("nobody is ended: %v", err)
	}
}

// transients gives the transient events that have come, in short.
func (l *listener) transients() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []string{}
	for _, e := range l.events {
		if x := e.GetTransient(); x != nil {
			out = append(out, fmt.Sprintf("%s %s in %s: %s", x.GetUser(), x.GetKind(), e.GetConversation(), x.GetData()))
		}
	}
	return out
}

func (l *listener) hears(t testing.TB, who string, want ...string) {
	t.Helper()
	eventually(t, who, func() error {
		if got := l.transients(); !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}

func TestTypingReachesMembersAndNobodyElse(t *testing.T) {
	w := newWorld()
	w.put("group:small", member("A", 0, 0), member("B", 0, 0), left(member("K", 0, 0), 3))
	for i := range 20 {
		w.put(crowd, member(watermark.UserID(fmt.Sprint("m", i)), 0, 0))
	}
	w.put(crowd, member("A", 0, 0), member("B", 0, 0), left(member("K", 0, 0), 3))
	w.put("single:A:X", left(member("A", 0, 0), 3))
	nodes := onRedis(t, w, 2, func(c *gateway.Config) { c.TransientRate = 100 })
	a, other := listen(t, nodes[0].url, "A", "phone", false), listen(t, nodes[1].url, "A", "web", false)
	b, k := listen(t, nodes[1].url, "B", "", true), listen(t, nodes[1].url, "K", "", false)
	a.listens(t, 3) // its own, and both groups' crowds
	b.listens(t, 3)
	deliver(t, nodes[0].Gateway, push(9, 0)) // the crowd is known as of here
	b.gets(t, "a member", 9)
	call := func(l *listener, method, data string) (string, error) {
		res, err := l.client.RPC(t.Context(), method, []byte(data))
		return string(res.Data), err
	}
	type says struct {
		from *listener
		data string
		want string // part of the error
	}
	for _, s := range []says{
		{a, `{"conversation":"single:A:B","kind":"typing"}`, ""},
		{a, `{"conversation":"group:small","kind":"typing","data":{"to":7}}`, ""},
		{a, `{"conversation":"group:g","kind":"typing"}`, ""},
		{k, `{"conversation":"group:small","kind":"typing"}`, "not a member"},
		{k, `{"conversation":"group:g","kind":"typing"}`, "not a member"},
		{k, `{"conversation":"single:A:B","kind":"typing"}`, "not a member"},
		{a, `{"conversation":"single:A:X","kind":"typing"}`, "not a member"},
		{a, `{"conversation":"nothing","kind":"typing"}`, "conversation"},
		{a, `{"conversation":"group:small","kind":""}`, "kind"},
		{a, `{"conversation":"group:small","kind":"typing","data":"` + strings.Repeat("x", 1<<10) + `"}`, "1024"},
		{a, `[]`, "JSON"},
	} {
		_, err := call(s.from, "transient", s.data)
		if (err == nil) != (s.want == "") || err != nil && !strings.Contains(err.Error(), s.want) {
			t.Errorf("%.60s: %v, want an error with %q", s.data, err, s.want)
		}
	}
	if _, err := call(a, "shout", `{"conversation":"group:small"}`); err == nil || !strings.Contains(err.Error(), "shout") {
		t.Errorf("an unknown method: %v", err)
	}
	b.hears(t, "the other member", "A typing in single:A:B: ", `A typing in group:small: {"to":7}`, "A typing in group:g: ")
	k.hears(t, "who was kicked")
	a.hears(t, "the device itself")
	// Both are A's; only of a crowd the other one hears it.
	other.hears(t, "its other device", "A typing in group:g: ")

	said, err := call(a, "presence", `{"conversation":"single:A:B"}`)
	if err != nil || !strings.Contains(said, `"user":"B","online":true,"lastSeenMs":`) {
		t.Errorf("presence of the peer: %s, %v", said, err)
	}
	for _, conv := range []string{"group:small", "single:B:K", "single:A:X"} {
		if said, err := call(a, "presence", `{"conversation":"`+conv+`"}`); err == nil {
			t.Errorf("presence in %s is told: %s", conv, said)
		}
	}
}

func TestTransientEventsAreLimited(t *testing.T) {
	w := newWorld()
	n := startNode(t, func(c *gateway.Config) { c.Members, c.Crowds, c.TransientRate = w, w, 1 })
	a := listen(t, n.url, "A", "", false)
	limited := 0
	for range 10 {
		if _, err := a.client.RPC(t.Context(), "transient", []byte(`{"conversation":"single:A:B","kind":"typing"}`)); err != nil {
			if !strings.Contains(err.Error(), "429") {
				t.Fatal(err)
			}
			limited++
		}
	}
	if limited == 0 {
		t.Error("ten at once are let through, two may")
	}
	if w.reads != 1 {
		t.Errorf("members were read %d times within a moment", w.reads)
	}
}

// A device that does not read is cut off with a reason, what waits for it is
// bounded, and the others do not notice.
func TestASlowDeviceIsCutAndHoldsNobodyUp(t *testing.T) {
	n := startNode(t, func(c *gateway.Config) { c.QueueBytes = 64 << 10 })
	fast := listen(t, n.url, "A", "fast", false)
	slow, _, err := websocket.DefaultDialer.DialContext(t.Context(), n.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := slow.WriteMessage(websocket.TextMessage, []byte(`{"id":1,"connect":{"data":{"user":"A","device":"slow"}}}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are there", func() error { return isSeq(2, int64(n.Connections())) })
	body := strings.Repeat("x", 32<<10)
	var want []int64
	for seq := int64(1); seq <= 5000; seq++ {
		e := message(seq)
		e.GetMessage().Body = &tidemarkv1.Message_Text{Text: body}
		deliver(t, n.Gateway, gateway.Delivery{Users: []watermark.UserID{"A"}, Event: e})
		want = append(want, seq)
		fast.gets(t, "the other device", want...) // it keeps up
		if n.Connections() == 1 {
			break
		}
	}
	if n.Connections() != 1 {
		t.Fatal("the slow device is never cut")
	}
	for {
		if _, _, err = slow.ReadMessage(); err != nil {
			break
		}
	}
	if closed, ok := errors.AsType[*websocket.CloseError](err); !ok || closed.Code != 3008 || closed.Text != "slow" {
		t.Errorf("it was told %v", err)
	}
}

func TestANodeThatStopsSpreadsItsDevices(t *testing.T) {
	nodes := onRedis(t, newWorld(), 2, func(c *gateway.Config) { c.Drain = 300 * time.Millisecond })
	var devices []*listener
	for i := range 20 {
		devices = append(devices, listen(t, nodes[0].url, fmt.Sprint("u", i), "", false))
	}
	begin := time.Now()
	nodes[0].stop()
	if took := time.Since(begin); took < 90*time.Millisecond {
		t.Errorf("20 devices were told to go within %v", took)
	}
	for _, d := range devices {
		eventually(t, "a device is told to come back", func() error {
			d.mu.Lock()
			defer d.mu.Unlock()
			if !slices.Contains(d.ends, "shutdown") {
				return fmt.Errorf("ended by %q", d.ends)
			}
			return nil
		})
	}
}

func TestPagesOfOtherOriginsAreTurnedAway(t *testing.T) {
	n := startNode(t, func(c *gateway.Config) { c.Origins = []string{"https://chat.example.com"} })
	own, err := url.Parse(n.http)
	if err != nil {
		t.Fatal(err)
	}
	for origin, may := range map[string]bool{
		"": true, "http://" + own.Host: true, "https://chat.example.com": true, "https://CHAT.example.com": true,
		"https://evil.example.com": false, "https://chat.example.com.evil.com": false, "null": false,
	} {
		h := http.Header{}
		if origin != "" {
			h.Set("Origin", origin)
		}
		ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), n.url, h)
		if (err == nil) != may {
			t.Errorf("WebSocket from %q: %v, may connect: %v", origin, err, may)
		}
		if err == nil {
			ws.Close()
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, n.http+"/connection/sse", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if (res.StatusCode != http.StatusForbidden) != may {
			t.Errorf("SSE from %q: %s", origin, res.Status)
		}
		if allowed := res.Header.Get("Access-Control-Allow-Origin"); strings.HasSuffix(strings.ToLower(origin), "//chat.example.com") != (allowed != "") {
			t.Errorf("SSE from %q may be read by %q", origin, allowed)
		}
	}
}

func TestServerSentEvents(t *testing.T) {
	n := startNode(t, nil)
	next := stream(t, n.http)
	next(`"connect"`)
	deliver(t, n.Gateway, gateway.Delivery{Users: []watermark.UserID{"A"}, Event: message(7)})
	next(`"seq":"7"`)
}

// Who comes before the node runs is served when it does, not turned away.
func TestWhoComesBeforeTheNodeRunsWaits(t *testing.T) {
	g, err := gateway.New(gateway.Config{Authenticate: gateway.Trusting, Drain: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(g.Handler())
	defer srv.Close()
	next := stream(t, srv.URL) // the answer's head comes before the client is asked who it is
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	next(`"connect"`)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

// stream connects as A for server-sent events; what it returns reads on to a
// line that has part in it.
func stream(t *testing.T, to string) (next func(part string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to+"/connection/sse?cf_connect="+url.QueryEscape(`{"id":1,"connect":{"data":{"user":"A"}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	lines := bufio.NewScanner(res.Body)
	return func(part string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), part) {
				return
			}
		}
		t.Fatalf("no line with %s: %v", part, lines.Err())
	}
}
