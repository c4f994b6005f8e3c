package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// check names how a suspicion is looked at again.
type check int

const (
	counter   check = iota // Redis must count to seq at least
	ahead                  // history must have everything up to seq
	gap                    // history must have seq..last
	above                  // history's maximum must reach seq
	retention              // seq must be gone
	twice                  // one id stands at seq and at last
	damaged                // the row at seq is damaged
	hotRow                 // the hot log differs at seq, in field
	bounds                 // minimum and repair number of both stores must reach each other's
	member                 // marks and windows of user in both stores must reach each other's
	logEntry               // history must have what the log says
	loserGone              // a message that lost its place must have another
)

// suspicion is something that looked wrong and is looked at again once the
// workers have passed what stood in their topics.
type suspicion struct {
	what  check
	conv  watermark.ConversationID
	seq   watermark.Seq
	last  watermark.Seq
	top   bool
	field string
	user  watermark.UserID

	pair         pair
	conversation watermark.Conversation
	head         Head
	log          *logged // what the log says
	loser        loser   // what lost its place
}

// size is what of messages s holds.
func (s *suspicion) size() int {
	if s.log == nil || s.log.message == nil {
		return 0
	}
	return len(s.log.message.Body)
}

// still tells whether s can be looked at again without waiting for anybody:
// nothing that is under way can make it right.
func (s *suspicion) still() bool { return s.what == twice || s.what == damaged }

// suspect notes s. When there are many, it looks at all of them again at once.
func (a *Auditor) suspect(ctx context.Context, s suspicion) error {
	a.mu.Lock()
	a.report.Suspicions++
	a.queue = append(a.queue, s)
	a.bytes += s.size()
	full := len(a.queue) >= maxSuspicions || a.bytes >= suspicionBytes
	a.mu.Unlock()
	if full {
		return a.settleAll(ctx)
	}
	return nil
}

// settleAll waits for the workers and looks at everything that is suspected
// again.
func (a *Auditor) settleAll(ctx context.Context) error {
	a.mu.Lock()
	queue := a.queue
	a.queue, a.bytes = nil, 0
	a.mu.Unlock()
	if len(queue) == 0 {
		return nil
	}
	behind, err := a.pass(ctx, queue)
	if err != nil {
		return fmt.Errorf("wait for the workers: %w", err)
	}
	a.mu.Lock()
	for p, err := range behind {
		if a.report.Behind == nil {
			a.report.Behind = map[int32]string{}
		}
		a.report.Behind[p] = err.Error()
	}
	a.mu.Unlock()
	// By conversation, so that what is read of one is read once.
	slices.SortStableFunc(queue, func(x, y suspicion) int { return compareIDs(x.conv, y.conv) })
	var now *second
	for i := range queue {
		s := &queue[i]
		if behind[a.cfg.Fence.Partition(s.conv)] != nil && !s.still() {
			a.count(outcomeUndecided, func(r *Report) { r.Undecided++ })
			continue
		}
		if now == nil || now.conv != s.conv {
			now = &second{a: a, conv: s.conv}
		}
		if err := a.lookAgain(ctx, s, now); err != nil {
			return fmt.Errorf("look at %s again: %w", s.conv, err)
		}
	}
	return nil
}

func compareIDs(x, y watermark.ConversationID) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// pass waits until the workers have passed what stands in the partitions of
// queue, for as long as patience lasts.
func (a *Auditor) pass(ctx context.Context, queue []suspicion) (map[int32]error, error) {
	partitions := map[int32]bool{}
	for i := range queue {
		if !queue[i].still() {
			partitions[a.cfg.Fence.Partition(queue[i].conv)] = true
		}
	}
	if len(partitions) == 0 {
		return nil, nil
	}
	wait, cancel := context.WithTimeout(ctx, a.cfg.Patience)
	defer cancel()
	behind, err := a.cfg.Fence.Pass(wait, slices.Sorted(maps.Keys(partitions)))
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return behind, err
}

// lookAgain decides a suspicion.
func (a *Auditor) lookAgain(ctx context.Context, s *suspicion, now *second) error {
	found, err := s.again(ctx, now)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		a.count(outcomeCleared, func(*Report) {})
	}
	for _, f := range found {
		if err := a.confirm(ctx, f); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(found, func(f Finding) bool { return f.mend != nil }) && a.cfg.Mender != nil {
		now.forget() // it was changed
	}
	return nil
}

