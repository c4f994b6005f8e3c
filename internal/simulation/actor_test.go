package simulation

import (
	"errors"
	"fmt"
)

// errDied ends the calls of a process that is gone, errFailed those that fail
// for a moment.
var (
	errDied   = errors.New("died")
	errFailed = errors.New("failed for a moment")
)

// ending says what becomes of a call about n things.
type ending struct {
	done  int  // how many of them are done; all of them at or above n
	fails bool // whether the caller is told that it failed
	dies  bool // whether the caller's process ends with it
}

const all = 1 << 30

func (e ending) String() string {
	switch {
	case !e.fails && !e.dies:
		return "done"
	case e.dies:
		return fmt.Sprintf("dies, %d done", e.done)
	}
	return fmt.Sprintf("fails, %d done", e.done)
}

var well = ending{done: all}

// actor is a process that does one thing at a time. It stops before each of its
// calls to the outside until the scheduler lets it go on. Only one goroutine of
// the whole world runs at any time.
type actor struct {
	name    string
	note    func(format string, args ...any) // for who reads of a failure
	jobs    chan<- job
	asked   chan *request
	pending *request // the call that it stands before; nil: it does nothing
	dead    bool
	err     error // of what it did last
}

// request is a call that is about to happen; nil stands for the end.
type request struct {
	op   string
	n    int
	goOn chan ending
	did  chan struct{}
}

// job is what an actor is to do. The goroutines that do it outlive actors: their
// stacks have grown to what is needed.
type job struct {
	actor *actor
	do    func() error
}

func work(jobs <-chan job) {
	for j := range jobs {
		j.actor.err = j.do()
		j.actor.asked <- nil
	}
}

// start lets it do f, up to its first call. It tells whether f has ended.
func (a *actor) start(f func() error) (ended bool) {
	a.jobs <- job{a, f}
	a.pending = <-a.asked
	return a.pending == nil
}

// step lets the pending call end as told, and what follows it, up to the next
// call. It tells whether the actor has ended what it did; one that dies has.
func (a *actor) step(e ending) (ended bool) {
	a.note("%s: %s of %d %v", a.name, a.pending.op, a.pending.n, e)
	for {
		// A call of the query service reads the truth in several goroutines, so
		// what asks next may be another one: the world is not touched by two at a
		// time.
		a.pending.goOn <- e
		<-a.pending.did
		a.pending = <-a.asked
		a.dead = a.dead || e.dies
		if a.pending == nil || !a.dead {
			return a.pending == nil
		}
		e = ending{dies: true}
	}
}

// kill ends it in the middle of what it does.
func (a *actor) kill() {
	a.dead = true
	if a.pending != nil {
		a.step(ending{dies: true})
	}
}

// call is what every port does: do is given how many of n things to do.
func (a *actor) call(op string, n int, do func(n int)) error {
	r := &request{op: op, n: n, goOn: make(chan ending), did: make(chan struct{})}
	a.asked <- r
	e := <-r.goOn
	if e.done > 0 {
		do(min(e.done, n))
	}
	r.did <- struct{}{}
	switch {
	case e.dies:
		return errDied
	case e.fails:
		return errFailed
	}
	return nil
}
