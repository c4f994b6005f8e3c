package watermark

import (
	"errors"
	"fmt"
)

const (
	// DefaultPage is how many messages a page holds when nobody says.
	DefaultPage = 100
	// MaxPage is the most messages of one page.
	MaxPage = 1000
)

// ErrRange is returned when a range begins above its end.
var ErrRange = errors.New("range begins above its end")

// Order is the direction in which a client pages.
type Order int

const (
	Asc Order = iota
	Desc
)

// Keep says which part of a range that does not fit is served.
type Keep int

const (
	NearEnd   Keep = iota // who comes back wants the newest
	NearBegin             // catching up from the oldest
)

// PageRequest asks for the seqs Begin..End, any int64 each.
type PageRequest struct {
	Begin, End Seq
	Num        int64 // <= 0: DefaultPage; above MaxPage: MaxPage
	Order      Order
	Keep       Keep
}

// Page is the plan of an answer: which seqs it holds and what it says of the
// rest. The zero Covered and Rest are nil.
type Page struct {
	// Spans are the seqs to serve, ascending, at most Num.
	Spans Intervals
	// Covered is the part of the request that the page accounts for, nil when
	// Spans is empty.
	Covered *Interval
	// Rest is what was asked for and cut off, from a visible seq to a visible
	// seq; nil when nothing was.
	Rest *Interval
	// IsEnd is the honest "that is all": nothing is cut off and no visible seq
	// lies beyond the covered edge in the direction of Order.
	IsEnd bool

	visible Intervals // what the member sees, unclipped
	asked   Intervals // what it sees of the request
	req     PageRequest
}

// PlanPage plans the answer to req for somebody who sees visible. The only
// error is ErrRange.
func PlanPage(visible Intervals, req PageRequest) (Page, error) {
	if req.Begin > req.End {
		return Page{}, fmt.Errorf("%w: %d > %d", ErrRange, req.Begin, req.End)
	}
	p := Page{visible: visible, asked: visible.Clip(Interval{req.Begin, req.End}), req: req}
	num := req.Num
	if num <= 0 {
		num = DefaultPage
	}
	p.keep(min(num, MaxPage))
	return p, nil
}

// Shrink gives the page that holds only the n seqs nearest its kept edge, as
// when a row is missing or the answer grew too large. n must be less than
// Spans.Count().
func (p Page) Shrink(n int64) Page {
	p.keep(max(n, 0))
	return p
}

// KeptFirst tells whether the kept edge is the beginning of the range.
func (p Page) KeptFirst() bool { return p.req.Keep == NearBegin }

func (p *Page) keep(n int64) {
	p.Spans, p.Covered, p.Rest, p.IsEnd = nil, nil, nil, false
	edges, ok := p.asked.Edges()
	if !ok {
		p.IsEnd = !p.beyond(p.req.Begin, p.req.End)
		return
	}
	if p.req.Keep == NearBegin {
		p.Spans = p.asked.first(n)
	} else {
		p.Spans = p.asked.last(n)
	}
	covered, ok := p.Spans.Edges()
	if !ok {
		p.Rest = &edges
		return
	}
	p.Covered = &covered
	if p.Spans.Count() < p.asked.Count() {
		left := Interval{edges.First, covered.First - 1}
		if p.req.Keep == NearBegin {
			left = Interval{covered.Last + 1, edges.Last}
		}
		rest, _ := p.asked.Clip(left).Edges()
		p.Rest = &rest
		return
	}
	p.IsEnd = !p.beyond(covered.Last+1, covered.First-1)
}

// beyond tells whether a visible seq lies at or above up (ascending) or at or
// below down (descending).
func (p *Page) beyond(up, down Seq) bool {
	edges, ok := p.visible.Edges()
	if !ok {
		return false
	}
	if p.req.Order == Desc {
		return edges.First <= down
	}
	return edges.Last >= up
}
