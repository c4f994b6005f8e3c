package certs_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/internal/certs"
)

// pair is a certificate that signs itself, good for servers and clients.
type pair struct{ cert, key []byte }

func newPair(tb testing.TB, name string) pair {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	tpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	k, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: k}),
	}
}

type files struct{ cert, key, ca string }

func (f files) write(tb testing.TB, p pair) {
	tb.Helper()
	for name, b := range map[string][]byte{f.cert: p.cert, f.key: p.key} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

func newFiles(tb testing.TB, p pair) files {
	dir := tb.TempDir()
	f := files{filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), filepath.Join(dir, "ca.pem")}
	f.write(tb, p)
	return f
}

func serve(tb testing.TB, cfg certs.Config) string {
	tb.Helper()
	s, err := certs.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	srv := &http.Server{
		Protocols: protocols, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Proto", r.Proto) }),
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(tls.NewListener(ln, s.Config())) }()
	tb.Cleanup(func() { srv.Close(); <-done })
	return ln.Addr().String()
}

// dial connects and gives the name of the server's certificate.
func dial(ctx context.Context, addr string, cfg *tls.Config) (string, error) {
	d := tls.Dialer{Config: cfg}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	c := conn.(*tls.Conn)
	// With TLS 1.3 a server refuses a client after the client is done.
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")); err != nil {
		return "", err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return "", err
	}
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

func trusting(p ...pair) *tls.Config {
	pool := x509.NewCertPool()
	for _, p := range p {
		pool.AppendCertsFromPEM(p.cert)
	}
	return &tls.Config{RootCAs: pool}
}

func TestARenewedCertificateIsUsedWithoutARestart(t *testing.T) {
	one, two := newPair(t, "one"), newPair(t, "two")
	f := newFiles(t, one)
	var lines bytes.Buffer
	now := time.Now()
	addr := serve(t, certs.Config{Cert: f.cert, Key: f.key, Now: func() time.Time { now = now.Add(2 * time.Second); return now }, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	want := func(name string) {
		t.Helper()
		if got, err := dial(t.Context(), addr, trusting(one, two)); err != nil || got != name {
			t.Errorf("served by %q, %v; want %q", got, err, name)
		}
	}
	want("one")
	// Half a renewal: the key does not fit the certificate.
	if err := os.WriteFile(f.cert, append(two.cert, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	want("one")
	want("one")
	if n := strings.Count(lines.String(), "cannot be renewed"); n != 1 {
		t.Errorf("logged %d times: %s", n, &lines)
	}
	os.Remove(f.cert)
	want("one")
	want("one")
	f.write(t, two)
	want("two")
	if !strings.Contains(lines.String(), "is renewed") || strings.Count(lines.String(), "cannot be renewed") != 2 {
		t.Errorf("logged %s", &lines)
	}
}

func TestClientsNeedACertificateWhenThereIsAnAuthority(t *testing.T) {
	server, client, stranger := newPair(t, "server"), newPair(t, "client"), newPair(t, "stranger")
	f := newFiles(t, server)
	if err := os.WriteFile(f.ca, client.cert, 0o600); err != nil {
		t.Fatal(err)
	}
	addr := serve(t, certs.Config{Cert: f.cert, Key: f.key, ClientCA: f.ca})
	for _, tc := range []struct {
		name string
		own  *pair
		ok   bool
	}{{"none", nil, false}, {"stranger", &stranger, false}, {"client", &client, true}} {
		cfg := trusting(server)
		if tc.own != nil {
			c, err := tls.X509KeyPair(tc.own.cert, tc.own.key)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Certificates = []tls.Certificate{c}
		}
		if _, err := dial(t.Context(), addr, cfg); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestAClientShowsTheRenewedCertificate(t *testing.T) {
	server, one, two := newPair(t, "server"), newPair(t, "one"), newPair(t, "two")
	s, c := newFiles(t, server), newFiles(t, one)
	if err := os.WriteFile(s.ca, two.cert, 0o600); err != nil {
		t.Fatal(err)
	}
	addr := serve(t, certs.Config{Cert: s.cert, Key: s.key, ClientCA: s.ca})
	now := time.Now()
	source, err := certs.New(certs.Config{Cert: c.cert, Key: c.key, Now: func() time.Time { now = now.Add(2 * time.Second); return now }})
	if err != nil {
		t.Fatal(err)
	}
	cfg := trusting(server)
	cfg.GetClientCertificate = source.ClientCertificate
	if _, err := dial(t.Context(), addr, cfg); err == nil {
		t.Error("the one before is taken: the test shows nothing")
	}
	c.write(t, two)
	if _, err := dial(t.Context(), addr, cfg); err != nil {
		t.Errorf("the renewed one is not shown: %v", err)
	}
}

func TestOldVersionsAreRefusedAndHTTP2IsSpoken(t *testing.T) {
	p := newPair(t, "one")
	f := newFiles(t, p)
	addr := serve(t, certs.Config{Cert: f.cert, Key: f.key})
	cfg := trusting(p)
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, err := dial(t.Context(), addr, cfg); err == nil {
		t.Error("TLS 1.1 is taken")
	}
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, err := dial(t.Context(), addr, cfg); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	}
	for proto, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		ps := new(http.Protocols)
		ps.SetHTTP1(!h2)
		ps.SetHTTP2(h2)
		tr := &http.Transport{TLSClientConfig: trusting(p), Protocols: ps}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: tr}).Do(req)
		if err != nil {
			t.Fatalf("%s: %v", proto, err)
		}
		res.Body.Close()
		if got := res.Header.Get("Proto"); got != proto {
			t.Errorf("spoke %s, want %s", got, proto)
		}
	}
}

func TestFilesThatCannotBeUsedAreAnErrorAtStart(t *testing.T) {
	one, two := newPair(t, "one"), newPair(t, "two")
	f := newFiles(t, pair{one.cert, two.key})
	good := newFiles(t, one)
	if err := os.WriteFile(good.ca, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]certs.Config{
		"none": {}, "no key": {Cert: f.cert}, "missing": {Cert: f.cert + "x", Key: f.key}, "do not fit": {Cert: f.cert, Key: f.key},
		"no authority": {Cert: good.cert, Key: good.key, ClientCA: good.ca},
	} {
		if _, err := certs.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
