package bench

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// maxPrepared bounds the bytes of the records that are made beforehand.
	maxPrepared = 4 << 30
	// chunkRecords is how many records of all partitions are made at once, or a
	// batch of each: a long load is not in memory as a whole.
	chunkRecords = 100_000
	// warmBatches are handed in before a stage is measured, at least.
	warmBatches = 2
	// topicID is of the topics of a stage that is fed by hand.
	topicID = "AAAAAAAAAAAAAAAAAAAAAA"
)

// warm is how many batches of a partition are handed in before it is measured: all
// conversations get a message.
func (c *StageConfig) warm() int {
	per := c.perBatch()
	return max(warmBatches, (c.perPartition()+per-1)/per)
}

// perBatch is how many conversations have their turn in a batch.
func (c *StageConfig) perBatch() int { return (c.Batch + c.PerConversation - 1) / c.PerConversation }

// perPartition is how many there are.
func (c *StageConfig) perPartition() int {
	return max(c.perBatch(), (c.Conversations+c.Partitions-1)/c.Partitions)
}

// chunk is how many batches of each partition are made at once.
func (c *StageConfig) chunk() int { return max(1, chunkRecords/c.Batch/c.Partitions) }

// line is one partition of a stage, with what it is fed.
type line struct {
	worker
	*feeder
}

