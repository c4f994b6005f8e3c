package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Shape is a way in which a load grows, and what stays the same meanwhile.
type Shape struct {
	// Name is "conversations", "members", "backlog" or "hot".
	Name string
	// About says what grows, and what stays.
	About string
	// Sizes are the points, ascending.
	Sizes []float64
	// Log tells that a plot's axis is one of powers.
	Log bool

	set func(c *StageConfig, size float64)
}

// Shapes are all of them.
func Shapes() []Shape {
	// So many messages are measured at each point, over all partitions.
	const messages = 20_000
	batches := func(c *StageConfig) {
		c.Batches = max(messages/c.Partitions/c.Batch, 1)
	}
	return []Shape{
		{
			Name: "conversations", About: "conversations that take turns; batches of 500, each message of another one", Log: true,
			Sizes: []float64{2_000, 10_000, 30_000, 100_000},
			set: func(c *StageConfig, n float64) {
				c.Conversations, c.Batch, c.PerConversation, c.Partitions = int(n), 500, 1, 4
				batches(c)
			},
		},
		{
			Name: "members", About: "members of one group, which gets all messages; batches of 50", Log: true,
			Sizes: []float64{10, 100, 1_000, 10_000, 100_000},
			set: func(c *StageConfig, n float64) {
				c.Members, c.Batch, c.PerConversation, c.Partitions = int(n), 50, 50, 1
				batches(c)
			},
		},
		{
			Name: "backlog", About: "records that a partition finds waiting and takes at once; each of another conversation", Log: true,
			Sizes: []float64{1, 5, 20, 100, 500, 2_000},
			set: func(c *StageConfig, n float64) {
				c.Batch, c.PerConversation, c.Partitions = int(n), 1, 4
				c.Batches = max(min(messages/c.Partitions/c.Batch, 250), 1)
				c.Conversations = 4_000
			},
		},
		{
			Name: "hot", About: "share of one conversation of a partition in its traffic; batches of 500, 10,000 conversations", Sizes: []float64{0, 0.01, 0.1, 0.5},
			set: func(c *StageConfig, share float64) {
				c.Hot, c.Conversations, c.Batch, c.PerConversation, c.Partitions = share, 10_000, 500, 1, 4
				batches(c)
			},
		},
	}
}

// ScalePoint is what a message costs at one size, in microseconds of processor time.
type ScalePoint struct {
	Shape string  `json:"shape"`
	Stage string  `json:"stage"`
	Size  float64 `json:"size"`
	// Worker is the stage's own time, history's included; Redis that of Redis,
	// where its process can be watched.
	Worker float64 `json:"worker_us"`
	Redis  float64 `json:"redis_us"`
	// Memory is resident in the worker's process at the end, in bytes.
	Memory int64 `json:"memory_bytes"`
}

// Scale measures one stage along a shape. open gives what a point needs (a Redis,
// a history), and closes it.
func Scale(ctx context.Context, s Shape, stage string, limit float64, open func(c *StageConfig) (done func() error, err error)) ([]ScalePoint, error) {
	var out []ScalePoint
	for _, size := range s.Sizes {
		if limit > 0 && size > limit {
			break
		}
		p, err := scalePoint(ctx, s, stage, size, open)
		if err != nil {
			return out, fmt.Errorf("%s, %s of %g: %w", stage, s.Name, size, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func scalePoint(ctx context.Context, s Shape, stage string, size float64, open func(c *StageConfig) (func() error, error)) (p ScalePoint, err error) {
	c := StageConfig{Stage: stage, Size: 300}
	s.set(&c, size)
	done, err := open(&c)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, done()) }()
	r, err := RunStage(ctx, c)
	if err != nil {
		return p, err
	}
	p = ScalePoint{Shape: s.Name, Stage: stage, Size: size}
	for _, u := range r.Processes {
		switch u.Name {
		case "this":
			p.Worker, p.Memory = u.PerMessage, u.Memory
		case "redis":
			p.Redis = u.PerMessage
		}
	}
	return p, nil
}

// PlotScale draws the points of one shape: what a message costs by size.
func PlotScale(s Shape, points []ScalePoint, name string) error {
	if err := Plottable(name); err != nil {
		return err
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = s.Name, s.About, "microseconds of processor time a message"
	if s.Log {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	p.Y.Min = 0
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	var curves []string
	lines := map[string]plotter.XYs{}
	add := func(name string, x, y float64) {
		if y <= 0 {
			return
		}
		if !slices.Contains(curves, name) {
			curves = append(curves, name)
		}
		lines[name] = append(lines[name], plotter.XY{X: x, Y: y})
		p.Y.Max = math.Max(p.Y.Max, y)
	}
	for _, q := range points {
		if q.Shape == s.Name {
			add(q.Stage, q.Size, q.Worker)
			add(q.Stage+", Redis", q.Size, q.Redis)
		}
	}
	if len(curves) == 0 {
		return errors.New("nothing was measured that could be drawn")
	}
	for i, c := range curves {
		line, dots, err := plotter.NewLinePoints(lines[c])
		if err != nil {
			return err
		}
		line.Color, dots.Color, line.Dashes, dots.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Dashes(i), plotutil.Shape(i)
		p.Add(line, dots)
		p.Legend.Add(c, line, dots)
	}
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, name)
}
