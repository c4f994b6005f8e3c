package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
)

// checkFlags are those of 'bench plan --check'.
type checkFlags struct {
	benchTarget
	check            bool
	duration, warmUp time.Duration
}

func (f *checkFlags) addFlags(cmd *cobra.Command) {
	f.benchTarget.addFlags(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.check, "check", false, "measure three loads end to end, on the given --kafka and --redis, and hold the plan against them")
	flags.DurationVar(&f.duration, "duration", 15*time.Second, "with --check: how long each load is measured")
	flags.DurationVar(&f.warmUp, "warm-up", 4*time.Second, "with --check: how long each runs before it is measured")
}

// checkPlan measures the loads that plans are checked with, each on a system of its
// own, and prints what the plan says beside what it was. Where nobody says how fast
// the machine is the first load does.
func (a *app) checkPlan(ctx context.Context, f checkFlags, speed bench.Speed) error {
	if len(f.kafka) == 0 || len(f.redis) == 0 {
		return usagef("--check measures on real servers: --kafka and --redis are needed")
	}
	progress := newBenchBar(a.errOut)
	defer progress.finish()
	var all []bench.Checked
	calibrates := speed == bench.Speed{}
	for i, l := range bench.PlannedLoads() {
		r, err := a.measurePlanned(ctx, f, l, progress)
		if err != nil {
			return interrupted(ctx, err)
		}
		first := calibrates && i == 0
		if first {
			if speed, err = l.Calibrate(r); err != nil {
				return err
			}
		}
		l.Plan.Speed = speed
		got, err := l.Check(r)
		if err != nil {
			return err
		}
		for i := range got {
			got[i].Calibrates = first
		}
		all = append(all, got...)
	}
	progress.finish()
	a.emit(all, func() {
		var rows [][]string
		fell := map[string]bool{}
		for _, c := range all {
			ratio := fmt.Sprintf("%.2f", c.Ratio)
			if c.Calibrates {
				ratio = "sets the speed"
			}
			rows = append(rows, []string{
				c.Load, c.Part, fmt.Sprintf("%.1f", c.Planned), fmt.Sprintf("%.1f", c.Rounds), fmt.Sprintf("%.1f", c.Measured),
				ratio, fmt.Sprintf("%.1f / %.1f", c.PerBatch, c.MeasuredPerBatch),
			})
			if !c.Sustained {
				fell[c.Load] = true
			}
		}
		a.table([]string{"LOAD", "PART", "PLAN US/MESSAGE", "OF IT ROUNDS", "MEASURED", "PLAN/MEASURED", "B"}, rows)
		if calibrates {
			fmt.Fprintf(a.out, "\nThis machine, by the first load: --speed %.2f,%.2f,%.2f (roles, Redis, Kafka)\n", speed.Roles, speed.Redis, speed.Kafka)
		}
		for _, l := range bench.PlannedLoads() {
			if fell[l.Name] {
				fmt.Fprintf(a.out, "\n%s was not sustained: where there is no room no rounds are made that could share it\n", strings.TrimSpace(l.Name))
			}
		}
	})
	return nil
}

func (a *app) measurePlanned(ctx context.Context, f checkFlags, l bench.PlannedLoad, progress *benchBar) (_ *bench.Report, err error) {
	e := e2eFlags{benchTarget: f.benchTarget, rates: []float64{l.Plan.Rate}, duration: f.duration, warmUp: f.warmUp, maxLag: 2 * time.Second}
	e.Load = l.Load
	s, done, err := a.openBench(ctx, e, f.binary, progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	return s.Trial(ctx, l.Plan.Rate, f.warmUp, f.duration)
}
