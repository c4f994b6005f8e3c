package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority writes a certificate for 127.0.0.1 that is its own authority.
func authority(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
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
	cert, key = filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// A deployment with certificates of an authority of its own is reached with --ca,
// and without it the error says so.
func TestAPrivateAuthority(t *testing.T) {
	cert, key := authority(t)
	d := startDev(t, "--set", "sync.tls.cert="+cert, "--set", "sync.tls.key="+key, "--set", "gateway.tls.cert="+cert, "--set", "gateway.tls.key="+key)
	if !strings.HasPrefix(d.sync, "https://") || !strings.HasPrefix(d.gateway, "wss://") {
		t.Fatalf("listens on %s and %s", d.sync, d.gateway)
	}
	call := func(args ...string) result { return tidemark(t, "", append(args, "--server", d.sync)...) }
	send := []string{"send", "--conversation", "single:alice:bob", "--from", "alice", "--text", "hello", "--wait"}
	if r := call(send...); r.code != exitFailed || !strings.Contains(r.errOut, "--ca") {
		t.Errorf("without --ca: exit code %d: %s", r.code, r.errOut)
	}
	if r := call(append(send, "--ca", cert)...); r.code != exitOK {
		t.Fatalf("send: exit code %d: %s", r.code, r.errOut)
	}
	if r := call("watch", "--user", "bob", "--gateway", d.gateway, "--count", "1", "--ca", cert); r.code != exitOK || !strings.Contains(r.out, "hello") {
		t.Errorf("watch: exit code %d: %s%s", r.code, r.out, r.errOut)
	}
	for _, bad := range []string{key, filepath.Join(t.TempDir(), "none")} {
		if r := call(append(send, "--ca", bad)...); r.code != exitUsage || !strings.Contains(r.errOut, "--ca") {
			t.Errorf("--ca %s: exit code %d: %s", bad, r.code, r.errOut)
		}
	}
}
