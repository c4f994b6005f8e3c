package main

import (
	"context"
	"fmt"
	"image/color"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// most is how many lines a picture shows; those with the highest values stay.
const most = 8

// draw makes the pictures of the panels that have one.
func draw(ctx context.Context, p *prometheus, dir string, since time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, b := range boards() {
		for _, r := range b.rows {
			for _, panel := range r.panels {
				if panel.picture == "" {
					continue
				}
				if err := picture(ctx, p, panel, since, filepath.Join(dir, panel.picture+".png")); err != nil {
					return fmt.Errorf("%s, %s: %w", b.title, panel.title, err)
				}
			}
		}
	}
	return nil
}

type line struct {
	name   string
	points plotter.XYs
	high   float64
}

func picture(ctx context.Context, p *prometheus, panel panel, since time.Duration, file string) error {
	var lines []line
	for _, q := range panel.queries {
		found, err := p.since(ctx, q.expr, since)
		if err != nil {
			return fmt.Errorf("%s: %w", q.expr, err)
		}
		for _, s := range found {
			if l := asLine(s, q.legend, since); len(l.points) > 0 {
				lines = append(lines, l)
			}
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return strings.Compare(a.name, b.name) })
	slices.SortStableFunc(lines, func(a, b line) int {
		switch {
		case a.high > b.high:
			return -1
		case a.high < b.high:
			return 1
		}
		return 0
	})
	lines = lines[:min(len(lines), most)]
	img := plot.New()
	img.Title.Text = panel.title
	img.X.Label.Text = "seconds"
	img.Y.Label.Text = unitName(panel.unit)
	img.Y.Min = 0
	img.Legend.Top, img.Legend.Left = true, true
	img.Add(plotter.NewGrid())
	for i, l := range lines {
		drawn, err := plotter.NewLine(l.points)
		if err != nil {
			return err
		}
		drawn.Color, drawn.Width = palette[i%len(palette)], vg.Points(1.2)
		img.Add(drawn)
		img.Legend.Add(l.name, drawn)
	}
	return img.Save(8*vg.Inch, 3.2*vg.Inch, file)
}

func asLine(s series, legend string, since time.Duration) line {
	l := line{name: named(legend, s.Metric)}
	start := float64(time.Now().Add(-since).UnixMilli()) / 1000
	for _, v := range s.Values {
		at, ok := v[0].(float64)
		text, _ := v[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
			continue // a quantile, or a ratio, of nothing
		}
		l.points = append(l.points, plotter.XY{X: at - start, Y: value})
		l.high = max(l.high, value)
	}
	return l
}

// named fills labels into a legend.
func named(legend string, labels map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		legend = strings.ReplaceAll(legend, "{{"+k+"}}", labels[k])
	}
	return legend
}

func unitName(unit string) string {
	switch unit {
	case "s":
		return "seconds"
	case "ops":
		return "per second"
	case "percentunit":
		return "part"
	case "short":
		return ""
	}
	return unit
}

var palette = []color.Color{
	color.RGBA{0x1f, 0x77, 0xb4, 0xff}, color.RGBA{0xff, 0x7f, 0x0e, 0xff}, color.RGBA{0x2c, 0xa0, 0x2c, 0xff}, color.RGBA{0xd6, 0x27, 0x28, 0xff},
	color.RGBA{0x94, 0x67, 0xbd, 0xff}, color.RGBA{0x8c, 0x56, 0x4b, 0xff}, color.RGBA{0xe3, 0x77, 0xc2, 0xff}, color.RGBA{0x17, 0xbe, 0xcf, 0xff},
}
