//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// errAbsent says that whom a fault was to hit is away already.
var errAbsent = errors.New("not there")

// nemesis does what a schedule says.
type nemesis struct {
	c *cluster
	// services has a lock for each: what it heals would break another fault of
	// the same service.
	services map[string]*sync.Mutex
}

func newNemesis(c *cluster) *nemesis {
	return &nemesis{c: c, services: map[string]*sync.Mutex{onKafka: {}, onRedis: {}, onHistory: {}}}
}

// run returns when all faults are healed. When ctx ends it begins no other, and
// cuts those short that are under way.
func (n *nemesis) run(ctx context.Context, events []event) {
	var group sync.WaitGroup
	began := time.Now()
	for _, e := range events {
		if pause(ctx, time.Until(began.Add(e.at))) != nil {
			break
		}
		group.Go(func() {
			if lock := n.services[e.target]; lock != nil {
				lock.Lock()
				defer lock.Unlock()
			}
			t0 := n.c.hist.Now()
			n.c.say("%s %s %v", e.fault, e.target, e.d)
			err := n.do(ctx, e)
			op := history.Op{Kind: history.Fault, T0: t0, T1: n.c.hist.Now(), OK: err == nil, Text: e.String()}
			if err != nil {
				op.Err = err.Error()
				n.c.say("%s %s: %v", e.fault, e.target, err)
			}
			n.c.hist.Add(op)
			if err != nil && !errors.Is(err, errAbsent) {
				// What did not come back, or did not end.
				n.c.hist.Add(history.Op{Kind: history.Stuck, T0: op.T1, Err: op.Text + ": " + op.Err})
			}
		})
	}
	group.Wait()
}

func (n *nemesis) do(ctx context.Context, e event) error {
	if isService(e.target) {
		return n.hitService(ctx, e)
	}
	ws := n.c.ofRole(e.target)
	if len(ws) == 0 && e.fault != "join" {
		return fmt.Errorf("%s: %w", e.target, errAbsent)
	}
	switch e.fault {
	case "kill":
		var err error
		for _, w := range ws {
			if e := w.kill(e.d); e != nil {
				err = e
			}
		}
		return err
	case "zombie", "freeze":
		var ps []*process
		for _, w := range ws {
			ps = append(ps, w.process)
		}
		return freeze(ctx, e.d, ps...)
	case "join":
		if err := n.c.deploy(e.target); err != nil {
			return err
		}
		_ = pause(ctx, e.d)
		return n.c.retire(e.target)
	case "leave":
		if err := n.c.retire(e.target); err != nil {
			return err
		}
		_ = pause(ctx, e.d)
		return n.c.deploy(e.target)
	}
	return fmt.Errorf("%s does not go with a worker", e.fault)
}

func (n *nemesis) hitService(ctx context.Context, e event) error {
	c := n.c
	// A service is healed even when the run is over.
	heal := context.WithoutCancel(ctx)
	switch e.fault + " " + e.target {
	case "crash kafka":
		return c.restartKafka(heal, syscall.SIGKILL, e.d)
	case "stop kafka":
		return c.restartKafka(heal, syscall.SIGTERM, e.d)
	case "crash redis":
		return c.restartRedis(heal, e.d)
	case "crash history":
		return c.restartHistory(heal, e.d)
	case "freeze kafka":
		return freeze(heal, e.d, c.kafka)
	case "freeze redis":
		return freeze(heal, e.d, c.redis[0].process)
	case "freeze history":
		return freeze(heal, e.d, c.mongo)
	case "flush redis":
		_, err := c.redis[0].says(heal, "flushall")
		return err
	case "dump redis":
		return c.dumpRedis(heal)
	case "copyback redis":
		return c.copyBack(heal, e.d)
	case "failover redis":
		return c.failOver(heal, e.d)
	case "rollback redis":
		// What an aimed schedule kept before is taken when no time is given.
		if e.d > 0 {
			if err := c.dumpRedis(heal); err != nil {
				return err
			}
			_ = pause(heal, e.d)
		}
		return c.rollBackRedis(heal)
	}
	p := map[string]*proxy{onKafka: c.toKafka, onRedis: c.toRedis, onHistory: c.toMongo}[e.target]
	switch e.fault {
	case "cut":
		return p.cut(heal, e.d)
	case "swallow":
		// What is on its way is lost, and nobody is told before the end.
		return p.poison(heal, "timeout", `{"timeout":0}`, e.d)
	case "slow":
		return p.poison(heal, "latency", `{"latency":150,"jitter":100}`, e.d)
	case "trickle":
		return p.poison(heal, "bandwidth", `{"rate":40}`, e.d)
	}
	return fmt.Errorf("%s does not go with %s", e.fault, strings.ToUpper(e.target[:1])+e.target[1:])
}
