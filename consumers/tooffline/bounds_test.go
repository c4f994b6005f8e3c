package tooffline_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

// One conversation that nobody takes does not hold up others of its partition;
// only the offset waits.
func TestOffsetsWaitForTheLowest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(ctx context.Context, n *tooffline.Notification) error {
			if n.User == "B" && n.Try == 1 {
				return hang(ctx, n)
			}
			return nil
		}
		w.begin(func(c *tooffline.Config) { c.Delay = -1 })
		defer w.close()
		w.tell(group, 1, "B", "C")
		w.tell(single, 1, "C")
		w.tell(single, 2, "D")
		if d := w.after(time.Second); d != 0 || len(w.sent) != 4 {
			t.Errorf("durable = %d, sent %v", d, w.told())
		}
		if d := w.after(time.Minute); d != 3 {
			t.Errorf("durable = %d", d)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		var up atomic.Bool
		w.answer = func(ctx context.Context, n *tooffline.Notification) error {
			if up.Load() {
				return nil
			}
			return hang(ctx, n)
		}
		w.begin(func(c *tooffline.Config) { c.Delay, c.MaxPending, c.Concurrency, c.BreakerAfter = -1, 5, 2, 1000 })
		defer w.close()
		w.tell(group, 1, "B", "C", "D")
		w.tell(group, 2, "B", "C") // the same notifications, but more to hold on to
		more := []wire.Record{w.record(group, 3, nil, "E"), w.record(group, 4, nil, "F")}
		start := time.Now()
		if d, err := w.stage.Handle(t.Context(), more); fault.ClassOf(err) != fault.Transient || fault.ReasonOf(err) != "backlog" || d != 0 {
			t.Errorf("Handle over the bound: %d, %v", d, err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("Handle held the partition for %v", took)
		}
		up.Store(true)
		for {
			_, err := w.stage.Handle(t.Context(), more)
			if err == nil {
				break
			}
			if time.Since(start) > time.Hour {
				t.Fatal(err)
			}
		}
		if d := w.after(time.Hour); d != 4 {
			t.Errorf("durable = %d", d)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		up.Store(false)
		w.tell(group, 5, "B", "C", "D", "E", "F")
		if _, err := w.stage.Handle(ended, []wire.Record{w.record(group, 6, nil, "E")}); fault.ClassOf(err) != fault.Transient || err == nil {
			t.Errorf("Handle of a partition that was given up: %v", err)
		}
	})
}

// One device that wants to be left alone for an hour keeps neither the others
// waiting nor their records in memory.
func TestOneThatHoldsUpAllIsGivenUpEarly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(_ context.Context, n *tooffline.Notification) error {
			if n.User == "B" {
				return &tooffline.SendError{RetryAfter: time.Hour, Err: errDown}
			}
			return nil
		}
		w.begin(func(c *tooffline.Config) { c.Delay, c.MaxPending = -1, 3 })
		defer w.close()
		w.tell(group, 1, "B")
		w.after(time.Second)
		for seq := watermark.Seq(1); seq < 30; seq++ { // ten records for each that may be pending
			w.tell(single, seq, "C")
			w.after(time.Second)
		}
		if d := w.after(time.Minute); d != 0 || len(w.letters) != 0 {
			t.Errorf("durable = %d with %d letters, while there is room", d, len(w.letters))
		}
		more := []wire.Record{w.record(single, 30, nil, "C")}
		if _, err := w.stage.Handle(t.Context(), more); fault.ReasonOf(err) != "backlog" {
			t.Errorf("Handle over the bound: %v", err)
		}
		w.after(time.Second)
		w.handle(more...)
		if d := w.after(time.Second); d != 31 {
			t.Errorf("durable = %d", d)
		}
		if len(w.letters) != 1 || w.letters[0].Tries != 2 || !strings.Contains(w.letters[0].Cause, "given up early") {
			t.Errorf("letters: %+v", w.letters)
		}
	})
}

// While the endpoint as a whole is away nothing is given up for want of room.
func TestNothingIsGivenUpEarlyWhileTheEndpointIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(context.Context, *tooffline.Notification) error { return errDown }
		w.begin(func(c *tooffline.Config) { c.Delay, c.MaxPending, c.BreakerAfter, c.BreakerPause = -1, 1, 1, time.Hour })
		defer w.close()
		w.tell(group, 1, "B")
		w.after(time.Second)
		more := []wire.Record{w.record(group, 2, nil, "C")}
		for range 10 {
			if _, err := w.stage.Handle(t.Context(), more); fault.ReasonOf(err) != "backlog" {
				t.Errorf("Handle over the bound: %v", err)
			}
		}
		// When the circuit lets it try again, that is one of its tries as any other.
		if w.after(90 * time.Minute); len(w.sent) != 2 || len(w.letters) != 0 {
			t.Errorf("sent %v, %d letters", w.told(), len(w.letters))
		}
	})
}

// That the store is away costs no tries, and holds the offset.
func TestTheStoreMayBeAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.lookErr = errDown
		w.begin(func(c *tooffline.Config) { c.Tries = 1 })
		defer w.close()
		w.tell(group, 1, "B")
		if d := w.after(time.Hour); d != 0 || len(w.letters) != 0 || w.looks < 10 || w.looks > 40 {
			t.Errorf("durable = %d, %d letters, %d looks", d, len(w.letters), w.looks)
		}
		w.mu.Lock()
		w.lookErr = nil
		w.mu.Unlock()
		if d := w.after(time.Hour); d != 1 || len(w.sent) != 1 {
			t.Errorf("durable = %d, sent %v", d, w.told())
		}
		w.mu.Lock()
		w.lookErr = fault.New(fault.Fatal, "auth", errDown)
		w.mu.Unlock()
		w.tell(group, 2, "B")
		time.Sleep(time.Minute)
		if _, err := w.stage.Flush(t.Context()); fault.ClassOf(err) != fault.Fatal {
			t.Errorf("Flush after a fatal error: %v", err)
		}
		if _, err := w.stage.Handle(t.Context(), []wire.Record{w.record(group, 3, nil, "B")}); fault.ClassOf(err) != fault.Fatal {
			t.Errorf("Handle after a fatal error: %v", err)
		}
	})
}

// Until the dead letters have taken a notification it is not done with.
func TestTheDeadLettersMayBeAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.answer = func(context.Context, *tooffline.Notification) error { return errDown }
		w.buryErr = errDown
		w.begin(func(c *tooffline.Config) { c.Tries = 1 })
		defer w.close()
		w.tell(group, 1, "B")
		if d := w.after(time.Hour); d != 0 {
			t.Errorf("durable = %d", d)
		}
		w.mu.Lock()
		w.buryErr = nil
		w.mu.Unlock()
		if d := w.after(time.Hour); d != 1 || len(w.letters) != 1 || len(w.sent) != 1 {
			t.Errorf("durable = %d, %d letters, sent %v", d, len(w.letters), w.told())
		}
	})
}
