package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Config says how a system is measured end to end.
type Config struct {
	System System
	Load   Load
	// Rate is messages a second, above 0.
	Rate float64
	// WarmUp is how long the load runs before it is measured, Duration for how
	// long it is. Duration must be above 0.
	WarmUp, Duration time.Duration
	// Devices is how many users are connected and watch for pushes. 0: none.
	Devices int
	// Probes is how many messages a second are looked for in history and by
	// pulls. 0: none.
	Probes float64
	// MaxLag is how far behind everything may be, in time, for a rate to count as
	// sustained. 0: 2 s.
	MaxLag time.Duration
	// Progress is told what goes on. nil: nobody is.
	Progress func(what string, done, total int64)

	oneUser bool // all conversations are of one user
}

func (c *Config) fill() error {
	var errs []error
	if err := CheckRate(c.Rate); err != nil {
		errs = append(errs, err)
	}
	if c.Duration <= 0 || c.WarmUp < 0 || c.MaxLag < 0 {
		errs = append(errs, errors.New("duration must be above 0, warm-up and lag must not be below"))
	}
	if c.Devices < 0 || c.Devices > 10_000 {
		errs = append(errs, fmt.Errorf("devices must be within 0..10000, are %d", c.Devices))
	}
	if !(c.Probes >= 0 && c.Probes <= 10_000) {
		errs = append(errs, fmt.Errorf("probes must be within 0..10000 a second, are %g", c.Probes))
	}
	if c.MaxLag == 0 {
		c.MaxLag = 2 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(string, int64, int64) {}
	}
	return invalid(append(errs, c.Load.Validate())...)
}

// InvalidError is of what was asked for, not of what happened.
type InvalidError struct{ error }

func (e InvalidError) Unwrap() error { return e.error }

// invalid joins errors to an InvalidError; nil where there is none.
func invalid(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return InvalidError{err}
	}
	return nil
}

// maxRate is messages a second.
const maxRate = 1e7

// CheckRate tells what is wrong with a rate.
func CheckRate(rate float64) error {
	if !(rate > 0 && rate <= maxRate) {
		return InvalidError{fmt.Errorf("rate must be above 0 and at most %.0f messages a second, is %g", float64(maxRate), rate)}
	}
	return nil
}

// Session is a system that is ready to be measured, at one rate after another.
type Session struct {
	cfg      Config
	sys      *system
	world    *world
	observer *observer
	producer *kgo.Client
	sequence *sequence
	sent     int64 // messages of all trials
	base     float64

	ctx     context.Context
	stop    context.CancelFunc
	running *errgroup.Group
}

// Open starts the system, has the members join and puts one message into each
// conversation, so that what is measured is traffic and not its beginning.
func Open(ctx context.Context, cfg Config) (_ *Session, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg, world: newWorld(cfg.Load)}
	if cfg.oneUser {
		s.world.side = 1
	}
	s.sequence = s.world.sequence()
	cfg.Progress("starting", 0, 0)
	if s.sys, err = open(ctx, cfg.System); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	// Nothing is compressed and no batch waits: what is measured is the system,
	// and the generator shares its machine.
	s.producer, err = kgo.NewClient(append(s.sys.kafkaOpt, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(500_000), kgo.MaxBufferedBytes(1<<30), kgo.DefaultProduceTopic(s.sys.topics.ToRedis),
		// A key's partition is the one that Java's default chooses, as for every
		// other producer; keyless records are not made.
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))...)
	if err != nil {
		return nil, err
	}
	s.observer = newObserver(s.sys, s.world)
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.running, s.ctx = errgroup.WithContext(run)
	s.running.Go(func() error { return s.observer.follow(s.ctx) })
	if err := s.prime(ctx); err != nil {
		return nil, err
	}
	return s, s.listen(ctx)
}

