package pipeline_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/watermark"
)

// An owner appends, history's writer follows at its own pace and commits, and
// readers load. Each must find every message that was acknowledged before it
// asked, whatever the others do meanwhile.
func TestTailMissesNothingWhileTheLogMoves(t *testing.T) {
	const messages = 600
	l := newTailLog(t, 1)
	u := l.tail(func(c *pipeline.TailConfig) { c.SegmentRecords = 2; c.CacheBytes = 1000; c.FetchBytes = 2000 })
	var (
		acked   atomic.Int64 // the last acknowledged seq
		history atomic.Int64 // seqs up to here are in history
		wg      sync.WaitGroup
		work    = make(chan struct{}, messages)
	)
	wg.Go(func() {
		defer close(work)
		for s := watermark.Seq(1); s <= messages; s++ {
			l.add(tailConv, tailRun(s))
			acked.Store(int64(s))
			work <- struct{}{}
		}
	})
	wg.Go(func() {
		n := int64(0)
		for range work {
			if n++; n%3 == 0 {
				history.Store(n) // rows first, then the offset
				l.commit(0, n)
			}
		}
	})
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				l.loadAll(u, &history, &acked)
				if t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
	close(done)
	readers.Wait()
}

// loadAll loads as a reader does and checks that nothing is missing.
func (l *tailLog) loadAll(u *tailUnder, history, acked *atomic.Int64) {
	ids := []watermark.ConversationID{tailConv}
	p, err := u.Pin(l.tb.Context(), ids)
	if err != nil {
		l.tb.Error(err)
		return
	}
	defer p.Release()
	stored := watermark.Seq(history.Load())
	known := watermark.Seq(acked.Load())
	states, err := p.States(l.tb.Context(), ids)
	if err != nil {
		l.tb.Error(err)
		return
	}
	top := stored
	if s := states[tailConv]; s != nil {
		top = max(top, s.Max)
	}
	if top < known {
		l.tb.Errorf("seq %d was acknowledged, history has %d and the tail %d", known, stored, top)
	}
	got, err := p.Messages(l.tb.Context(), tailConv, watermark.Interval{First: stored + 1, Last: known}, 0)
	if err != nil {
		l.tb.Error(err)
		return
	}
	if len(got) != int(max(known-stored, 0)) {
		l.tb.Errorf("%d messages of %d..%d", len(got), stored+1, known)
	}
}

// Records that were fetched for a place where the view no longer stands must
// not be folded: what lies before them would be taken as read.
func TestTailRestartsWhileAFetchIsUnderWay(t *testing.T) {
	l := newTailLog(t, 1)
	for s := range watermark.Seq(10) {
		l.add(tailConv, tailRun(s+1))
	}
	l.commit(0, 5)
	u := l.tail(nil)
	first := u.pin(tailConv)
	release, arrived := l.holdBack(keyFetch)
	done := make(chan error, 1)
	go func() {
		_, err := first.States(t.Context(), []watermark.ConversationID{tailConv})
		done <- err
	}()
	<-arrived
	l.commit(0, 2) // rewound: the view begins again
	second := u.pin(tailConv)
	close(release)
	l.completes(tailConv, 2, -1, u.state(second, tailConv))
	if err := <-done; err != nil {
		t.Error(err)
	}
	l.completes(tailConv, 5, -1, u.state(first, tailConv))
}
