package topush

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// laneQueues is how many times QueueBytes may wait of all conversations.
const laneQueues = 8

// lane is where conversations go whose pushes cost much, out of the way of all
// others. While one is there its roster belongs to the lane, and what comes for
// it goes behind what waits, so its order is kept.
type lane struct {
	*worker
	stop context.CancelFunc
	ran  sync.WaitGroup

	mu     sync.Mutex
	queues map[watermark.ConversationID]*queue
	turns  []*queue  // each once, the next one first
	wake   chan bool // holds one token: there is work
	back   []*roster // of conversations that are through
	// bytes of all that waits, and what there is of rosters, as the cache weighs
	// them, back included.
	bytes, weight int
	err           error // fatal
}

// queue is what waits of one conversation.
type queue struct {
	roster *roster
	lots   []*lot
	bytes  int
	next   int64 // offset behind all that was taken
	over   overrun
}

// overrun is what was left out since the queue was full: it begins at an offset
// and goes up to one, and to a seq.
type overrun struct {
	from, to int64
	seq      watermark.Seq
	records  int
	// offers are the last message, and before it the latest that mention
	// somebody: what those who are absent are to be told of.
	offers []*watermark.Message
	bytes  int // of their bodies
}

// maxOverrunOffers bounds those messages, and QueueBytes and what is left of the
// lane's bytes their bodies.
const maxOverrunOffers = 16

func newLane(cfg *Config, m *metrics) *lane {
	return &lane{
		worker: &worker{cfg: cfg, metrics: m, unraised: make(map[watermark.ConversationID]Mark)},
		queues: make(map[watermark.ConversationID]*queue), wake: make(chan bool, 1),
	}
}

// sort gives the rosters of conversations that are through, and parts lots into
// those that are not the lane's and those that are.
func (l *lane) sort(lots []*lot) (back []*roster, free, waiting []*lot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	back, l.back = l.back, nil
	for _, r := range back {
		l.weighLocked(r, 0)
	}
	for _, x := range lots {
		if l.queues[x.id] == nil {
			free = append(free, x)
		} else {
			waiting = append(waiting, x)
		}
	}
	return back, free, waiting
}

// admit parts conversations that would come here into those for which there is
// room and those for which there is none: what waits is bounded, and so are the
// rosters that have left the cache. One has room always where nothing else is.
// Only the caller brings conversations, so the room stays until it does.
func (l *lane) admit(heavy []*lot, at map[*lot]*roster) (fit, rest []*lot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes, weight := len(l.queues), l.bytes, l.weight
	for _, x := range heavy {
		size, w := x.bytes(), at[x].size()
		if n > 0 && (bytes+size > laneQueues*l.cfg.QueueBytes || weight+w > l.cfg.CacheMembers) {
			rest = append(rest, x)
			continue
		}
		fit = append(fit, x)
		n, bytes, weight = n+1, bytes+size, weight+w
	}
	return fit, rest
}

// weighLocked counts r as so much.
func (l *lane) weighLocked(r *roster, weight int) {
	l.weight += weight - r.inLane
	r.inLane = weight
}

func (x *lot) bytes() int {
	n := 0
	for i := range x.records {
		n += x.records[i].size
	}
	return n
}

// take takes conversations in, with their rosters, and more of those that
// sort said were here. One of them may have left since; its lot is taken in with
// the roster that it left behind.
func (l *lane) take(ctx context.Context, heavy []*lot, at map[*lot]*roster, waiting []*lot) {
	if len(heavy)+len(waiting) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range heavy {
		l.openLocked(x.id, at[x]).addLocked(l, x)
	}
	for _, x := range waiting {
		q := l.queues[x.id]
		if q == nil {
			i := slices.IndexFunc(l.back, func(r *roster) bool { return r.state.ID == x.id })
			q = l.openLocked(x.id, l.back[i])
			l.back = slices.Delete(l.back, i, i+1)
		}
		q.addLocked(l, x)
	}
	if l.stop == nil {
		// It outlives the call, and ends with close.
		life, stop := context.WithCancel(context.WithoutCancel(ctx))
		l.stop = stop
		l.ran.Go(func() { l.run(life) })
	}
	select {
	case l.wake <- true:
	default:
	}
}