// Close ends the system.
func (s *Session) Close() error {
	var errs []error
	if s.running != nil {
		s.stop()
		errs = append(errs, s.running.Wait())
		s.observer.probes.Wait()
	}
	if s.producer != nil {
		s.producer.Close()
	}
	if s.sys != nil {
		errs = append(errs, s.sys.close())
	}
	return errors.Join(errs...)
}

// prime makes the members and the conversations.
func (s *Session) prime(ctx context.Context) error {
	w := s.world
	total := int64(w.load.Conversations)
	var failed atomic.Pointer[error]
	produce := func(out wire.Out, err error) error {
		if err != nil {
			return err
		}
		s.producer.Produce(ctx, record(out), func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(&err)
			}
		})
		return nil
	}
	joins := total * int64(w.load.Members)
	for i := range w.load.Conversations {
		id, a, _ := w.conversation(i)
		for k := range w.load.Members {
			join := &tidemarkv1.Command{
				Conversation: string(id), OpId: "bench",
				Kind: &tidemarkv1.Command_Join{Join: &tidemarkv1.JoinCommand{User: string(w.member(i, k)), History: tidemarkv1.History_HISTORY_ALL}},
			}
			if err := produce(wire.EncodeCommand(join)); err != nil {
				return err
			}
		}
		first := &tidemarkv1.SendMessage{
			Conversation: string(id), Sender: string(a), ClientMessageId: "first", Body: &tidemarkv1.SendMessage_Text{Text: "first"},
		}
		if err := produce(wire.EncodeSend(first, "")); err != nil {
			return err
		}
	}
	err := s.await(ctx, func() (bool, error) {
		if err := failed.Load(); err != nil {
			return false, *err
		}
		done := s.observer.primed.Load() + s.observer.joined.Load()
		s.cfg.Progress("making conversations", done, total+joins)
		return done >= total+joins, nil
	})
	if err != nil {
		return fmt.Errorf("make conversations: %w", err)
	}
	return s.await(ctx, func() (bool, error) {
		m, err := scrape(ctx, s.sys.admins())
		s.base = m["tidemark_tomongo_rows_total"]
		return s.base >= float64(total) || !s.persists(m), err
	})
}

// persists tells whether a process of the system writes history.
func (s *Session) persists(m meters) bool {
	_, ok := m["tidemark_tomongo_rows_total"]
	return ok
}

// await asks ten times a second until done, a fault, or the end of ctx.
func (s *Session) await(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := s.sys.dead(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return s.running.Wait()
		case <-tick.C:
		}
	}
}

// listen connects devices.
func (s *Session) listen(ctx context.Context) error {
	if s.sys.gateway == "" {
		return nil
	}
	var ready sync.WaitGroup
	for i := range s.cfg.Devices {
		user := right(i % s.world.side)
		if s.cfg.Load.Members > 0 {
			user = left(i % s.world.pool)
		}
		ready.Add(1)
		s.running.Go(func() error { return s.observer.listen(s.ctx, user, ready.Done) })
	}
	all := make(chan struct{})
	go func() { ready.Wait(); close(all) }()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return s.running.Wait()
	}
}

func record(out wire.Out) *kgo.Record {
	r := &kgo.Record{Key: []byte(out.Key), Value: out.Value, Timestamp: out.Time}
	for _, h := range out.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return r
}

