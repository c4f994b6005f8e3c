package hot_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

// views asks for views both ways, by plain commands and by the script alone, and
// says what the first of them gave when the other gives the same.
func (e *env) views(asks []hot.Ask) []watermark.View {
	e.tb.Helper()
	views, err := e.Views(e.tb.Context(), asks)
	if err != nil {
		e.tb.Fatal(err)
	}
	scripted, err := e.scripted.Views(e.tb.Context(), asks)
	if err != nil {
		e.tb.Fatal(err)
	}
	diff(e.tb, "the script says otherwise", views, scripted)
	return views
}

// word is the text of a field that may be absent or damaged.
func word(values ...string) *rapid.Generator[string] { return rapid.SampledFrom(values) }

const absent = "<absent>"

// conversationInAnyState writes a conversation of whatever there can be in Redis,
// and of what there should not be.
func (e *env) conversationInAnyState(rt *rapid.T, c watermark.ConversationID, users []watermark.UserID) {
	set := func(p keyspace.Part, field, value string) {
		if value != absent {
			e.do("HSET", e.space.Key(c, p), field, value)
		}
	}
	meta := func(field string, usual string, others ...string) {
		value := usual
		if rapid.IntRange(0, 9).Draw(rt, field) == 0 {
			value = word(others...).Draw(rt, "another "+field)
		}
		set(keyspace.Meta, field, value)
	}
	meta("inc", e.incarnation, absent, "", "another")
	meta("st", keyspace.StateWarm, absent, "", keyspace.StateWarming, "other")
	meta("tok", "t1", absent, "")
	meta("min", "3", absent, "0")
	meta("max", "10", absent, "9007199254740991")
	meta("lt", "1764476000000", absent)
	meta("pol", "0", absent, "1")
	meta("bt", "topic/1|7", absent, "topic/2|8")
	meta("rn", "0", absent, "", "4")
	set(keyspace.Meta, "rf", word(absent, "0", "6").Draw(rt, "rf"))
	set(keyspace.Meta, "full", word(absent, "0", "1").Draw(rt, "full"))
	meta("in:topic/1", "5", absent)
	scores := word(absent, absent, "0", "5", "9007199254740991")
	for _, u := range users {
		m := open(u, 2, 4)
		set(keyspace.Members, string(u), word(absent, keyspace.NoWindow, keyspace.MemberText(&m), "").Draw(rt, "member"))
		for _, p := range []keyspace.Part{keyspace.Read, keyspace.Receipt} {
			if s := scores.Draw(rt, string(p)); s != absent {
				e.do("ZADD", e.space.Key(c, p), s, string(u))
			}
		}
	}
}

// spoil damages a conversation, now and then.
func (e *env) spoil(rt *rapid.T, c watermark.ConversationID, users []watermark.UserID) {
	u := string(rapid.SampledFrom(users).Draw(rt, "whose"))
	switch rapid.IntRange(0, 40).Draw(rt, "damage") {
	case 0:
		e.do("HSET", e.space.Key(c, keyspace.Meta), "max", "1.5")
	case 1:
		e.do("HSET", e.space.Key(c, keyspace.Meta), "bt", "no place")
	case 2:
		e.do("HSET", e.space.Key(c, keyspace.Members), u, "no member")
	case 3:
		e.do("ZADD", e.space.Key(c, keyspace.Read), "inf", u)
	case 4:
		key := e.space.Key(c, rapid.SampledFrom([]keyspace.Part{keyspace.Meta, keyspace.Members, keyspace.Read, keyspace.Receipt}).Draw(rt, "of"))
		e.do("SET", key, "of another type")
	}
}

