package watermark_test

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	wm "github.com/tidemark-im/tidemark/watermark"
)

func iv(first, last wm.Seq) *wm.Interval { return &wm.Interval{First: first, Last: last} }

func TestPlanPage(t *testing.T) {
	h := wm.Intervals{{First: 100, Last: 200}}
	ten := wm.Intervals{{First: 1, Last: 10}}
	rejoined := wm.Intervals{{First: 1, Last: 399}, {First: 561, Last: 561}}
	tests := []struct {
		name    string
		visible wm.Intervals
		req     wm.PageRequest
		covered *wm.Interval
		rest    *wm.Interval
		isEnd   bool
		count   int64
	}{
		{"below the minimum, ascending", h, wm.PageRequest{Begin: 1, End: 50}, nil, nil, false, 0},
		{"below the minimum, descending", h, wm.PageRequest{Begin: 1, End: 50, Order: wm.Desc}, nil, nil, true, 0},
		{"newest twenty, descending", h, wm.PageRequest{Begin: 1, End: 1000, Num: 20, Order: wm.Desc}, iv(181, 200), iv(100, 180), false, 20},
		{"newest twenty, ascending", h, wm.PageRequest{Begin: 1, End: 1000, Num: 20}, iv(181, 200), iv(100, 180), false, 20},
		{"oldest twenty", h, wm.PageRequest{Begin: 1, End: 1000, Num: 20, Keep: wm.NearBegin}, iv(100, 119), iv(120, 200), false, 20},
		{"whole upper part", h, wm.PageRequest{Begin: 120, End: 200, Num: 100}, iv(120, 200), nil, true, 81},
		{"beyond the maximum", h, wm.PageRequest{Begin: 201, End: 300}, nil, nil, true, 0},
		{"P1 above all", ten, wm.PageRequest{Begin: 11, End: 30, Num: 20}, nil, nil, true, 0},
		{"P1 all, descending", ten, wm.PageRequest{Begin: 1, End: 10, Num: 20, Order: wm.Desc}, iv(1, 10), nil, true, 10},
		{"P1 negative, descending", ten, wm.PageRequest{Begin: -5, End: 0, Num: 20, Order: wm.Desc}, nil, nil, true, 0},
		{"num 0 is the default", ten, wm.PageRequest{Begin: 1, End: 10}, iv(1, 10), nil, true, 10},
		{"num -1 is the default", ten, wm.PageRequest{Begin: 1, End: 10, Num: -1}, iv(1, 10), nil, true, 10},
		{"extremes", ten, wm.PageRequest{Begin: math.MinInt64, End: math.MaxInt64, Num: math.MaxInt64}, iv(1, 10), nil, true, 10},
		{"nothing visible", nil, wm.PageRequest{Begin: 1, End: 10}, nil, nil, true, 0},
		{"in the gap, ascending", rejoined, wm.PageRequest{Begin: 400, End: 500}, nil, nil, false, 0},
		{"in the gap, descending", rejoined, wm.PageRequest{Begin: 400, End: 500, Order: wm.Desc}, nil, nil, false, 0},
		{"across the gap", rejoined, wm.PageRequest{Begin: 398, End: 600, Num: 2}, iv(399, 561), iv(398, 398), false, 2},
		{"rest never ends in the gap", rejoined, wm.PageRequest{Begin: 399, End: 600, Num: 1, Keep: wm.NearBegin}, iv(399, 399), iv(561, 561), false, 1},
		{"ascending page below the maximum", ten, wm.PageRequest{Begin: 1, End: 5}, iv(1, 5), nil, false, 5},
		{"descending page above the minimum", ten, wm.PageRequest{Begin: 5, End: 10, Order: wm.Desc}, iv(5, 10), nil, false, 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := wm.PlanPage(tt.visible, tt.req)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.covered, p.Covered); d != "" {
				t.Errorf("covered (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.rest, p.Rest); d != "" {
				t.Errorf("rest (-want +got):\n%s", d)
			}
			if p.IsEnd != tt.isEnd {
				t.Errorf("is_end = %v, want %v", p.IsEnd, tt.isEnd)
			}
			if got := p.Spans.Count(); got != tt.count {
				t.Errorf("seqs = %d, want %d", got, tt.count)
			}
		})
	}
}