// Trial measures one rate.
func (s *Session) Trial(ctx context.Context, rate float64, warmUp, duration time.Duration) (*Report, error) {
	first := s.sent
	warm := int64(rate * warmUp.Seconds())
	measured := max(int64(rate*duration.Seconds()), 1)
	// Numbers go on from one trial to the next; the clock counts from where this
	// one begins.
	c := &clock{rate: rate, from: first + warm, to: first + warm + measured}
	c.begun = time.Now().Add(-time.Duration(float64(first) / rate * float64(time.Second)))
	o := s.observer
	o.fresh()
	o.every = 0
	if s.cfg.Probes > 0 {
		o.every = max(int64(rate/s.cfg.Probes), 1)
	}
	seenBefore := o.seen.Load()
	rowsBefore := s.base
	o.clock.Store(c)
	defer o.clock.Store(nil)

	watch := newWatch(s, c, first, seenBefore, rowsBefore)
	watching, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	var watched errgroup.Group
	watched.Go(func() error { return watch.run(watching) })
	late := newHist()
	var before *snapshot
	err := s.publish(ctx, c, first, late, func() (err error) {
		o.records.Store(0)
		o.bytes.Store(0)
		before, err = s.sys.snapshot(ctx)
		return err
	})
	if err != nil {
		stopWatch()
		return nil, errors.Join(err, watched.Wait())
	}
	// Counts are taken when the last message is through, so that they are of all
	// of them.
	drained := s.drain(ctx, seenBefore+s.sent-first, rowsBefore+float64(s.sent-first))
	after, err := s.sys.snapshot(ctx)
	stopWatch()
	o.probes.Wait()
	if err := errors.Join(drained, err, watched.Wait()); err != nil {
		return nil, err
	}
	s.base = after.meters["tidemark_tomongo_rows_total"]
	return s.report(c, watch, before, after, late), nil
}

// fresh forgets what was measured before.
func (o *observer) fresh() {
	for _, h := range []*hist{o.acked, o.sequenced, o.persisted, o.pullable, o.pushed} {
		h.mu.Lock()
		h.h.Reset()
		h.mu.Unlock()
	}
	o.gone.Store(0)
	o.skipped.Store(0)
}

// publishEvery is the least pause between two rounds of publishing. At 1,000
// messages a second a round is of one or two, as they come from many senders;
// more rounds would cost the generator and Kafka more than the system.
const publishEvery = 2 * time.Millisecond

// publish sends the load. It is never slowed down: what is late is sent at once.
func (s *Session) publish(ctx context.Context, c *clock, first int64, late *hist, begin func() error) error {
	var failed atomic.Pointer[error]
	o := s.observer
	pause := time.NewTimer(0)
	defer pause.Stop()
	begun := false
	for n := first; n < c.to; {
		now := time.Now()
		due := int64(now.Sub(c.begun).Seconds()*c.rate) + 1
		for ; n < min(due, c.to); n++ {
			if n >= c.from && !begun {
				begun = true
				if err := begin(); err != nil {
					return err
				}
			}
			at := c.intended(n)
			out, err := wire.EncodeSend(s.world.message(n, s.sequence.next(), at), "")
			if err != nil {
				return err
			}
			measured := c.measured(n)
			if measured {
				late.add(time.Since(at))
			}
			s.producer.Produce(ctx, record(out), func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(&err)
				} else if measured {
					o.acked.add(time.Since(at))
				}
			})
			s.sent = n + 1
		}
		if err := failed.Load(); err != nil {
			return fmt.Errorf("publish: %w", *err)
		}
		if err := s.sys.dead(); err != nil {
			return err
		}
		s.cfg.Progress(fmt.Sprintf("%.0f messages a second", c.rate), n-first, c.to-first)
		if n >= c.to {
			break // the next one would be of another trial
		}
		pause.Reset(max(time.Until(c.intended(n)), publishEvery))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return s.running.Wait()
		case <-pause.C:
		}
	}
	return nil
}

// stalledAfter is how long nothing at all may come through before what was sent is
// given up. A backlog may take as long as it takes.
const stalledAfter = time.Minute

