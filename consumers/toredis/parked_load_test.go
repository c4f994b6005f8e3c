package toredis_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/fault"
)

// A history that hangs is waited for once, for the patience there is. After
// that nobody waits for it, and its answer is used when it comes.
func TestNobodyWaitsForAHistoryThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		slow := &slowTruth{world: w, answer: make(chan error, 1)}
		slow.answer <- nil
		s, err := w.sequencer(t, func(c *toredis.Config) { c.Truth, c.Now, c.Patience = slow, nil, 0 }).Stage(0)
		if err != nil {
			t.Fatal(err)
		}
		w.send(t, -1, warm, "A", "1", "a", "")
		handle(t, s, w.input(0))

		waited := func(conv string) time.Duration {
			start := time.Now()
			w.send(t, -1, conv, "A", fmt.Sprint(len(w.input(0))), "a", "")
			handle(t, s, w.input(0)[len(w.input(0))-1:])
			return time.Since(start)
		}
		if d := waited(cold); d != toredis.DefaultPatience {
			t.Errorf("waited %s for the first load, want %s", d, toredis.DefaultPatience)
		}
		for _, conv := range []string{cold, warm, cold2, warm} {
			if d := waited(conv); d != 0 {
				t.Errorf("a record of %s waited %s", conv, d)
			}
		}
		if n := slow.loads.Load(); n != 2 {
			t.Errorf("%d loads, want one for the first and one under way", n)
		}
		slow.answer <- nil
		synctest.Wait()
		slow.answer <- nil // for the other cold one
		if d := flush(t, s); d != 6 {
			t.Errorf("durable = %d, want 6", d)
		}
		equal(t, "cold", of(cold, story(t, w, 0)), []string{cold + " 1 A/1", cold + " 2 A/2"})
		equal(t, "cold2", of(cold2, story(t, w, 0)), []string{cold2 + " 1 A/4"})

		// A load that never comes back ends by itself, and one under way with
		// the claim.
		waited("group:cold3")
		time.Sleep(toredis.DefaultLoadTimeout)
		synctest.Wait()
		if n := slow.running.Load(); n != 0 {
			t.Errorf("%d loads run beyond their time", n)
		}
		flush(t, s)
		time.Sleep(time.Minute)
		start := time.Now()
		flush(t, s)
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %s for a history that did not answer before", d)
		}
		synctest.Wait()
		if n := slow.running.Load(); n != 1 {
			t.Errorf("%d loads are under way, want 1", n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := slow.running.Load(); n != 0 {
			t.Error("a load outlives its claim")
		}
	})
}

// However much comes for cold conversations, a history that is away is asked
// with growing pauses, and nothing is cleared in Redis without asking.
func TestLoadsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		s, err := w.sequencer(t, func(c *toredis.Config) { c.Now = nil }).Stage(0)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w.away()
		var at []time.Duration
		start := time.Now()
		for i := range 400 {
			w.send(t, -1, fmt.Sprint("group:", i%7), "A", fmt.Sprint(i), "a", "")
			before := count(w.journal, "load")
			handle(t, s, w.input(0)[i:])
			synctest.Wait()
			if count(w.journal, "load") > before {
				at = append(at, time.Since(start))
			}
			time.Sleep(100 * time.Millisecond)
		}
		if begins, loads := count(w.journal, "begin"), count(w.journal, "load"); begins != loads || loads < 8+4 || loads > 8+4*4 {
			t.Errorf("%d begins and %d loads in 40 s, at %v", begins, loads, at)
		}
		for i := 1; i < len(at); i++ {
			if pause := at[i] - at[i-1]; pause > 5200*time.Millisecond || (i > 7 && pause < 2400*time.Millisecond) {
				t.Errorf("a pause of %s, at %v", pause, at)
			}
		}
	})
}

// Redis being away while parked records are tried again is no reason to hold up
// a partition that is being given up.
func TestFlushDoesNotFailForWhatIsParked(t *testing.T) {
	w := newWorld(1)
	s := w.warmed(t, warm)
	w.away()
	w.send(t, -1, cold, "A", "1", "c1", "")
	handle(t, s, w.input(0)[1:])
	w.tick()
	w.on(func(string) error { return errDied })
	if d := flush(t, s); d != 1 {
		t.Errorf("durable = %d, want 1", d)
	}
	w.on(func(op string) error {
		if op == "malloc" {
			return fault.New(fault.Fatal, "script", errDied)
		}
		return nil
	})
	if _, err := s.Flush(t.Context()); fault.ClassOf(err) != fault.Fatal {
		t.Errorf("err = %v, want the fatal one", err)
	}
}
