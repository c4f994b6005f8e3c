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
	rows  rowMap // that were read
	warm  bool
	fault error
}

type rowMap map[watermark.Seq]*watermark.Message

// fetch serves the planned pages. A usual call takes one wave; more are needed
// when it asks for so many rows that holding all at once would be too much.
func (p *pull) fetch(ctx context.Context) error {
	for {
		wave := p.wave()
		if len(wave) == 0 {
			return nil
		}
		if err := p.readHot(ctx, wave); err != nil {
			return err
		}
		holes := p.serve(wave)
		p.readTruth(ctx, holes)
		if err := p.check(ctx, p.serve(holes)); err != nil {
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

// readHot brings the rows of a wave from Redis where it may be believed, in one
// round trip.
func (p *pull) readHot(ctx context.Context, wave []*want) error {
	// Redis may stop reading where an answer ends in any case. It counts what
	// it holds, which may be some bytes a row more than what is answered.
	limit := max(p.left, 0) + watermark.MaxPage*64
	var spans []Span
	var owners []*want
	for _, w := range wave {
		if !w.warm {
			continue
		}
		for _, i := range w.spans {
			spans = append(spans, Span{Conversation: w.conv, First: i.First, Last: i.Last, Keep: w.req.Keep, Bytes: limit})
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

// readTruth brings the rows that Redis did not have. An entry whose rows cannot
// be read fails alone.
func (p *pull) readTruth(ctx context.Context, wave []*want) {
	var g errgroup.Group
	g.SetLimit(truthReaders)
	for _, w := range wave {
		g.Go(func() error {
			w.fault = p.fill(ctx, w)
			return nil
		})
	}
	_ = g.Wait() // each has its own
}

func (p *pull) fill(ctx context.Context, w *want) error {
	for _, h := range w.holes() {
		within, cancel := context.WithTimeout(ctx, p.s.cfg.LoadTimeout)
		rows, err := p.s.cfg.Truth.Messages(within, w.conv, h)
		cancel()
		if err != nil {
			return err
		}
		w.take(rows)
		p.s.metrics.rows.WithLabelValues("truth").Add(float64(len(rows)))
	}
	return nil
}

// take keeps rows that were read. What Redis said first stands.
func (w *want) take(rows []watermark.Message) {
	if w.rows == nil {
		w.rows = make(rowMap, len(rows))
	}
	for i := range rows {
		if _, ok := w.rows[rows[i].Seq]; !ok {
			w.rows[rows[i].Seq] = &rows[i]
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

// serve adds to the page of each entry the rows that were read, from the kept
// edge on, until no more fits. It gives the entries that miss the next one.
func (p *pull) serve(wave []*want) (missing []*want) {
	for _, w := range wave {
		if w.fault != nil {
			p.fail(w.entry, w.fault)
			continue
		}
		if !p.serveOne(w) {
			missing = append(missing, w)
		}
	}
	return missing
}

func (p *pull) serveOne(w *want) (complete bool) {
	n := int64(0)
	for seq := range w.fromEdge(w.spans) {
		row, ok := w.rows[seq]
		if !ok {
			w.spans = w.next(w.spans.Count() - n)
			return false
		}
		m, size := w.message(row)
		if !p.fits(w.entry, size) {
			w.full = true
			return true
		}
		n++
		p.left -= size
		w.bytes += size
		w.served = append(w.served, m)
		w.drop(seq)
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

// check reads the bounds again of entries that miss a row, and lays out their
// pages anew: the row may have been deleted meanwhile, or may have been in a
// Redis that forgot it before it was appended. Who misses a row again after
// that has a page that ends before it.
func (p *pull) check(ctx context.Context, missing []*want) error {
	var entries []*entry
	for _, w := range missing {
		if w.checked {
			w.end()
			continue
		}
		w.checked = true
		p.reset(w.entry)
		entries = append(entries, w.entry)
	}
	if len(entries) == 0 {
		return nil
	}
	return p.plan(ctx, entries)
}

// reset makes e as if nothing of it were served yet.
func (p *pull) reset(e *entry) {
	p.left += e.bytes
	e.served, e.todo, e.bytes = nil, nil, 0
}

func (p *pull) fail(e *entry, err error) {
	p.reset(e)
	e.err = err
}

// end ends the page of e before a row that can be seen and is nowhere.
func (e *entry) end() {
	e.gap = true
	if len(e.served) == 0 {
		e.err = unavailable(reasonGap, "a message is missing where the page begins; it is being looked for")
	}
}
