package hot_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	group  = watermark.ConversationID("group:g1")
	single = watermark.ConversationID("single:ann:bob")
)

// env is a Hot on a Redis of its own: an embedded one with a fixed incarnation,
// or, with TIDEMARK_TEST_REDIS=host:port, a real server under a prefix of the
// test's own, which is asked for its incarnation.
type env struct {
	*hot.Hot
	scripted    *hot.Hot // reads views by the script alone, and is not counted
	tb          testing.TB
	client      *redis.Client
	unseen      *redis.Client // to the same server, without hooks
	space       keyspace.Space
	incarnation string // what the server's scripts believe in
	reg         *prometheus.Registry
	scriptedReg *prometheus.Registry
	trips       *roundTrips
	calls       *scriptCalls
	embedded    *miniredis.Miniredis // nil with a real server
}

func newEnv(tb testing.TB) *env {
	tb.Helper()
	return newEnvAt(tb, os.Getenv("TIDEMARK_TEST_REDIS"))
}

// newEmbedded is for tests that make the server say what it does not mean.
func newEmbedded(tb testing.TB) *env {
	tb.Helper()
	return newEnvAt(tb, "")
}

func newEnvAt(tb testing.TB, addr string) *env {
	tb.Helper()
	e := &env{tb: tb, reg: prometheus.NewRegistry(), trips: &roundTrips{}, calls: &scriptCalls{}}
	if addr == "" {
		e.embedded = miniredis.RunT(tb)
		addr = e.embedded.Addr()
		e.incarnation, e.space.Incarnation = "this-server", "this-server"
	}
	connect := func() *redis.Client {
		client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute}) // a loaded machine is slow
		tb.Cleanup(func() { client.Close() })
		return client
	}
	e.client, e.unseen = connect(), connect()
	e.space.Prefix = fmt.Sprintf("t%x:", rand.Uint64())
	if e.incarnation == "" {
		text := e.must(e.client.Info(context.Background(), "replication").Result())
		_, rest, _ := strings.Cut(text, "master_replid:")
		e.incarnation, _, _ = strings.Cut(rest, "\r\n")
		prefix := e.space.Prefix
		tb.Cleanup(func() {
			keys, _ := e.client.Keys(context.Background(), prefix+"*").Result()
			if len(keys) > 0 {
				e.client.Del(context.Background(), keys...)
			}
		})
	}
	e.Hot = e.hot(hot.Config{Redis: e.client, Registerer: e.reg})
	e.scripted = e.hot(hot.Config{Redis: e.unseen})
	e.scripted.ByScript()
	e.client.AddHook(e.trips)
	e.client.AddHook(e.calls)
	return e
}

// anew begins with nothing, on the same server; views wait for no batch.
func (e *env) anew() {
	e.tb.Helper()
	e.space.Prefix += "+"
	e.patience(1)
	e.calls.n.Store(0)
}

// hot gives a Hot that knows the token of the server.
func (e *env) hot(cfg hot.Config) *hot.Hot {
	e.tb.Helper()
	cfg.Space, cfg.Decode = e.space, decode
	h, err := hot.New(cfg)
	if err != nil {
		e.tb.Fatal(err)
	}
	if e.space.Incarnation == "" {
		if err := h.RaiseReads(e.tb.Context(), []watermark.MemberRow{{Conversation: "group:none", Member: watermark.Member{Read: 1}}}); err != nil {
			e.tb.Fatal(err)
		}
	}
	return h
}

func (e *env) must(s string, err error) string {
	e.tb.Helper()
	if err != nil {
		e.tb.Fatal(err)
	}
	return s
}

// decode reads what put writes: the header is the sender.
func decode(seq watermark.Seq, header, body []byte) (watermark.Message, error) {
	if string(header) == "damaged" {
		return watermark.Message{}, errors.New("damaged")
	}
	m := watermark.Message{Seq: seq, Sender: watermark.UserID(header)}
	if body != nil {
		m.Body = body
	}
	return m, nil
}

// meta writes fields of a conversation's meta over those of a warm one.
func (e *env) meta(c watermark.ConversationID, fields ...any) {
	e.tb.Helper()
	all := append([]any{"inc", e.incarnation, "st", keyspace.StateWarm, "tok", "t1", "min", 0, "max", 10}, fields...)
	e.do("HSET", append([]any{e.space.Key(c, keyspace.Meta)}, all...)...)
}

