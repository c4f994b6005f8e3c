package pipeline

import (
	"sync"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// tailView is the fold of one partition's records [base, next). It does no
// I/O: Tail reads the records and hands them in.
//
// Its one invariant: base is at or below every pin that is not void, so whoever
// holds a pin finds everything from there on. Only three things move base:
// trimming, which stops at the lowest pin; a restart at a lower offset, which
// keeps the invariant by itself; and giving up, which voids the pins that it
// passes instead of breaking their promise.
type tailView struct {
	partition  int32
	maxRecords int64
	perSegment int
	metrics    *tailMetrics
	memory     *tailMemory // nil: not counted

	mu         sync.RWMutex
	base, next int64
	segments   []*tailSegment
	records    int // of the segments
	lines      map[watermark.ConversationID]*tailLine
	bytes      int64                 // of all parts, as they are reckoned
	most       int64                 // so many records were too large for memory; 0: none were
	pins       map[int64]*tailPinned // by offset
	round      int64                 // of the newest answer about the group's offset
	committed  int64                 // that answer
	used       time.Time             // last time anybody pinned or released

	want    int64         // how far somebody waits to see
	reading bool          // a reader is at work
	waiting int           // holders that wait for the reader
	lastErr error         // the reader's last failure since it moved
	stopped error         // a failure that waiting does not heal
	moved   chan struct{} // closed and replaced whenever something above changed
}

// tailSegment folds a stretch of the log that is trimmed as one.
type tailSegment struct {
	next    int64 // the stretch ends below
	records int
	parts   map[watermark.ConversationID]*tailPart
}

// tailPinned is an offset that is pinned. Guarded by the view's lock.
type tailPinned struct {
	holders int
	void    error // why the pin no longer counts; nil while it does
}

// tailHold is a pin on one view.
type tailHold struct {
	view   *tailView
	offset int64
	pinned *tailPinned
}

// tailEntry is a record of the log as the view takes it: nil when it could not
// be decoded.
type tailEntry struct {
	offset int64
	record *watermark.Record
}

func newTailView(partition int32, maxRecords int64, perSegment int, m *tailMetrics) *tailView {
	v := &tailView{
		partition:  partition,
		maxRecords: maxRecords,
		perSegment: perSegment,
		metrics:    m,
		base:       -1,
		pins:       make(map[int64]*tailPinned),
		moved:      make(chan struct{}),
	}
	m.partitions.Inc()
	return v
}

// pin holds the view at the group's committed offset. Of two answers about it
// the one that was asked for later counts: when another's pin, asked later,
// has let the view be trimmed already, the later offset is just as good for
// this holder, whose read of history has not begun.
func (v *tailView) pin(a committedAnswer, now time.Time) tailHold {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a.round >= v.round {
		v.round, v.committed = a.round, a.offset
	}
	h := v.committed
	switch {
	case v.base < 0, h < v.base: // new, or the group was rewound
		v.restartLocked(h)
	case len(v.pins) == 0 && h >= v.next: // nothing that was folded is needed
		v.restartLocked(h)
	}
	v.stopped = nil
	p := v.pins[h]
	if p == nil {
		p = &tailPinned{}
		v.pins[h] = p
	}
	p.holders++
	v.used = now
	v.trimLocked()
	return tailHold{view: v, offset: h, pinned: p}
}

func (v *tailView) release(h tailHold, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.used = now
	if h.pinned.void != nil {
		return
	}
	if h.pinned.holders--; h.pinned.holders == 0 {
		delete(v.pins, h.offset)
		v.trimLocked()
	}
}

// idle tells whether nobody has asked for the view since before.
func (v *tailView) idle(before time.Time) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.pins) == 0 && !v.reading && v.used.Before(before)
}

// drop empties a view that nobody will use again.
func (v *tailView) drop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.giveUpLocked(errTailGivenUp(v.partition))
	v.metrics.partitions.Dec()
}

// end tells where the view has folded to.
func (v *tailView) end() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.next
}

// use runs f under the read lock if the view has folded everything below end.
// Otherwise it gives the channel that is closed when the view moves.
func (v *tailView) use(h tailHold, end int64, f func()) (<-chan struct{}, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	switch {
	case h.pinned.void != nil:
		return nil, h.pinned.void
	case v.next >= end:
		f()
		return nil, nil
	case v.stopped != nil:
		return nil, v.stopped
	}
	return v.moved, nil
}

