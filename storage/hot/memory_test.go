package hot_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/hot"
)

// answers is an infoHook whose answer changes.
type answers struct {
	infoHook
	mu  sync.Mutex
	now infoHook
}

func (a *answers) set(h infoHook) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = h
}

func (a *answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a.mu.Lock()
		h := a.now
		a.mu.Unlock()
		return h.ProcessHook(next)(ctx, cmd)
	}
}

// series gives the values of a gauge by its labels.
func (e *env) series(name string) map[string]float64 {
	e.tb.Helper()
	families, err := e.reg.Gather()
	if err != nil {
		e.tb.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels strings.Builder
			for _, l := range m.GetLabel() {
				labels.WriteString(l.GetName() + "=" + l.GetValue() + " ")
			}
			out[labels.String()] = m.GetGauge().GetValue()
		}
	}
	return out
}

// watchMemory runs WatchMemory until something holds, and gives it back after it
// has ended.
func (e *env) watchMemory(until ...func() bool) {
	e.tb.Helper()
	ctx, stop := context.WithCancel(e.tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.WatchMemory(ctx, time.Millisecond) }()
wait:
	for i, holds := range until {
		deadline := time.Now().Add(time.Minute)
		for !holds() {
			if time.Now().After(deadline) {
				e.tb.Errorf("condition %d does not come", i)
				break wait
			}
			// The watcher is to have the processor.
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	stop()
	if err := <-ended; err != nil {
		e.tb.Error(err)
	}
}

// TestMemoryIsShown: what Redis uses of what it may, and how it evicts; nothing
// while it does not answer, and nothing that it does not tell.
func TestMemoryIsShown(t *testing.T) {
	e := newEnv(t)
	a := &answers{now: infoHook{text: "used_memory:700\r\nmaxmemory:1000\r\nmaxmemory_policy:noeviction\r\n"}}
	e.client.AddHook(a)
	server := "server=" + e.client.Options().Addr + " "
	shows := func(used, limit, policy map[string]float64) func() bool {
		return func() bool {
			return cmp.Equal(e.series("tidemark_hot_memory_used_bytes"), used) &&
				cmp.Equal(e.series("tidemark_hot_memory_limit_bytes"), limit) &&
				cmp.Equal(e.series("tidemark_hot_eviction_policy"), policy)
		}
	}
	then := func(h infoHook, holds func() bool) func() bool {
		var once sync.Once
		return func() bool {
			once.Do(func() { a.set(h) })
			return holds()
		}
	}
	none := map[string]float64{}
	e.watchMemory(
		shows(map[string]float64{server: 700}, map[string]float64{server: 1000}, map[string]float64{"policy=noeviction " + server: 1}),
		then(infoHook{text: "used_memory:800\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"},
			shows(map[string]float64{server: 800}, map[string]float64{server: 0}, map[string]float64{"policy=allkeys-lru " + server: 1})),
		then(infoHook{err: errors.New("no route")}, shows(none, none, none)),
		then(infoHook{text: "used_memory:800\r\nmaxmemory:2000\r\n"}, // a server that hides its policy
			shows(map[string]float64{server: 800}, map[string]float64{server: 2000}, none)),
		then(infoHook{text: "# Memory\r\n"}, shows(none, none, none)),
	)
	if n := e.counter("tidemark_hot_errors_total"); n == 0 {
		t.Error("a server that cannot be asked is not counted")
	}
	if err := e.WatchMemory(t.Context(), 0); fault.ClassOf(err) != fault.Fatal {
		t.Errorf("every 0: %v", err)
	}
}

func TestMemory(t *testing.T) {
	e := newEnv(t)
	e.client.AddHook(infoHook{text: "used_memory:700\r\nused_memory_human:x\r\nmaxmemory:1000\r\nmaxmemory_policy:volatile-lru\r\n"})
	got, err := e.Memory(t.Context())
	want := []hot.Memory{{Server: e.client.Options().Addr, Used: 700, Limit: 1000, Policy: "volatile-lru"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	silent := newEnv(t)
	silent.client.AddHook(infoHook{text: "# Memory\r\n"})
	if got, err := silent.Memory(t.Context()); err != nil || len(got) != 1 || got[0].Used != -1 || got[0].Limit != -1 || got[0].Policy != "" {
		t.Errorf("a server that does not tell: %+v, %v", got, err)
	}
}
