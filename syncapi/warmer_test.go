package syncapi_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"connectrpc.com/connect"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// sum adds up a counter, of one value of its only label.
func sum(t testing.TB, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-poll.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// warming runs a service and counts the Warm commands that it sends for each
// conversation. The owner is away, so that the conversations stay cold.
func warming(t *testing.T, w *world, reg *prometheus.Registry) (s *syncapi.Service, asked func() map[convID]int) {
	var mu sync.Mutex
	warms := map[convID]int{}
	s = newService(t, w, func(c *syncapi.Config) {
		c.Registerer = reg
		c.Log = commandLog{c.Log, func(cmd *v1.Command) error {
			if cmd.GetWarm() == nil {
				return fmt.Errorf("command %v", cmd)
			}
			mu.Lock()
			defer mu.Unlock()
			warms[convID(cmd.GetConversation())]++
			return nil
		}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, func() map[convID]int {
		mu.Lock()
		defer mu.Unlock()
		out := map[convID]int{}
		maps.Copy(out, warms)
		return out
	}
}

type commandLog struct {
	syncapi.Log
	command func(*v1.Command) error
}

func (l commandLog) AppendCommand(_ context.Context, c *v1.Command) error { return l.command(c) }

func TestOwnersAreAskedToWarmWhatIsReadOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.say(t, group, "B", 3)
		w.say(t, single, "B", 3)
		reg := prometheus.NewRegistry()
		s, asked := warming(t, w, reg)
		read := func(id convID) {
			t.Helper()
			pull(t, s, "A", &v1.PullRange{Conversation: string(id), Begin: 1, End: 3})
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for range 5 {
			read(group) // warm
		}
		w.flush()
		read(group)
		read(group)
		if n := asked()[group]; n != 0 {
			t.Errorf("asked %d times after two cold reads", n)
		}
		time.Sleep(time.Minute) // those two are long ago
		read(group)
		read(group)
		if n := asked()[group]; n != 0 {
			t.Errorf("asked %d times after two cold reads within a minute", n)
		}
		read(group)
		if n := asked()[group]; n != 1 {
			t.Errorf("asked %d times after three cold reads within a minute, want once", n)
		}
		for range 50 {
			read(group)
		}
		if n := asked()[group]; n != 1 {
			t.Errorf("asked %d times within a minute, want once", n)
		}
		for range 300 {
			read(group)
		}
		if n := asked()[group]; n < 4 || n > 7 {
			t.Errorf("asked %d times in six minutes", n)
		}
		if n := asked()[single]; n != 0 {
			t.Errorf("asked %d times for one that nobody reads", n)
		}
		if n := sum(t, reg, "tidemark_syncapi_warms_total", "asked"); int(n) != asked()[group] {
			t.Errorf("counted %v", n)
		}
		// One that does not exist is not worth a key.
		for range 9 {
			if _, err := s.Pull(t.Context(), &v1.PullRequest{User: "A", Ranges: []*v1.PullRange{{Conversation: "group:none", Begin: 1, End: 2}}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := asked()["group:none"]; n != 0 {
			t.Errorf("asked %d times for one that does not exist", n)
		}
	})
}

// Going through a list, again and again, says of no conversation that it is
// read often; and many that are asked for in turn take their turn.
func TestWarmingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 400
		w := newWorld()
		var ids []string
		for i := range n {
			id := convID(fmt.Sprint("group:", i))
			w.say(t, id, "B", 1)
			ids = append(ids, string(id))
		}
		w.flush()
		reg := prometheus.NewRegistry()
		s, asked := warming(t, w, reg)
		for range 10 {
			if _, err := s.GetWatermarks(t.Context(), &v1.GetWatermarksRequest{User: "A", Conversations: ids}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if got := asked(); len(got) != 0 {
			t.Errorf("a listing asks for %d", len(got))
		}
		// Each alone, all at one moment: what is asked for waits in a queue.
		for range 3 {
			for _, id := range ids {
				pull(t, s, "A", &v1.PullRange{Conversation: id, Begin: 1, End: 3})
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := len(asked()); got > 52 {
			t.Errorf("%d commands in a second", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		dropped := sum(t, reg, "tidemark_syncapi_warms_total", "dropped")
		if got := len(asked()); got > 258 || got+int(dropped) != n {
			t.Errorf("%d asked for and %v dropped, of %d", got, dropped, n)
		}
	})
}

// While history is out of reach, what is warm is served, and the rest says when
// to try again; a history that hangs holds nobody up.
func TestColdConversationsAreUnavailableWithoutHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, how := range []string{"fails", "hangs"} {
			w := newWorld()
			w.say(t, group, "B", 3)
			w.say(t, single, "B", 3)
			w.with(group, func(x *talk) { x.warm = false })
			s := newService(t, w, func(c *syncapi.Config) {
				if how == "hangs" {
					c.Truth = hanging{c.Truth}
				}
			})
			w.set(func() { w.truthDown = how == "fails" })
			start := time.Now()
			res, err := s.Pull(t.Context(), &v1.PullRequest{User: "A", Ranges: []*v1.PullRange{
				{Conversation: string(group), Begin: 1, End: 3}, {Conversation: string(single), Begin: 1, End: 3},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if e := res.Pages[0].GetError(); e.GetCode() != connect.CodeUnavailable.String() || e.GetRetryAfterMs() <= 0 {
				t.Errorf("%s: the cold one is answered with %v", how, res.Pages[0])
			}
			if got := len(res.Pages[1].GetMessages()); got != 3 || res.Pages[1].GetError() != nil {
				t.Errorf("%s: the warm one is answered with %v", how, res.Pages[1])
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("%s: answered after %s", how, d)
			}
		}
	})
}

func TestAMarkInAColdConversationIsUnavailableWithoutHistory(t *testing.T) {
	w := newWorld()
	w.say(t, group, "B", 3)
	w.flush()
	s := newService(t, w, func(c *syncapi.Config) { c.Truth, c.LoadTimeout = hanging{c.Truth}, 20*time.Millisecond })
	for name, c := range clients(t, s) {
		_, err := c.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "A", Conversation: string(group), ReadSeq: 1})
		wantUnavailable(t, name, err)
	}
}

// hanging is a truth that does not answer.
type hanging struct{ syncapi.Truth }

func (hanging) Load(ctx context.Context, _ []watermark.Want) ([]*watermark.State, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