// await registers a holder that waits for end; start tells whether it must
// start the reader. It is undone by leave.
func (v *tailView) await(end int64) (start bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.waiting++
	v.want = max(v.want, end)
	start = !v.reading && v.next < v.want && v.stopped == nil
	v.reading = v.reading || start
	return start
}

// leave undoes await and tells the reader's last failure.
func (v *tailView) leave() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.waiting--
	return v.lastErr
}

// behind tells the reader where to read on; more is false when it is done.
func (v *tailView) behind() (from int64, more bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.next >= v.want || v.stopped != nil {
		v.want, v.reading = 0, false
		return 0, false
	}
	return v.next, true
}

// failed notes that the reader could not read. more is false when nobody waits
// for it.
func (v *tailView) failed(err error) (more bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lastErr = err
	if v.waiting > 0 {
		return true
	}
	v.want, v.reading = 0, false
	return false
}

// stop ends reading with an error that waiting does not heal.
func (v *tailView) stop(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stopped = err
	v.want, v.reading = 0, false
	v.notifyLocked()
}

// giveUp drops what was folded and voids all pins.
func (v *tailView) giveUp(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.giveUpLocked(err)
}

func (v *tailView) giveUpLocked(err error) {
	v.voidLocked(err, func(int64) bool { return true })
	v.want = 0
	v.restartLocked(v.committed)
}

func (v *tailView) voidLocked(err error, which func(offset int64) bool) {
	for offset, p := range v.pins {
		if which(offset) {
			p.void = err
			v.metrics.voided.Add(float64(p.holders))
			delete(v.pins, offset)
		}
	}
}

// boundLocked keeps the view within its bound: first at the cost of pins that
// hold what history has by now, then by giving up.
func (v *tailView) boundLocked() {
	if v.next-v.base <= v.maxRecords {
		return
	}
	v.voidLocked(errTailGivenUp(v.partition), func(offset int64) bool { return offset < v.committed })
	v.trimLocked()
	// A first segment of which only a part is needed may stay.
	if n := v.next - max(v.base, v.committed); n > v.maxRecords {
		v.giveUpLocked(errTailTooLong(v.partition, n, v.maxRecords))
	}
}

// fold takes the entries that follow from, up to below next. Entries that were
// read for a place where the view no longer stands, because it was restarted
// meanwhile, are left out.
func (v *tailView) fold(from, next int64, entries []tailEntry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.next != from {
		return
	}
	for _, e := range entries {
		if e.record != nil {
			v.foldLocked(e.record)
		}
		v.next = e.offset + 1
		v.sealLocked()
	}
	v.next = max(v.next, next)
	v.sealLocked()
	v.lastErr = nil
	v.trimLocked()
	v.boundLocked()
	v.notifyLocked()
}

// segmentShare is the part of a long view that one segment may be. What a segment
// says of a conversation costs the same however little it is, so where a tail of a
// million records is of ten thousand conversations, segments of a fixed few
// thousand would hold each record by itself.
const segmentShare = 16

func (v *tailView) foldLocked(rec *watermark.Record) {
	if len(v.segments) == 0 || v.segments[len(v.segments)-1].records >= max(v.perSegment, v.records/segmentShare) {
		v.segments = append(v.segments, &tailSegment{parts: make(map[watermark.ConversationID]*tailPart)})
		v.metrics.segments.Inc()
	}
	seg := v.segments[len(v.segments)-1]
	seg.records++
	v.records++
	v.metrics.records.Inc()
	p := seg.parts[rec.Conversation]
	if p == nil {
		p = &tailPart{span: watermark.Interval{First: 1}}
		seg.parts[rec.Conversation] = p
		line := v.lines[rec.Conversation]
		if line == nil {
			line = &tailLine{}
			v.lines[rec.Conversation] = line
		}
		line.parts = append(line.parts, p)
		v.growLocked(partBytes - line.prune())
	}
	had := p.bytes
	p.fold(rec)
	v.growLocked(p.bytes - had)
}

// growLocked counts n bytes more, or less.
func (v *tailView) growLocked(n int64) {
	v.bytes += n
	if v.memory != nil {
		v.memory.grow(n)
	}
}

// held gives what the view holds, in bytes as they are reckoned.
func (v *tailView) held() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.bytes
}

// unused tells whether nobody has pinned the view or waits for it.
func (v *tailView) unused() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.pins) == 0 && v.waiting == 0
}

