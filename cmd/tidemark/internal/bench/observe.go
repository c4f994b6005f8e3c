package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// maxProbes bounds the messages that are looked for at once.
	maxProbes = 512
	// probeEvery is the least pause between two looks for one of them. The pause
	// grows to an eighth of how old the message is: what a look finds is then late
	// by so much at most, and a system that falls behind is not asked a thousand
	// times a second for each message that it owes, which would be most of its work.
	probeEvery = time.Millisecond
	probeShare = 8
	// History is seconds behind on purpose. The pause is historyEvery at least, and
	// a third of the message's age, historyPause at most.
	historyEvery = 50 * time.Millisecond
	historyShare = 3
	historyPause = time.Second / 2
	// followEvery is the pause between two looks at the log. What is seen is late by
	// so much at most; without it the generator's fetches would be more than those of
	// any role.
	followEvery = 2 * time.Millisecond
	// probeFor is how long one is looked for.
	probeFor = 60 * time.Second
	// longest is what a histogram can hold, in microseconds.
	longest = 10 * 60 * 1_000_000
)

// clock is the open loop: it says when a message was meant to be sent.
type clock struct {
	begun    time.Time
	rate     float64
	from, to int64 // numbers of the measured messages
}

func (c *clock) intended(n int64) time.Time {
	return c.begun.Add(time.Duration(float64(n) / c.rate * float64(time.Second)))
}

func (c *clock) measured(n int64) bool { return n >= c.from && n < c.to }

// hist is a histogram of latencies for many goroutines.
type hist struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

func newHist() *hist { return &hist{h: hdrhistogram.New(1, longest, 3)} }

func (h *hist) add(d time.Duration) {
	us := min(max(d.Microseconds(), 1), longest)
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.h.RecordValue(us) // within its range
}

// observer sees messages arrive.
type observer struct {
	sys   *system
	world *world
	clock atomic.Pointer[clock] // nil: nothing is measured yet
	every int64                 // of so many measured messages one is looked for

	acked, sequenced, persisted, pullable, pushed *hist

	primed, joined, seen atomic.Int64 // on the log
	records, bytes       atomic.Int64 // of the log, while measured
	gone                 atomic.Int64 // looked for and not found in time
	skipped              atomic.Int64 // not looked for: too many at once
	probing              chan struct{}
	probes               sync.WaitGroup
}

func newObserver(s *system, w *world) *observer {
	return &observer{
		sys: s, world: w, probing: make(chan struct{}, maxProbes),
		acked: newHist(), sequenced: newHist(), persisted: newHist(), pullable: newHist(), pushed: newHist(),
	}
}

// follow reads the sequenced log from its start until ctx ends.
func (o *observer) follow(ctx context.Context) error {
	c, err := kgo.NewClient(append(o.sys.kafkaOpt, kgo.ConsumeTopics(o.sys.topics.Sequenced), kgo.FetchMaxWait(time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		return err
	}
	defer c.Close()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("read %s: %w", errs[0].Topic, errs[0].Err)
		}
		now := time.Now()
		clock := o.clock.Load()
		var failed error
		fetches.EachRecord(func(r *kgo.Record) {
			rec, err := wire.DecodeRecord(wire.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Value: r.Value})
			if err != nil {
				failed = err
				return
			}
			if clock != nil {
				o.records.Add(1)
				o.bytes.Add(int64(len(r.Key) + len(r.Value)))
			}
			o.record(ctx, rec, clock, now)
		})
		if failed != nil {
			return failed
		}
		pause.Reset(followEvery)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (o *observer) record(ctx context.Context, rec watermark.Record, clock *clock, now time.Time) {
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.WindowChanged:
			o.joined.Add(1)
		case watermark.MessagesSequenced:
			for i := range e.Messages {
				m := &e.Messages[i]
				n, ok := number(m.ClientID)
				if !ok {
					o.primed.Add(1)
					continue
				}
				o.seen.Add(1)
				if clock == nil || !clock.measured(n) {
					continue
				}
				o.sequenced.add(now.Sub(clock.intended(n)))
				if o.every > 0 && n%o.every == 0 {
					o.probe(ctx, clock, n, rec.Conversation, m)
				}
			}
		}
	}
}

// probe looks for one message in history and by a pull.
func (o *observer) probe(ctx context.Context, clock *clock, n int64, conv watermark.ConversationID, m *watermark.Message) {
	seq, user := m.Seq, m.Sender
	look := func(h *hist, least, share, most time.Duration, there func(context.Context) (bool, error)) {
		select {
		case o.probing <- struct{}{}:
		default:
			o.skipped.Add(1)
			return
		}
		o.probes.Go(func() {
			defer func() { <-o.probing }()
			ctx, cancel := context.WithTimeout(ctx, probeFor)
			defer cancel()
			pause := time.NewTimer(0)
			defer pause.Stop()
			for {
				if ok, err := there(ctx); ok && err == nil {
					h.add(time.Since(clock.intended(n)))
					return
				}
				pause.Reset(max(least, min(most, time.Since(clock.intended(n))/share)))
				select {
				case <-ctx.Done():
					o.gone.Add(1)
					return
				case <-pause.C:
				}
			}
		})
	}
	if o.sys.history != nil {
		look(o.persisted, historyEvery, historyShare, historyPause, func(ctx context.Context) (bool, error) {
			ms, err := o.sys.history.Messages(ctx, conv, watermark.Interval{First: seq, Last: seq}, 1)
			return len(ms) > 0, err
		})
	}
	if o.sys.sync != nil {
		look(o.pullable, probeEvery, probeShare, probeFor, func(ctx context.Context) (bool, error) {
			res, err := o.sys.sync.Pull(ctx, &tidemarkv1.PullRequest{
				User: string(user), Ranges: []*tidemarkv1.PullRange{{Conversation: string(conv), Begin: int64(seq), End: int64(seq)}},
			})
			return err == nil && len(res.GetPages()) == 1 && len(res.GetPages()[0].GetMessages()) > 0, err
		})
	}
}

// listen connects a device of a user until ctx ends. ready is called when it is
// subscribed.
func (o *observer) listen(ctx context.Context, user watermark.UserID, ready func()) error {
	var once sync.Once
	live := &client.WebSocket{URL: o.sys.gateway, User: user, Device: "bench-" + string(user)}
	err := live.Stream(ctx, func() { once.Do(ready) }, func(e *tidemarkv1.PushEvent) {
		clock := o.clock.Load()
		n, ok := number(e.GetMessage().GetClientMessageId())
		if ok && clock != nil && clock.measured(n) {
			o.pushed.add(time.Since(clock.intended(n)))
		}
	})
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errors.New("a device lost its connection"), err)
}
