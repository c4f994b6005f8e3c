package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
)

// Reasons of the tail's errors.
const (
	ReasonTailTooLong = "tail_too_long" // transient: ErrTailTooLong
	ReasonTailBehind  = "tail_behind"   // transient: the view did not reach the end in time
	ReasonTailMoved   = "tail_moved"    // transient: a pin was held too long and is void
	ReasonTailMemory  = "tail_memory"   // transient: the views of all partitions are at their bound
	ReasonTailAlone   = "tail_alone"    // transient: one partition's tail is beyond that bound by itself
	ReasonTailClosed  = "tail_closed"   // transient: Run has ended
	ReasonLogLost     = "log_lost"      // fatal: the sequenced log lost records that history needs
)

// ErrTailTooLong is returned when the sequenced log has more records beyond the
// group's committed offset than TailConfig.MaxRecords. It heals when the group
// catches up.
var ErrTailTooLong = errors.New("the tail of the sequenced log is too long")

// ErrTailMemory is wrapped when the tails that are read in a process would take
// more than TailConfig.MaxBytes. It heals when the group catches up.
var ErrTailMemory = errors.New("no room for the tail of the sequenced log")

func errTailTooLong(partition int32, n, limit int64) error {
	return fault.New(fault.Transient, ReasonTailTooLong,
		fmt.Errorf("%w: partition %d has %d records that history may lack, at most %d are read", ErrTailTooLong, partition, n, limit))
}

func errTailGivenUp(partition int32) error {
	return fault.New(fault.Transient, ReasonTailMoved,
		fmt.Errorf("the view of partition %d was given up while it was pinned", partition))
}

// DefaultTailBytes is the bound of all views of a process: 512 MiB.
const DefaultTailBytes = 512 << 20

const (
	defaultPatience = 10 * time.Second
	defaultConfirm  = 5 * time.Second
)

// TailConfig says which log to follow and how much of it to hold.
type TailConfig struct {
	Config
	// Topic is the sequenced log. Empty: Config.Topics().Sequenced.
	Topic string
	// Group is the consumer group that writes history; what it has committed
	// is in history. Required.
	Group string
	// MaxRecords bounds the records of one partition's tail; beyond, requests
	// fail with ErrTailTooLong. 0: 2,000,000.
	MaxRecords int64
	// MaxBytes bounds what the views of all partitions hold together, as it is
	// reckoned, without message bodies. Where they would need more they are read
	// in turn. 0: DefaultTailBytes.
	MaxBytes int64
	// SegmentRecords is how many records are trimmed at once, or a sixteenth of what
	// the view holds where that is more; a view holds at most that many more than it
	// must. 0: 4,096.
	SegmentRecords int
	// Idle is how long a partition's view is kept after the last request.
	// 0: 60 s.
	Idle time.Duration
	// Patience is how long a request waits for Kafka, or for a view to reach
	// the end of the log. 0: 10 s.
	Patience time.Duration
	// Confirm is how long the log must be seen to end below what was read or
	// committed before that counts as lost records. It must be below Patience.
	// 0: 5 s.
	Confirm time.Duration
	// CacheBytes bounds the message bodies kept in memory, for all partitions
	// together. What is not kept is read again. 0: 64 MiB.
	CacheBytes int64
	// FetchBytes is about how much one fetch reads. 0: 2 MiB.
	FetchBytes int32
}

func (c *TailConfig) check() error {
	errs := []error{c.Config.Validate()}
	if c.Group == "" {
		errs = append(errs, errors.New("tail group: the consumer group that writes history must be named"))
	}
	for name, n := range map[string]int64{
		"max records": c.MaxRecords, "max bytes": c.MaxBytes, "segment records": int64(c.SegmentRecords), "idle": int64(c.Idle), "patience": int64(c.Patience),
		"confirm": int64(c.Confirm), "cache bytes": c.CacheBytes, "fetch bytes": int64(c.FetchBytes),
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("tail %s: %d is negative", name, n))
		}
	}
	if confirm, patience := cmp.Or(c.Confirm, defaultConfirm), cmp.Or(c.Patience, defaultPatience); confirm >= patience {
		errs = append(errs, fmt.Errorf("tail confirm %s: must be below patience %s, else lost records are never told", confirm, patience))
	}
	return errors.Join(errs...)
}

