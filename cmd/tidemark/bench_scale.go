package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
	"github.com/tidemark-im/tidemark/internal/config"
)

type scaleFlags struct {
	stageFlags
	shapes, stages []string
	limit          float64
	plots          string
}

func newBenchScaleCmd(a *app) *cobra.Command {
	f := scaleFlags{}
	var names []string
	var about strings.Builder
	for _, s := range bench.Shapes() {
		names = append(names, s.Name)
		fmt.Fprintf(&about, "  %-14s %s\n", s.Name, s.About)
	}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure what a message costs a stage as a load grows",
		Long: `Scale feeds one worker after another, as 'bench stage' does, with loads that grow in
one way while all else stays, and tells what a message costs in processor time:

` + about.String() + `
A cost that stays the same is what one hopes for. Without --redis only tomongo and
topush are measured, and topush without its marks. Of a history that grows it also
tells what a page, a peek, a cold load and a roster cost.

The largest sizes take minutes and gigabytes (a million conversations: 5 GB of
Redis; ten million messages: 6 GB of disk), and are measured only with --limit.`,
		Example: `  tidemark bench scale --redis 127.0.0.1:6379 --plots docs/img
  tidemark bench scale --shape members --stage topush
  tidemark bench scale --shape history --limit 1e7 --dir /big`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchScale(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.redis, "redis", nil, "`addresses` of a Redis, where keys of its own are made and deleted")
	flags.StringVar(&f.dir, "dir", "", "`directory` for the SQLite files (default: the system's)")
	flags.StringSliceVar(&f.shapes, "shape", names, "`what` grows: "+strings.Join(names, ", "))
	flags.StringSliceVar(&f.stages, "stage", []string{"toredis", "tomongo", "topush"}, "`workers` that are measured")
	flags.Float64Var(&f.limit, "limit", 0, "largest `size` that is measured; 0: what takes a minute or so")
	flags.StringVar(&f.plots, "plots", "", "draw each shape into this `directory`, as scale-NAME.svg")
	return cmd
}

func (a *app) benchScale(ctx context.Context, f scaleFlags) error {
	var shapes []bench.Shape
	for _, s := range bench.Shapes() {
		if slices.Contains(f.shapes, s.Name) {
			shapes = append(shapes, s)
		}
	}
	if len(shapes) < len(f.shapes) {
		return usagef("--shape: one of %s is not known", strings.Join(f.shapes, ", "))
	}
	base := config.Default()
	if len(f.redis) > 0 {
		a.sets = append(a.sets, "redis.addresses="+strings.Join(f.redis, ","))
	} else {
		f.stages = slices.DeleteFunc(f.stages, func(s string) bool { return s == "toredis" })
	}
	if len(f.stages) == 0 {
		return usagef("--stage: toredis needs --redis")
	}
	cfg, err := a.load(&base)
	if err != nil {
		return err
	}
	progress := newBenchBar(a.errOut)
	defer progress.finish()
	var points []bench.ScalePoint
	for _, s := range shapes {
		for _, stage := range f.stages {
			if !s.Has(stage) {
				continue
			}
			got, err := bench.Scale(ctx, s, stage, f.limit, func(c *bench.StageConfig) (bench.Opened, error) {
				c.Progress = progress.tell
				return a.openStage(ctx, c, f.stageFlags, cfg)
			})
			if err != nil {
				return interrupted(ctx, err)
			}
			points = append(points, got...)
		}
		if f.plots != "" {
			if err := bench.PlotScale(s, points, filepath.Join(f.plots, "scale-"+s.Name+".svg")); err != nil {
				return err
			}
		}
	}
	progress.finish()
	a.emit(points, func() {
		for _, s := range shapes {
			a.printShape(s, points)
		}
	})
	return nil
}

func (a *app) printShape(s bench.Shape, points []bench.ScalePoint) {
	fmt.Fprintf(a.out, "%s: %s\n\n", s.Name, s.About)
	megabytes := func(n int64) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprintf("%.0f", float64(n)/1e6)
	}
	var rows [][]string
	for _, p := range points {
		if p.Shape != s.Name {
			continue
		}
		rows = append(rows, []string{
			p.Stage, strconv.FormatFloat(p.Size, 'f', -1, 64), fmt.Sprintf("%.1f", p.Worker), fmt.Sprintf("%.1f", p.Redis),
			megabytes(p.Memory), megabytes(p.RedisMemory), megabytes(p.Disk),
		})
	}
	a.table([]string{"STAGE", strings.ToUpper(s.Name), "US EACH", "REDIS", "MB", "MB OF REDIS", "MB OF DISK"}, rows)
	fmt.Fprintln(a.out)
}

// closeAll closes what was opened, what was opened last first.
func closeAll(closers []func() error) error {
	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i]())
	}
	return errors.Join(errs...)
}
