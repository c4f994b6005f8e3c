//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// Users of a run, beside those of the single conversations. The watcher never
// joins anything; members come and go; markers read and mark; the fan joins one
// group for good.
var (
	watcher = "watcher"
	fan     = "fan"
	members = []string{"mia", "max"}
	markers = []string{"ria", "rob"}
)

// watcherOf gives somebody who sees all of a conversation.
func watcherOf(conv string) string {
	if two := pairOf(conv); two != nil {
		return two[0]
	}
	return watcher
}

// load is everything that goes on while the nemesis works.
type load struct {
	c   *cluster
	api *api
	// tops are the highest seqs that anybody has seen, by conversation.
	tops map[string]*atomic.Int64
	// devices are connected from the beginning to the end.
	devices []*device
}

// fanned is the group of the fan; of another one messages are deleted, of a third
// revoked.
var fanned, deleted, revoked = groups[4], groups[5], groups[6]

// connect starts the devices.
func (l *load) connect(ctx context.Context) error {
	for user, convs := range map[string][]string{"ann": singles[:2], fan: {fanned}} {
		d, err := l.follow(ctx, user, convs...)
		if err != nil {
			return err
		}
		l.devices = append(l.devices, d)
	}
	return l.api.command(ctx, history.Join, fan, fanned, "fan-joins")
}

func newLoad(c *cluster) *load {
	l := &load{c: c, api: newAPI(c), tops: map[string]*atomic.Int64{}}
	for _, conv := range conversations() {
		l.tops[conv] = &atomic.Int64{}
	}
	return l
}

