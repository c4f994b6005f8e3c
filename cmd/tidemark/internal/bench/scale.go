package bench

import (
	"cmp"
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
	// Name is "conversations", "members", "batch", "backlog", "history" or "hot".
	Name string
	// About says what grows, and what stays.
	About string
	// Sizes are the points, ascending.
	Sizes []float64
	// Usual is the largest of them that is measured where no other limit is set:
	// larger ones take minutes and gigabytes. 0: all are.
	Usual float64
	// Log tells that a plot's axis is one of powers.
	Log bool
	// Stages it is about; nil: all.
	Stages []string

	set func(c *StageConfig, size float64)
}

// Has tells whether the shape is about a stage.
func (s *Shape) Has(stage string) bool { return s.Stages == nil || slices.Contains(s.Stages, stage) }

// Upto gives the sizes up to a limit. 0: the usual one.
func (s *Shape) Upto(limit float64) []float64 {
	limit = cmp.Or(limit, s.Usual, math.Inf(1))
	n, _ := slices.BinarySearchFunc(s.Sizes, limit, func(size, limit float64) int {
		if size <= limit {
			return -1
		}
		return 1
	})
	return s.Sizes[:n]
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
			Name: "conversations", About: "conversations that take turns; batches of 500, each message of another one where there are 2,000", Log: true,
			Sizes: []float64{100, 1_000, 10_000, 100_000, 1_000_000}, Usual: 100_000,
			set: func(c *StageConfig, n float64) {
				c.Conversations, c.Batch, c.Partitions = int(n), 500, 4
				c.PerConversation = max(1, c.Batch*c.Partitions/int(n))
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
			Name: "batch", About: "records that a partition finds waiting and takes at once; each of another conversation", Log: true,
			Sizes: []float64{1, 5, 20, 100, 500, 2_000},
			set: func(c *StageConfig, n float64) {
				c.Batch, c.PerConversation, c.Partitions = int(n), 1, 4
				c.Batches = max(min(messages/c.Partitions/c.Batch, 250), 1)
				c.Conversations = 4_000
			},
		},
		{
			Name: "backlog", About: "records that wait for a worker, which takes them 500 at a time; 10,000 conversations", Log: true,
			Sizes: []float64{2_000, 10_000, 100_000, 1_000_000}, Usual: 100_000,
			set: func(c *StageConfig, n float64) {
				c.Conversations, c.Batch, c.PerConversation, c.Partitions = 10_000, 500, 1, 4
				c.Batches = max(int(n)/c.Partitions/c.Batch, 1)
			},
		},
		{
			Name: "history", About: "messages that history has; 10,000 conversations, and batches of 500, each message of another one", Log: true,
			Sizes: []float64{10_000, 100_000, 1_000_000, 10_000_000}, Usual: 1_000_000, Stages: []string{"tomongo"},
			set: func(c *StageConfig, n float64) {
				c.Conversations, c.Batch, c.PerConversation, c.Partitions = 10_000, 500, 1, 4
				c.Kept = max(int(n)/c.Conversations, 1)
				batches(c)
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

// ScalePoint is what a message, or a read, costs at one size, in microseconds of
// processor time.
type ScalePoint struct {
	Shape string `json:"shape"`
	// Stage is the worker, or what is read of history.
	Stage string  `json:"stage"`
	Size  float64 `json:"size"`
	// Worker is the stage's own time, history's included; Redis that of Redis,
	// where its process can be watched.
	Worker float64 `json:"worker_us"`
	Redis  float64 `json:"redis_us"`
	// In bytes: resident in the worker's process and in use in Redis at the end,
	// and the files of history. 0: there is none, or it is not watched.
	Memory      int64 `json:"memory_bytes"`
	RedisMemory int64 `json:"redis_memory_bytes"`
	Disk        int64 `json:"disk_bytes"`
}

// Opened is what a point needs beside its configuration.
type Opened struct {
	// Close ends it, and deletes what it left.
	Close func() error
	// Disk gives the bytes of history's files. nil: there are none.
	Disk func() (int64, error)
}

// Scale measures one stage along a shape, up to a limit; 0: the usual one. open
// gives what a point needs (a Redis, a history).
func Scale(ctx context.Context, s Shape, stage string, limit float64, open func(c *StageConfig) (Opened, error)) ([]ScalePoint, error) {
	var out []ScalePoint
	for _, size := range s.Upto(limit) {
		points, err := scalePoint(ctx, s, stage, size, open)
		if err != nil {
			return out, fmt.Errorf("%s, %s of %g: %w", stage, s.Name, size, err)
		}
		out = append(out, points...)
	}
	return out, nil
}

func scalePoint(ctx context.Context, s Shape, stage string, size float64, open func(c *StageConfig) (Opened, error)) (_ []ScalePoint, err error) {
	c := StageConfig{Stage: stage, Size: 300}
	s.set(&c, size)
	opened, err := open(&c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	r, err := RunStage(ctx, c)
	if err != nil {
		return nil, err
	}
	p := ScalePoint{Shape: s.Name, Stage: stage, Size: size, RedisMemory: r.RedisMemory}
	for _, u := range r.Processes {
		switch u.Name {
		case "this":
			p.Worker, p.Memory = u.PerMessage, u.Memory
		case "redis":
			p.Redis = u.PerMessage
		}
	}
	if opened.Disk != nil {
		if p.Disk, err = opened.Disk(); err != nil {
			return nil, err
		}
	}
	out := []ScalePoint{p}
	if c.Kept > 0 {
		for _, read := range c.readsOf() {
			us, err := processorTime(ctx, read.do)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", read.name, err)
			}
			out = append(out, ScalePoint{Shape: s.Name, Stage: read.name, Size: size, Worker: us})
		}
	}
	return out, nil
}

// processorTime gives what do takes of it, in microseconds, on average of so many
// that they take half a second, two at least: the system's clock of it ticks a
// hundred times a second. The first one, which may find nothing in a cache, does not
// count.
func processorTime(ctx context.Context, do func(ctx context.Context) error) (us float64, err error) {
	if err := do(ctx); err != nil {
		return 0, err
	}
	for n := 2; ; n *= 2 {
		began, _, err := stat(ownPID())
		if err != nil {
			return 0, err
		}
		for range n {
			if err := do(ctx); err != nil {
				return 0, err
			}
		}
		now, _, err := stat(ownPID())
		if err != nil {
			return 0, err
		}
		if now-began >= 0.5 {
			return (now - began) * 1e6 / float64(n), nil
		}
	}
}

// PlotScale draws the points of one shape: what a message costs by size.
func PlotScale(s Shape, points []ScalePoint, name string) error {
	if err := Plottable(name); err != nil {
		return err
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = s.Name, s.About, "microseconds of processor time"
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
