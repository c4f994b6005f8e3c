package bench_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
)

// What each stage asks of Redis, Kafka and history is part of its meaning: it is
// counted, in batches of 500 messages, and does not change with the machine.
func TestStagesAskForWhatTheyMust(t *testing.T) {
	const batches, batch = 20, 500
	for _, per := range []int{1, 10} {
		convs := batch / per // in each batch
		t.Run(fmt.Sprintf("toredis b=%d", per), func(t *testing.T) {
			client, asked := answering(t)
			calls := &bench.Calls{}
			run(t, bench.StageConfig{Stage: "toredis", PerConversation: per, Redis: client, Calls: calls}, func() {
				clear(asked.commands)
				asked.trips = 0
			})
			equal(t, "commands", asked.commands, map[string]int{"evalsha": batches * ((convs + 31) / 32), "info": batches, "zadd": batches, "zscore": batches})
			equal(t, "round trips", asked.trips, 2*batches) // the script, the batch's place
			equal(t, "records", calls.Records.Load(), batches*int64(convs))
			equal(t, "appends", calls.Appends.Load(), batches)
		})
		t.Run(fmt.Sprintf("tomongo b=%d", per), func(t *testing.T) {
			calls := &bench.Calls{}
			run(t, bench.StageConfig{Stage: "tomongo", PerConversation: per, Calls: calls}, func() {})
			equal(t, "rows", calls.Rows.Load(), batches*batch)
			// What comes within five seconds is gathered: rows, then bounds and marks.
			equal(t, "writes", calls.Writes.Load(), 2)
			// Each of the two users sends half of what a conversation gets, and has
			// one mark for all of it.
			equal(t, "marks", calls.Marks.Load(), int64(convs*min(per, 2)))
			equal(t, "bounds", calls.Bounds.Load(), int64(convs))
			if n := calls.Marks.Load() + calls.Bounds.Load(); n > batches*batch/10 {
				t.Errorf("%d marks and bounds for %d messages, want a tenth at most", n, batches*batch)
			}
			equal(t, "tells", calls.Tells.Load(), 0)
			equal(t, "records", calls.Records.Load(), 0)
		})
		t.Run(fmt.Sprintf("topush b=%d", per), func(t *testing.T) {
			client, asked := answering(t)
			calls := &bench.Calls{}
			run(t, bench.StageConfig{Stage: "topush", PerConversation: per, Redis: client, Calls: calls}, func() {
				clear(asked.commands)
				asked.trips = 0
			})
			equal(t, "commands", asked.commands, map[string]int{"zadd": batches * convs})
			equal(t, "round trips", asked.trips, batches)
			equal(t, "hand-offs", calls.Delivers.Load(), batches*int64((convs+63)/64)) // of 64 conversations each
		})
	}
}

// run feeds a stage; begin is called when it is warm.
func run(t *testing.T, cfg bench.StageConfig, begin func()) {
	t.Helper()
	cfg.Batch, cfg.Batches, cfg.Partitions, cfg.Size, cfg.Now = 500, 20, 1, 300, stopped
	handle, _, err := bench.Feed(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	begin()
	cfg.Calls.Reset()
	if err := handle(); err != nil {
		t.Fatal(err)
	}
}

// stopped is a clock that stands: what waits for time waits for the end.
func stopped() time.Time { return time.Unix(1_700_000_000, 0) }

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got): %s", what, diff)
	}
}

// answering gives a client whose every script call says that the conversation is
// warm and gives the next seqs; nothing goes over a network.
func answering(t testing.TB) (redis.UniversalClient, *answers) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	a := &answers{seqs: map[string]int64{}, commands: map[string]int{}}
	c.AddHook(a)
	t.Cleanup(func() { _ = c.Close() })
	return c, a
}

type answers struct {
	seqs     map[string]int64
	commands map[string]int // how often each was sent
	trips    int            // round trips
}

// DialHook implements redis.Hook.
func (*answers) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no network here") }
}

// ProcessHook implements redis.Hook.
func (*answers) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return fmt.Errorf("nobody answers %s", cmd.Name()) }
}

// ProcessPipelineHook implements redis.Hook.
func (a *answers) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		a.trips++
		for _, cmd := range cmds {
			a.commands[cmd.Name()]++
			if c, ok := cmd.(*redis.Cmd); ok {
				c.SetVal(a.decide(c.Args()))
			}
			if c, ok := cmd.(*redis.FloatSliceCmd); ok {
				c.SetVal([]float64{0, 0})
			}
		}
		return nil
	}
}

// decide answers EVALSHA sha n keys... arguments... of plain batches, as plain.lua
// does: each message gets the next seq of its conversation.
func (a *answers) decide(args []any) (reply []any) {
	const perConversation = 6 // keys
	keys := args[2].(int)
	at := 3 + keys + 4
	for k := 3; k < 3+keys; k += perConversation {
		key, n := *args[k].(*string), args[at+3].(int)
		a.seqs[key] += int64(n)
		reply = append(reply, a.seqs[key], int64(0))
		if n == 1 {
			at += 10
		} else {
			at += 6 + 2*args[at+5].(int) + 4*n
		}
	}
	return reply
}
