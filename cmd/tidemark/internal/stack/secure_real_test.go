//go:build real

package stack_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// odd is a password with what means something in a URI.
const odd = "p@ss/w:rd"

// TestReal_RedisWithTLSAndACL takes the whole path over a Redis that speaks TLS
// only, as a user with a password.
func TestReal_RedisWithTLSAndACL(t *testing.T) {
	dir := t.TempDir()
	ca := selfSigned(t, dir)
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	conf := filepath.Join(dir, "redis.conf")
	err := os.WriteFile(conf, []byte(strings.Join([]string{
		"port 0", "tls-port " + port, "bind 127.0.0.1", "dir " + dir, `save ""`,
		"tls-cert-file " + ca, "tls-key-file " + filepath.Join(dir, "key.pem"), "tls-ca-cert-file " + ca, "tls-auth-clients no",
		"user default off", "user alice on >" + odd + " ~* &* +@all", "",
	}, "\n")), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "redis-server", conf)
	secured := func(c *config.Config) {
		c.Redis.Addresses, c.Redis.Username, c.Redis.Password = []string{addr}, "alice", odd
		c.Redis.TLS = config.TLS{Enabled: true, CA: ca}
		c.Gateway.Redis = true
	}
	r := newRig(t, secured)
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	r.open(stack.Gateway, stack.Gateway)
	r.open(stack.ToPush, stack.ToPush)
	a := r.connect("A", r.roles[stack.Gateway].stack.GatewayURL())
	const c = "single:A:B"
	lines, _ := numbered(c, "B", "m", 5)
	r.produce(c, lines...)
	r.settle()
	wantSeqs(t, r.pullAll("A", c, 1, 100), 1, 5)
	if w := r.marks("A", c); w.GetUnread() != 5 {
		t.Errorf("watermarks %v", w)
	}
	r.eventually("the pushes arrive", func() error {
		if n := len(a.messages()); n != 5 {
			return fmt.Errorf("%d messages", n)
		}
		return nil
	})

	cfg := r.emb.Config
	cfg.Redis.Password = "hunter2"
	r.refused(cfg, "WRONGPASS", addr)
}

// TestReal_HistoryWithAPassword: a MongoDB that wants to know who asks.
func TestReal_HistoryWithAPassword(t *testing.T) {
	own := ownServices(t, "--mongo")
	uri := own.env["TIDEMARK_TEST_MONGO"]
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	err = client.Database("users").RunCommand(t.Context(), bson.D{
		{Key: "createUser", Value: "alice"}, {Key: "pwd", Value: odd},
		{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "readWriteAnyDatabase"}, {Key: "db", Value: "admin"}}}},
	}).Err()
	if err := errors.Join(err, client.Disconnect(t.Context())); err != nil {
		t.Fatal(err)
	}
	// The same server again, asking for passwords.
	pid, err := os.ReadFile(filepath.Join(own.dir, "mongo", "pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "cmdline"))
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	own.signal("mongo", syscall.SIGKILL)
	run(t, args[0], append(args[1:], "--auth")...)

	host := strings.TrimSuffix(strings.TrimPrefix(uri, "mongodb://"), "/?directConnection=true")
	with := func(password, source string) func(*config.Config) {
		return func(c *config.Config) {
			c.History.URI = "mongodb://alice:" + password + "@" + host + "/?directConnection=true&authSource=" + source
			c.History.Timeout = 5 * time.Second
		}
	}
	r := newRig(t, with(odd, "users"))
	r.start(stack.Sync, stack.ToRedis, stack.ToMongo)
	const c = "group:guarded"
	lines, _ := numbered(c, "B", "m", 5)
	r.produce(c, lines...)
	r.settle()
	r.flush()
	wantSeqs(t, r.pullAll("A", c, 1, 100), 1, 5)
	for _, wrong := range [][2]string{{"hunter2", "users"}, {odd, "admin"}} {
		cfg := r.emb.Config
		with(wrong[0], wrong[1])(&cfg)
		r.refused(cfg, "history: mongodb://alice:***@"+host, "authSource="+wrong[1], "uthentication")
	}
}

// TestReal_AbortedTransactionsAreNotRead: what a producer took back was never
// sent.
func TestReal_AbortedTransactionsAreNotRead(t *testing.T) {
	r := startAll(t, nil)
	const g = "group:transactions"
	client, err := kgo.NewClient(kgo.SeedBrokers(r.emb.Config.Kafka.Brokers...), kgo.TransactionalID(r.topic("producer")))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range 6 {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for k := range 3 {
			id := fmt.Sprintf("t%d-%d", i, k)
			rec := &kgo.Record{Topic: r.topic(wire.TopicToRedis), Key: []byte(g), Value: []byte(line(g, "A", id, "text"))}
			if err := client.ProduceSync(r.ctx(), rec).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.EndTransaction(r.ctx(), kgo.TransactionEndTry(i%2 == 0)); err != nil {
			t.Fatal(err)
		}
	}
	// The markers take offsets too, so what comes last tells that all is read.
	r.produce(g, line(g, "A", "last", "text"))
	r.eventually("the last message", func() error {
		if w := r.marksIfAny("A", g); w.GetMaxSeq() < 10 {
			return fmt.Errorf("max is %d, %v", w.GetMaxSeq(), w.GetError())
		}
		return nil
	})
	want := []string{"t0-0", "t0-1", "t0-2", "t2-0", "t2-1", "t2-2", "t4-0", "t4-1", "t4-2", "last"}
	got := r.pullAll("A", g, 1, 100)
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i, m := range got {
		if m.GetClientMessageId() != want[i] || m.GetSeq() != int64(i+1) {
			t.Errorf("message %d is %s at %d, want %s", i, m.GetClientMessageId(), m.GetSeq(), want[i])
		}
	}
}

// refused opens with a wrong setting: one clear error within 30 s, without the
// password.
func (r *rig) refused(cfg config.Config, says ...string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	s, err := stack.Open(ctx, stack.Config{Config: cfg, Roles: []stack.Role{stack.ToRedis}, Logger: testLogger(r.t)})
	if err == nil {
		r.t.Fatal(errors.Join(errors.New("it opened"), s.Close()))
	}
	if ctx.Err() != nil {
		r.t.Errorf("it took longer than 30 s")
	}
	for _, want := range says {
		if !strings.Contains(err.Error(), want) {
			r.t.Errorf("it does not say %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), cfg.Redis.Password) && cfg.Redis.Password != "" || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), odd) {
		r.t.Errorf("it shows a password: %v", err)
	}
}

// run starts a server that ends with the test.
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it tells that it was killed
		if t.Failed() {
			t.Logf("%s said\n%s", name, said.Bytes())
		}
	})
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

// selfSigned writes a certificate for 127.0.0.1, which is its own authority, and
// key.pem beside it.
func selfSigned(t testing.TB, dir string) (cert string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert = filepath.Join(dir, "cert.pem")
	for name, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, filepath.Join(dir, "key.pem"): {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert
}
