package hot_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

// scriptCalls counts calls of scripts, those that a server turned down too.
type scriptCalls struct{ n atomic.Int64 }

func (*scriptCalls) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (*scriptCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s *scriptCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			if c.Name() == "evalsha" {
				s.n.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}

func askAll(n int, users ...watermark.UserID) (asks []hot.Ask) {
	for i := range n {
		asks = append(asks, hot.Ask{Conversation: watermark.GroupOf(fmt.Sprint("c", i)), User: users[i%len(users)]})
	}
	return asks
}

// On one server conversations share a script call, those of one user at a time;
// on a Cluster, where a call belongs to one slot, each has its own.
func TestViewsShareScriptCalls(t *testing.T) {
	e := newEnv(t)
	calls := e.calls
	scripted := e.hot(hot.Config{Redis: e.client})
	scripted.ByScript()
	e.view(group, "ann") // teaches the server the script
	count := func(h *hot.Hot, asks []hot.Ask) int64 {
		t.Helper()
		before := calls.n.Load()
		views, err := h.Views(t.Context(), asks)
		if err != nil || len(views) != len(asks) {
			t.Fatal(len(views), err)
		}
		return calls.n.Load() - before
	}
	for name, tt := range map[string]struct {
		asks []hot.Ask
		want int64
	}{
		"one":            {askAll(1, "ann"), 1},
		"fifty":          {askAll(50, "ann"), 1},
		"a page":         {askAll(500, "ann"), 12}, // of 50, 50 and 25
		"a few more":     {askAll(501, "ann"), 13},
		"of users":       {append(askAll(60, "ann"), askAll(3, "bob")...), 3},
		"users in turn":  {askAll(4, "ann", "bob"), 4},
		"two pipelines":  {askAll(126, "ann"), 4},
		"nothing at all": {nil, 0},
	} {
		if got := count(scripted, tt.asks); got != tt.want {
			t.Errorf("%s: %d script calls, want %d", name, got, tt.want)
		}
		if got := count(e.Hot, tt.asks); got != 0 {
			t.Errorf("%s: %d script calls beside plain commands, want none", name, got)
		}
	}

	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{miniredis.RunT(t).Addr()}})
	t.Cleanup(func() { cluster.Close() })
	h, err := hot.New(hot.Config{Redis: cluster, Decode: decode, Space: keyspace.Space{Incarnation: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Views(t.Context(), askAll(1, "ann")); err != nil {
		t.Fatal(err)
	}
	cluster.AddHook(calls)
	if got := count(h, askAll(70, "ann")); got != 70 {
		t.Errorf("on a Cluster %d script calls, want 70", got)
	}
}

// Marks of a list that Redis has nothing of are one question; where any of its
// conversations stands, whatever its state, all are raised.
func TestMarksOfAColdListAreOneQuestion(t *testing.T) {
	e := newEnv(t)
	calls := e.calls
	var rows []watermark.MemberRow
	for i := range 100 {
		rows = append(rows, watermark.MemberRow{Conversation: watermark.GroupOf(fmt.Sprint("c", i)), Member: watermark.Member{User: "ann", Read: 7}})
	}
	e.raise(group, watermark.Member{User: "ann", Read: 1}) // teaches the server the script
	raise := func() (trips, scripts int64) {
		t.Helper()
		before := calls.n.Load()
		trips = e.trips.during(func() {
			if err := e.RaiseReads(t.Context(), rows); err != nil {
				t.Fatal(err)
			}
		})
		return trips, calls.n.Load() - before
	}
	if trips, scripts := raise(); trips != 1 || scripts != 0 {
		t.Errorf("all cold: %d round trips, %d script calls, want 1 and 0", trips, scripts)
	}
	for i, state := range []string{keyspace.StateWarm, keyspace.StateWarming} {
		c := rows[40*i+30].Conversation
		e.meta(c, "st", state)
		if trips, scripts := raise(); trips != 2 || scripts != 100 {
			t.Errorf("one %s: %d round trips, %d script calls, want 2 and 100", state, trips, scripts)
		}
		if got := e.client.ZScore(t.Context(), e.space.Key(c, keyspace.Read), "ann").Val(); got != 7 {
			t.Errorf("one %s: the mark is %v, want 7", state, got)
		}
		e.do("DEL", e.space.Key(c, keyspace.Meta))
	}
}

// What is said of a conversation does not depend on what else is asked for.
func TestViewsTogetherAreViewsAlone(t *testing.T) {
	users := []watermark.UserID{"ann", "bob", "eve", ""}
	rapid.Check(t, func(rt *rapid.T) {
		e := newEnv(t)
		var convs []watermark.ConversationID
		for i := range rapid.IntRange(1, 12).Draw(rt, "conversations") {
			c := watermark.GroupOf(fmt.Sprint("c", i))
			if rapid.Bool().Draw(rt, "single") {
				c = watermark.SingleOf("ann", watermark.UserID(fmt.Sprint("peer", i)))
			}
			convs = append(convs, c)
			if !rapid.Bool().Draw(rt, "there") {
				continue
			}
			e.meta(c, "max", 10+i, "full", rapid.IntRange(0, 1).Draw(rt, "complete"), "lt", 5*i, "pol", i%2)
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				e.meta(c, "inc", "another")
			case 1:
				e.meta(c, "st", keyspace.StateWarming)
			case 2:
				e.meta(c, "rn", i, "rf", i+1)
			}
			known := users[:3]
			if a, b, ok := c.Users(); ok {
				known = []watermark.UserID{a, b}
			}
			for n, u := range known {
				if rapid.Bool().Draw(rt, "known") {
					m := open(u, int64(i+n+1), watermark.Seq(i))
					m.Read = watermark.Seq(rapid.IntRange(0, 5).Draw(rt, "read"))
					if c.Single() {
						m.Receipt = watermark.Seq(rapid.IntRange(0, 3).Draw(rt, "receipt"))
					}
					if rapid.IntRange(0, 3).Draw(rt, "owns") == 0 {
						m.Own = []watermark.Seq{watermark.Seq(i + 3), watermark.Seq(i + 7)}
					}
					e.member(c, m)
				}
			}
		}
		var asks []hot.Ask
		for range rapid.IntRange(1, 30).Draw(rt, "asks") {
			asks = append(asks, hot.Ask{Conversation: rapid.SampledFrom(convs).Draw(rt, "of"), User: rapid.SampledFrom(users).Draw(rt, "for")})
		}
		together := e.views(asks)
		for i, a := range asks {
			diff(t, fmt.Sprintf("%+v, the %dth of %d", a, i, len(asks)), together[i], e.view(a.Conversation, a.User))
		}
	})
}
