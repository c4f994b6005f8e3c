package hot_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/watermark"
)

// infoHook answers INFO in the server's place.
type infoHook struct {
	text string
	err  error
}

func (infoHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (infoHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return next(ctx, cmds) }
}

func (h infoHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		info, ok := cmd.(*redis.StringCmd)
		if !ok || cmd.Name() != "info" {
			return next(ctx, cmd)
		}
		if h.err != nil {
			info.SetErr(h.err)
			return h.err
		}
		info.SetVal(h.text)
		return nil
	}
}

func TestCheckServer(t *testing.T) {
	memory := func(limit, policy string) string {
		return "# Memory\r\nused_memory:900\r\nmaxmemory:" + limit + "\r\nmaxmemory_human:1M\r\nmaxmemory_policy:" + policy + "\r\nx:y\r\n"
	}
	tests := []struct {
		name  string
		hook  infoHook
		class fault.Class
		bad   bool
	}{
		{"never evicts", infoHook{text: memory("1000", "noeviction")}, 0, false},
		{"no limit", infoHook{text: memory("0", "noeviction")}, 0, false},
		{"would evict with a limit", infoHook{text: memory("0", "allkeys-lru")}, fault.Fatal, true},
		{"evicts", infoHook{text: memory("1000", "allkeys-lru")}, fault.Fatal, true},
		{"evicts what expires", infoHook{text: memory("1000", "volatile-ttl")}, fault.Fatal, true},
		{"does not tell", infoHook{text: "# Memory\r\n"}, 0, false},
		{"no connection", infoHook{err: errors.New("no route")}, fault.Transient, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			e.client.AddHook(tt.hook)
			err := e.CheckServer(t.Context())
			if (err != nil) != tt.bad || (tt.bad && fault.ClassOf(err) != tt.class) {
				t.Fatalf("err = %v of class %v, want one: %v, of class %v", err, fault.ClassOf(err), tt.bad, tt.class)
			}
			if tt.bad && tt.class == fault.Fatal && !strings.Contains(err.Error(), "CONFIG SET maxmemory-policy noeviction") {
				t.Errorf("err = %v, want one that says what to do", err)
			}
		})
	}
	t.Run("the server itself", func(t *testing.T) {
		if err := newEnv(t).CheckServer(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestNewReportsAllFaults(t *testing.T) {
	_, err := hot.New(hot.Config{Space: keyspace.Space{Prefix: "{"}, AnswerTTL: -1, PushedTTL: -1})
	if err == nil || fault.ClassOf(err) != fault.Fatal {
		t.Fatalf("err = %v, want a fatal one", err)
	}
	for _, want := range []string{"Redis", "Decode", "AnswerTTL", "PushedTTL", "prefix"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want %s in it", err, want)
		}
	}
}

// Every call reports that the server is away, as something that heals.
func TestServerAway(t *testing.T) {
	s := miniredis.RunT(t)
	// A pool that met as many errors as it has places starts a goroutine that
	// outlives Close by up to a second.
	client := redis.NewClient(&redis.Options{
		Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1, PoolSize: 100, PipelinePoolSize: 100,
	})
	t.Cleanup(func() { client.Close() })
	h, err := hot.New(hot.Config{Redis: client, Decode: decode})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	ctx := t.Context()
	calls := map[string]func() error{
		"Views":    func() error { _, err := h.Views(ctx, []hot.Ask{{Conversation: group, User: "ann"}}); return err },
		"Messages": func() error { _, err := h.Messages(ctx, []hot.Span{{Conversation: group}}); return err },
		"MergeMembers": func() error {
			_, err := h.MergeMembers(ctx, []hot.Load{{Conversation: group, Token: "x", Complete: true}})
			return err
		},
		"RaiseReads": func() error {
			return h.RaiseReads(ctx, []watermark.MemberRow{{Conversation: group, Member: watermark.Member{User: "ann", Read: 1}}})
		},
		"Readers":     func() error { _, err := h.Readers(ctx, group, 1, hot.Reader{}, 1); return err },
		"ReadCount":   func() error { _, err := h.ReadCount(ctx, group, 1); return err },
		"PutAnswers":  func() error { return h.PutAnswers(ctx, make([]watermark.KeyedAnswer, 1)) },
		"Answers":     func() error { _, err := h.Answers(ctx, make([]watermark.AnswerKey, 1)); return err },
		"Pushed":      func() error { _, err := h.Pushed(ctx, []watermark.ConversationID{group}); return err },
		"RaisePushed": func() error { return h.RaisePushed(ctx, make([]hot.Mark, 1)) },
		"Enlist":      func() error { return h.Enlist(ctx, group, make([]watermark.UserID, 1), 1) },
		"Delist":      func() error { return h.Delist(ctx, group, make([]watermark.UserID, 1)) },
		"Crowds":      func() error { _, err := h.Crowds(ctx, make([]watermark.UserID, 1)); return err },
		"StandCrowd":  func() error { return h.StandCrowd(ctx, group, time.Second) },
		"FallCrowd":   func() error { return h.FallCrowd(ctx, group) },
		"StandingCrowds": func() error {
			_, err := h.StandingCrowds(ctx, []watermark.ConversationID{group})
			return err
		},
		"Touch":       func() error { return h.Touch(ctx, make([]hot.Connection, 1), time.Now()) },
		"Gone":        func() error { return h.Gone(ctx, make([]hot.Connection, 1), time.Now()) },
		"Presence":    func() error { _, err := h.Presence(ctx, make([]watermark.UserID, 1), time.Now()); return err },
		"CheckServer": func() error { return h.CheckServer(ctx) },
		"Memory":      func() error { _, err := h.Memory(ctx); return err },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			if err := call(); err == nil || fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) == "unsorted" {
				t.Errorf("err = %v, class %v, reason %s", err, fault.ClassOf(err), fault.ReasonOf(err))
			}
		})
	}
}

