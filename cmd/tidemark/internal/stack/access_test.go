package stack_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	centrifugo "github.com/centrifugal/centrifuge-go"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

// issuer publishes its key and signs tokens.
type issuer struct {
	key *ecdsa.PrivateKey
	url string
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k1", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	t.Cleanup(srv.Close)
	return &issuer{key, srv.URL}
}

func (i *issuer) token(t testing.TB, sub, scope string, ttl time.Duration) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jwt.Signed(s).Claims(map[string]any{
		"iss": "us", "aud": "chat", "sub": sub, "scope": scope, "exp": time.Now().Add(ttl).Unix(),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// certificate writes a certificate for 127.0.0.1 and gives the pool that trusts
// it.
func certificate(t testing.TB) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tidemark"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key, pool = filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), x509.NewCertPool()
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return cert, key, pool
}

// Keys of an issuer, TLS on both ports, and what a person meets: joined by the
// product, sends, is kicked, learns nothing more.
func TestUsersWithTokensOverTLS(t *testing.T) {
	t.Parallel()
	idp := newIssuer(t)
	cert, key, pool := certificate(t)
	r := startAll(t, func(c *config.Config) {
		c.Auth.JWKSURL, c.Auth.Issuer, c.Auth.Audience, c.Auth.Leeway = idp.url, "us", []string{"chat"}, 0
		c.Sync.TLS.Cert, c.Sync.TLS.Key = cert, key
		c.Gateway.TLS = c.Sync.TLS
	})
	url := r.roles[stack.Sync].stack.SyncURL()
	if !strings.HasPrefix(url, "https://") {
		t.Fatalf("sync at %s", url)
	}
	as := func(token string, grpc bool) tidemarkv1connect.SyncServiceClient {
		ps := new(http.Protocols)
		ps.SetHTTP1(!grpc)
		ps.SetHTTP2(grpc)
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, Protocols: ps}
		t.Cleanup(tr.CloseIdleConnections)
		var opts []connect.ClientOption
		if grpc {
			opts = append(opts, connect.WithGRPC())
		}
		return tidemarkv1connect.NewSyncServiceClient(&http.Client{Transport: client.Authorized{Token: client.StaticToken(token), Base: tr}}, url, opts...)
	}
	const g = "group:g"
	admin := as(idp.token(t, "backend|1", "tidemark:admin", time.Hour), true)
	alice, bob := as(idp.token(t, "alice", "", time.Hour), false), as(idp.token(t, "bob", "", time.Hour), true)
	for _, u := range []string{"alice", "bob"} {
		if _, err := admin.Join(r.ctx(), &tidemarkv1.JoinRequest{Conversation: g, User: u}); err != nil {
			t.Fatal(err)
		}
	}

	events := make(chan string, 10)
	subscribed := make(chan struct{}, 10)
	ws := centrifugo.NewJsonClient(r.roles[stack.ToPush].stack.GatewayURL(), centrifugo.Config{
		TLSConfig: &tls.Config{RootCAs: pool},
		GetToken: func(centrifugo.ConnectionTokenEvent) (string, error) {
			return idp.token(t, "alice", "", 2*time.Second), nil
		},
	})
	t.Cleanup(ws.Close)
	ws.OnSubscribed(func(centrifugo.ServerSubscribedEvent) { subscribed <- struct{}{} })
	ws.OnPublication(func(e centrifugo.ServerPublicationEvent) {
		// Joins may still be on their way when alice connects.
		if !strings.Contains(string(e.Data), `"window"`) {
			events <- string(e.Data)
		}
	})
	ws.OnDisconnected(func(e centrifugo.DisconnectedEvent) { events <- "disconnected: " + e.Reason })
	if err := ws.Connect(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-subscribed:
	case <-time.After(patience):
		t.Fatal("alice is not connected")
	}

	send := func(c tidemarkv1connect.SyncServiceClient) (*tidemarkv1.SendResponse, error) {
		return c.Send(r.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{Conversation: g, Body: &tidemarkv1.SendMessage_Text{Text: "hi"}}})
	}
	if res, err := send(bob); err != nil || res.GetSeq() != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	select {
	case e := <-events:
		if !strings.Contains(e, `"hi"`) {
			t.Errorf("pushed %s", e)
		}
	case <-time.After(patience):
		t.Fatal("nothing was pushed")
	}
	if _, err := admin.Leave(r.ctx(), &tidemarkv1.LeaveRequest{Conversation: g, User: "bob", Actor: "alice"}); err != nil {
		t.Fatal(err)
	}
	if _, err := send(alice); err != nil {
		t.Fatal(err)
	}
	for range 2 { // from Redis, and from the truth
		if _, err := send(bob); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("a kicked member sends: %v", err)
		}
		res, err := bob.Pull(r.ctx(), &tidemarkv1.PullRequest{Ranges: []*tidemarkv1.PullRange{{Conversation: g, Begin: 1, End: 10}}})
		if err != nil || len(res.GetPages()[0].GetMessages()) != 1 || res.GetPages()[0].GetMaxSeq() != 1 {
			t.Errorf("a kicked member pulls: %v, %v", res, err)
		}
		carol := as(idp.token(t, "carol", "", time.Hour), true)
		for _, conv := range []string{g, "group:nowhere"} {
			if _, err := carol.Clear(r.ctx(), &tidemarkv1.ClearRequest{Conversation: conv}); connect.CodeOf(err) != connect.CodeNotFound {
				t.Errorf("a stranger clears %s: %v", conv, err)
			}
		}
		r.flush()
	}
	for name, token := range map[string]string{"expired": idp.token(t, "alice", "", -time.Second), "forged": newIssuer(t).token(t, "alice", "", time.Hour)} {
		if _, err := send(as(token, true)); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whoever may be called by others must know who calls.
func TestAnonymousCallersStayOnThisMachine(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:80"} {
		if _, err := config.Load(config.Source{Flags: map[string]string{"sync.listen": listen}}); err == nil || !strings.Contains(err.Error(), "callers are not authenticated") {
			t.Errorf("%s: %v", listen, err)
		}
	}
	var lines bytes.Buffer
	r := newRig(t, func(c *config.Config) {
		c.Auth.Secret, c.Sync.Listen = strings.Repeat("s", 32), "0.0.0.0:0"
	})
	open := func(change func(*config.Config)) error {
		cfg := r.emb.Config
		change(&cfg)
		s, err := stack.Open(r.ctx(), stack.Config{Config: cfg, Roles: []stack.Role{stack.Sync}, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(r.ctx())
		cancel()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		return s.Close()
	}
	if err := open(func(*config.Config) {}); err != nil || !strings.Contains(lines.String(), "tokens are taken in clear") {
		t.Errorf("%v, logged %s", err, &lines)
	}
	for want, change := range map[string]func(*config.Config){
		"auth.secret_file":   func(c *config.Config) { c.Auth.Secret, c.Auth.SecretFile = "", "/nonexistent/secret" },
		"keys cannot be had": func(c *config.Config) { c.Auth.Secret, c.Auth.JWKSFile = "", "/nonexistent/keys" },
		"sync.tls":           func(c *config.Config) { c.Sync.TLS.Cert, c.Sync.TLS.Key = "/nonexistent/c", "/nonexistent/k" },
	} {
		if err := open(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// An issuer that is away is waited for.
	lines.Reset()
	if err := open(func(c *config.Config) { c.Auth.Secret, c.Auth.JWKSURL = "", "http://127.0.0.1:1/keys" }); err != nil || !strings.Contains(lines.String(), "keys cannot be had yet") {
		t.Errorf("%v, logged %s", err, &lines)
	}
}
