package keyspace

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// gatherWords bounds what waits for a round trip that others share: with more
// words than this a round trip is paid for already, and its sender rather has one of its own
// beside those of others.
const gatherWords = 2000

// errand is what one caller wants of a round trip: script calls, or plain commands.
type errand struct {
	ctx     context.Context // of the caller
	calls   []Call
	results []Result
	plain   func(redis.Pipeliner)
	done    chan struct{}
}

// gathering lets errands that come at about the same time share a round trip:
// those that come while one is under way go together in the next. So nothing
// waits for a time, and what comes alone goes alone.
//
// The partitions of a process get what a fetch brought at the same moment, and
// at low rates a message each: a round trip for each of them costs Redis and the
// workers more than the messages do.
type gathering struct {
	run func([]*errand)

	mu      sync.Mutex
	waiting []*errand
	running bool
}

// wait has e run, with others, and tells whether it was. It was not, or nobody
// knows, when the caller's context ends before that; then nothing of e may be
// looked at.
func (g *gathering) wait(e *errand) error {
	e.done = make(chan struct{})
	g.mu.Lock()
	g.waiting = append(g.waiting, e)
	if !g.running {
		g.running = true
		go g.serve()
	}
	g.mu.Unlock()
	select {
	case <-e.done:
		return nil
	case <-e.ctx.Done():
		return e.ctx.Err()
	}
}

// serve runs what waits until nothing does.
func (g *gathering) serve() {
	for {
		g.mu.Lock()
		errands := g.waiting
		g.waiting = nil
		if len(errands) == 0 {
			g.running = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		g.run(errands)
		for _, e := range errands {
			close(e.done)
		}
	}
}