func (e *env) do(cmd string, args ...any) {
	e.tb.Helper()
	if err := e.client.Do(e.tb.Context(), append([]any{cmd}, args...)...).Err(); err != nil {
		e.tb.Fatalf("%s: %v", cmd, err)
	}
}

func (e *env) member(c watermark.ConversationID, m watermark.Member) {
	e.tb.Helper()
	e.do("HSET", e.space.Key(c, keyspace.Members), string(m.User), keyspace.MemberText(&m))
	if m.Read > 0 {
		e.do("ZADD", e.space.Key(c, keyspace.Read), int64(m.Read), string(m.User))
	}
	if m.Receipt > 0 {
		e.do("ZADD", e.space.Key(c, keyspace.Receipt), int64(m.Receipt), string(m.User))
	}
	for _, s := range m.Own {
		e.do("ZADD", e.space.Key(c, keyspace.Own), 0, keyspace.OwnMember(m.User, s))
	}
}

// log fills the hot log with first..last.
func (e *env) log(c watermark.ConversationID, first, last watermark.Seq) {
	e.tb.Helper()
	p := e.client.Pipeline()
	for s := first; s <= last; s++ {
		p.XAdd(e.tb.Context(), &redis.XAddArgs{
			Stream: e.space.Key(c, keyspace.Log), ID: s.String() + "-0",
			Values: []any{"h", "ann", "b", "body " + s.String()},
		})
	}
	if _, err := p.Exec(e.tb.Context()); err != nil {
		e.tb.Fatal(err)
	}
}

func (e *env) revoke(c watermark.ConversationID, seq watermark.Seq) {
	e.tb.Helper()
	t := keyspace.Tombstone{By: "mod", Time: 77, Header: []byte("ann")}
	e.do("HSET", e.space.Key(c, keyspace.Revoked), seq.String(), t.String())
	e.do("XDEL", e.space.Key(c, keyspace.Log), seq.String()+"-0")
}

// view asks for one view.
func (e *env) view(c watermark.ConversationID, u watermark.UserID) watermark.View {
	e.tb.Helper()
	return e.views([]hot.Ask{{Conversation: c, User: u}})[0]
}

func (e *env) raise(c watermark.ConversationID, m watermark.Member) {
	e.tb.Helper()
	if err := e.RaiseReads(e.tb.Context(), []watermark.MemberRow{{Conversation: c, Member: m}}); err != nil {
		e.tb.Fatal(err)
	}
}

func (e *env) merge(l hot.Load) bool {
	e.tb.Helper()
	merged, err := e.MergeMembers(e.tb.Context(), []hot.Load{l})
	if err != nil {
		e.tb.Fatal(err)
	}
	return merged[0]
}

// dump gives everything that stands under the test's prefix, to show that
// nothing was written.
func (e *env) dump() map[string]string {
	e.tb.Helper()
	ctx := e.tb.Context()
	keys, err := e.client.Keys(ctx, e.space.Prefix+"*").Result()
	if err != nil {
		e.tb.Fatal(err)
	}
	out := make(map[string]string)
	for _, k := range keys {
		var v any
		switch e.must(e.client.Type(ctx, k).Result()) {
		case "hash":
			v = e.client.HGetAll(ctx, k).Val()
		case "zset":
			v = e.client.ZRangeWithScores(ctx, k, 0, -1).Val()
		case "stream":
			v = e.client.XLen(ctx, k).Val()
		default:
			v = e.client.Get(ctx, k).Val()
		}
		out[k] = fmt.Sprint(v, e.client.TTL(ctx, k).Val())
	}
	return out
}

func diff(tb testing.TB, what string, got, want any) {
	tb.Helper()
	if d := cmp.Diff(want, got); d != "" {
		tb.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// open is a member with one open window from lower on.
func open(u watermark.UserID, version int64, lower watermark.Seq) watermark.Member {
	return watermark.Member{
		User: u, Version: version, LastMembership: 1,
		Memberships: []watermark.Membership{{Number: 1, Lower: lower}},
	}
}

// roundTrips counts what goes to the server, but for the greeting of a new
// connection.
type roundTrips struct{ n atomic.Int64 }

func (r *roundTrips) count(first redis.Cmder) {
	if name := first.Name(); name != "hello" && name != "client" {
		r.n.Add(1)
	}
}

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.count(cmd)
		return next(ctx, cmd)
	}
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.count(cmds[0])
		return next(ctx, cmds)
	}
}

// during counts the round trips of f.
func (r *roundTrips) during(f func()) int64 {
	before := r.n.Load()
	f()
	return r.n.Load() - before
}
