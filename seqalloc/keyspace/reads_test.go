package keyspace_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
)

// getAll reads n keys in one transaction each.
func getAll(ctx context.Context, r *keyspace.Runner, keys ...string) *keyspace.Reads {
	reads := r.Reads(ctx)
	for i := range keys {
		reads.Words("get", &keys[i])
		reads.Command()
		reads.Transaction(ctx)
	}
	return reads
}

func TestReadsGiveEachTransactionItsReply(t *testing.T) {
	onEachRedis(t, func(t *testing.T, client redis.UniversalClient) {
		ctx := t.Context()
		key := "test:{" + t.Name() + "}"
		scores, hash := key+":s", key+":h"
		t.Cleanup(func() { client.Del(context.WithoutCancel(ctx), key, scores, hash) })
		binary := "a\r\n$5\r\n\x00\xffz"
		for _, err := range []error{
			client.Set(ctx, key, binary, 0).Err(),
			client.ZAdd(ctx, scores, redis.Z{Score: 1<<53 - 1, Member: "x"}, redis.Z{Member: "y"}).Err(),
			client.HSet(ctx, hash, "f", "", "g", "7").Err(),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		r := keyspace.NewRunner(client)
		for range 3 { // what they are written into is used again
			reads := r.Reads(ctx)
			reads.Words("hmget", &hash)
			reads.Words("f", "g", "none")
			reads.Command()
			reads.Words("zmscore", scores, []byte("x"), "none", "y")
			reads.Command()
			reads.Transaction(ctx)
			reads.Words("get", key)
			reads.Command()
			reads.Words("exists", key, scores, "none")
			reads.Command()
			reads.Words("zscore", scores, "none")
			reads.Command()
			reads.Transaction(ctx)
			replies, token, usable, err := reads.Run(ctx, "given")
			if _, single := client.(*redis.Client); !single {
				if usable || err != nil {
					t.Errorf("on a Cluster: %v, %v", usable, err)
				}
				return
			}
			if err != nil || !usable || token != "given" || len(replies) != 2 {
				t.Fatal(len(replies), token, usable, err)
			}
			var got []string
			text := func(r *keyspace.Reply) {
				s, ok := r.Text()
				got = append(got, fmt.Sprint(s, ok))
			}
			first, second := &replies[0], &replies[1]
			for range 2 {
				first.ListOf(3)
				for range 3 {
					text(first)
				}
			}
			for range 3 {
				text(second)
			}
			want := []string{"true", "7true", "false", got[3], "false", "0true", binary + "true", "2true", "false"}
			if d := cmp.Diff(want, got); d != "" || first.End() != nil || second.End() != nil {
				t.Errorf("%v, %v\n%s", first.End(), second.End(), d)
			}
			if got[3] != "9007199254740991true" && got[3] != "9.007199254740991e+15true" {
				t.Errorf("the highest score is %s", got[3])
			}
		}
	})
}

// Nothing counts unless the token that was known before the reads is confirmed
// behind them, by a master.
func TestReadsNeedATokenThatStands(t *testing.T) {
	s := miniredis.RunT(t)
	is := &identity{role: "master", token: "first"}
	s.Server().SetPreHook(func(p *server.Peer, cmd string, args ...string) bool {
		if strings.EqualFold(cmd, "exec") {
			cmd = "evalsha" // when it is promoted, where it is to be
		}
		return is.answer(p, cmd, args...)
	})
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	r := keyspace.NewRunner(client)
	run := func(what, given, token string, asked int) {
		t.Helper()
		is.asked = 0
		replies, got, usable, err := getAll(t.Context(), r, "a", "b").Run(t.Context(), given)
		if err != nil || got != token || usable != (token != "") || usable != (len(replies) == 2) {
			t.Errorf("%s: %d replies, %q, %v, %v, want %q", what, len(replies), got, usable, err, token)
		}
		if is.asked != asked {
			t.Errorf("%s: the server was asked %d times, want %d", what, is.asked, asked)
		}
	}
	learn := func() {
		t.Helper()
		script := keyspace.NewScript("learn", "return 1")
		if _, err := r.One(t.Context(), keyspace.Call{Script: script, Keys: []string{"{k}"}, Args: []any{""}, Asks: true}); err != nil {
			t.Fatal(err)
		}
	}
	run("nobody knows a token", "", "", 0)
	run("one is given", "given", "given", 0)
	learn()
	run("it is known", "", "first", 1)
	is.token = "second"
	run("promoted before", "", "", 1)
	run("after that", "", "second", 1)
	is.promote = "third"
	run("promoted meanwhile", "", "", 1)
	run("after that", "", "third", 1)
	is.role = "slave"
	run("demoted", "", "", 1)
	run("demoted still", "", "", 0)
	is.role = "master"
	learn()
	is.refuse = true
	run("nobody confirms it", "", "", 1)

	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}})
	t.Cleanup(func() { _ = cluster.Close() })
	r = keyspace.NewRunner(cluster)
	run("a Cluster", "given", "", 0)
}