func (e *env) counter(name string) float64 {
	e.tb.Helper()
	families, err := e.reg.Gather()
	if err != nil {
		e.tb.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func TestMetrics(t *testing.T) {
	e := newEnv(t)
	e.meta(group)
	e.log(group, 1, 3)
	e.view(group, "ann")
	e.view(single, "ann")
	e.merge(hot.Load{Conversation: group, Token: "t1", Absent: []watermark.UserID{"ann"}})
	e.merge(hot.Load{Conversation: group, Token: "t0"})
	e.view(group, "ann")
	e.messages(hot.Span{Conversation: group, First: 1, Last: 2})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Views(ctx, []hot.Ask{{Conversation: group}}); err == nil {
		t.Fatal("no error from a cancelled call")
	}
	e.client.AddHook(infoHook{text: "maxmemory:9\r\nused_memory:1\r\nmaxmemory_policy:noeviction\r\n"})
	got := make(map[string]string)
	e.watchMemory(func() bool { // which shows nothing any more when it ends
		families, err := e.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			got[f.GetName()] = f.GetHelp()
		}
		return got["tidemark_hot_eviction_policy"] != ""
	})
	want := map[string]string{
		"tidemark_hot_memory_used_bytes":         "Memory that Redis uses, by master, as a process with the role toredis sees it. Absent while it cannot be asked.",
		"tidemark_hot_memory_limit_bytes":        "maxmemory of Redis, by master; 0: it has none. Absent while it cannot be asked.",
		"tidemark_hot_eviction_policy":           "1, with the maxmemory-policy of Redis, by master. It must be noeviction.",
		"tidemark_hot_call_seconds":              "Time of calls to the hot store, all their round trips included.",
		"tidemark_hot_errors_total":              "Calls to the hot store that failed, by the class of their error.",
		"tidemark_hot_views_total":               "Views read, by whether the conversation was warm, partial (a member unknown), or why it was cold.",
		"tidemark_hot_merges_total":              "Loads of members handed in for warm conversations, by outcome; stale ones were not taken over.",
		"tidemark_hot_messages_total":            "Messages and tombstones served from hot logs.",
		"tidemark_hot_undecodable_entries_total": "Entries of hot logs that could not be decoded and were left to history.",
	}
	diff(t, "names and help", got, want)
	for name, n := range map[string]float64{
		"tidemark_hot_errors_total": 1, "tidemark_hot_views_total": 3, "tidemark_hot_merges_total": 2, "tidemark_hot_messages_total": 2,
	} {
		if got := e.counter(name); !cmp.Equal(got, n) {
			t.Errorf("%s = %v, want %v", name, got, n)
		}
	}
	if _, err := hot.New(hot.Config{Redis: e.client, Decode: decode, Registerer: prometheus.NewRegistry()}); err != nil {
		t.Error(err)
	}
}