func (s *Session) drain(ctx context.Context, seen int64, rows float64) error {
	var lastSeen int64
	var lastRows float64
	moved := time.Now()
	err := s.await(ctx, func() (bool, error) {
		// History is asked when the log has all: to ask costs the processes that are measured.
		now, has := s.observer.seen.Load(), lastRows
		if now >= seen {
			m, err := scrape(ctx, s.sys.admins())
			has = m["tidemark_tomongo_rows_total"]
			if err != nil || has >= rows || !s.persists(m) {
				return err == nil, err
			}
		}
		if now != lastSeen || has != lastRows {
			lastSeen, lastRows, moved = now, has, time.Now()
		}
		if time.Since(moved) > stalledAfter {
			return false, fmt.Errorf("none came for %v", stalledAfter)
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("%d of %d messages are through: %w%s", s.observer.seen.Load(), seen, err, s.sys.troubles(ctx))
	}
	return nil
}

// watch notes once a second how far everything is.
type watch struct {
	s      *Session
	clock  *clock
	first  int64
	seen   int64
	rows   float64
	begun  time.Time
	points []Point
}

// Point is a moment of a trial, in messages since its begin.
type Point struct {
	Second    float64 `json:"second"`
	Intended  int64   `json:"intended"`
	Sequenced int64   `json:"sequenced"`
	Persisted int64   `json:"persisted"`
	// Memory is resident, in bytes, by process; Heap is what Go's heaps of the
	// system's processes hold, garbage included.
	Memory map[string]int64 `json:"memory_bytes"`
	Heap   int64            `json:"heap_bytes"`
}

func newWatch(s *Session, c *clock, first, seen int64, rows float64) *watch {
	return &watch{s: s, clock: c, first: first, seen: seen, rows: rows, begun: time.Now()}
}

func (w *watch) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		m, err := scrape(ctx, w.s.sys.admins())
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		now := time.Now()
		due := int64(now.Sub(w.clock.begun).Seconds() * w.clock.rate)
		p := Point{
			Second: now.Sub(w.begun).Seconds(), Intended: min(due, w.clock.to) - w.first,
			Sequenced: w.s.observer.seen.Load() - w.seen, Persisted: int64(m["tidemark_tomongo_rows_total"] - w.rows),
			Memory: map[string]int64{}, Heap: int64(m["go_memstats_heap_alloc_bytes"]),
		}
		for name, pid := range w.s.sys.pids {
			if _, p.Memory[name], err = stat(pid); err != nil {
				return fmt.Errorf("process %s (%d): %w", name, pid, err)
			}
		}
		if !w.s.persists(m) {
			p.Persisted = p.Sequenced
		}
		w.points = append(w.points, p)
	}
}

// lags gives how far the log and history were behind at most while messages
// came, in seconds of traffic, in the second half of a trial.
func (w *watch) lags() (sequenced, persisted float64) {
	total := w.clock.to - w.first
	for _, p := range w.points {
		if p.Intended < total/2 || p.Intended >= total {
			continue
		}
		sequenced = max(sequenced, float64(p.Intended-p.Sequenced)/w.clock.rate)
		persisted = max(persisted, float64(p.Intended-p.Persisted)/w.clock.rate)
	}
	return sequenced, persisted
}

// fewestPoints make a slope. A trial of ten seconds, in which history is written
// twice, has nine or ten.
const fewestPoints = 9

// throughput gives messages a second that went through while those from from to to
// were due, in the log or in history, whichever was slower; false where there are
// too few points to tell. It is the slope of a line through the points (least
// squares), which does not depend on where history was in its steps of some
// seconds when they began and when they ended. It is no more than the rate, as more
// is what was made up for before.
func throughput(points []Point, from, to int64, rate float64) (float64, bool) {
	var in []Point
	for _, p := range points {
		if p.Intended >= from && p.Intended < to {
			in = append(in, p)
		}
	}
	if len(in) < fewestPoints {
		return 0, false
	}
	slope := func(through func(*Point) int64) float64 {
		n, seconds, messages := float64(len(in)), 0.0, 0.0
		for i := range in {
			seconds, messages = seconds+in[i].Second/n, messages+float64(through(&in[i]))/n
		}
		square, product := 0.0, 0.0
		for i := range in {
			d := in[i].Second - seconds
			square, product = square+d*d, product+d*(float64(through(&in[i]))-messages)
		}
		return product / square
	}
	return max(0, min(rate, slope(func(p *Point) int64 { return p.Sequenced }), slope(func(p *Point) int64 { return p.Persisted }))), true
}
