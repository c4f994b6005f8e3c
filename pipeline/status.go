package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// troubleLasts is how long an error of the driver counts. A lasting one comes
// again sooner; the driver does not tell when one is over.
const troubleLasts = 5 * time.Second

// State is what a group is doing.
type State struct {
	// Member tells whether the group has its assignment, which may be empty.
	Member bool
	// Why says what stands in the way where Member is false.
	Why string
	// Trouble is the reason of an error that the driver met within the last
	// seconds and goes on from; empty: none. While brokers are away it stands
	// long before the membership ends.
	Trouble    string
	Partitions []PartitionState // by number
}

// PartitionState is what one claimed partition is doing.
type PartitionState struct {
	Topic     string
	Partition int32
	Next      int64 // the offset after the last one handled
	Marked    int64 // the offset that was marked last
	// Stuck says why the partition does not move, as "retrying handle:
	// redis_down for 12s"; empty: it does.
	Stuck string
	// Reason is that of the last attempt, "slow" when there was no other one
	// yet, and For how long the work has been attempted. Only where it is stuck.
	Reason string
	For    time.Duration
}

// reasonSlow is the reason of an attempt that takes long and has not failed.
const reasonSlow = "slow"

// State tells what the group is doing.
func (g *Group) State() State { return g.status.state() }

// Ready returns nil when the group is a member, its connection works and none of
// its partitions is stuck, else an error that says what stands in the way.
func (g *Group) Ready() error {
	s := g.State()
	var errs []error
	if !s.Member {
		errs = append(errs, fmt.Errorf("group %s: %s", g.cfg.Group, s.Why))
	}
	if s.Trouble != "" {
		errs = append(errs, fmt.Errorf("group %s: kafka: %s", g.cfg.Group, s.Trouble))
	}
	for _, p := range s.Partitions {
		if p.Stuck != "" {
			errs = append(errs, fmt.Errorf("group %s: %s/%d is stuck at %d: %s", g.cfg.Group, p.Topic, p.Partition, p.Next, p.Stuck))
		}
	}
	return errors.Join(errs...)
}

type status struct {
	mu         sync.Mutex
	stuckAfter time.Duration
	member     bool
	why        string
	failure    error
	trouble    string    // the driver's last error
	troubleAt  time.Time // and when it came
	loggedAt   time.Time // and when one was logged
	partitions map[*partitionStatus]struct{}
}

func (s *status) init(stuckAfter time.Duration) {
	s.stuckAfter = stuckAfter
	s.why = "not started"
	s.partitions = make(map[*partitionStatus]struct{})
}

func (s *status) joined() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.member, s.why = true, ""
}

func (s *status) left(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.member, s.why = false, err.Error()
}

// troubled takes note of an error that the driver goes on from, and tells
// whether it is worth a line.
func (s *status) troubled(reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	worth := reason != s.trouble || now.Sub(s.loggedAt) > 2*troubleLasts
	s.trouble, s.troubleAt = reason, now
	if worth {
		s.loggedAt = now
	}
	return worth
}

// failed keeps the first error of a run; nil begins a run.
func (s *status) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil || err == nil {
		s.failure = err
	}
}

func (s *status) fatal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

func (s *status) claimed(c Claim) *partitionStatus {
	p := &partitionStatus{claim: c, next: max(c.Committed, 0), marked: max(c.Committed, 0)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.partitions[p] = struct{}{}
	return p
}

func (s *status) released(p *partitionStatus) {
	p.done()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.partitions, p)
}

func (s *status) state() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := State{Member: s.member, Why: s.why}
	if s.trouble != "" && s.trouble != "rebalance" && time.Since(s.troubleAt) < troubleLasts {
		out.Trouble = s.trouble
	}
	for p := range s.partitions {
		out.Partitions = append(out.Partitions, p.state(s.stuckAfter))
	}
	slices.SortFunc(out.Partitions, func(a, b PartitionState) int { return cmp.Compare(a.Partition, b.Partition) })
	return out
}

// partitionStatus is written by the partition's goroutine and read by who asks.
type partitionStatus struct {
	claim Claim

	mu     sync.Mutex
	next   int64
	marked int64
	act    string    // what is being attempted
	since  time.Time // when its first attempt began
	reason string    // why its last attempt failed
}

func (p *partitionStatus) progress(next, marked int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.marked = next, marked
}

func (p *partitionStatus) begin(act string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.act == "" {
		p.act, p.since = act, time.Now()
	}
}

func (p *partitionStatus) failing(act, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.act, p.reason = act, reason
}

func (p *partitionStatus) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.act, p.reason = "", ""
}

func (p *partitionStatus) state(stuckAfter time.Duration) PartitionState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PartitionState{Topic: p.claim.Topic, Partition: p.claim.Partition, Next: p.next, Marked: p.marked}
	since := time.Since(p.since)
	switch {
	case p.reason != "":
		s.Stuck = fmt.Sprintf("retrying %s: %s for %s", p.act, p.reason, since.Round(time.Second))
		s.Reason, s.For = p.reason, since
	case p.act != "" && since > stuckAfter:
		s.Stuck = fmt.Sprintf("%s takes %s", p.act, since.Round(time.Second))
		s.Reason, s.For = reasonSlow, since
	}
	return s
}