func (l *lane) openLocked(id watermark.ConversationID, r *roster) *queue {
	q := &queue{roster: r}
	l.queues[id] = q
	l.turns = append(l.turns, q)
	l.weighLocked(r, r.size())
	l.metrics.lane.Inc()
	return q
}

// addLocked puts x behind what waits, as far as it was not taken before: a batch
// that failed comes again. What does not fit is left out, and so is all that
// follows until the queue is empty.
func (q *queue) addLocked(l *lane, x *lot) {
	x.records = slices.DeleteFunc(x.records, func(r timed) bool { return r.Offset < q.next })
	if len(x.records) == 0 {
		return
	}
	q.next = x.records[len(x.records)-1].Offset + 1
	size, most := x.bytes(), laneQueues*l.cfg.QueueBytes
	full := q.bytes+size > l.cfg.QueueBytes || l.bytes+size > most
	if len(q.lots) > 0 && full || q.over.records > 0 {
		l.bytes -= q.over.bytes
		q.over.add(x, min(l.cfg.QueueBytes, most-l.bytes))
		l.bytes += q.over.bytes
		l.metrics.skipped.WithLabelValues("overrun").Add(float64(len(x.records)))
		return
	}
	own := *x // what was made with it would stay as long as it does
	q.lots = append(q.lots, &own)
	q.bytes += size
	l.bytes += size
}

func (o *overrun) add(x *lot, bytes int) {
	if o.records == 0 {
		o.from = x.records[0].Offset
	}
	o.records += len(x.records)
	o.to = x.records[len(x.records)-1].Offset + 1
	for i := range x.records {
		for _, e := range x.records[i].Events {
			if run, ok := e.(watermark.MessagesSequenced); ok {
				o.seq = max(o.seq, run.Messages[len(run.Messages)-1].Seq)
				for k := range run.Messages {
					o.keep(&run.Messages[k], bytes)
				}
			}
		}
	}
}

// keep makes m the last of the messages to offer, without what it came with.
func (o *overrun) keep(m *watermark.Message, bytes int) {
	alone := *m
	m = &alone
	if n := len(o.offers); n > 0 && len(o.offers[n-1].Mentions) == 0 {
		o.offers = o.offers[:n-1]
	}
	o.offers = append(o.offers, m)
	o.bytes = 0
	for _, m := range o.offers {
		o.bytes += len(m.Body)
	}
	for len(o.offers) > 1 && (len(o.offers) > maxOverrunOffers || o.bytes > bytes) {
		o.bytes -= len(o.offers[0].Body)
		o.offers = slices.Delete(o.offers, 0, 1)
	}
}

// lowest gives the lowest offset that waits, and the error that ended the lane.
func (l *lane) lowest() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	low := int64(math.MaxInt64)
	for _, q := range l.queues {
		switch {
		case len(q.lots) > 0:
			low = min(low, q.lots[0].records[0].Offset)
		case q.over.records > 0:
			low = min(low, q.over.from)
		}
	}
	return low, l.err
}

func (l *lane) close() {
	l.mu.Lock()
	stop := l.stop
	l.mu.Unlock()
	if stop != nil {
		stop()
	}
	l.ran.Wait()
	l.metrics.lane.Sub(float64(len(l.queues)))
	clear(l.queues)
}

// run serves the queues in turn until ctx ends.
func (l *lane) run(ctx context.Context) {
	for {
		q := l.turn()
		if q == nil {
			select {
			case <-ctx.Done():
				return
			case <-l.wake:
			}
			continue
		}
		if err := l.patiently(ctx, func() error { return l.serve(ctx, q) }); err != nil {
			if ctx.Err() == nil {
				l.mu.Lock()
				l.err = err
				l.mu.Unlock()
			}
			return
		}
		l.served(q)
	}
}