func TestPlanPageRefusesInvertedRange(t *testing.T) {
	if _, err := wm.PlanPage(wm.Intervals{{First: 1, Last: 10}}, wm.PageRequest{Begin: 6, End: 5}); !errors.Is(err, wm.ErrRange) {
		t.Errorf("err = %v, want ErrRange", err)
	}
}

func TestShrinkKeepsTheKeptEdge(t *testing.T) {
	v := wm.Intervals{{First: 1, Last: 10}, {First: 21, Last: 30}}
	tests := []struct {
		name          string
		keep          wm.Keep
		n             int64
		covered, rest *wm.Interval
	}{
		{"near end", wm.NearEnd, 12, iv(9, 30), iv(1, 8)},
		{"near begin", wm.NearBegin, 12, iv(1, 22), iv(23, 30)},
		{"nothing left", wm.NearEnd, 0, nil, iv(1, 30)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := wm.PlanPage(v, wm.PageRequest{Begin: 1, End: 100, Keep: tt.keep})
			if err != nil {
				t.Fatal(err)
			}
			p = p.Shrink(tt.n)
			if p.Spans.Count() != tt.n || p.IsEnd {
				t.Errorf("seqs = %d, is_end = %v, want %d, false", p.Spans.Count(), p.IsEnd, tt.n)
			}
			if d := cmp.Diff([]*wm.Interval{tt.covered, tt.rest}, []*wm.Interval{p.Covered, p.Rest}); d != "" {
				t.Errorf("covered, rest (-want +got):\n%s", d)
			}
		})
	}
}

// P2: whoever follows rest has the whole range once, in every combination.
func TestFollowingRestOverAThousand(t *testing.T) {
	visible := wm.Intervals{{First: 1, Last: 1000}}
	for _, order := range []wm.Order{wm.Asc, wm.Desc} {
		for _, keep := range []wm.Keep{wm.NearEnd, wm.NearBegin} {
			seen := map[wm.Seq]int{}
			req := wm.PageRequest{Begin: 1, End: 1 << 62, Num: 20, Order: order, Keep: keep}
			pages := 0
			for {
				p, err := wm.PlanPage(visible, req)
				if err != nil {
					t.Fatal(err)
				}
				pages++
				note(seen, p.Spans)
				natural := (order == wm.Asc) == (keep == wm.NearBegin)
				if natural && p.IsEnd != (p.Rest == nil) {
					t.Errorf("order %v keep %v page %d: is_end = %v with rest %v", order, keep, pages, p.IsEnd, p.Rest)
				}
				if p.Rest == nil {
					break
				}
				req.Begin, req.End = p.Rest.First, p.Rest.Last
			}
			if pages != 50 || len(seen) != 1000 {
				t.Errorf("order %v keep %v: %d pages, %d seqs, want 50 and 1000", order, keep, pages, len(seen))
			}
		}
	}
}

func note(seen map[wm.Seq]int, spans wm.Intervals) {
	for _, s := range spans {
		for q := s.First; q <= s.Last; q++ {
			seen[q]++
		}
	}
}

// intervals draws what a member may see: up to four intervals below 80.
func intervals(t *rapid.T) wm.Intervals {
	var out wm.Intervals
	next := wm.Seq(rapid.IntRange(1, 20).Draw(t, "first"))
	for range rapid.IntRange(0, 4).Draw(t, "intervals") {
		last := next + wm.Seq(rapid.IntRange(0, 15).Draw(t, "len"))
		out = append(out, wm.Interval{First: next, Last: last})
		next = last + 2 + wm.Seq(rapid.IntRange(0, 5).Draw(t, "gap"))
	}
	return out
}

