package toredis_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// However the truth comes and goes, workers die, calls fail and Redis is lost:
// the log, the dead letters and the members end as they do on a calm day.
func TestOutagesAndDeathsLeadToTheSameLog(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var inputs []func(*world)
		conv := rapid.SampledFrom([]string{"group:a", "group:b", "group:c"})
		user := rapid.SampledFrom([]string{"A", "B", "C"})
		for i := range rapid.IntRange(1, 25).Draw(rt, "inputs") {
			c, u := conv.Draw(rt, "conversation"), user.Draw(rt, "user")
			switch rapid.IntRange(0, 9).Draw(rt, "kind") {
			case 0:
				inputs = append(inputs, func(w *world) { w.command(t, leave(c, u, fmt.Sprint("op", i), "")) })
			case 1:
				inputs = append(inputs, func(w *world) { w.command(t, join(c, u, fmt.Sprint("op", i), "")) })
			case 2:
				inputs = append(inputs, func(w *world) {
					w.put(wire.Out{Topic: wire.TopicToRedis, Key: c, Value: []byte{0xff, 0xff}})
				})
			default:
				id := fmt.Sprint(rapid.IntRange(1, 6).Draw(rt, "id"))
				inputs = append(inputs, func(w *world) { w.send(t, -1, c, u, id, "text of "+id, "") })
			}
		}
		large := rapid.Bool().Draw(rt, "large")
		make := func() *world {
			w := newWorld(1)
			w.roster = !large
			for _, in := range inputs {
				in(w)
			}
			return w
		}
		calm := make()
		handle(t, calm.stage(t, 0), calm.input(0))

		w := make()
		s, next, durable, end := w.stage(t, 0), int64(0), int64(0), int64(len(inputs))
		step := func(batch []wire.Record) {
			at, err := s.Handle(t.Context(), batch)
			switch {
			case err == nil:
				next += int64(len(batch))
				durable = max(durable, at)
			case !errors.Is(err, errDied):
				rt.Fatal(err)
			}
		}
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				w.down.Store(true)
			case 1:
				w.down.Store(false)
			case 2:
				s.Close() // the worker dies
				s, next = w.stage(t, 0), durable
			case 3:
				w.mu.Lock()
				w.redis.FlushAll()
				w.mu.Unlock()
			case 4:
				w.mu.Lock()
				w.failAt, w.failHow = w.calls+rapid.IntRange(1, 8).Draw(rt, "call"), rapid.SampledFrom([]string{before, partial, after}).Draw(rt, "how")
				w.mu.Unlock()
			case 5:
				w.tick()
			case 6:
				at, err := s.Flush(t.Context())
				if err != nil {
					rt.Fatal(err)
				}
				durable = max(durable, at)
			default:
				if n := min(int64(rapid.IntRange(1, 5).Draw(rt, "records")), end-next); n > 0 {
					step(w.input(0)[next : next+n])
				}
			}
		}
		w.down.Store(false)
		w.mu.Lock()
		w.failAt = 0
		w.mu.Unlock()
		for tries := 0; durable < end; tries++ {
			if tries > 1_000_000 {
				rt.Fatalf("durable = %d of %d", durable, end)
			}
			w.tick()
			if next < end {
				step(w.input(0)[next:])
				continue
			}
			at, err := s.Flush(t.Context())
			if err != nil {
				rt.Fatal(err)
			}
			durable = max(durable, at)
			runtime.Gosched()
		}
		s.Close()
		if d := cmp.Diff(outcomeOf(t, calm), outcomeOf(t, w)); d != "" {
			rt.Fatalf("(-calm +got):\n%s", d)
		}
	})
}
