package deadletters

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

const (
	// batch is how many letters are marked together, batchBytes how large they
	// may be together; together they bound what a killed call leaves open.
	batch, batchBytes = 200, 4 << 20
	// lanes is how many keys are appended at once.
	lanes = 16
)

// Order says which letters are meant and how.
type Order struct {
	Filter
	// DryRun looks and does nothing.
	DryRun bool
	// Each is told of every letter that is chosen, before it is handled. nil:
	// nobody is.
	Each func(*Letter)
}

// Result counts letters.
type Result struct {
	Chosen int `json:"chosen"`
	Done   int `json:"done"`
	// Found were replayed by an earlier call that did not live to say so.
	Found int `json:"found"`
	// Failed are told of in Failures, the first of them.
	Failed   int      `json:"failed"`
	Failures []string `json:"failures,omitempty"`
}

func (r *Result) fail(place string, err error) {
	r.Failed++
	if len(r.Failures) < 20 {
		r.Failures = append(r.Failures, fmt.Sprintf("%s: %v", place, err))
	}
}

// Replay appends the records of the chosen letters to their topics again. The
// error is about the call as a whole; it can be called again, and goes on.
func (b *Box) Replay(ctx context.Context, o Order) (*Result, error) {
	res := new(Result)
	led, err := b.read(ctx, &o.Filter)
	if err != nil {
		return res, err
	}
	if err := b.settle(ctx, led, &o, res); err != nil {
		return res, err
	}
	ends := make(map[string]map[int32]int64) // of the topics that are appended to
	err = b.inBatches(ctx, led, &o, res, func(letters []Letter) error { return b.replay(ctx, letters, ends, res) })
	return res, err
}