// run goes on until ctx ends, then waits for what is under way.
func (l *load) run(ctx context.Context, seed uint64) error {
	var group sync.WaitGroup
	var mu sync.Mutex
	var first error
	n := uint64(0)
	with := func(f func(rng *rand.Rand) error) {
		n++
		rng := rand.New(rand.NewPCG(seed, n))
		group.Go(func() {
			if err := f(rng); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	producer := func(name string, rng *rand.Rand) *outside { return &outside{c: l.c, name: name, rng: rng} }
	for i := range 3 {
		with(func(rng *rand.Rand) error {
			return producer(fmt.Sprintf("go%d", i+1), rng).stream(ctx, 30*time.Millisecond)
		})
	}
	with(func(rng *rand.Rand) error {
		o := producer("kcat", rng)
		return o.batches(ctx, 60, 3*time.Second, o.kcat)
	})
	with(func(rng *rand.Rand) error {
		o := producer("java", rng)
		return o.batches(ctx, 100, 5*time.Second, o.java)
	})
	for i := range 2 {
		with(func(rng *rand.Rand) error { l.sender(ctx, fmt.Sprintf("http%d", i+1), rng); return nil })
	}
	for range 3 {
		with(func(rng *rand.Rand) error { l.reader(ctx, rng); return nil })
	}
	for range 2 {
		with(func(rng *rand.Rand) error { l.marker(ctx, rng); return nil })
	}
	for _, conv := range churned {
		for _, user := range members {
			with(func(rng *rand.Rand) error { l.member(ctx, rng, user, conv); return nil })
		}
	}
	with(func(rng *rand.Rand) error { l.janitor(ctx, rng); return nil })
	group.Wait()
	return first
}

// janitor deletes the oldest messages of one group and revokes messages of
// another one, all of which it has read before, so that it is known what stood
// there.
func (l *load) janitor(ctx context.Context, rng *rand.Rand) {
	late, cancel := l.lateOf(ctx)
	defer cancel()
	first := int64(1)
	for n := 1; pause(ctx, time.Second+time.Duration(rng.Int64N(int64(time.Second)))) == nil; n++ {
		if top := l.tops[deleted].Load() - 60; top > first {
			if last := l.readUpTo(ctx, deleted, first, min(top, first+20)); last > 0 {
				first = last + 1
				_ = l.api.perform(late, history.Op{Kind: history.RaiseMin, Conversation: deleted, Seq: first, ID: fmt.Sprint("raise-", n)})
			}
		}
		if top := l.tops[revoked].Load(); top > 0 {
			seq := 1 + rng.Int64N(top)
			if l.readUpTo(ctx, revoked, seq, seq) > 0 {
				_ = l.api.perform(late, history.Op{Kind: history.Revoke, Conversation: revoked, Seq: seq, ID: fmt.Sprint("revoke-", n)})
			}
		}
	}
}

// readUpTo pulls a range of seqs without a gap and gives the last one that it was
// served; 0: none.
func (l *load) readUpTo(ctx context.Context, conv string, begin, end int64) int64 {
	pages, err := l.api.pull(ctx, "", watcherOf(conv), pullRange{Conversation: conv, Begin: begin, End: end, Num: 100, Keep: "KEEP_NEAR_BEGIN"})
	if err != nil || pages[0].Covered == nil || pages[0].Covered.Begin != begin {
		return 0
	}
	return pages[0].Covered.End
}

// lateOf gives a context that outlives ctx for a while: what a command came to
// must be known at the end.
func (l *load) lateOf(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = pause(late, 2*startUp)
		cancel()
	})
	return late, func() { stop(); cancel() }
}

// sender sends over HTTP, one after another, each until it is accepted.
func (l *load) sender(ctx context.Context, name string, rng *rand.Rand) {
	for n := int64(1); pause(ctx, 50*time.Millisecond+time.Duration(rng.Int64N(int64(200*time.Millisecond)))) == nil; n++ {
		conv := conversations()[rng.IntN(len(l.tops))]
		op := history.Op{
			Kind: history.Send, Conversation: conv, User: name, Producer: name, N: n,
			ID: fmt.Sprintf("%s-%d", name, n), Text: fmt.Sprintf("%s says %d", name, n),
		}
		if two := pairOf(conv); two != nil {
			op.User = two[rng.IntN(2)]
		}
		req := map[string]any{"waitForSeq": rng.IntN(2) == 0, "message": map[string]string{
			"conversation": conv, "sender": op.User, "clientMessageId": op.ID, "text": op.Text,
		}}
		// What was resent too long ago is a new message, so nobody tries for ever.
		giveUp := time.Now().Add(20 * time.Second)
		for !l.send(ctx, op, req) && time.Now().Before(giveUp) {
			if pause(ctx, 300*time.Millisecond) != nil {
				return
			}
		}
	}
}

func (l *load) send(ctx context.Context, op history.Op, req map[string]any) bool {
	var res struct {
		Seq       number `json:"seq"`
		Duplicate bool   `json:"duplicate"`
	}
	op.T0 = l.c.hist.Now()
	err := l.api.call(context.WithoutCancel(ctx), "Send", req, &res)
	op.T1 = l.c.hist.Now()
	if err != nil {
		op.Err = err.Error()
	} else {
		op.OK, op.Seq, op.Duplicate = true, int64(res.Seq), res.Duplicate
	}
	l.c.hist.Add(op)
	return err == nil
}

// reader pulls here and there, mostly what is new, and asks for watermarks.
func (l *load) reader(ctx context.Context, rng *rand.Rand) {
	for pause(ctx, 20*time.Millisecond+time.Duration(rng.Int64N(int64(100*time.Millisecond)))) == nil {
		conv := conversations()[rng.IntN(len(l.tops))]
		user := watcherOf(conv)
		if rng.IntN(3) == 0 {
			_ = l.api.watermarks(ctx, "", user, conv)
			continue
		}
		pages, _ := l.api.pull(ctx, "", user, l.somewhere(rng, conv))
		for _, p := range pages {
			if p != nil {
				l.see(conv, p.Max)
			}
		}
	}
}

func (l *load) see(conv string, top int64) {
	for at := l.tops[conv]; ; {
		old := at.Load()
		if top <= old || at.CompareAndSwap(old, top) {
			return
		}
	}
}

// somewhere gives a range of a conversation: its end, or anywhere.
func (l *load) somewhere(rng *rand.Rand, conv string) pullRange {
	top := l.tops[conv].Load()
	end := top + rng.Int64N(20)
	if rng.IntN(4) == 0 {
		end = 1 + rng.Int64N(top+1)
	}
	r := pullRange{Conversation: conv, Begin: max(1, end-rng.Int64N(60)), End: max(1, end), Num: 1 + rng.Int64N(40)}
	if rng.IntN(3) == 0 {
		r.Order = "ORDER_DESC"
	}
	if rng.IntN(2) == 0 {
		r.Keep = "KEEP_NEAR_BEGIN"
	}
	return r
}

// marker marks what there is and asks what is read, as one of several users.
func (l *load) marker(ctx context.Context, rng *rand.Rand) {
	for pause(ctx, 30*time.Millisecond+time.Duration(rng.Int64N(int64(150*time.Millisecond)))) == nil {
		conv := conversations()[rng.IntN(len(l.tops))]
		users := markers
		if two := pairOf(conv); two != nil {
			users = two
		}
		user := users[rng.IntN(len(users))]
		if rng.IntN(3) == 0 {
			_ = l.api.watermarks(ctx, "", user, conv)
			continue
		}
		// Sometimes less than what was marked before, sometimes more than there is.
		seq := max(1, l.tops[conv].Load()-rng.Int64N(30)+rng.Int64N(5))
		_ = l.api.mark(ctx, []string{"SetReadSeq", "MarkConversationRead"}[rng.IntN(2)], user, conv, seq)
	}
}

// member joins, reads, is made to leave, reads, and so on; sometimes it clears.
func (l *load) member(ctx context.Context, rng *rand.Rand, user, conv string) {
	late, cancel := l.lateOf(ctx)
	defer cancel()
	for n := 1; ; n++ {
		kind := history.Join
		if n%2 == 0 {
			kind = history.Leave
		}
		_ = l.api.command(late, kind, user, conv, fmt.Sprintf("%s-%s-%d", user, kind, n))
		if kind == history.Join && rng.IntN(4) == 0 {
			_ = l.api.command(late, history.Clear, user, conv, fmt.Sprintf("%s-clear-%d", user, n))
		}
		for range 3 + rng.IntN(12) {
			if pause(ctx, time.Duration(rng.Int64N(int64(400*time.Millisecond)))) != nil {
				return
			}
			if rng.IntN(5) == 0 {
				_ = l.api.watermarks(ctx, "", user, conv)
				continue
			}
			_, _ = l.api.pull(ctx, "", user, l.somewhere(rng, conv))
		}
	}
}
