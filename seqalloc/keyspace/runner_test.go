package keyspace_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// onEachRedis runs f on the embedded Redis and, where TIDEMARK_TEST_REDIS
// names one, a real one.
func onEachRedis(t *testing.T, f func(t *testing.T, client redis.UniversalClient)) {
	addrs := map[string]string{"embedded": miniredis.RunT(t).Addr()}
	if addr := os.Getenv("TIDEMARK_TEST_REDIS"); addr != "" {
		addrs["real"] = addr
	}
	for name, addr := range addrs {
		t.Run(name, func(t *testing.T) {
			client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: strings.Split(addr, ","), MaxRetries: -1, DialerRetries: 1, ReadTimeout: time.Minute})
			t.Cleanup(func() { _ = client.Close() })
			f(t, client)
		})
	}
}

func TestRunGivesOneResultPerCall(t *testing.T) {
	onEachRedis(t, func(t *testing.T, client redis.UniversalClient) {
		r := keyspace.NewRunner(client)
		echo := keyspace.NewScript("echo", "if ARGV[1] == 'bad' then return redis.error_reply('OOM none left') end\nif ARGV[1] == 'none' then return false end\nreturn {KEYS[1], ARGV[1], F(9007199254740991), 7}")
		other := keyspace.NewScript("other", "return 5")
		var calls []keyspace.Call
		for i := range 2500 { // several pipelines
			calls = append(calls, keyspace.Call{Script: echo, Keys: []string{"tm:{k}:x"}, Args: []any{fmt.Sprint(i)}})
		}
		calls[10].Args = []any{"bad"}
		calls[11].Args = []any{"none"}
		calls[12] = keyspace.Call{Script: other, Keys: []string{"tm:{k}:x"}}
		for i, res := range r.Run(t.Context(), calls) {
			switch i {
			case 10:
				if fault.ReasonOf(res.Err) != keyspace.ReasonOOM {
					t.Errorf("call 10: %+v", res)
				}
			case 11:
				if res.Err != nil || res.Value != nil {
					t.Errorf("call 11: %+v", res)
				}
			case 12:
				if res.Err != nil || res.Value != int64(5) {
					t.Errorf("call 12: %+v", res)
				}
			default:
				want := []any{"tm:{k}:x", fmt.Sprint(i), "9007199254740991", int64(7)}
				if res.Err != nil || !cmp.Equal(want, res.Value) {
					t.Fatalf("call %d: %+v", i, res)
				}
			}
		}
	})
}

func TestOnlyCallsThatWereTurnedDownAreSentAgain(t *testing.T) {
	onEachRedis(t, func(t *testing.T, client redis.UniversalClient) {
		r := keyspace.NewRunner(client)
		key := "test:{" + t.Name() + "}"
		t.Cleanup(func() { client.Del(context.WithoutCancel(t.Context()), key) })
		known := keyspace.NewScript("known", "return redis.call('INCR', KEYS[1])")
		unknown := keyspace.NewScript("unknown", "return redis.call('INCRBY', KEYS[1], 100) -- "+rand.Text())
		if _, err := r.One(t.Context(), keyspace.Call{Script: known, Keys: []string{key}}); err != nil {
			t.Fatal(err)
		}
		res := r.Run(t.Context(), []keyspace.Call{{Script: known, Keys: []string{key}}, {Script: unknown, Keys: []string{key}}, {Script: known, Keys: []string{key}}})
		want := []keyspace.Result{{Value: int64(2)}, {Value: int64(103)}, {Value: int64(3)}}
		if d := cmp.Diff(want, res); d != "" {
			t.Error(d)
		}
	})
}

// A server that forgets its scripts between learning and calling still runs
// them.
func TestAnEmptiedScriptCacheDoesNoHarm(t *testing.T) {
	s := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(&forgetful{client: redis.NewClient(&redis.Options{Addr: s.Addr()}), t: t})
	r := keyspace.NewRunner(client)
	got, err := r.One(t.Context(), keyspace.Call{Script: keyspace.NewScript("x", "return 4"), Keys: []string{"{k}"}})
	if err != nil || got != int64(4) {
		t.Errorf("%v, %v", got, err)
	}
}

// forgetful empties the script cache before each pipeline.
type forgetful struct {
	client *redis.Client
	t      *testing.T
}

func (*forgetful) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*forgetful) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (f *forgetful) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	f.t.Cleanup(func() { _ = f.client.Close() })
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := f.client.ScriptFlush(ctx).Err(); err != nil {
			f.t.Error(err)
		}
		return next(ctx, cmds)
	}
}

func TestALostConnectionFailsEachCallAsTransient(t *testing.T) {
	s := miniredis.RunT(t)
	var cut atomic.Bool
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &cutConn{c, &cut}, err
	}})
	t.Cleanup(func() { _ = client.Close() })
	r := keyspace.NewRunner(client)
	x := keyspace.NewScript("x", "return 4")
	calls := []keyspace.Call{{Script: x, Keys: []string{"{k}"}}, {Script: x, Keys: []string{"{k}"}}}
	r.Run(t.Context(), calls)
	cut.Store(true)
	for i, res := range r.Run(t.Context(), calls) {
		if res.Err == nil || fault.ClassOf(res.Err) != fault.Transient || fault.ReasonOf(res.Err) != keyspace.ReasonNet {
			t.Errorf("call %d: %+v is %s", i, res, fault.ReasonOf(res.Err))
		}
	}
	cut.Store(false)
	for i, res := range r.Run(t.Context(), calls) {
		if res.Err != nil {
			t.Errorf("call %d after the cut: %v", i, res.Err)
		}
	}
}