// tooLarge gives up a view that is beyond the bound of all views by itself, and
// notes how many records were.
func (v *tailView) tooLarge(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.most = max(v.next-v.base, 1)
	v.giveUpLocked(err)
}

// beyond tells whether n records are known not to fit into memory.
func (v *tailView) beyond(n int64) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.most > 0 && n >= v.most
}

// sealLocked notes how far the open segment reaches, so that it can be trimmed
// once it is full.
func (v *tailView) sealLocked() {
	if n := len(v.segments); n > 0 {
		v.segments[n-1].next = v.next
	}
}

// trimLocked drops the segments that lie wholly below the lowest pin and below
// the group's committed offset.
func (v *tailView) trimLocked() {
	floor := v.committed
	for h := range v.pins {
		floor = min(floor, h)
	}
	n := 0
	for n < len(v.segments) && v.segments[n].next <= floor {
		seg := v.segments[n]
		v.base = seg.next
		for id := range seg.parts {
			line := v.lines[id]
			v.growLocked(-partBytes - line.parts[0].bytes)
			line.parts[0] = nil
			line.parts = line.parts[1:]
			line.pruned = max(line.pruned-1, 0)
			if len(line.parts) == 0 {
				delete(v.lines, id)
			}
		}
		v.records -= seg.records
		v.metrics.records.Sub(float64(seg.records))
		v.segments[n] = nil
		n++
	}
	v.metrics.segments.Sub(float64(n))
	v.segments = v.segments[n:]
	if len(v.segments) == 0 {
		v.base = max(v.base, min(v.next, floor))
	}
}

// restartLocked empties the view and lets it begin at offset.
func (v *tailView) restartLocked(offset int64) {
	v.metrics.records.Sub(float64(v.records))
	v.metrics.segments.Sub(float64(len(v.segments)))
	v.growLocked(-v.bytes)
	v.segments, v.records = nil, 0
	v.lines = make(map[watermark.ConversationID]*tailLine)
	v.base, v.next = offset, offset
	v.notifyLocked()
}

func (v *tailView) notifyLocked() {
	close(v.moved)
	v.moved = make(chan struct{})
}

// The readers below are called inside use, under the read lock.

// state merges what the view says of a conversation into a state of its own;
// nil when that is nothing.
func (v *tailView) state(id watermark.ConversationID) *watermark.State {
	line := v.lines[id]
	if line == nil {
		return nil
	}
	s := watermark.NewState(id)
	for _, p := range line.parts {
		p.into(s)
	}
	return s
}

// membersOf appends the conversations in which the view knows something of u.
func (v *tailView) membersOf(u watermark.UserID, out []watermark.ConversationID) []watermark.ConversationID {
	for id, line := range v.lines {
		for _, p := range line.parts {
			if p.knows(id, u) {
				out = append(out, id)
				break
			}
		}
	}
	return out
}

// revokes gives the revoked seqs of a conversation within span.
func (v *tailView) revokes(id watermark.ConversationID, span watermark.Interval) map[watermark.Seq]watermark.Revoked {
	out := make(map[watermark.Seq]watermark.Revoked)
	for _, p := range v.parts(id) {
		for seq, r := range p.revokes {
			if _, ok := out[seq]; !ok && span.Contains(seq) {
				out[seq] = r
			}
		}
	}
	return out
}

// lowest gives the lowest seq in span that the view has a message of; ok is
// false when it has none.
func (v *tailView) lowest(id watermark.ConversationID, span watermark.Interval) (seq watermark.Seq, ok bool) {
	best := watermark.Interval{First: 1}
	for _, p := range v.parts(id) {
		if p.span.Intersect(span).Empty() {
			continue
		}
		for _, r := range p.refs {
			if x := r.span.Intersect(span); !x.Empty() && (best.Empty() || x.First < best.First) {
				best = x
			}
		}
	}
	return best.First, !best.Empty()
}

// refs gives the records that may hold messages of span, in log order.
func (v *tailView) refs(id watermark.ConversationID, span watermark.Interval) []tailRef {
	var out []tailRef
	for _, p := range v.parts(id) {
		if p.span.Intersect(span).Empty() {
			continue
		}
		for _, r := range p.refs {
			if !r.span.Intersect(span).Empty() {
				out = append(out, r)
			}
		}
	}
	return out
}

func (v *tailView) parts(id watermark.ConversationID) []*tailPart {
	if line := v.lines[id]; line != nil {
		return line.parts
	}
	return nil
}