// What a server refuses, and what is not of the type that was expected, is a reply
// that is not as it should be, of that transaction alone.
func TestARefusedReadIsNoReply(t *testing.T) {
	s := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	s.HSet("hash", "f", "v")
	_ = s.Set("a", "1")
	r := keyspace.NewRunner(client)
	run := func() (errs []bool) {
		t.Helper()
		replies, _, usable, err := getAll(t.Context(), r, "a", "hash", "a").Run(t.Context(), "given")
		if err != nil || !usable {
			t.Fatal(usable, err)
		}
		for i := range replies {
			replies[i].Text()
			errs = append(errs, replies[i].End() != nil)
		}
		return errs
	}
	if d := cmp.Diff([]bool{false, true, false}, run()); d != "" {
		t.Errorf("a key of another type: %s", d)
	}
	s.Server().SetPreHook(func(p *server.Peer, cmd string, args ...string) bool {
		if strings.EqualFold(cmd, "get") && args[0] == "hash" {
			p.WriteError("LOADING Redis is loading the dataset in memory")
			return true
		}
		if strings.EqualFold(cmd, "exec") {
			p.WriteError("EXECABORT Transaction discarded because of previous errors.")
			return true
		}
		return false
	})
	if d := cmp.Diff([]bool{true, true, true}, run()); d != "" {
		t.Errorf("refused: %s", d)
	}
}

func TestReadsThatAreNotAnsweredAreTransient(t *testing.T) {
	s := miniredis.RunT(t)
	var cut atomic.Bool
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &cutConn{c, &cut}, err
	}})
	t.Cleanup(func() { _ = client.Close() })
	r := keyspace.NewRunner(client)
	run := func(ctx context.Context, want string) {
		t.Helper()
		replies, _, usable, err := getAll(ctx, r, "a", "b").Run(ctx, "given")
		if (want == "") != (err == nil) || usable != (want == "") || want != "" && (fault.ReasonOf(err) != want || fault.ClassOf(err) != fault.Transient) {
			t.Errorf("%d replies, %v, %v, want %q", len(replies), usable, err, want)
		}
	}
	run(t.Context(), "")
	cut.Store(true)
	run(t.Context(), keyspace.ReasonNet)
	cut.Store(false)
	run(t.Context(), "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	run(ctx, keyspace.ReasonContext)
}

// A reply is read as a text and a list of one text.
func TestAReplyIsWhatWasExpected(t *testing.T) {
	for text, good := range map[string]bool{
		"*2\r\n$1\r\na\r\n*1\r\n:7\r\n":         true,
		"*2\r\n$-1\r\n*1\r\n,1.5\r\n":           true,
		"*2\r\n_\r\n*1\r\n$2\r\n\r\n\r\n":       true,
		"*2\r\n$1\r\na\r\n*1\r\n:7\r\n:8\r\n":   false, // more
		"*2\r\n$1\r\na\r\n*1\r\n":               false, // less
		"*3\r\n$1\r\na\r\n*1\r\n:7\r\n":         false,
		"*2\r\n$1\r\na\r\n*2\r\n:7\r\n:8\r\n":   false,
		"*2\r\n$1\r\nab\r\n*1\r\n:7\r\n":        false,
		"*2\r\n-WRONGTYPE\r\n*1\r\n:7\r\n":      false,
		"*2\r\n*0\r\n*1\r\n:7\r\n":              false,
		"*2\n$1\na\n*1\n:7\n":                   false,
		"*-1\r\n":                               false,
		"-EXECABORT Transaction discarded.\r\n": false,
		"*2\r\n$9223372036854775807\r\na":       false,
		"*9223372036854775807\r\n":              false,
		"*2\r\n$-2\r\n*1\r\n:7\r\n":             false,
		"":                                      false,
	} {
		r := keyspace.NewReply(text, 2)
		r.Text()
		r.ListOf(1)
		r.Text()
		if err := r.End(); (err == nil) != good {
			t.Errorf("%q: %v, want it to be good: %v", text, err, good)
		}
	}
}

func FuzzReply(f *testing.F) {
	for _, s := range []string{
		"*2\r\n$1\r\na\r\n*1\r\n:7\r\n", "*2\r\n$-1\r\n*0\r\n", "*2\r\n_\r\n*2\r\n,1.5\r\n$0\r\n\r\n", "-EXECABORT no\r\n", "*-1\r\n", "",
		"*2\r\n$9223372036854775807\r\na", "*2\r\n$5\r\na\r\n", "*99999999999\r\n", "*2\r\n+OK\r\n", "*2\r\n-WRONGTYPE\r\n", "*2\n$1\na", "\n", "\r\n",
		"*2\r\n$1\r\na\r\n*1\r\n:7\r\nmore",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := keyspace.NewReply(s, 2)
		size := 0
		text, _ := r.Text()
		size += len(text)
		for range r.List() {
			text, _ := r.Text()
			if size += len(text); r.Err() != nil {
				break
			}
		}
		if err := r.End(); err == nil && (size >= len(s) || !strings.HasPrefix(s, "*2\r\n")) {
			t.Errorf("%q gave %d bytes", s, size)
		}
		if r.Err() != nil {
			if _, ok := r.Text(); ok {
				t.Errorf("%q gave a text behind %v", s, r.Err())
			}
		}
	})
}
