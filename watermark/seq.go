package watermark

import "strconv"

// Seq is a message's place in its conversation: from 1, dense, at most MaxSeq.
// 0 as a bound means "not set"; what a client sends may be any int64.
type Seq int64

// MaxSeq is the highest seq there can be. It is 2^53-1, the largest integer
// that a double holds exactly, since Redis scores, Lua and JavaScript count in
// doubles.
const MaxSeq Seq = 1<<53 - 1

// String gives the seq in decimal.
func (s Seq) String() string { return strconv.FormatInt(int64(s), 10) }

// Interval is a closed interval of seqs; it is empty when First > Last.
type Interval struct {
	First, Last Seq
}

// Empty tells whether no seq lies in i.
func (i Interval) Empty() bool { return i.First > i.Last }

// Len counts the seqs in i. Both ends must lie within 0..MaxSeq.
func (i Interval) Len() int64 {
	if i.Empty() {
		return 0
	}
	return int64(i.Last-i.First) + 1
}

// Contains tells whether s lies in i.
func (i Interval) Contains(s Seq) bool { return i.First <= s && s <= i.Last }

// Intersect gives what i and o share; the result may be empty.
func (i Interval) Intersect(o Interval) Interval {
	return Interval{max(i.First, o.First), min(i.Last, o.Last)}
}

// Intervals is a list of intervals that are not empty, do not overlap and
// ascend.
type Intervals []Interval

// Clip gives the part of v that lies within i.
func (v Intervals) Clip(i Interval) Intervals {
	var out Intervals
	for _, w := range v {
		if x := w.Intersect(i); !x.Empty() {
			out = append(out, x)
		}
	}
	return out
}

// Count counts the seqs in v.
func (v Intervals) Count() int64 {
	var n int64
	for _, w := range v {
		n += w.Len()
	}
	return n
}

// Contains tells whether s lies in one of v's intervals.
func (v Intervals) Contains(s Seq) bool {
	for _, w := range v {
		if w.Contains(s) {
			return true
		}
	}
	return false
}

// Edges gives the outermost seqs of v; ok is false when v is empty.
func (v Intervals) Edges() (edges Interval, ok bool) {
	if len(v) == 0 {
		return Interval{}, false
	}
	return Interval{v[0].First, v[len(v)-1].Last}, true
}

// first gives the n lowest seqs of v, last the n highest.
func (v Intervals) first(n int64) Intervals {
	var out Intervals
	for _, w := range v {
		if n <= 0 {
			break
		}
		if w.Len() > n {
			w.Last = w.First + Seq(n) - 1
		}
		n -= w.Len()
		out = append(out, w)
	}
	return out
}

func (v Intervals) last(n int64) Intervals {
	var out Intervals
	for i := len(v) - 1; i >= 0 && n > 0; i-- {
		w := v[i]
		if w.Len() > n {
			w.First = w.Last - Seq(n) + 1
		}
		n -= w.Len()
		out = append(out, w)
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}