// Whatever stands in Redis, plain commands and the script say the same of it.
func TestBothWaysSayTheSame(t *testing.T) {
	users := []watermark.UserID{"ann", "bob", "eve", ""}
	e := newEnv(t)
	rapid.Check(t, func(rt *rapid.T) {
		e.anew()
		if rapid.Bool().Draw(rt, "settled") {
			e.do("ZADD", e.space.SettledKey(), 7, "topic/1", 7, "topic/2")
		}
		owns := rapid.IntRange(0, 3).Draw(rt, "owns") == 0
		damaged := rapid.IntRange(0, 2).Draw(rt, "damaged") == 0
		var convs []watermark.ConversationID
		for i := range rapid.IntRange(1, 6).Draw(rt, "conversations") {
			c := watermark.GroupOf(fmt.Sprint("c", i))
			if rapid.Bool().Draw(rt, "single") {
				c = watermark.SingleOf("ann", rapid.SampledFrom([]watermark.UserID{"bob", "peer", ""}).Draw(rt, "peer"))
			}
			if slices.Contains(convs, c) {
				continue
			}
			convs = append(convs, c)
			if rapid.IntRange(0, 4).Draw(rt, "there") == 0 {
				continue
			}
			known := users[:3]
			if a, b, ok := c.Users(); ok {
				known = []watermark.UserID{a, b}
			}
			e.conversationInAnyState(rt, c, known)
			if owns {
				for _, seq := range []watermark.Seq{4, 6, 12} {
					e.do("ZADD", e.space.Key(c, keyspace.Own), 0, keyspace.OwnMember(known[0], seq))
				}
			}
			if damaged {
				e.spoil(rt, c, known)
			}
		}
		var asks []hot.Ask
		for range rapid.IntRange(1, 70).Draw(rt, "asks") {
			asks = append(asks, hot.Ask{Conversation: rapid.SampledFrom(convs).Draw(rt, "of"), User: rapid.SampledFrom(users).Draw(rt, "for")})
		}
		plain, err := e.Views(t.Context(), asks)
		scripted, scriptedErr := e.scripted.Views(t.Context(), asks)
		if d := cmp.Diff(fmt.Sprint(scriptedErr), fmt.Sprint(err)); d != "" || fault.ReasonOf(err) != fault.ReasonOf(scriptedErr) {
			rt.Fatalf("the script fails otherwise (-script +plain):\n%s", d)
		}
		if d := cmp.Diff(scripted, plain); d != "" {
			rt.Fatalf("the script says otherwise (-script +plain):\n%s", d)
		}
		if d := cmp.Diff(outcomes(t, e.scriptedReg), outcomes(t, e.reg)); d != "" {
			rt.Fatalf("the script counts otherwise (-script +plain):\n%s", d)
		}
		if !owns && !damaged && e.calls.n.Load() != 0 {
			rt.Fatalf("%d script calls, want none", e.calls.n.Load())
		}
	})
}