// Tail is the shared view of what the sequenced log has beyond the offset that
// history's writer has committed: what history may not have yet. All readers of
// a process share one Tail.
//
// A reader takes a Pin, reads history, and then asks the pin; in that order
// nothing that was ever acknowledged is missing (see DESIGN-tail.md). Partitions
// are read on demand, by what the requests need, so an idle Tail costs Kafka
// nothing.
type Tail struct {
	conf    TailConfig
	log     *slog.Logger
	metrics *tailMetrics
	cache   *tailCache
	memory  *tailMemory

	committed *rounds[int32, committedAnswer]

	ran     atomic.Bool
	started chan struct{} // closed once Run is connected
	closed  chan struct{} // closed when Run begins to end

	mu     sync.Mutex
	state  tailState
	ctx    context.Context // Run's, from connected on
	asking sarama.Client   // for offsets
	fetch  sarama.Client   // for records; a large answer must not delay an offset
	wg     sync.WaitGroup
	views  map[int32]*tailView
	ends   map[int32]*rounds[int32, int64] // one per partition, so that a slow leader delays no other
}

type tailState int

const (
	tailNew tailState = iota
	tailRunning
	tailEnded
)

// committedAnswer is where a reader must begin, and in which round it was asked.
type committedAnswer struct {
	offset int64
	round  int64
	err    error
}

// NewTail checks conf. The Tail answers once Run is at work.
func NewTail(conf TailConfig) (*Tail, error) {
	if err := conf.check(); err != nil {
		return nil, err
	}
	conf.Topic = cmp.Or(conf.Topic, conf.Config.Topics().Sequenced)
	conf.MaxRecords = cmp.Or(conf.MaxRecords, 2_000_000)
	conf.MaxBytes = cmp.Or(conf.MaxBytes, DefaultTailBytes)
	conf.SegmentRecords = cmp.Or(conf.SegmentRecords, 4096)
	conf.Idle = cmp.Or(conf.Idle, time.Minute)
	conf.Patience = cmp.Or(conf.Patience, defaultPatience)
	conf.Confirm = cmp.Or(conf.Confirm, defaultConfirm)
	conf.CacheBytes = cmp.Or(conf.CacheBytes, 64<<20)
	conf.FetchBytes = cmp.Or(conf.FetchBytes, 2<<20)
	m := newTailMetrics(conf.Registerer)
	t := &Tail{
		conf:    conf,
		log:     conf.Config.logger(),
		metrics: m,
		cache:   newTailCache(conf.CacheBytes, m),
		memory:  newTailMemory(conf.MaxBytes, conf.Patience/2, m),
		started: make(chan struct{}),
		closed:  make(chan struct{}),
		views:   make(map[int32]*tailView),
		ends:    make(map[int32]*rounds[int32, int64]),
	}
	t.committed = &rounds[int32, committedAnswer]{ask: t.askCommitted, spawn: t.spawn}
	return t, nil
}

