package syncapi

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// maxWave and minWave bound how many rows one wave reads, over all entries
	// of a call; between them waveBytes of the largest bodies decide.
	maxWave, minWave = 2000, 100
	waveBytes        = 128 << 20
	// truthReaders is how many entries of a call read the truth at once.
	truthReaders = 8
	// answerBytes is what an answer never exceeds unless PageBytes is more, save
	// by its first message: gRPC clients accept 4 MiB when nobody says.
	answerBytes = 7 << 19
)

// want is what a wave reads for one entry.
type want struct {
	*entry
	spans watermark.Intervals
	warm  bool
	fault error
}

// fetch serves the planned pages. A usual call takes one wave; more are needed
// when it asks for so many rows that holding all at once would be too much.
func (p *pull) fetch(ctx context.Context) error {
	for {
		wave := p.wave()
		if len(wave) == 0 {
			return nil
		}
		if err := p.read(ctx, wave); err != nil {
			return err
		}
		var doubtful []*entry
		for _, w := range wave {
			if w.fault != nil {
				p.fail(w.entry, w.fault)
				continue
			}
			if p.serve(w.entry, w.spans) {
				continue
			}
			if w.checked {
				w.end()
				continue
			}
			doubtful = append(doubtful, w.entry)
		}
		if err := p.check(ctx, doubtful); err != nil {
			return err
		}
	}
}

// wave picks what is read next: at first a fair share for each entry, then
// more in the order of the request.
func (p *pull) wave() []*want {
	var open []*entry
	for _, e := range p.entries {
		if e.err == nil && !e.full && !e.gap && len(e.todo) > 0 {
			open = append(open, e)
		}
	}
	if len(open) == 0 {
		return nil
	}
	body := min(cmp.Or(p.s.cfg.Limits.MaxBody, convert.DefaultMaxBody), convert.HardMaxBody)
	rows := min(max(waveBytes/int64(body), minWave), maxWave)
	open = open[:min(len(open), int(rows))]
	share := make([]int64, len(open))
	left := rows
	for i, e := range open {
		share[i] = min(e.todo.Count(), rows/int64(len(open)))
		left -= share[i]
	}
	out := make([]*want, len(open))
	for i, e := range open {
		more := min(e.todo.Count()-share[i], left)
		left -= more
		out[i] = &want{entry: e, spans: e.next(share[i] + more), warm: e.sight.Temperature != watermark.Cold}
	}
	return out
}

// next gives the n seqs of todo that are nearest the kept edge.
func (e *entry) next(n int64) watermark.Intervals {
	req := watermark.PageRequest{Begin: 0, End: watermark.MaxSeq, Num: n, Keep: e.req.Keep}
	page, _ := watermark.PlanPage(e.todo, req) // its range is in order
	return page.Spans
}

// read brings the rows of a wave: from Redis where it may be believed, in one
// round trip, and the holes from the truth.
func (p *pull) read(ctx context.Context, wave []*want) error {
	if err := p.readHot(ctx, wave); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(truthReaders)
	for _, w := range wave {
		holes := w.holes()
		if len(holes) == 0 {
			continue
		}
		g.Go(func() error {
			// An entry whose rows cannot be read fails alone.
			w.fault = p.readTruth(gctx, w.entry, holes)
			return nil
		})
	}
	return g.Wait()
}

func (p *pull) readHot(ctx context.Context, wave []*want) error {
	var spans []Span
	var owners []*want
	for _, w := range wave {
		if !w.warm {
			continue
		}
		for _, i := range w.spans {
			spans = append(spans, Span{w.conv, i.First, i.Last})
			owners = append(owners, w)
		}
	}
	if len(spans) == 0 {
		return nil
	}
	got, err := p.s.cfg.Hot.Messages(ctx, spans)
	if err != nil {
		return err
	}
	n := 0
	for i, rows := range got {
		owners[i].take(rows)
		n += len(rows)
	}
	p.s.metrics.rows.WithLabelValues("hot").Add(float64(n))
	return nil
}

func (p *pull) readTruth(ctx context.Context, e *entry, holes watermark.Intervals) error {
	for _, h := range holes {
		rows, err := p.s.cfg.Truth.Messages(ctx, e.conv, h)
		if err != nil {
			return err
		}
		e.take(rows)
		p.s.metrics.rows.WithLabelValues("truth").Add(float64(len(rows)))
	}
	return nil
}