// outcomes gives what views were counted as.
func outcomes(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		if f.GetName() == "tidemark_hot_views_total" {
			for _, m := range f.GetMetric() {
				out[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return out
}

// Where there is something that plain commands do not read, the script is asked
// for the conversations of that transaction, and only for them.
func TestWhatPlainCommandsDoNotCoverTheScriptDoes(t *testing.T) {
	asks := askAll(120, "ann")
	for name, tt := range map[string]struct {
		change func(e *env, c watermark.ConversationID)
		fails  string
		calls  int64
		again  int64 // script calls of the next time
	}{
		"nothing":             {func(*env, watermark.ConversationID) {}, "", 0, 0},
		"a list of own":       {func(e *env, c watermark.ConversationID) { e.do("ZADD", e.space.Key(c, keyspace.Own), 0, "x") }, "", 1, 3},
		"a damaged member":    {func(e *env, c watermark.ConversationID) { e.do("HSET", e.space.Key(c, keyspace.Members), "ann", "x") }, "reply", 1, 3},
		"a key of other type": {func(e *env, c watermark.ConversationID) { e.do("SET", e.space.Key(c, keyspace.Members), "x") }, keyspace.ReasonScript, 1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			for _, a := range asks {
				e.meta(a.Conversation, "full", "1")
			}
			tt.change(e, asks[60].Conversation)
			if _, err := e.scripted.Views(t.Context(), asks[:1]); err != nil { // teaches the server the script
				t.Fatal(err)
			}
			for time, want := range []int64{tt.calls, tt.again} {
				before := e.calls.n.Load()
				views, err := e.Views(t.Context(), asks)
				if got := e.calls.n.Load() - before; got != want {
					t.Errorf("time %d: %d script calls, want %d", time, got, want)
				}
				if tt.fails != "" {
					if fault.ReasonOf(err) != tt.fails || !strings.Contains(err.Error(), "group:") {
						t.Errorf("time %d: %v is %s, want %s", time, err, fault.ReasonOf(err), tt.fails)
					}
					continue
				}
				if err != nil || views[60].Temperature != watermark.Warm || views[119].Temperature != watermark.Warm {
					t.Errorf("time %d: %v, %v", time, views, err)
				}
			}
		})
	}
}

// The script is asked for a while where there are own messages, so that what is
// known to be asked for twice is not.
func TestOwnMessagesSendAFewPipelinesToTheScript(t *testing.T) {
	e := newEnv(t)
	e.meta(group, "full", "1")
	m := open("ann", 1, 0)
	m.Own = []watermark.Seq{5}
	e.member(group, m)
	e.view(group, "ann")
	e.do("DEL", e.space.Key(group, keyspace.Own))
	before := e.calls.n.Load()
	const views = 100
	for range views {
		if _, err := e.Views(t.Context(), []hot.Ask{{Conversation: group, User: "ann"}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := e.calls.n.Load() - before; got < 1 || got > views/2 {
		t.Errorf("%d of %d views were asked of the script", got, views)
	}
}

// What refuses transactions, as some proxies do, has the script called, and is
// not asked for one each time.
func TestAServerWithoutTransactionsIsServedByTheScript(t *testing.T) {
	e := newEmbedded(t)
	asks := askAll(60, "ann")
	for _, a := range asks {
		e.meta(a.Conversation, "full", "1")
	}
	refused := 0
	e.embedded.Server().SetPreHook(func(p *server.Peer, cmd string, _ ...string) bool {
		if strings.EqualFold(cmd, "multi") || strings.EqualFold(cmd, "exec") {
			refused++
			p.WriteError("ERR unknown command")
			return true
		}
		return false
	})
	for range 10 {
		views, err := e.Views(t.Context(), asks)
		if err != nil || views[59].Temperature != watermark.Warm {
			t.Fatal(views, err)
		}
	}
	e.embedded.Server().SetPreHook(nil)
	if refused != 4 {
		t.Errorf("%d commands of transactions were refused, want those of 2 transactions", refused)
	}
}

// What a server refuses is the same error whichever way was tried first.
func TestAServerThatRefusesIsSortedAsTheScriptSorts(t *testing.T) {
	for text, reason := range map[string]string{
		"LOADING Redis is loading the dataset in memory":                  keyspace.ReasonLoading,
		"MOVED 1 127.0.0.1:1":                                             keyspace.ReasonMoved,
		"MASTERDOWN Link with MASTER is down":                             keyspace.ReasonMasterDown,
		"NOAUTH Authentication required.":                                 keyspace.ReasonAuth,
		"NOPERM this user has no permissions to run the 'hmget' command":  keyspace.ReasonAuth,
		"BUSY Redis is busy running a script. You can only call SCRIPT K": keyspace.ReasonBusy,
	} {
		t.Run(reason, func(t *testing.T) {
			e := newEmbedded(t)
			e.meta(group, "full", "1")
			e.view(group, "ann")
			queued := 0
			e.embedded.Server().SetPreHook(func(p *server.Peer, cmd string, args ...string) bool {
				switch strings.ToUpper(cmd) {
				case "HMGET", "ZSCORE", "EXISTS", "EXEC":
					queued++
				case "EVALSHA":
				default:
					return false
				}
				p.WriteError(text)
				return true
			})
			_, err := e.Views(t.Context(), askAll(60, "ann"))
			e.embedded.Server().SetPreHook(nil)
			if fault.ReasonOf(err) != reason || queued == 0 {
				t.Errorf("%v is %s, want %s", err, fault.ReasonOf(err), reason)
			}
		})
	}
}

// A server that was promoted while it answered has its answers thrown away.
func TestViewsOfAnotherServerAreAskedForAgain(t *testing.T) {
	e := newEmbedded(t)
	is := &replication{token: "first"}
	e.embedded.Server().SetPreHook(is.answer)
	h, err := hot.New(hot.Config{Redis: e.client, Decode: decode, Space: keyspace.Space{Prefix: e.space.Prefix}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(what string, want watermark.Temperature, scripts int64) {
		t.Helper()
		before := e.calls.n.Load()
		views, err := h.Views(t.Context(), []hot.Ask{{Conversation: group, User: "ann"}})
		if err != nil || views[0].Temperature != want {
			t.Errorf("%s: %v, %v, want %v", what, views, err, want)
		}
		if got := e.calls.n.Load() - before; got != scripts {
			t.Errorf("%s: %d script calls, want %d", what, got, scripts)
		}
	}
	e.meta(group, "inc", "first", "full", "1")
	ask("the first time, which teaches the server the script", watermark.Warm, 2)
	ask("the token is known", watermark.Warm, 0)
	is.promote("second")
	ask("promoted meanwhile", watermark.Cold, 1)
	ask("the new token is known", watermark.Cold, 0)
	e.meta(group, "inc", "second", "full", "1")
	ask("warmed up since", watermark.Warm, 0)
	is.demote()
	ask("somebody else is the master", watermark.Warm, 1)
}

// Views come with the context's end, and say so.
func TestACancelledReadSaysSo(t *testing.T) {
	e := newEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := e.Views(ctx, []hot.Ask{{Conversation: group, User: "ann"}})
	if fault.ReasonOf(err) != keyspace.ReasonContext {
		t.Errorf("%v is %s", err, fault.ReasonOf(err))
	}
}

// replication is what a server says of itself, with a promotion while it answers a
// transaction.
type replication struct {
	mu          sync.Mutex
	token, next string
	slave       bool
}

func (r *replication) promote(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = token
}

func (r *replication) demote() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slave = true
}

func (r *replication) answer(p *server.Peer, cmd string, _ ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch strings.ToUpper(cmd) {
	case "EXEC":
		if r.next != "" {
			r.token, r.next = r.next, ""
		}
	case "INFO":
		role := "master"
		if r.slave {
			role = "slave"
		}
		p.WriteBulk(fmt.Sprintf("# Replication\r\nrole:%s\r\nmaster_replid:%s\r\n", role, r.token))
		return true
	}
	return false
}