// turn gives the queue whose turn it is, nil where nothing waits.
func (l *lane) turn() *queue {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.turns) == 0 {
		return nil
	}
	return l.turns[0]
}

// served lets the next queue have its turn, or a conversation go when nothing of
// it waits any more.
func (l *lane) served(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turns = l.turns[1:]
	l.weighLocked(q.roster, q.roster.size()) // it may have grown
	if len(q.lots) > 0 || q.over.records > 0 {
		l.turns = append(l.turns, q)
		return
	}
	delete(l.queues, q.roster.state.ID)
	l.back = append(l.back, q.roster)
	l.metrics.lane.Dec()
}

// serve hands off what has waited longest of a conversation. After an error it
// is called again; what was handed off by then is not handed off again.
func (l *lane) serve(ctx context.Context, q *queue) error {
	if err := l.standing(ctx, q.roster); err != nil {
		return err
	}
	if err := l.settle(ctx, q.roster); err != nil {
		return err
	}
	l.mu.Lock()
	var first *lot
	if len(q.lots) > 0 {
		first = q.lots[0]
	}
	over := q.over
	over.offers = slices.Clone(over.offers)
	l.mu.Unlock()
	switch {
	case first != nil:
		h := newHand(l.worker)
		if err := h.lot(ctx, q.roster, first); err != nil {
			return err
		}
		if err := h.flush(ctx); err != nil {
			return err
		}
	case over.records > 0:
		if err := l.hint(ctx, q, over); err != nil {
			return err
		}
	}
	if err := l.raise(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case first != nil:
		size := first.bytes()
		q.lots = q.lots[1:]
		q.bytes -= size
		l.bytes -= size
	case q.over.records == over.records: // nothing was left out meanwhile
		l.bytes -= q.over.bytes
		q.over = overrun{}
	}
	return nil
}

// hint reads the members of a conversation again, of which records were left
// out, and tells them that there is more. Those who may be absent are offered the
// last message and the latest mentions of what was left out.
func (l *lane) hint(ctx context.Context, q *queue, over overrun) error {
	states, err := l.cfg.Truth.Load(ctx, []watermark.Want{{Conversation: q.roster.state.ID, Roster: true}})
	if fault.ClassOf(err) == fault.Poison {
		err = fault.New(fault.Fatal, fault.ReasonOf(err), err) // it is the truth's
	}
	if err != nil {
		return err
	}
	was := q.roster
	r := newRoster(states[0], was.mark)
	r.crowd, r.stands, r.log, r.changed, r.inLane = was.crowd, was.stands, was.log, max(r.changed, over.to), was.inLane
	r.mark.Seq, r.mark.Offset = max(was.mark.Seq, over.seq), max(was.mark.Offset, over.to)
	h := newHand(l.worker)
	if err := h.both(ctx, r, Delivery{}, (*watermark.Member).Open); err != nil {
		return err
	}
	h.events = append(h.events, "hint")
	for _, m := range over.offers {
		h.offerCrowd(r, m)
	}
	if err := h.flush(ctx); err != nil {
		return err
	}
	l.unraised[r.state.ID] = r.mark
	q.roster = r
	return nil
}

// patiently repeats what fails for a while until it works, ctx ends, or it fails
// for good.
func (l *lane) patiently(ctx context.Context, do func() error) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 20*time.Millisecond, 5*time.Second
	said := false
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := do()
		switch {
		case err == nil || ctx.Err() != nil:
		case fault.ClassOf(err) != fault.Transient:
			return struct{}{}, backoff.Permanent(fault.New(fault.Fatal, fault.ReasonOf(err), err))
		default:
			l.metrics.failures.Inc()
			if !said {
				said = true
				l.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "pushes of a large conversation wait", slog.Any("error", err))
			}
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	return err
}
