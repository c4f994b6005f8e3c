package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Plottable tells whether a plot can be drawn into a file of that name.
func Plottable(name string) error {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".svg", ".png":
		if _, err := os.Stat(filepath.Dir(name)); err != nil {
			return err
		}
		return nil
	}
	return fmt.Errorf("%s: a plot is an .svg or a .png", name)
}

// Plot draws latency by rate: p50 and p99 of each stage.
func Plot(reports []*Report, name string) error {
	if err := Plottable(name); err != nil {
		return err
	}
	if len(reports) == 0 {
		return errors.New("nothing was measured that could be drawn")
	}
	reports = slices.SortedFunc(slices.Values(reports), func(a, b *Report) int { return cmp.Compare(a.Rate, b.Rate) })
	p := plot.New()
	last := reports[len(reports)-1]
	p.Title.Text = fmt.Sprintf("%d conversations, bodies of %d bytes, %d cores", last.Load.Conversations, last.Load.Size, last.Machine.Cores)
	p.X.Label.Text, p.Y.Label.Text = "messages a second", "milliseconds after it was meant to be sent"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, s := range []struct {
		name string
		of   func(*Report) Latency
	}{
		{"sequenced", func(r *Report) Latency { return r.Sequenced }}, {"pullable", func(r *Report) Latency { return r.Pullable }},
		{"in history", func(r *Report) Latency { return r.Persisted }}, {"on a device", func(r *Report) Latency { return r.Pushed }},
	} {
		for k, q := range []struct {
			name string
			of   func(Latency) float64
		}{{"p50", func(l Latency) float64 { return l.P50 }}, {"p99", func(l Latency) float64 { return l.P99 }}} {
			var points plotter.XYs
			for _, r := range reports {
				if l := s.of(r); l.Count > 0 {
					points = append(points, plotter.XY{X: r.Rate, Y: math.Max(q.of(l), 0.001)}) // a scale of powers has no zero
				}
			}
			if len(points) == 0 {
				continue
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Color, dots.Color = plotutil.Color(i), plotutil.Color(i)
			line.Dashes, dots.Shape = plotutil.Dashes(k), plotutil.Shape(k)
			p.Add(line, dots)
			p.Legend.Add(s.name+" "+q.name, line, dots)
		}
	}
	return p.Save(20*vg.Centimeter, 12*vg.Centimeter, name)
}