// inBatches hands over the chosen letters.
func (b *Box) inBatches(ctx context.Context, led *ledger, o *Order, res *Result, handle func([]Letter) error) error {
	var letters []Letter
	bytes := 0
	flush := func() error {
		if len(letters) == 0 || o.DryRun {
			letters, bytes = nil, 0
			return nil
		}
		err := handle(letters)
		letters, bytes = nil, 0
		return err
	}
	for l, err := range b.letters(ctx, led, &o.Filter) {
		if err != nil {
			return err
		}
		res.Chosen++
		if o.Each != nil {
			o.Each(&l)
		}
		letters, bytes = append(letters, l), bytes+len(l.Record.Value)
		if len(letters) >= batch || bytes >= batchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// settle finds out what became of the letters that a call before this one was
// replaying when it died, so that none is replayed again that was.
func (b *Box) settle(ctx context.Context, led *ledger, o *Order, res *Result) error {
	topics := make(map[string]map[int32]int64) // from where to look
	for _, m := range led.open {
		from := topics[m.Topic]
		if from == nil {
			from = make(map[int32]int64)
			topics[m.Topic] = from
		}
		for p, at := range m.Ends {
			if old, ok := from[p]; !ok || at < old {
				from[p] = at
			}
		}
	}
	found := make(map[string]bool)
	for _, topic := range sorted(topics) {
		for r, err := range b.cfg.Log.Scan(ctx, topic, topics[topic], nil) {
			switch {
			case errors.Is(err, pipeline.ErrLogStart) && o.Handled:
				return nil // whoever asks for letters that were replayed already does not mind
			case errors.Is(err, pipeline.ErrLogStart):
				return fmt.Errorf("an earlier replay did not end, and topic %s does not hold any more what it may have appended; "+
					"replay these letters with --again if they are not there, or drop them: %w", topic, err)
			case err != nil:
				return fmt.Errorf("look for what an earlier replay appended: %w", err)
			default:
				if id := wire.ReplayedLetter(&r); id != "" {
					if _, open := led.open[id]; open {
						found[id] = true
					}
				}
			}
		}
	}
	var marks []wire.Mark
	for _, id := range sorted(led.open) {
		m := wire.Mark{Letter: id, Deed: wire.Released, Why: "it was not appended", Time: b.cfg.Now()}
		if found[id] {
			m.Deed, m.Why = wire.Replayed, ""
			res.Found++
		}
		marks = append(marks, m)
	}
	for _, m := range marks {
		led.note(m, len(o.Places) > 0)
	}
	if o.DryRun {
		return nil
	}
	return b.mark(ctx, marks)
}

// replay handles a batch: a mark that says so, the records, a mark that says
// that they are there.
func (b *Box) replay(ctx context.Context, letters []Letter, ends map[string]map[int32]int64, res *Result) error {
	var marks []wire.Mark
	var queues [][]job
	at := make(map[string]int)
	for i := range letters {
		l := &letters[i]
		out, err := b.out(l)
		if err != nil {
			res.fail(l.Place(), err)
			continue
		}
		if ends[out.Topic] == nil {
			if ends[out.Topic], err = b.cfg.Log.Ends(ctx, out.Topic); err != nil {
				return fmt.Errorf("replay to %s: %w", out.Topic, err)
			}
		}
		marks = append(marks, wire.Mark{Letter: l.ID(), Deed: wire.Replaying, Time: b.cfg.Now(), Topic: out.Topic, Ends: ends[out.Topic]})
		q, ok := at[out.Topic+"/"+out.Key]
		if !ok || out.Key == "" {
			q, queues = len(queues), append(queues, nil)
			at[out.Topic+"/"+out.Key] = q
		}
		queues[q] = append(queues[q], job{letter: l, out: out})
	}
	if err := b.mark(ctx, marks); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(lanes)
	for _, queue := range queues {
		g.Go(func() error { return b.append(gctx, queue) })
	}
	err := g.Wait()
	marks = nil
	for _, queue := range queues {
		for _, j := range queue {
			m := wire.Mark{Letter: j.letter.ID(), Deed: wire.Replayed, Time: b.cfg.Now()}
			switch {
			case j.refused != nil:
				m.Deed, m.Why = wire.Released, j.refused.Error()
				res.fail(j.letter.Place(), j.refused)
			case j.done:
				res.Done++
			default:
				continue // the call ends before it was its turn, or with an error of which nobody knows
			}
			marks = append(marks, m)
		}
	}
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return b.mark(ctx, marks)
}

// job is one letter that is replayed.
type job struct {
	letter  *Letter
	out     wire.Out
	done    bool
	refused error // Kafka will never take it
}

// append appends one after another.
func (b *Box) append(ctx context.Context, queue []job) error {
	for i := range queue {
		j := &queue[i]
		err := b.cfg.Appender.Append(ctx, []wire.Out{j.out})
		switch {
		case err == nil:
			j.done = true
		case fault.ClassOf(err) == fault.Poison:
			j.refused = err
		default:
			return err
		}
	}
	return nil
}

// out gives a letter as it is appended.
func (b *Box) out(l *Letter) (wire.Out, error) {
	out, err := l.Replay()
	if err != nil {
		return out, err
	}
	switch {
	case out.Topic == b.cfg.Input, out.Topic == b.cfg.Offline && out.Topic != "":
	case out.Topic == b.cfg.Sequenced:
		// There the partition is the owner's, whatever the key says.
		out.Partition = l.Record.Partition
	default:
		return out, fmt.Errorf("topic %s is not of this deployment, which has %s, %s and %s", out.Topic, b.cfg.Input, b.cfg.Sequenced, b.cfg.Offline)
	}
	return out, nil
}

// mark appends marks.
func (b *Box) mark(ctx context.Context, marks []wire.Mark) error {
	if len(marks) == 0 {
		return nil
	}
	outs := make([]wire.Out, len(marks))
	for i, m := range marks {
		var err error
		if outs[i], err = wire.EncodeMark(m); err != nil {
			return err
		}
		outs[i].Topic = b.cfg.Topic
	}
	if err := b.cfg.Appender.Append(ctx, outs); err != nil {
		return fmt.Errorf("mark %d dead letters: %w", len(marks), err)
	}
	return nil
}

// Drop notes of the chosen letters that they are not needed, and why. Nothing
// is deleted.
func (b *Box) Drop(ctx context.Context, o Order, why string) (*Result, error) {
	res := new(Result)
	led, err := b.read(ctx, &o.Filter)
	if err != nil {
		return res, err
	}
	err = b.inBatches(ctx, led, &o, res, func(letters []Letter) error {
		marks := make([]wire.Mark, len(letters))
		for i := range letters {
			marks[i] = wire.Mark{Letter: letters[i].ID(), Deed: wire.Dropped, Why: why, Time: b.cfg.Now()}
		}
		if err := b.mark(ctx, marks); err != nil {
			return err
		}
		res.Done += len(letters)
		return nil
	})
	return res, err
}