// take keeps rows that were read. What Redis said first stands.
func (e *entry) take(rows []watermark.Message) {
	if e.rows == nil {
		e.rows = make(rowMap, len(rows))
	}
	for i := range rows {
		if _, ok := e.rows[rows[i].Seq]; !ok {
			e.rows[rows[i].Seq] = &rows[i]
		}
	}
}

// holes gives for each span the smallest interval that holds all of its seqs
// that were not read; a span has at most watermark.MaxPage of them.
func (w *want) holes() watermark.Intervals {
	var out watermark.Intervals
	for _, i := range w.spans {
		h := watermark.Interval{First: 1}
		for seq := i.First; seq <= i.Last; seq++ {
			if _, ok := w.rows[seq]; ok {
				continue
			}
			if h.Empty() {
				h.First = seq
			}
			h.Last = seq
		}
		if !h.Empty() {
			out = append(out, h)
		}
	}
	return out
}

// serve adds the rows of spans to the page, from the kept edge on, until one is
// missing, which makes it false, or no more fits.
func (p *pull) serve(e *entry, spans watermark.Intervals) bool {
	for seq := range e.fromEdge(spans) {
		row, ok := e.rows[seq]
		if !ok {
			return false
		}
		m, size := e.message(row)
		if !p.fits(e, size) {
			e.full = true
			break
		}
		p.left -= size
		e.bytes += size
		e.served = append(e.served, m)
		delete(e.rows, seq)
		e.drop(seq)
	}
	if e.full {
		e.rows = nil
	}
	return true
}

// fits tells whether e may take size more bytes. The first message of an entry
// fits even beyond the limit, so that whoever follows rest gets on, until the
// answer as a whole would be too large; the first of all always fits.
func (p *pull) fits(e *entry, size int) bool {
	if size <= p.left || p.left == p.s.cfg.PageBytes {
		return true
	}
	used := p.s.cfg.PageBytes - p.left
	return len(e.served) == 0 && used+size <= answerBytes
}

// fromEdge walks over spans from the kept edge on.
func (e *entry) fromEdge(spans watermark.Intervals) func(yield func(watermark.Seq) bool) {
	return func(yield func(watermark.Seq) bool) {
		if e.req.Keep == watermark.NearBegin {
			for _, i := range spans {
				for seq := i.First; seq <= i.Last; seq++ {
					if !yield(seq) {
						return
					}
				}
			}
			return
		}
		for _, i := range slices.Backward(spans) {
			for seq := i.Last; seq >= i.First; seq-- {
				if !yield(seq) {
					return
				}
			}
		}
	}
}

// drop takes seq, which is the one of todo at the kept edge, out of it.
func (e *entry) drop(seq watermark.Seq) {
	if e.req.Keep == watermark.NearBegin {
		if e.todo[0].First = seq + 1; e.todo[0].Empty() {
			e.todo = e.todo[1:]
		}
		return
	}
	last := len(e.todo) - 1
	if e.todo[last].Last = seq - 1; e.todo[last].Empty() {
		e.todo = e.todo[:last]
	}
}

// check reads the bounds of entries again that miss a row, and lays out their
// pages anew: the row may have been deleted meanwhile, or may have been in a
// Redis that forgot it before it was appended.
func (p *pull) check(ctx context.Context, entries []*entry) error {
	if len(entries) == 0 {
		return nil
	}
	for _, e := range entries {
		e.checked = true
		p.reset(e)
	}
	return p.plan(ctx, entries)
}

// reset makes e as if nothing of it were read yet.
func (p *pull) reset(e *entry) {
	p.left += e.bytes
	e.served, e.todo, e.rows, e.bytes = nil, nil, nil, 0
}

func (p *pull) fail(e *entry, err error) {
	p.reset(e)
	e.err = err
}

// end ends the page of e before a row that can be seen and is nowhere.
func (e *entry) end() {
	e.gap, e.rows = true, nil
	if len(e.served) == 0 {
		e.err = unavailable("gap", "a message is missing where the page begins; it is being looked for")
	}
}