func (l *line) run(ctx context.Context, batches [][]wire.Record) error {
	for _, b := range batches {
		if _, err := l.Handle(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// flush does what a worker has put off: it is part of what messages cost.
func (l *line) flush(ctx context.Context) error {
	if f, ok := l.worker.(interface {
		Flush(ctx context.Context) (durable int64, err error)
	}); ok {
		_, err := f.Flush(ctx)
		return err
	}
	return nil
}

// flushLines does so for all partitions at once.
func flushLines(ctx context.Context, ls []*line) error {
	group, running := errgroup.WithContext(ctx)
	for _, l := range ls {
		group.Go(func() error { return l.flush(running) })
	}
	return group.Wait()
}

// lines makes the partitions of a stage and warms them up.
func lines(ctx context.Context, cfg *StageConfig) (_ []*line, err error) {
	make, err := stageOf(cfg)
	if err != nil {
		return nil, err
	}
	var out []*line
	defer func() {
		if err != nil {
			err = errors.Join(err, closeLines(out))
		}
	}()
	for p := range cfg.Partitions {
		w, err := make(int32(p))
		if err != nil {
			return nil, err
		}
		l := &line{w, newFeeder(cfg, int32(p))}
		out = append(out, l)
		if err := l.keep(ctx); err != nil {
			return nil, err
		}
		cfg.Progress("preparing", int64(p+1), int64(cfg.Partitions))
	}
	if err := feed(ctx, cfg, out, "warming up", cfg.warm(), func(run func() error) error { return run() }); err != nil {
		return nil, err
	}
	return out, flushLines(ctx, out)
}

// feed hands that many batches to each partition, all partitions at once. What is
// handed in is made before, a chunk at a time; around is called with what hands it
// in.
func feed(ctx context.Context, cfg *StageConfig, ls []*line, what string, batches int, around func(run func() error) error) error {
	for done := 0; done < batches; {
		n := min(cfg.chunk(), batches-done)
		chunks := make([][][]wire.Record, len(ls))
		for i, l := range ls {
			var err error
			if chunks[i], err = l.take(n); err != nil {
				return err
			}
		}
		err := around(func() error {
			group, running := errgroup.WithContext(ctx)
			for i, l := range ls {
				group.Go(func() error {
					if err := l.run(running, chunks[i]); err != nil || done+n < batches {
						return err
					}
					return l.flush(running)
				})
			}
			return group.Wait()
		})
		if err != nil {
			return err
		}
		done += n
		cfg.Progress(what, int64(done), int64(batches))
	}
	return nil
}

func closeLines(ls []*line) error {
	var errs []error
	for _, l := range ls {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Feed makes a stage and what it is fed with; handle does all of it, once, one
// partition after another. It is for measuring what the stage allocates.
func Feed(ctx context.Context, cfg StageConfig) (handle func() error, messages int, err error) {
	if err := cfg.fill(); err != nil {
		return nil, 0, err
	}
	ls, err := lines(ctx, &cfg)
	if err != nil {
		return nil, 0, err
	}
	all := make([][][]wire.Record, len(ls))
	for i, l := range ls {
		if all[i], err = l.take(cfg.Batches); err != nil {
			return nil, 0, errors.Join(err, closeLines(ls))
		}
	}
	return func() error {
		var errs []error
		for i, l := range ls {
			errs = append(errs, l.run(ctx, all[i]), l.flush(ctx))
		}
		return errors.Join(append(errs, closeLines(ls))...)
	}, cfg.Batch * cfg.Batches * cfg.Partitions, nil
}

// RunStage measures one stage: the time in which it works, without the one in which
// its records are made.
func RunStage(ctx context.Context, cfg StageConfig) (_ *StageReport, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	ls, err := lines(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeLines(ls)) }()
	sys := &system{redis: cfg.Redis, pids: map[string]int{}}
	sys.watch("this", ownPID())
	if pid, ok := listener(cfg.RedisAddress); ok {
		sys.watch("redis", pid)
	}
	first, err := sys.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var taken time.Duration
	last := first
	idle := map[string]float64{} // processor time that went into making records
	measured := func(run func() error) error {
		before, err := sys.snapshot(ctx)
		if err != nil {
			return err
		}
		for name := range before.cpu {
			idle[name] += before.cpu[name] - last.cpu[name]
		}
		if err := run(); err != nil {
			return err
		}
		last, err = sys.snapshot(ctx)
		if err != nil {
			return err
		}
		taken += last.at.Sub(before.at)
		return nil
	}
	if err := feed(ctx, &cfg, ls, "measuring", cfg.Batches, measured); err != nil {
		return nil, err
	}
	if err := measured(func() error { return flushLines(ctx, ls) }); err != nil {
		return nil, err
	}
	for name := range first.cpu {
		first.cpu[name] += idle[name]
	}
	first.at = last.at.Add(-taken)
	return stageReport(&cfg, first, last, taken), nil
}

// feeder makes the batches of one partition, beforehand: making them is no part of
// the stage.
type feeder struct {
	cfg       *StageConfig
	w         *world
	partition int32
	convs     []int           // that it has, by their number in w
	seqs      []watermark.Seq // the last one of each
	n         int64           // records that were made
	batch     int             // batches
}

func newFeeder(cfg *StageConfig, partition int32) *feeder {
	f := &feeder{cfg: cfg, w: cfg.people(), partition: partition}
	for i := 0; len(f.convs) < cfg.perPartition(); i++ {
		id, _, _ := f.w.conversation(i)
		if wire.PartitionOf(string(id), int32(cfg.Partitions)) == partition {
			f.convs = append(f.convs, i)
		}
	}
	f.seqs = make([]watermark.Seq, len(f.convs))
	return f
}

// take gives the next batches.
func (f *feeder) take(batches int) ([][]wire.Record, error) {
	cfg := f.cfg
	out := make([][]wire.Record, batches)
	for b := range out {
		out[b] = make([]wire.Record, 0, cfg.Batch)
		for i := range cfg.Batch {
			k := (f.batch*cfg.perBatch() + i/cfg.PerConversation) % len(f.convs)
			if math.Floor(float64(f.n+1)*cfg.Hot) > math.Floor(float64(f.n)*cfg.Hot) {
				k = 0
			}
			rec, err := stageRecord(cfg.Stage, f.w, f.n, f.convs[k], f.seqs[k]+1)
			if err != nil {
				return nil, err
			}
			f.seqs[k]++
			rec.Partition, rec.Offset, rec.Time = f.partition, f.n, time.Now()
			out[b] = append(out[b], rec)
			f.n++
		}
		f.batch++
	}
	return out, nil
}

// people are those of a stage's conversations.
func (c *StageConfig) people() *world {
	w := newWorld(Load{Conversations: 1, Members: c.Members, Size: c.Size, Seed: 1})
	w.side = 1_000_003 // the second user of two then is the same for all
	return w
}

// stageRecord makes one record of the topic that a stage reads.
func stageRecord(stage string, w *world, n int64, conv int, seq watermark.Seq) (wire.Record, error) {
	out, err := wire.EncodeSend(w.message(n, conv, time.Now()), "")
	if err != nil {
		return wire.Record{}, err
	}
	rec := wire.Record{Topic: wire.TopicToRedis, TopicID: topicID, Offset: n, Time: time.Now(), Key: []byte(out.Key), Value: out.Value, Headers: out.Headers}
	if stage == "toredis" {
		return rec, nil
	}
	in, err := wire.Codec{}.DecodeInput(rec)
	if err != nil {
		return rec, err
	}
	m := *in.Message
	m.Seq = seq
	value, err := wire.EncodeRecord(watermark.Record{
		Conversation: in.Conversation, Inputs: []watermark.Origin{in.Origin},
		Events: []watermark.Event{watermark.MessagesSequenced{Messages: []watermark.Message{m}}},
	})
	rec.Topic, rec.Value, rec.Headers = wire.TopicSequenced, value, nil
	return rec, err
}
