package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

// tails is a log of some partitions, with as many records on each, and a
// conversation of each partition.
func tails(t *testing.T, partitions int32, records int) (*tailLog, []watermark.ConversationID) {
	t.Helper()
	l := newTailLog(t, partitions)
	ids := make([]watermark.ConversationID, partitions)
	left := make([]int, partitions)
	for p := range left {
		left[p] = records
	}
	for n, missing := 0, int(partitions)*records; missing > 0; n++ {
		id := watermark.GroupOf(fmt.Sprint("g", n))
		p := l.partition(id)
		if left[p] == 0 {
			continue
		}
		ids[p] = id
		var recs []watermark.Record
		for i := range min(left[p], 50) {
			recs = append(recs, watermark.Record{Conversation: id, Events: []watermark.Event{tailRun(watermark.Seq(i + 1))}})
		}
		l.addAll(recs...)
		left[p] -= len(recs)
		missing -= len(recs)
	}
	return l, ids
}

// most notes the highest value of a gauge until stop.
func (u *tailUnder) most(name string) (stop func() float64) {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	high := 0.0
	wg.Go(func() {
		for ctx.Err() == nil {
			high = max(high, u.metric(name))
			time.Sleep(time.Millisecond)
		}
	})
	return func() float64 { cancel(); wg.Wait(); return high }
}

// until asks for states again and again, while that may heal.
func (u *tailUnder) until(ctx context.Context, ids ...watermark.ConversationID) (map[watermark.ConversationID]*watermark.State, error) {
	for {
		p, err := u.Pin(ctx, ids)
		if err != nil {
			return nil, err
		}
		states, err := p.States(ctx, ids)
		p.Release()
		if err == nil || fault.ClassOf(err) != fault.Transient || ctx.Err() != nil {
			return states, err
		}
	}
}

// Each tail fits, all together do not: they are read in turn, whoever asks and
// however long somebody keeps a pin, and what is held stays within the bound.
func TestTailsShareOneBound(t *testing.T) {
	const partitions, records, fetch = 4, 3000, 16 << 10
	l, ids := tails(t, partitions, records)
	free := l.tail(func(c *pipeline.TailConfig) { c.FetchBytes = fetch })
	p := free.pin(ids...)
	free.state(p, ids[0])
	one := free.metric("tidemark_pipeline_tail_bytes")
	if one < records*40 || one > records*1000 {
		t.Fatalf("%d records are reckoned to take %v bytes", records, one)
	}
	limit := int64(1.6 * one)
	u := l.tail(func(c *pipeline.TailConfig) {
		c.MaxBytes, c.FetchBytes, c.Patience, c.SegmentRecords = limit, fetch, 2*time.Second, 100
	})
	held := u.pin(ids[0]) // somebody who reads history for long
	u.state(held, ids[0])
	stop := u.most("tidemark_pipeline_tail_bytes")
	waited := u.most("tidemark_pipeline_tail_waiting_partitions")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for range 2 {
		for _, id := range ids {
			g.Go(func() error {
				states, err := u.until(ctx, id)
				if err == nil {
					l.completes(id, 0, -1, states[id])
				}
				return err
			})
		}
	}
	// Two that need two at once, in both orders, hold up nobody.
	both, off := context.WithCancel(ctx)
	var greedy sync.WaitGroup
	for _, pair := range [][]watermark.ConversationID{{ids[1], ids[2]}, {ids[2], ids[1]}} {
		greedy.Go(func() {
			for both.Err() == nil {
				_, _ = u.until(both, pair...)
			}
		})
	}
	err := g.Wait()
	off()
	greedy.Wait()
	if err != nil {
		t.Error(err)
	}
	if high := stop(); high > float64(limit) {
		t.Errorf("%v bytes were held, at most %d are allowed", high, limit)
	}
	if waited() == 0 {
		t.Error("that readers waited was not shown")
	}
}

// A tail that is beyond the bound by itself is refused, with its reason, and not
// read again until it has become shorter.
func TestATailThatIsTooLargeByItself(t *testing.T) {
	const records, fetch = 3000, 4 << 10
	l, ids := tails(t, 1, records)
	u := l.tail(func(c *pipeline.TailConfig) { c.MaxBytes, c.FetchBytes, c.SegmentRecords = 400<<10, fetch, 50 })
	ask := func() error {
		p, err := u.Pin(t.Context(), ids[:1])
		if err != nil {
			return err
		}
		defer p.Release()
		_, err = p.States(t.Context(), ids[:1])
		return err
	}
	if err := ask(); fault.ReasonOf(err) != pipeline.ReasonTailAlone || fault.ClassOf(err) != fault.Transient || !errors.Is(err, pipeline.ErrTailMemory) {
		t.Fatalf("a tail beyond the bound: %v, want %s", err, pipeline.ReasonTailAlone)
	}
	fetches := l.requests(int16(kmsg.Fetch))
	if err := ask(); fault.ReasonOf(err) != pipeline.ReasonTailAlone {
		t.Fatalf("asked again: %v", err)
	}
	if n := fetches(); n != 0 {
		t.Errorf("it was read %d times more to find that out", n)
	}
	if n := u.metric("tidemark_pipeline_tail_bytes"); n != 0 {
		t.Errorf("%v bytes are held for a tail that was given up", n)
	}
	l.commit(0, records-20)
	if err := ask(); err != nil {
		t.Errorf("when history has caught up: %v", err)
	}
	u.stop()
	if n := u.metric("tidemark_pipeline_tail_bytes"); n != 0 {
		t.Errorf("%v bytes are counted when nothing is held", n)
	}
}

// What a segment says of a conversation costs the same however little it is. In a
// long tail segments grow, so that toRedis's bound of a tail, a million records,
// fits into the bound of memory; and trimming still takes a sixteenth at a time.
func TestSegmentsOfALongTailGrow(t *testing.T) {
	const conversations, perSegment, records = 100, 100, 10_000
	l := newTailLog(t, 1)
	ids := make([]watermark.ConversationID, conversations)
	for i := range ids {
		ids[i] = watermark.GroupOf(fmt.Sprintf("b%d", i))
	}
	for n := range records / conversations {
		var recs []watermark.Record
		for _, id := range ids {
			recs = append(recs, watermark.Record{Conversation: id, Events: []watermark.Event{tailRun(watermark.Seq(n + 1))}})
		}
		l.addAll(recs...)
	}
	u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = perSegment })
	p := u.pin(ids[0])
	if s := u.state(p, ids[0]); s.Max != records/conversations {
		t.Fatalf("maximum %d, want %d", s.Max, records/conversations)
	}
	p.Release()
	if n := u.metric("tidemark_pipeline_tail_segments"); n > 60 {
		t.Errorf("%g segments of a hundred that each conversation is in", n)
	}
	if per := u.metric("tidemark_pipeline_tail_bytes") / records; per > 450 {
		t.Errorf("%.0f bytes a record; a million take more than %d", per, pipeline.DefaultTailBytes)
	}
	l.commit(0, records/2)
	u.pin(ids[0]).Release()
	if n := u.metric("tidemark_pipeline_tail_records"); n < records/2 || n > records/2+records/16+perSegment {
		t.Errorf("%g records are held, where history has half of %d", n, records)
	}
}