// Run connects, serves requests until ctx is done, and waits for everything
// that it started. Requests that are under way fail. The only errors it returns
// are those that waiting does not heal. It may be called once.
func (t *Tail) Run(ctx context.Context) error {
	if t.ran.Swap(true) {
		return fault.New(fault.Fatal, ReasonContract, errors.New("the tail's Run was called twice"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := t.connect(ctx); err != nil {
		t.end()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	tick := time.NewTicker(max(t.conf.Idle/4, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			t.end()
			return nil
		case now := <-tick.C:
			t.sweep(now.Add(-t.conf.Idle))
		}
	}
}

// connect dials until it succeeds, the fault is not one that heals, or ctx is
// done.
func (t *Tail) connect(ctx context.Context) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		asking, err := t.dial()
		if err == nil {
			var fetch sarama.Client
			if fetch, err = t.dial(); err == nil {
				t.begin(ctx, asking, fetch)
				return nil
			}
			_ = asking.Close() // it holds nothing yet
		}
		if fault.ClassOf(err) == fault.Fatal {
			return err
		}
		t.log.Warn("the tail waits for kafka", "error", err)
		if !tailSleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

func (t *Tail) dial() (sarama.Client, error) {
	client, err := dialReader(t.conf.Config)
	if err != nil {
		return nil, err
	}
	if _, err := client.Partitions(t.conf.Topic); err != nil {
		_ = client.Close() // it holds nothing yet
		return nil, sortError(fmt.Errorf("look up topic %s: %w", t.conf.Topic, err))
	}
	return client, nil
}

// dialReader connects a client for offsets and fetches.
func dialReader(c Config) (sarama.Client, error) {
	s, err := c.adminConfig()
	if err != nil {
		return nil, fault.New(fault.Fatal, "config", err)
	}
	s.Net.ReadTimeout = 10 * time.Second
	s.Metadata.Retry.Max = 3
	s.Metadata.Retry.Backoff = 100 * time.Millisecond
	client, err := sarama.NewClient(c.Brokers, s)
	if err != nil {
		return nil, sortError(fmt.Errorf("connect to kafka: %w", err))
	}
	return client, nil
}

func (t *Tail) begin(ctx context.Context, asking, fetch sarama.Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state, t.ctx, t.asking, t.fetch = tailRunning, ctx, asking, fetch
	close(t.started)
}

// end lets all waiters go, breaks the connections so that what is under way
// returns, and waits for it.
func (t *Tail) end() {
	t.mu.Lock()
	clients := []sarama.Client{t.asking, t.fetch}
	t.state = tailEnded
	close(t.closed)
	t.mu.Unlock()
	for _, c := range clients {
		if c != nil {
			_ = c.Close() // only reads were under way
		}
	}
	t.wg.Wait()
	t.sweep(time.Now().Add(time.Hour))
}

// spawn runs f on a goroutine that Run waits for.
func (t *Tail) spawn(f func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != tailRunning {
		return errTailClosed()
	}
	t.wg.Go(f)
	return nil
}

func errTailClosed() error {
	return fault.New(fault.Transient, ReasonTailClosed, errors.New("the tail is closed"))
}

// sweep drops the views that nobody has used since before.
func (t *Tail) sweep(before time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p, v := range t.views {
		if v.idle(before) {
			delete(t.views, p)
			t.memory.remove(v)
			v.drop()
		}
	}
}

// within gives the context of one request: it ends after Patience, and when the
// Tail ends.
func (t *Tail) within(ctx context.Context) (context.Context, context.CancelFunc, error) {
	wait, cancel := context.WithTimeoutCause(ctx, t.conf.Patience, errPatience)
	select {
	case <-t.started:
		if t.closing() {
			cancel()
			return nil, nil, errTailClosed()
		}
		stop := context.AfterFunc(t.ctx, cancel)
		return wait, func() { stop(); cancel() }, nil
	case <-t.closed:
		cancel()
		return nil, nil, errTailClosed()
	case <-wait.Done():
		err := t.waited(wait, errors.New("kafka was not reached yet"))
		cancel()
		return nil, nil, err
	}
}

var errPatience = errors.New("the tail took too long")

// waited gives the error of a request that failed with why, or whose context
// ended while why kept it waiting.
func (t *Tail) waited(wait context.Context, why error) error {
	if wait.Err() == nil {
		return why
	}
	if errors.Is(context.Cause(wait), errPatience) {
		err := fmt.Errorf("%w: waited %s", errPatience, t.conf.Patience)
		if why != nil && !errors.Is(why, wait.Err()) {
			err = fmt.Errorf("%w: %w", err, why)
		}
		reason := ReasonTailBehind
		if fault.ReasonOf(why) == ReasonTailMemory {
			reason = ReasonTailMemory
		}
		return fault.New(fault.Transient, reason, err)
	}
	if t.closing() {
		return errTailClosed()
	}
	return wait.Err()
}

func (t *Tail) closing() bool {
	select {
	case <-t.closed:
		return true
	case <-t.started:
		return t.ctx.Err() != nil
	default:
		return false
	}
}

// counted counts a request's failure, by reason.
func (t *Tail) counted(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		t.metrics.failures.WithLabelValues(fault.ReasonOf(err)).Inc()
	}
	return err
}

func (t *Tail) partitions() ([]int32, error) {
	all, err := t.asking.Partitions(t.conf.Topic)
	if err != nil {
		return nil, sortError(fmt.Errorf("look up topic %s: %w", t.conf.Topic, err))
	}
	return all, nil
}

// askCommitted tells where readers must begin: the group's committed offset,
// or the log's start where it has none.
func (t *Tail) askCommitted(partitions []int32, round int64) (map[int32]committedAnswer, error) {
	var offsets map[int32]int64
	err := tailTries(t.ctx, 3, func() (err error) {
		offsets, err = committedOffsets(t.asking, t.conf.Group, t.conf.Topic, partitions)
		return err
	})
	if err != nil {
		return nil, sortError(err)
	}
	out := make(map[int32]committedAnswer, len(partitions))
	for p, off := range offsets {
		a := committedAnswer{offset: off, round: round}
		if off == noOffset {
			a.err = tailTries(t.ctx, 3, func() (err error) {
				a.offset, err = listedOffset(t.asking, t.conf.Topic, p, sarama.OffsetOldest)
				return err
			})
			a.err = sortError(a.err)
		}
		out[p] = a
	}
	return out, nil
}

// endRounds gives the rounds that ask where a partition ends.
func (t *Tail) endRounds(partition int32) *rounds[int32, int64] {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.ends[partition]
	if r == nil {
		r = &rounds[int32, int64]{ask: t.askEnds, spawn: t.spawn}
		t.ends[partition] = r
	}
	return r
}

func (t *Tail) askEnds(partitions []int32, _ int64) (map[int32]int64, error) {
	out := make(map[int32]int64, len(partitions))
	for _, p := range partitions {
		err := tailTries(t.ctx, 3, func() (err error) {
			out[p], err = listedOffset(t.asking, t.conf.Topic, p, sarama.OffsetNewest)
			return err
		})
		if err != nil {
			return nil, sortError(err)
		}
	}
	return out, nil
}
