package keyspace_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
)

// identity is what a server says of itself. It stands in for promotions and
// restarts, which tests cannot have of a server that they share.
type identity struct {
	mu          sync.Mutex
	role, token string
	refuse      bool
	asked       int
	// promote, where set, is the token from the first call of a pipeline on.
	promote string
}

func (s *identity) answer(p *server.Peer, cmd string, args ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch strings.ToUpper(cmd) {
	case "EVALSHA":
		if s.promote != "" {
			s.token, s.promote = s.promote, ""
		}
	case "INFO":
		s.asked++
		if s.refuse {
			p.WriteError("ERR not now")
		} else {
			p.WriteBulk(fmt.Sprintf("# Replication\r\nrole:%s\r\nmaster_replid:%s\r\nmaster_replid2:0\r\n", s.role, s.token))
		}
		return true
	}
	return false
}

func TestTheTokenIsAskedForOnceBehindAllCalls(t *testing.T) {
	s := miniredis.RunT(t)
	is := &identity{role: "master", token: "first"}
	s.Server().SetPreHook(is.answer)
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	r := keyspace.NewRunner(client)
	script := keyspace.NewScript("told", "return {ARGV[1], tm_incarnation(ARGV[1]), ARGV[2]}")
	given := ""
	run := func(what string, asked int, told, token string) {
		t.Helper()
		is.asked = 0
		calls := make([]keyspace.Call, 5)
		for i := range calls {
			calls[i] = keyspace.Call{Script: script, Keys: []string{"{k}"}, Args: []any{"", i}, Asks: true}
		}
		calls[3].Args = []any{"of its own", 3}
		calls[4].Args = []any{&given, 4}
		for i, res := range r.Run(t.Context(), calls) {
			want := []any{told, token, fmt.Sprint(i)}
			if i == 3 {
				want = []any{"of its own", "of its own", "3"}
			}
			if d := cmp.Diff(want, res.Value); res.Err != nil || d != "" {
				t.Errorf("%s, call %d: %v\n%s", what, i, res.Err, d)
			}
		}
		if is.asked != asked {
			t.Errorf("%s: the server was asked %d times, want %d", what, is.asked, asked)
		}
	}
	// The script has to be taught, so the first pipeline comes to nothing but for
	// the token.
	run("the first calls", 2, "first", "first")
	run("the next", 1, "first", "first")
	is.token = "second"
	run("promoted before", 2+4, "", "second")
	run("after that", 1, "second", "second")
	is.promote = "third"
	run("promoted meanwhile", 2+4, "", "third")
	run("after that", 1, "third", "third")
	// Somebody else is the master under that token.
	is.role = "slave"
	run("demoted", 2+4, "", "third")
	run("demoted still", 1+4, "", "third")
	is.role = "master"
	run("promoted under a token that was known", 1+4, "", "third")
	run("after that", 1, "third", "third")

	is.refuse = true
	res := r.Run(t.Context(), []keyspace.Call{
		{Script: script, Keys: []string{"{k}"}, Args: []any{""}, Asks: true},
		{Script: keyspace.NewScript("told", "return {ARGV[1], tm_incarnation(ARGV[1]), ARGV[2]}"), Keys: []string{"{k}"}, Args: []any{"given", 1}, Asks: true},
	})
	if res[0].Err == nil || fault.ReasonOf(res[0].Err) != keyspace.ReasonScript {
		t.Errorf("a call whose token nobody confirmed gave %+v", res[0])
	}
	if res[1].Err != nil {
		t.Errorf("a call that asks for nothing: %v", res[1].Err)
	}
}
