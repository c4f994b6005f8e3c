package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	centrifugo "github.com/centrifugal/centrifuge-go"

	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

// issued is what tokens say, by token.
type issued struct {
	mu     sync.Mutex
	tokens map[string]gateway.Identity
	errs   map[string]error
}

func (i *issued) verify(_ context.Context, token string) (watermark.UserID, time.Time, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.errs[token]; err != nil {
		return "", time.Time{}, err
	}
	who, ok := i.tokens[token]
	switch {
	case !ok:
		return "", time.Time{}, fmt.Errorf("%w: unknown token", gateway.ErrRefused)
	case !who.Expires.IsZero() && !time.Now().Before(who.Expires):
		return "", time.Time{}, gateway.ErrExpired
	}
	return who.User, who.Expires, nil
}

func startWith(t *testing.T, cfg gateway.Config) (*gateway.Gateway, string) {
	t.Helper()
	return start(t, func(c *gateway.Config) {
		c.Authenticate, c.UserConnections = cfg.Authenticate, cfg.UserConnections
	})
}

// device is a client, with what happened to it.
type device struct {
	*centrifugo.Client
	connected, disconnected chan string // client id; reason
	connecting              chan uint32
}

func newDevice(t *testing.T, url string, data string, cfg centrifugo.Config) *device {
	t.Helper()
	if data != "" {
		cfg.Data = json.RawMessage(data)
	}
	cfg.MinReconnectDelay, cfg.MaxReconnectDelay = time.Millisecond, 10*time.Millisecond
	d := &device{Client: centrifugo.NewJsonClient(url, cfg), connected: make(chan string, 100), disconnected: make(chan string, 100), connecting: make(chan uint32, 1000)}
	d.OnConnected(func(e centrifugo.ConnectedEvent) { d.connected <- e.ClientID })
	d.OnDisconnected(func(e centrifugo.DisconnectedEvent) { d.disconnected <- e.Reason })
	d.OnConnecting(func(e centrifugo.ConnectingEvent) { d.connecting <- e.Code })
	t.Cleanup(d.Close)
	if err := d.Connect(); err != nil {
		t.Fatal(err)
	}
	return d
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("not within 10 s: %s", what)
		panic("unreachable")
	}
}

func TestWhoMayConnectWithAToken(t *testing.T) {
	i := &issued{tokens: map[string]gateway.Identity{"a": {User: "A"}, "service": {}}}
	_, url := startWith(t, gateway.Config{Authenticate: gateway.Tokens(i.verify)})
	for _, tc := range []struct{ name, token, data, refused string }{
		{"no data", "a", "", ""},
		{"device", "a", `{"device":"phone"}`, ""},
		{"own user", "a", `{"user":"A","device":"phone"}`, ""},
		{"another user", "a", `{"user":"B"}`, "another user"},
		{"user in other letters", "a", `{"user":"a"}`, "another user"},
		{"no token", "", `{"user":"A"}`, "unknown token"},
		{"unknown token", "b", `{"user":"A"}`, "unknown token"},
		{"token of no user", "service", `{"user":"A"}`, "names no user"},
		{"not an object", "a", `[]`, "connect data"},
		{"long device", "a", `{"device":"` + strings.Repeat("d", 65) + `"}`, "65 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, url, tc.data, centrifugo.Config{Token: tc.token})
			if tc.refused == "" {
				await(t, "connected", d.connected)
				return
			}
			if reason := await(t, "refused", d.disconnected); !strings.Contains(reason, tc.refused) {
				t.Errorf("reason %q", reason)
			}
		})
	}
}

func TestATokenThatExpiresIsRenewedByItsUserAndByNobodyElse(t *testing.T) {
	for _, tc := range []struct {
		name  string
		next  gateway.Identity
		err   error
		check func(t *testing.T, d *device, first string)
	}{
		{name: "renewed", next: gateway.Identity{User: "A", Expires: time.Now().Add(time.Hour)}, check: func(t *testing.T, d *device, first string) {
			select {
			case id := <-d.connected:
				t.Errorf("connected anew as %s after %s", id, first)
			case r := <-d.disconnected:
				t.Errorf("disconnected: %s", r)
			case <-time.After(3 * time.Second): // longer than the first token was good
			}
		}},
		{name: "of another user", next: gateway.Identity{User: "B", Expires: time.Now().Add(time.Hour)}, check: func(t *testing.T, d *device, _ string) {
			if r := await(t, "disconnected", d.disconnected); !strings.Contains(r, "another user") {
				t.Errorf("reason %q", r)
			}
		}},
		{name: "refused", err: gateway.ErrRefused, check: func(t *testing.T, d *device, _ string) { await(t, "disconnected", d.disconnected) }},
		{name: "expired", err: gateway.ErrExpired, check: func(t *testing.T, d *device, _ string) {
			await(t, "the first connect", d.connecting)
			if code := await(t, "connecting anew", d.connecting); code != 3005 {
				t.Errorf("connects anew for code %d", code)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			i := &issued{
				tokens: map[string]gateway.Identity{"1": {User: "A", Expires: time.Now().Add(2 * time.Second)}, "2": tc.next},
				errs:   map[string]error{"2": tc.err},
			}
			_, url := startWith(t, gateway.Config{Authenticate: gateway.Tokens(i.verify)})
			d := newDevice(t, url, "", centrifugo.Config{Token: "1", GetToken: func(centrifugo.ConnectionTokenEvent) (string, error) { return "2", nil }})
			tc.check(t, d, await(t, "connected", d.connected))
		})
	}
}

// Whoever comes with an old token is told to get a new one, and comes again.
func TestAnExpiredTokenAtConnectIsReplaced(t *testing.T) {
	i := &issued{tokens: map[string]gateway.Identity{"1": {User: "A", Expires: time.Now().Add(-time.Second)}, "2": {User: "A"}}}
	_, url := startWith(t, gateway.Config{Authenticate: gateway.Tokens(i.verify)})
	d := newDevice(t, url, "", centrifugo.Config{Token: "1", GetToken: func(centrifugo.ConnectionTokenEvent) (string, error) { return "2", nil }})
	await(t, "connected", d.connected)
}

func TestKeysThatAreAwayDoNotTurnAClientAwayForGood(t *testing.T) {
	i := &issued{tokens: map[string]gateway.Identity{"1": {User: "A"}}, errs: map[string]error{"1": errors.New("keys are away")}}
	_, url := startWith(t, gateway.Config{Authenticate: gateway.Tokens(i.verify)})
	d := newDevice(t, url, "", centrifugo.Config{Token: "1"})
	await(t, "connecting", d.connecting)
	i.mu.Lock()
	i.errs = nil
	i.mu.Unlock()
	await(t, "connected", d.connected)
}

func TestOneUserHasSoManyConnectionsAndNoMore(t *testing.T) {
	i := &issued{tokens: map[string]gateway.Identity{"a": {User: "A"}, "b": {User: "B"}}}
	_, url := startWith(t, gateway.Config{Authenticate: gateway.Tokens(i.verify), UserConnections: 2})
	for range 2 {
		await(t, "connected", newDevice(t, url, "", centrifugo.Config{Token: "a"}).connected)
	}
	if r := await(t, "the third", newDevice(t, url, "", centrifugo.Config{Token: "a"}).disconnected); !strings.Contains(r, "limit") {
		t.Errorf("reason %q", r)
	}
	await(t, "another user", newDevice(t, url, "", centrifugo.Config{Token: "b"}).connected)
}
