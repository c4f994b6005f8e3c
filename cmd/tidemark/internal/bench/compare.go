package bench

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// Ratio is one figure of two builds, each the median of its rounds.
type Ratio struct {
	Name string  `json:"name"`
	A    float64 `json:"a"`
	B    float64 `json:"b"`
	// Ratio is B/A: below 1 means that B needs less.
	Ratio float64 `json:"ratio"`
	// Low and High are the lowest and the highest ratio of a round, of which A and
	// B were measured one right after the other: where they lie on both sides of
	// 1, nothing is told.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// figures are what two builds are compared by. The processor time of a message
// depends least on what else the machine does.
var figures = []struct {
	name string
	of   func(*Report) float64
}{
	{"us of the roles for each message", func(r *Report) float64 { return r.perMessage(func(name string) bool { return !isService(name) }) }},
	{"us of Redis for each message", func(r *Report) float64 { return r.perMessage(func(name string) bool { return name == "redis" }) }},
	{"us of Kafka for each message", func(r *Report) float64 { return r.perMessage(func(name string) bool { return name == "kafka" }) }},
	{"sequenced, p50 in ms", func(r *Report) float64 { return r.Sequenced.P50 }},
	{"sequenced, p99 in ms", func(r *Report) float64 { return r.Sequenced.P99 }},
	{"pullable, p50 in ms", func(r *Report) float64 { return r.Pullable.P50 }},
	{"pullable, p99 in ms", func(r *Report) float64 { return r.Pullable.P99 }},
	{"in history, p50 in ms", func(r *Report) float64 { return r.Persisted.P50 }},
	{"on a device, p50 in ms", func(r *Report) float64 { return r.Pushed.P50 }},
}

func isService(name string) bool {
	return slices.Contains([]string{"generator", "redis", "kafka"}, name)
}

func (r *Report) perMessage(which func(name string) bool) float64 {
	sum := 0.0
	for _, p := range r.Processes {
		if which(p.Name) {
			sum += p.PerMessage
		}
	}
	return sum
}

// Compare runs one trial of each in turn, rounds times, and changes which goes
// first, since the second finds warm caches. Each trial has a system of its own.
func Compare(ctx context.Context, rounds int, a, b func(ctx context.Context) (*Report, error)) ([]Ratio, error) {
	if rounds < 1 {
		return nil, errors.New("rounds must be from 1 on")
	}
	var as, bs []*Report
	for i := range rounds {
		order := []func(context.Context) (*Report, error){a, b}
		into := []*[]*Report{&as, &bs}
		if i%2 == 1 {
			slices.Reverse(order)
			slices.Reverse(into)
		}
		for k, run := range order {
			r, err := run(ctx)
			if err != nil {
				return nil, err
			}
			*into[k] = append(*into[k], r)
		}
	}
	return ratios(as, bs), nil
}

func ratios(as, bs []*Report) []Ratio {
	var out []Ratio
	for _, f := range figures {
		var va, vb, each []float64
		for i := range as {
			x, y := f.of(as[i]), f.of(bs[i])
			if x > 0 && y > 0 {
				va, vb, each = append(va, x), append(vb, y), append(each, y/x)
			}
		}
		if len(each) == 0 {
			continue // nobody measured it
		}
		out = append(out, Ratio{f.name, median(va), median(vb), median(each), slices.Min(each), slices.Max(each)})
	}
	return out
}

func median(v []float64) float64 {
	v = slices.SortedFunc(slices.Values(v), cmp.Compare[float64])
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