// cutConn loses what the server says while cut is set.
type cutConn struct {
	net.Conn
	cut *atomic.Bool
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		_ = c.Conn.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
	}
	return n, err
}

func TestACancelledCallSaysSo(t *testing.T) {
	s := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := keyspace.NewRunner(client).One(ctx, keyspace.Call{Script: keyspace.NewScript("x", "return 4"), Keys: []string{"{k}"}})
	if fault.ReasonOf(err) != keyspace.ReasonContext {
		t.Errorf("%v is %s", err, fault.ReasonOf(err))
	}
}

// TestBelief pins what may be believed of a conversation, on the token that a
// real server names and on one that is given.
func TestBelief(t *testing.T) {
	onEachRedis(t, func(t *testing.T, client redis.UniversalClient) {
		r := keyspace.NewRunner(client)
		token := "given"
		if info := client.Info(t.Context(), "replication"); info.Err() == nil {
			token = "" // ask the server
		}
		inc, err := r.One(t.Context(), keyspace.Call{Script: keyspace.NewScript("inc", "return tm_incarnation(ARGV[1])"), Keys: []string{"{k}"}, Args: []any{token}})
		if err != nil {
			t.Fatal(err)
		}
		if s, _ := inc.(string); s == "" || (token == "" && len(s) != 40) {
			t.Fatalf("the server's token is %q", inc)
		}
		belief := keyspace.NewScript("belief", "return tm_state(ARGV[2] ~= '' and ARGV[2], ARGV[3] ~= '' and ARGV[3], ARGV[1])")
		for _, c := range []struct{ inc, state, want string }{
			{"", "", "absent"},
			{"other", keyspace.StateWarm, "incarnation"},
			{inc.(string), keyspace.StateWarming, keyspace.StateWarming},
			{inc.(string), keyspace.StateWarm, keyspace.StateWarm},
			{inc.(string), "", "absent"},
		} {
			got, err := r.One(t.Context(), keyspace.Call{Script: belief, Keys: []string{"{k}"}, Args: []any{token, c.inc, c.state}})
			if err != nil || got != c.want {
				t.Errorf("%+v: %v, %v", c, got, err)
			}
		}
	})
}

func TestLuaReadsAndWritesMemberText(t *testing.T) {
	onEachRedis(t, func(t *testing.T, client redis.UniversalClient) {
		script := keyspace.NewScript("member", "local m = tm_member(ARGV[1])\nreturn {tm_member_text(m), F(tm_version(ARGV[1]))}")
		for text, version := range map[string]string{
			"-":          "0",
			"1|1|1:7:0|": "1",
			"2|1||":      "2",
			"9007199254740991|2|1:0:4,2:9007199254740991:9007199254740992|a%7Cb%3B;4,%E6%97%A5+%2B;9007199254740991": "9007199254740991",
		} {
			got, err := keyspace.NewRunner(client).One(t.Context(), keyspace.Call{Script: script, Keys: []string{"{k}"}, Args: []any{text}})
			if err != nil || !cmp.Equal([]any{text, version}, got) {
				t.Errorf("%q: %v, %v", text, got, err)
			}
		}
	})
}

func TestMetaRoundTrip(t *testing.T) {
	values := make([]any, len(keyspace.MetaFields()))
	row, err := keyspace.ParseMeta("group:g", values)
	if err != nil || row.State != "" || row.Conversation.Max != 0 {
		t.Errorf("absent: %+v, %v", row, err)
	}
	for i, f := range keyspace.MetaFields() {
		if f == "max" {
			values[i] = "9007199254740991"
		}
	}
	if row, err = keyspace.ParseMeta("group:g", values); err != nil || row.Conversation.Max != 1<<53-1 {
		t.Errorf("%+v, %v", row, err)
	}
	for i, f := range keyspace.MetaFields() {
		if f == "min" {
			values[i] = "1e3"
		}
	}
	if _, err = keyspace.ParseMeta("group:g", values); err == nil {
		t.Error("a number that is none was read")
	}
	if _, err = keyspace.ParseMeta("group:g", values[1:]); err == nil {
		t.Error("too few values were read")
	}
}

// TestRunOnACluster has one master that serves all slots, which is enough to
// go the client's other way.
func TestRunOnACluster(t *testing.T) {
	s := miniredis.RunT(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	r := keyspace.NewRunner(client)
	x := keyspace.NewScript("x", "redis.call('SET', KEYS[1], ARGV[1])\nreturn ARGV[1]")
	var calls []keyspace.Call
	for i := range 20 {
		key := keyspace.Space{}.Key(watermark.GroupOf(fmt.Sprint("g", i)), keyspace.Meta)
		calls = append(calls, keyspace.Call{Script: x, Keys: []string{key}, Args: []any{i}})
	}
	for i, res := range r.Run(t.Context(), calls) {
		if res.Err != nil || res.Value != fmt.Sprint(i) {
			t.Errorf("call %d: %+v", i, res)
		}
	}
}