func request(t *rapid.T) wm.PageRequest {
	begin := rapid.Int64Range(-5, 100).Draw(t, "begin")
	return wm.PageRequest{
		Begin: wm.Seq(begin),
		End:   wm.Seq(rapid.OneOf(rapid.Int64Range(begin, 110), rapid.Just(int64(math.MaxInt64))).Draw(t, "end")),
		Num:   rapid.Int64Range(1, 12).Draw(t, "num"),
		Order: wm.Order(rapid.IntRange(0, 1).Draw(t, "order")),
		Keep:  wm.Keep(rapid.IntRange(0, 1).Draw(t, "keep")),
	}
}

// brute lists the visible seqs of lo..hi one by one.
func brute(v wm.Intervals, lo, hi wm.Seq) []wm.Seq {
	var out []wm.Seq
	for s := max(lo, 0); s <= min(hi, 200); s++ {
		for _, w := range v {
			if w.First <= s && s <= w.Last {
				out = append(out, s)
			}
		}
	}
	return out
}

func flat(v wm.Intervals) []wm.Seq { return brute(v, 0, 200) }

func TestPlanPageAgreesWithListingEverySeq(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, req := intervals(t), request(t)
		p, err := wm.PlanPage(v, req)
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "shrink") && p.Spans.Count() > 0 {
			p = p.Shrink(rapid.Int64Range(0, p.Spans.Count()-1).Draw(t, "to"))
			req.Num = p.Spans.Count()
		}
		asked := brute(v, req.Begin, req.End)
		want := asked
		var rest []wm.Seq
		if n := int(req.Num); len(asked) > n {
			if req.Keep == wm.NearBegin {
				want, rest = asked[:n], asked[n:]
			} else {
				want, rest = asked[len(asked)-n:], asked[:len(asked)-n]
			}
		}
		if d := cmp.Diff(append([]wm.Seq{}, want...), append([]wm.Seq{}, flat(p.Spans)...)); d != "" {
			t.Fatalf("seqs (-want +got):\n%s", d)
		}
		var wantRest *wm.Interval
		if len(rest) > 0 {
			wantRest = iv(rest[0], rest[len(rest)-1])
		}
		if d := cmp.Diff(wantRest, p.Rest); d != "" {
			t.Fatalf("rest (-want +got):\n%s", d)
		}
		var beyond []wm.Seq
		switch {
		case len(asked) == 0 && req.Order == wm.Asc:
			beyond = brute(v, req.Begin, 200)
		case len(asked) == 0:
			beyond = brute(v, 0, req.End)
		case len(want) == 0:
			beyond = rest
		case req.Order == wm.Asc:
			beyond = brute(v, want[len(want)-1]+1, 200)
		default:
			beyond = brute(v, 0, want[0]-1)
		}
		if isEnd := len(rest) == 0 && len(beyond) == 0; p.IsEnd != isEnd {
			t.Fatalf("is_end = %v, want %v", p.IsEnd, isEnd)
		}
	})
}

// A client that follows rest sees each visible seq of its range once, while
// the conversation grows, its minimum rises and pages are cut short.
func TestFollowingRestEndsAndSeesEachSeqOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, req := intervals(t), request(t)
		seen := map[wm.Seq]int{}
		want := brute(v, req.Begin, min(req.End, 100))
		for pages := 0; ; pages++ {
			if pages > 200 {
				t.Fatal("does not end")
			}
			p, err := wm.PlanPage(v, req)
			if err != nil {
				t.Fatal(err)
			}
			if p.Spans.Count() > 1 && rapid.Bool().Draw(t, "cut") {
				p = p.Shrink(rapid.Int64Range(1, p.Spans.Count()-1).Draw(t, "to"))
			}
			note(seen, p.Spans)
			if p.Rest == nil {
				break
			}
			req.Begin, req.End = p.Rest.First, p.Rest.Last
			if rapid.Bool().Draw(t, "grow") && len(v) > 0 {
				v[len(v)-1].Last += 3
			}
		}
		for _, s := range want {
			if seen[s] == 0 {
				t.Fatalf("seq %d was never served", s)
			}
		}
		for s, n := range seen {
			if n != 1 {
				t.Fatalf("seq %d was served %d times", s, n)
			}
		}
	})
}

