package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// Pin holds the tail of some partitions from the committed offset on, as it was
// when the pin was taken. Take it before reading history, ask it afterwards,
// and Release it. It is safe for concurrent use until then.
type Pin struct {
	tail  *Tail
	all   int // partitions of the topic
	where map[watermark.ConversationID]int32

	mu    sync.Mutex
	holds map[int32]tailHold // nil once released
}

// Pin pins the partitions of the conversations ids. Errors are classified by
// package fault.
func (t *Tail) Pin(ctx context.Context, ids []watermark.ConversationID) (*Pin, error) {
	return t.take(ctx, ids, false)
}

// PinAll pins every partition, for questions about all conversations.
func (t *Tail) PinAll(ctx context.Context) (*Pin, error) {
	return t.take(ctx, nil, true)
}

func (t *Tail) take(ctx context.Context, ids []watermark.ConversationID, every bool) (*Pin, error) {
	wait, cancel, err := t.within(ctx)
	if err != nil {
		return nil, t.counted(err)
	}
	defer cancel()
	all, err := t.partitions()
	if err != nil {
		return nil, t.counted(err)
	}
	p := &Pin{tail: t, all: len(all), holds: make(map[int32]tailHold)}
	wanted := all
	if !every {
		wanted = p.locate(ids)
	}
	if len(wanted) == 0 {
		return p, nil
	}
	answers, err := t.committed.get(wait, wanted...)
	if err != nil {
		return nil, t.counted(t.waited(wait, err))
	}
	for _, partition := range wanted {
		a := answers[partition]
		if a.err != nil {
			p.Release()
			return nil, t.counted(a.err)
		}
		h, err := t.hold(partition, a)
		if err != nil {
			p.Release()
			return nil, t.counted(err)
		}
		p.holds[partition] = h
	}
	return p, nil
}

// hold pins one partition's view, which is made when there is none.
func (t *Tail) hold(partition int32, a committedAnswer) (tailHold, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != tailRunning {
		return tailHold{}, errTailClosed()
	}
	v := t.views[partition]
	if v == nil {
		v = newTailView(partition, t.conf.MaxRecords, t.conf.SegmentRecords, t.metrics)
		v.memory = t.memory
		t.views[partition] = v
		t.memory.add(v)
	}
	return v.pin(a, time.Now()), nil
}

// Release lets the tail forget what only this pin needed. It may be called more
// than once.
func (p *Pin) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.holds {
		h.view.release(h, time.Now())
	}
	p.holds = nil
}