// confirm mends a finding where that is asked for and possible, counts it and
// hands it on.
func (a *Auditor) confirm(ctx context.Context, f Finding) error {
	if a.told(f) {
		a.count(outcomeCleared, func(*Report) {})
		return nil
	}
	if f.mend != nil && a.cfg.Mender != nil {
		did, err := f.mend(ctx, a, &f)
		if err != nil {
			return fmt.Errorf("mend %s: %w", f.Kind, err)
		}
		f.Mended = did
	}
	if f.Mended == "" {
		f.Step = steps[f.Kind]
	}
	a.metrics.findings.WithLabelValues(string(f.Kind)).Inc()
	a.count(outcomeConfirmed, func(r *Report) {
		r.Findings[f.Kind]++
		if f.Mended != "" {
			r.Mended++
		}
		key := listing{f.Conversation, f.Kind}
		if len(a.listed) >= maxReported {
			clear(a.listed)
		}
		a.listed[key]++
		switch n := a.listed[key]; {
		case a.cfg.Found == nil || n > maxListed:
			return
		case n == maxListed:
			f.Detail += "; further ones of this kind in this conversation are counted, not listed"
		}
		a.cfg.Found(f)
	})
	return nil
}

// told tells whether a finding was told already, by itself or by one that says
// more: what the log says that history lacks.
func (a *Auditor) told(f Finding) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := subject{"", f.Conversation, f.Seq, f.User} // of what the log says
	switch f.Kind {
	case MissingRow, MissingMark, MissingWindow, MissingBounds, MissingRevoke:
		a.rememberLocked(key)
	case Hole, MaxAboveRows, NeverAppended, HotRow, ChangeNeverAppended:
		if a.reported[key] {
			return true
		}
	}
	key.kind = f.Kind
	if a.reported[key] {
		return true
	}
	a.rememberLocked(key)
	return false
}

func (a *Auditor) rememberLocked(key subject) {
	if len(a.reported) < maxReported {
		a.reported[key] = true
	}
}

// count counts a suspicion's outcome and changes the report, under the lock.
func (a *Auditor) count(outcome string, change func(*Report)) {
	a.metrics.suspicions.WithLabelValues(outcome).Inc()
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.report)
}

// second is the second look at a conversation: what stands now, read once.
type second struct {
	a    *Auditor
	conv watermark.ConversationID

	read         bool
	conversation watermark.Conversation
	head         Head
}

func (n *second) forget() { n.read = false }

func (n *second) load(ctx context.Context) error {
	if n.read {
		return nil
	}
	ids := []watermark.ConversationID{n.conv}
	convs, err := n.a.conversations(ctx, ids)
	if err != nil {
		return err
	}
	heads, err := n.a.heads(ctx, ids)
	if err != nil {
		return err
	}
	n.conversation, n.head, n.read = convs[0], heads[0], true
	return nil
}

// row gives the row at seq, nil when there is none.
func (n *second) row(ctx context.Context, seq watermark.Seq) (*watermark.Message, error) {
	rows, err := n.a.cfg.History.Messages(ctx, n.conv, watermark.Interval{First: seq, Last: seq}, 1)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// entry gives the entry of the hot log at seq, nil when there is none.
func (n *second) entry(ctx context.Context, seq watermark.Seq) (*Entry, error) {
	if !n.head.Warm {
		return nil, nil
	}
	entries, _, err := n.a.cfg.Redis.Entries(ctx, n.conv, watermark.Interval{First: seq, Last: seq})
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	return &entries[0], nil
}

// again looks a second time.
func (s *suspicion) again(ctx context.Context, now *second) ([]Finding, error) {
	if err := now.load(ctx); err != nil {
		return nil, err
	}
	switch s.what {
	case counter:
		return s.againCounter(now), nil
	case ahead:
		return s.againGap(ctx, now, watermark.Interval{First: now.conversation.Max + 1, Last: s.seq})
	case gap:
		return s.againGap(ctx, now, watermark.Interval{First: s.seq, Last: s.last})
	case above:
		return s.againAbove(now), nil
	case retention:
		return s.againRetention(ctx, now)
	case twice:
		return s.againTwice(ctx, now)
	case damaged:
		return s.againDamaged(ctx, now)
	case hotRow:
		return s.againHotRow(ctx, now)
	case bounds:
		return s.againBounds(now), nil
	case member:
		return s.againMember(ctx, now)
	case logEntry:
		return s.againLog(ctx, now)
	case loserGone:
		return s.againLoser(ctx, now)
	}
	return nil, errors.New("a suspicion of no kind")
}
