package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
topush are measured, and topush without its marks.`,
		Example: `  tidemark bench scale --redis 127.0.0.1:6379 --plots docs/img
  tidemark bench scale --shape members --stage topush`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchScale(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.redis, "redis", nil, "`addresses` of a Redis, where keys of its own are made and deleted")
	flags.StringVar(&f.dir, "dir", "", "`directory` for the SQLite files (default: the system's)")
	flags.StringSliceVar(&f.shapes, "shape", names, "`what` grows: "+strings.Join(names, ", "))
	flags.StringSliceVar(&f.stages, "stage", []string{"toredis", "tomongo", "topush"}, "`workers` that are measured")
	flags.Float64Var(&f.limit, "limit", 0, "leave out larger sizes; 0: none")
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
			got, err := bench.Scale(ctx, s, stage, f.limit, func(c *bench.StageConfig) (func() error, error) {
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
			fmt.Fprintf(a.out, "%s: %s\n\n", s.Name, s.About)
			var rows [][]string
			for _, p := range points {
				if p.Shape == s.Name {
					rows = append(rows, []string{p.Stage, fmt.Sprintf("%g", p.Size), fmt.Sprintf("%.1f", p.Worker), fmt.Sprintf("%.1f", p.Redis), fmt.Sprintf("%.0f", float64(p.Memory)/1e6)})
				}
			}
			a.table([]string{"STAGE", strings.ToUpper(s.Name), "US A MESSAGE", "REDIS", "MB"}, rows)
			fmt.Fprintln(a.out)
		}
	})
	return nil
}

// closeAll closes what was opened, what was opened last first.
func closeAll(closers []func() error) error {
	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i]())
	}
	return errors.Join(errs...)
}