// States gives, for each of ids of which the tail says anything, the fold of
// its part of the tail. It covers at least every record from the committed
// offset up to the end of the log at a moment after the call; what it covers
// beyond is harmless, since folding is idempotent. The states are the caller's.
func (p *Pin) States(ctx context.Context, ids []watermark.ConversationID) (map[watermark.ConversationID]*watermark.State, error) {
	by := p.byPartition(ids)
	out := make(map[watermark.ConversationID]*watermark.State)
	var mu sync.Mutex
	err := p.settle(ctx, keysOf(by), func(v *tailView) {
		// The view's own lock is for reading: merging happens side by side.
		states := make(map[watermark.ConversationID]*watermark.State)
		for _, id := range by[v.partition] {
			if s := v.state(id); s != nil {
				states[id] = s
			}
		}
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(out, states)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// MembersOf gives, in order of their ids, the conversations of which the tail
// knows something about user: windows, marks, messages sent, or that it is one
// of the two of a single conversation. Only pinned partitions are looked at.
func (p *Pin) MembersOf(ctx context.Context, user watermark.UserID) ([]watermark.ConversationID, error) {
	var out []watermark.ConversationID
	var mu sync.Mutex
	err := p.settle(ctx, p.pinned(), func(v *tailView) {
		ids := v.membersOf(user, nil)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, ids...)
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(out)
	return out, nil
}

// Revokes gives what the tail revokes of a conversation, also messages that
// only history has.
func (p *Pin) Revokes(ctx context.Context, id watermark.ConversationID, span watermark.Interval) (map[watermark.Seq]watermark.Revoked, error) {
	var out map[watermark.Seq]watermark.Revoked
	err := p.settle(ctx, []int32{p.partitionOf(id)}, func(v *tailView) { out = v.revokes(id, span) })
	if err != nil {
		return nil, err
	}
	return out, nil
}

// locate notes where ids belong and gives their partitions.
func (p *Pin) locate(ids []watermark.ConversationID) []int32 {
	var out []int32
	seen := make(map[int32]bool)
	p.where = make(map[watermark.ConversationID]int32, len(ids))
	for _, id := range ids {
		n := partitionFor(id, p.all)
		p.where[id] = n
		if !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

func (p *Pin) partitionOf(id watermark.ConversationID) int32 {
	if n, ok := p.where[id]; ok {
		return n
	}
	return partitionFor(id, p.all)
}

func (p *Pin) byPartition(ids []watermark.ConversationID) map[int32][]watermark.ConversationID {
	out := make(map[int32][]watermark.ConversationID)
	for _, id := range ids {
		n := p.partitionOf(id)
		out[n] = append(out[n], id)
	}
	return out
}

func (p *Pin) pinned() []int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return keysOf(p.holds)
}

func (p *Pin) hold(partition int32) (tailHold, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.holds[partition]
	if !ok {
		return h, fault.New(fault.Fatal, ReasonContract, fmt.Errorf("partition %d of the sequenced log is not pinned", partition))
	}
	return h, nil
}

// settle waits, for each of the partitions, until its view has folded
// everything below an end that was asked for after the call, and runs use under
// the view's read lock.
func (p *Pin) settle(ctx context.Context, partitions []int32, use func(*tailView)) error {
	t := p.tail
	if len(partitions) == 0 {
		return nil
	}
	wait, cancel, err := t.within(ctx)
	if err != nil {
		return t.counted(err)
	}
	defer cancel()
	g, wait := errgroup.WithContext(wait)
	for _, n := range partitions {
		h, err := p.hold(n)
		if err != nil {
			return err
		}
		g.Go(func() error { return t.settle(wait, h, func() { use(h.view) }) })
	}
	return t.counted(g.Wait())
}

func (t *Tail) settle(wait context.Context, h tailHold, use func()) error {
	began := time.Now()
	end, err := t.endOf(wait, h)
	if err != nil {
		return err
	}
	if n := end - h.offset; n > t.conf.MaxRecords {
		return errTailTooLong(h.view.partition, n, t.conf.MaxRecords)
	} else if h.view.beyond(n) {
		return errTailAlone(h.view.partition, t.conf.MaxBytes)
	}
	for {
		moved, err := h.view.use(h, end, use)
		if err != nil || moved == nil {
			t.metrics.catchUp.Observe(time.Since(began).Seconds())
			return err
		}
		if err := t.follow(wait, h.view, end, moved); err != nil {
			return err
		}
	}
}

// follow waits until the view moves, with a reader at work.
func (t *Tail) follow(wait context.Context, v *tailView, end int64, moved <-chan struct{}) error {
	if v.await(end) {
		if err := t.spawn(func() { t.read(v) }); err != nil {
			v.stop(err)
		}
	}
	select {
	case <-moved:
		_ = v.leave() // it moved: whatever failed before is over
		return nil
	case <-wait.Done():
		why := v.leave()
		if why == nil {
			why = fmt.Errorf("partition %d is folded up to %d, the log ends at %d", v.partition, v.end(), end)
		}
		return t.waited(wait, why)
	}
}

// endOf asks where the log ends, and asks again when the answer is below what
// is known to have stood there: a new leader may need a moment, but a log that
// stays short has lost records.
func (t *Tail) endOf(wait context.Context, h tailHold) (int64, error) {
	p := h.view.partition
	floor := max(h.offset, h.view.end())
	began := time.Now()
	for {
		answers, err := t.endRounds(p).get(wait, p)
		if err != nil {
			return 0, t.waited(wait, err)
		}
		end := answers[p]
		if end >= floor {
			return end, nil
		}
		lost := fmt.Errorf("partition %d of %s ends at %d, but it had records up to %d: the topic was made anew or the log lost records", p, t.conf.Topic, end, floor)
		if time.Since(began) >= t.conf.Confirm {
			return 0, fault.New(fault.Fatal, ReasonLogLost, lost)
		}
		if !tailSleep(wait, min(t.conf.Confirm/4, 250*time.Millisecond)) {
			return 0, t.waited(wait, lost)
		}
	}
}

var errNoRecords = errors.New("the leader gave no records below the end of the log")

func keysOf[K comparable, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}