// A client that follows is_end, always asking for what lies beyond the covered
// edge, sees each visible seq once and ends: ascending from the oldest, and
// descending from the newest.
func TestFollowingIsEndSeesEachSeqOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := intervals(t)
		num := rapid.Int64Range(1, 12).Draw(t, "num")
		width := wm.Seq(rapid.Int64Range(1, 40).Draw(t, "width"))
		ascending := rapid.Bool().Draw(t, "ascending")
		start := wm.Seq(rapid.Int64Range(-5, 100).Draw(t, "start"))
		seen := map[wm.Seq]int{}
		cursor := start
		for pages := 0; ; pages++ {
			if pages > 500 {
				t.Fatal("does not end")
			}
			req := wm.PageRequest{Begin: cursor, End: cursor + width, Num: num, Order: wm.Asc, Keep: wm.NearBegin}
			if !ascending {
				req = wm.PageRequest{Begin: cursor - width, End: cursor, Num: num, Order: wm.Desc, Keep: wm.NearEnd}
			}
			p, err := wm.PlanPage(v, req)
			if err != nil {
				t.Fatal(err)
			}
			note(seen, p.Spans)
			if p.IsEnd {
				break
			}
			switch {
			case p.Covered != nil && p.Rest != nil && ascending:
				cursor = p.Covered.Last + 1
			case p.Covered != nil && p.Rest != nil:
				cursor = p.Covered.First - 1
			case ascending:
				cursor = req.End + 1
			default:
				cursor = req.Begin - 1
			}
		}
		want := brute(v, start, 200)
		if !ascending {
			want = brute(v, 0, start)
		}
		for _, s := range want {
			if seen[s] != 1 {
				t.Fatalf("seq %d was served %d times", s, seen[s])
			}
		}
		if len(seen) != len(want) {
			t.Fatalf("%d seqs were served, want %d", len(seen), len(want))
		}
	})
}

func FuzzPlanPage(f *testing.F) {
	f.Add(int64(1), int64(50), int64(100), int64(200), int64(20), 0, 0)
	f.Add(int64(math.MinInt64), int64(math.MaxInt64), int64(1), int64(wm.MaxSeq), int64(-1), 1, 1)
	f.Fuzz(func(t *testing.T, begin, end, first, last, num int64, order, keep int) {
		v := wm.Intervals{{First: wm.Seq(first), Last: wm.Seq(last)}}.Clip(wm.Interval{First: 1, Last: wm.MaxSeq})
		p, err := wm.PlanPage(v, wm.PageRequest{Begin: wm.Seq(begin), End: wm.Seq(end), Num: num, Order: wm.Order(order & 1), Keep: wm.Keep(keep & 1)})
		if err != nil {
			if begin <= end {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		if n := p.Spans.Count(); n < 0 || n > wm.MaxPage {
			t.Fatalf("a page of %d", n)
		}
		if p.IsEnd && p.Rest != nil {
			t.Fatal("is_end with a rest")
		}
		if p.Covered != nil && (p.Covered.First < v[0].First || p.Covered.Last > v[0].Last) {
			t.Fatalf("covers %v beyond %v", *p.Covered, v)
		}
		if p.Rest != nil && (p.Rest.Empty() || p.Rest.Intersect(*p.Covered).Len() != 0) {
			t.Fatalf("rest %v overlaps covered %v", *p.Rest, *p.Covered)
		}
	})
}

func BenchmarkPlanPage(b *testing.B) {
	v := wm.Intervals{{First: 1, Last: 399}, {First: 561, Last: 1_000_000}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wm.PlanPage(v, wm.PageRequest{Begin: 1, End: 1 << 62, Num: 100}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAPageIsBoundedWhateverIsAskedFor(t *testing.T) {
	for _, num := range []int64{wm.MaxPage + 1, 1 << 40, math.MaxInt64} {
		p, err := wm.PlanPage(wm.Intervals{{First: 1, Last: wm.MaxSeq}}, wm.PageRequest{Begin: 1, End: 1 << 62, Num: num})
		if err != nil || p.Spans.Count() != wm.MaxPage {
			t.Errorf("num %d: %d seqs, %v", num, p.Spans.Count(), err)
		}
	}
}
