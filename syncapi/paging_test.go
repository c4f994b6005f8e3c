package syncapi_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/syncapi"
	"github.com/tidemark-im/tidemark/watermark"
)

// A client that follows rest sees each seq once that it could see when it
// began, and is told the end only when nothing is left that way; whatever lies
// in Redis, whatever arrives between its pages.
func TestPagesAreHonest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld()
		w.say(t, group, "B", rapid.IntRange(0, 60).Draw(rt, "messages"))
		drawWindow(rt, w)
		w.with(group, func(t *talk) {
			t.Inputs = map[watermark.Partition]int64{{}: 1}
			t.Min = seq(rapid.IntRange(0, int(t.Max)+1).Draw(rt, "min"))
			t.hotFrom = seq(rapid.IntRange(0, int(t.Max)+1).Draw(rt, "hot from"))
			t.warm = rapid.Bool().Draw(rt, "warm")
			t.unknown["A"] = rapid.Bool().Draw(rt, "unknown")
		})
		s := newService(t, w, func(c *syncapi.Config) {
			c.PageBytes = rapid.SampledFrom([]int{1, 120, 400, 1 << 20}).Draw(rt, "bytes")
		})
		r := &v1.PullRange{
			Conversation: string(group),
			Begin:        rapid.Int64Range(-5, 70).Draw(rt, "begin"),
			Num:          rapid.SampledFrom([]int64{1, 2, 3, 7, 20, 0}).Draw(rt, "num"),
			Order:        rapid.SampledFrom([]v1.Order{asc, desc}).Draw(rt, "order"),
			Keep:         rapid.SampledFrom([]v1.Keep{nearEnd, nearBegin}).Draw(rt, "keep"),
		}
		r.End = max(rapid.SampledFrom([]int64{r.Begin, r.Begin + 10, 70, 1 << 62}).Draw(rt, "end"), r.Begin)
		before := visibleTo(w, "A", r.Begin, r.End)
		var got []int64
		for range 100 {
			p := pull(t, s, "A", r)
			if p.Error != nil {
				rt.Fatalf("%v: %v", r, p.Error)
			}
			checkPage(rt, w, r, p)
			got = append(got, seqsOf(p)...)
			if p.Rest == nil {
				break
			}
			r.Begin, r.End = p.Rest.Begin, p.Rest.End
			w.say(t, group, "B", rapid.IntRange(0, 2).Draw(rt, "arrive"))
		}
		slices.Sort(got)
		if !slices.Equal(got, before) {
			rt.Fatalf("seen %v, visible at first %v", got, before)
		}
	})
}

func drawWindow(rt *rapid.T, w *world) {
	w.with(group, func(t *talk) {
		m := t.memberLocked("A")
		for range rapid.IntRange(0, 5).Draw(rt, "ops") {
			edge := seq(rapid.IntRange(0, int(t.Max)).Draw(rt, "edge"))
			switch rapid.IntRange(0, 2).Draw(rt, "op") {
			case 0:
				m, _, _ = m.Join("op", edge, watermark.History(rapid.IntRange(0, 2).Draw(rt, "history")), edge/2)
			case 1:
				m, _ = m.Leave("op", edge, 0)
			case 2:
				m, _ = m.Clear("op", edge/3)
			}
		}
		t.members["A"] = m
	})
}

// visibleTo lists by brute force what u sees of begin..end now.
func visibleTo(w *world, u userID, begin, end int64) (out []int64) {
	w.with(group, func(t *talk) {
		m := t.memberLocked(u)
		for s := max(t.Min, 1); s <= t.Max; s++ {
			if m.Window().Contains(s) && begin <= int64(s) && int64(s) <= end {
				out = append(out, int64(s))
			}
		}
	})
	return out
}

func checkPage(rt *rapid.T, w *world, r *v1.PullRange, p *v1.PullPage) {
	all := visibleTo(w, "A", 1, 1<<62)
	got := seqsOf(p)
	if r.Order == desc {
		slices.Reverse(got)
	}
	if !slices.IsSorted(got) {
		rt.Fatalf("%v: out of order: %v", r, seqsOf(p))
	}
	if len(all) > 0 && (p.MinSeq != all[0] || p.MaxSeq != all[len(all)-1]) || len(all) == 0 && p.MinSeq != p.MaxSeq+1 {
		rt.Fatalf("bounds %d..%d, visible %v", p.MinSeq, p.MaxSeq, all)
	}
	// What is left in the direction of the order, judged by what was served.
	up, down := r.Begin, r.End
	if len(got) > 0 {
		up, down = got[len(got)-1]+1, got[0]-1
	}
	left := slices.ContainsFunc(all, func(s int64) bool { return r.Order == asc && s >= up || r.Order == desc && s <= down })
	if want := !left && p.Rest == nil; p.IsEnd != want {
		rt.Fatalf("%v: served %v of %v, rest %v: is_end %v", r, got, all, p.Rest, p.IsEnd)
	}
	if (p.Covered == nil) != (len(got) == 0) || p.Covered != nil && (p.Covered.Begin != got[0] || p.Covered.End != got[len(got)-1]) {
		rt.Fatalf("covered %v, served %v", p.Covered, got)
	}
}
