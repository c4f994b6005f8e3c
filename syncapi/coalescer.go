package syncapi

import (
	"context"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// maxGroup is how many marks share one record at most.
	maxGroup = 200
	// appendTimeout bounds an append together with the raise in Redis. The
	// calls that wait for it have deadlines of their own.
	appendTimeout = 30 * time.Second
)

// coalescer appends marks: those of one conversation that come within a window
// share a record. Every mark is appended, whatever it says, and every call
// waits for the append that its own mark is part of.
type coalescer struct {
	log     Log
	hot     Hot
	window  time.Duration
	limit   int
	metrics *metrics
	flushes sync.WaitGroup

	mu      sync.Mutex
	open    map[watermark.ConversationID]*group
	pending int // marks under way
	stopped bool
}

// group is the marks that will share a record.
type group struct {
	marks []watermark.ReadAdvanced
	calls int
	done  chan struct{} // closed when err stands
	err   error
}

func newCoalescer(cfg Config, m *metrics) *coalescer {
	return &coalescer{
		log: cfg.Log, hot: cfg.Hot, window: cfg.MarkWindow, limit: cfg.MaxWaiting, metrics: m,
		open: make(map[watermark.ConversationID]*group),
	}
}

// mark appends mark and raises it in Redis, and returns after both.
func (c *coalescer) mark(ctx context.Context, conv watermark.ConversationID, mark watermark.ReadAdvanced) error {
	g, err := c.join(ctx, conv, mark)
	if err != nil {
		return err
	}
	select {
	case <-g.done:
		return g.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *coalescer) join(ctx context.Context, conv watermark.ConversationID, mark watermark.ReadAdvanced) (*group, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, unavailable(reasonStopping, "the service is stopping")
	}
	if c.pending >= c.limit {
		return nil, &refusal{
			code: connect.CodeResourceExhausted, reason: reasonMarks,
			text: "too many marks are being appended", retry: retryAfter,
		}
	}
	c.pending++
	c.metrics.marks.Inc()
	g := c.open[conv]
	if g == nil {
		g = &group{done: make(chan struct{})}
		c.open[conv] = g
		// The group outlives the call that opened it: others are in it.
		flushCtx := context.WithoutCancel(ctx)
		c.flushes.Go(func() {
			time.Sleep(c.window)
			c.flush(flushCtx, conv, g)
		})
	}
	g.add(mark)
	if len(g.marks) >= maxGroup {
		delete(c.open, conv) // the next mark opens another one
	}
	return g, nil
}

// add takes mark in. Marks of one device are one: both watermarks only rise.
func (g *group) add(mark watermark.ReadAdvanced) {
	g.calls++
	i := slices.IndexFunc(g.marks, func(m watermark.ReadAdvanced) bool {
		return m.User == mark.User && m.Device == mark.Device
	})
	if i < 0 {
		g.marks = append(g.marks, mark)
		return
	}
	g.marks[i].Read = max(g.marks[i].Read, mark.Read)
	g.marks[i].Receipt = max(g.marks[i].Receipt, mark.Receipt)
}

func (c *coalescer) flush(ctx context.Context, conv watermark.ConversationID, g *group) {
	c.mu.Lock()
	if c.open[conv] == g {
		delete(c.open, conv)
	}
	c.mu.Unlock()
	// From here on nobody adds to g.
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	g.err = c.write(ctx, conv, g.marks)
	outcome := "ok"
	if g.err != nil {
		outcome = "error"
	}
	c.metrics.appends.WithLabelValues(outcome).Inc()
	c.mu.Lock()
	c.pending -= g.calls
	c.mu.Unlock()
	close(g.done)
}

// write appends first: a mark that only Redis knew would fall with it.
func (c *coalescer) write(ctx context.Context, conv watermark.ConversationID, marks []watermark.ReadAdvanced) error {
	if err := c.log.AppendMarks(ctx, conv, marks); err != nil {
		return err
	}
	rows := make([]watermark.MemberRow, len(marks))
	for i, m := range marks {
		rows[i] = watermark.MemberRow{
			Conversation: conv,
			Member:       watermark.Member{User: m.User, Read: m.Read, Receipt: m.Receipt},
		}
	}
	return c.hot.RaiseReads(ctx, rows)
}

// drain takes no more marks and waits for the appends that are under way.
func (c *coalescer) drain() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.flushes.Wait()
}
