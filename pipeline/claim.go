package pipeline

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// handler is the group as sarama calls it.
type handler struct{ g *Group }

// Setup implements sarama.ConsumerGroupHandler.
func (h *handler) Setup(sarama.ConsumerGroupSession) error {
	h.g.status.joined()
	return nil
}

// Cleanup implements sarama.ConsumerGroupHandler. The final commit follows it.
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim is one partition from claim to release. It returns nil: what
// stops the group goes through Group.stop, and the rest is retried here.
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	g := h.g
	c := Claim{Topic: claim.Topic(), Partition: claim.Partition(), Committed: max(claim.InitialOffset(), -1)}
	g.mu.Lock()
	c.TopicID = g.topicID
	client := g.client
	g.mu.Unlock()

	alive, release := context.WithCancel(session.Context())
	defer release()
	var routines sync.WaitGroup
	defer routines.Wait()
	defer release()
	routines.Go(func() { g.watchClaim(alive, claim, release) })

	// What was begun may end after the claim did, within the drain's time.
	work, abort := context.WithCancel(context.WithoutCancel(alive))
	defer abort()
	stopDrain := context.AfterFunc(alive, func() {
		timer := time.AfterFunc(g.cfg.DrainTimeout, abort)
		context.AfterFunc(work, func() { timer.Stop() })
	})
	defer stopDrain()

	g.metrics.partitions.Inc()
	defer g.metrics.partitions.Dec()
	r := &runner{
		g: g, claim: c, client: client, messages: claim.Messages(),
		mark: func(offset int64) { session.MarkOffset(c.Topic, c.Partition, offset, c.TopicID) },
		log:  g.log.With("partition", c.Partition),
		next: max(c.Committed, 0), durable: max(c.Committed, 0), marked: max(c.Committed, 0),
	}
	r.status = g.status.claimed(c)
	defer g.status.released(r.status)
	r.log.Info("partition claimed", "committed", c.Committed)
	if err := r.run(alive, work); err != nil {
		g.stop(fmt.Errorf("topic %s partition %d: %w", c.Topic, c.Partition, err))
		return nil
	}
	r.log.Info("partition released", "marked", r.marked, "handled", r.next)
	return nil
}

// watchClaim calls release when the claim ends.
//
// A cooperative rebalance takes a partition without ending the session. All
// that sarama does then is to close the claim's channels, and a full channel of
// messages does not show that it is closed. A runner that retries in place
// would so hold a partition that another process waits for. The channel of
// errors is closed with the other and is drained all the time, by sarama and
// here, so it shows the end at once.
func (g *Group) watchClaim(ctx context.Context, claim sarama.ConsumerGroupClaim, release func()) {
	c, ok := claim.(interface {
		Errors() <-chan *sarama.ConsumerError
	})
	if !ok {
		g.stop(fault.New(fault.Fatal, ReasonContract, fmt.Errorf("the kafka driver's claim (%T) does not show its end", claim)))
		return
	}
	for {
		select {
		case err, ok := <-c.Errors():
			if !ok {
				release()
				return
			}
			g.driverError(err)
		case <-ctx.Done():
			return
		}
	}
}

// guarded turns a panic into a fatal error with its stack: the state of the
// stage is unknown, so nothing of this batch is marked and nobody goes on.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fault.New(fault.Fatal, ReasonPanic, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	return f()
}

func closeStage(s Stage) error {
	c, ok := s.(io.Closer)
	if !ok {
		return nil
	}
	return guarded(c.Close)
}
