package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

type stageFlags struct {
	gatewayFlags
	redis                []string
	dir                  string
	per                  []int
	batch, batches, size int
	partitions           int
	nothing              bool
}

func newBenchStageCmd(a *app) *cobra.Command {
	f := stageFlags{}
	cmd := &cobra.Command{
		Use:   "stage toredis|tomongo|topush|gateway",
		Short: "Measure one worker by itself, as fast as it goes",
		Long: `Stage feeds one worker with batches that are made beforehand, in this process and
without Kafka: toredis on a Redis (--redis), tomongo on an SQLite file, topush on a
Redis if one is given. What it would append to Kafka goes nowhere. A gateway has
live connections, which another process holds (--connections, --messages, --size).

--b is how many messages of one conversation stand in a batch.`,
		Example: `  tidemark bench stage toredis --redis 127.0.0.1:6379 --b 1,10,100
  tidemark bench stage tomongo
  tidemark bench stage topush
  tidemark bench stage gateway --connections 10000`,
		Args: cobra.ExactArgs(1), ValidArgs: []string{"toredis", "tomongo", "topush", "gateway"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "gateway" {
				return a.benchGateway(cmd.Context(), f.gatewayFlags, f.size)
			}
			return a.benchStage(cmd.Context(), args[0], f)
		},
	}
	f.gatewayFlags.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.redis, "redis", nil, "`addresses` of a Redis, where keys of its own are made and deleted")
	flags.StringVar(&f.dir, "dir", "", "`directory` for the SQLite file (default: the system's)")
	flags.IntSliceVar(&f.per, "b", []int{1, 10, 100}, "`numbers` of messages of one conversation in a batch, one after another")
	flags.IntVar(&f.batch, "batch", 500, "records of a batch")
	flags.IntVar(&f.batches, "batches", 40, "batches of each partition")
	flags.IntVar(&f.partitions, "partitions", 4, "partitions that are worked on at once")
	flags.IntVar(&f.size, "size", 300, "bytes of a message's body")
	flags.BoolVar(&f.nothing, "nothing", false, "tomongo: write to nobody, to measure the worker alone")
	return cmd
}

func (a *app) benchStage(ctx context.Context, stage string, f stageFlags) (err error) {
	base := config.Default()
	if len(f.redis) > 0 {
		a.sets = append(a.sets, "redis.addresses="+strings.Join(f.redis, ","))
	}
	cfg, err := a.load(&base)
	if err != nil {
		return err
	}
	for _, per := range f.per {
		if err := a.benchOneStage(ctx, stage, per, f, cfg); err != nil {
			return interrupted(ctx, err)
		}
	}
	return nil
}

func (a *app) benchOneStage(ctx context.Context, stage string, per int, f stageFlags, cfg config.Config) (err error) {
	progress := newBenchBar(a.errOut)
	defer progress.finish()
	sc := bench.StageConfig{
		Stage: stage, PerConversation: per, Batch: f.batch, Batches: f.batches, Partitions: f.partitions, Size: f.size, Progress: progress.tell,
	}
	opened, err := a.openStage(ctx, &sc, f, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	r, err := bench.RunStage(ctx, sc)
	if err != nil {
		return err
	}
	progress.finish()
	a.emit(r, func() {
		fmt.Fprintf(a.out, "%s, b=%d: %.0f messages a second (%d in %s; %d partitions; load average %.1f)\n\n",
			r.Stage, r.PerConversation, r.Rate, r.Messages, r.Time.Round(time.Millisecond), r.Partitions, r.Machine.Load)
		a.table([]string{"PROCESS", "CORES", "US/MESSAGE", "MB"}, bench.UsageRows(r.Processes))
		if len(r.Counts) > 0 {
			fmt.Fprintln(a.out)
			a.table([]string{"FOR EACH MESSAGE", ""}, bench.CountRows(r.Counts))
		}
		fmt.Fprintln(a.out)
	})
	return nil
}

// openStage gives a stage what it works with: keys of its own on a Redis, an
// SQLite file of its own.
func (a *app) openStage(ctx context.Context, sc *bench.StageConfig, f stageFlags, cfg config.Config) (opened bench.Opened, err error) {
	var closers []func() error
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(closers))
		}
	}()
	if len(f.redis) > 0 {
		client, err := stack.Redis(cfg.Redis)
		if err != nil {
			return opened, err
		}
		prefix := "bench-" + strings.ToLower(rand.Text()[:10]) + "."
		sc.Redis, sc.RedisAddress, sc.Prefix = client, f.redis[0], prefix
		closers = append(closers, client.Close, func() error { return bench.DropKeys(context.WithoutCancel(ctx), client, prefix) })
	}
	if sc.Stage == "tomongo" && !f.nothing {
		dir, err := os.MkdirTemp(f.dir, "tidemark-bench-")
		if err != nil {
			return opened, usageError{fmt.Errorf("--dir: %w", err)}
		}
		closers = append(closers, func() error { return os.RemoveAll(dir) })
		h, closing, err := stack.OpenHistory(ctx, config.History{Backend: "sqlite", Path: filepath.Join(dir, "history.db")}, slog.New(slog.DiscardHandler))
		if err != nil {
			return opened, err
		}
		sc.Writer = h
		closers = append(closers, closing)
		opened.Disk = func() (int64, error) { return sizeOf(dir) }
	}
	opened.Close = func() error { return closeAll(closers) }
	return opened, nil
}

// sizeOf gives the bytes of a directory's files.
func sizeOf(dir string) (n int64, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return 0, err
		}
		n += info.Size()
	}
	return n, nil
}

type syncFlags struct {
	benchTarget
	conversations          []int
	messages, size, rounds int
}

func newBenchSyncCmd(a *app) *cobra.Command {
	f := syncFlags{}
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Measure GetWatermarks and Pull of one user, warm and cold",
		Long: `Sync makes a user with many conversations, and asks for the watermarks of all of
them and for one page of messages, again and again. With --redis the cold rounds
come after all keys of the run were deleted; a round of GetWatermarks is all of
its pages. Several numbers of conversations give a curve, each with a system and
a user of its own.`,
		Example: `  tidemark bench sync --kafka 127.0.0.1:9092 --redis 127.0.0.1:6379
  tidemark bench sync --conversations 1000
  tidemark bench sync --kafka 127.0.0.1:9092 --redis 127.0.0.1:6379 --conversations 10,100,1000,10000 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchSync(cmd.Context(), f) },
	}
	f.addFlags(cmd)
	flags := cmd.Flags()
	flags.IntSliceVar(&f.conversations, "conversations", []int{10_000}, "conversations of the user, one number after another")
	flags.IntVar(&f.messages, "messages", 100, "messages of the conversation that is pulled")
	flags.IntVar(&f.size, "size", 300, "bytes of a message's body")
	flags.IntVar(&f.rounds, "rounds", 10, "how often each is asked for; Pull, warm, twenty times as often")
	return cmd
}

func (a *app) benchSync(ctx context.Context, f syncFlags) error {
	progress := newBenchBar(a.errOut)
	defer progress.finish()
	var reports []*bench.SyncReport
	for _, n := range f.conversations {
		r, err := a.benchSyncOf(ctx, f, n, progress)
		if err != nil {
			return interrupted(ctx, err)
		}
		reports = append(reports, r)
	}
	progress.finish()
	a.emit(reports, func() { a.printSync(reports) })
	return nil
}

func (a *app) benchSyncOf(ctx context.Context, f syncFlags, conversations int, progress *benchBar) (r *bench.SyncReport, err error) {
	sys, clean, err := a.benchSystem(ctx, f.benchTarget)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clean()) }()
	cfg := bench.SyncConfig{
		System: sys, Conversations: conversations, Messages: f.messages, Size: f.size, Rounds: f.rounds, Progress: progress.tell,
	}
	if sys.Redis != nil {
		prefix := sys.Kafka.TopicPrefix
		cfg.Forget = func(ctx context.Context) error { return bench.DropKeys(ctx, sys.Redis, prefix) }
	}
	return bench.RunSync(ctx, cfg)
}

// printSync prints a curve, or all that is known of one point.
func (a *app) printSync(reports []*bench.SyncReport) {
	if len(reports) != 1 {
		rows := make([][]string, len(reports))
		for i, r := range reports {
			rows[i] = r.SyncRow()
		}
		a.table(bench.SyncHeader, rows)
		return
	}
	r := reports[0]
	fmt.Fprintf(a.out, "%d conversations in %d pages, %d messages; load average %.1f\n\n", r.Conversations, r.Pages, r.Messages, r.Machine.Load)
	a.table([]string{"MILLISECONDS", "P50", "P90", "P99", "P99.9", "MAX", "COUNT"}, r.Rows())
	fmt.Fprintf(a.out, "\nat the server, on average: a warm page of GetWatermarks %.2f ms, a warm Pull %.2f ms\n\n", r.ServerPage, r.ServerPull)
	a.table([]string{"A WARM ROUND OF GETWATERMARKS", ""}, bench.CountRows(r.WarmCounts))
	for _, x := range []struct {
		what string
		used []bench.Usage
	}{{"A WARM ROUND", r.WarmUsage}, {"A WARM PULL", r.PullUsage}} {
		fmt.Fprintln(a.out)
		var rows [][]string
		for _, u := range x.used {
			rows = append(rows, []string{u.Name, fmt.Sprintf("%.2f", u.PerMessage/1000)})
		}
		a.table([]string{x.what, "PROCESSOR MS"}, rows)
	}
	if len(r.ColdCounts) > 0 {
		fmt.Fprintln(a.out)
		a.table([]string{"A COLD ONE", ""}, bench.CountRows(r.ColdCounts))
	}
}

func newBenchCompareCmd(a *app) *cobra.Command {
	f := e2eFlags{}
	rounds := 3
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Measure two builds in turn, and tell their ratios",
		Long: `Compare runs the roles of one program and then of the other, again and again, each
time with topics, keys and a history of their own, and tells each figure's ratio
B/A: below 1 means that B needs less. The generator is this program for both.

On a machine that others use, the ratios of processor time are what counts: two
trials that follow one another see about the same load.`,
		Example: `  tidemark bench compare ./tidemark-before ./tidemark --kafka 127.0.0.1:9092 --redis 127.0.0.1:6379 --rate 2000 --duration 10s`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.benchCompare(cmd.Context(), f, args[0], args[1], rounds)
		},
	}
	f.addFlags(cmd)
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "how often each of the two is measured")
	return cmd
}

func (a *app) benchCompare(ctx context.Context, f e2eFlags, first, second string, rounds int) error {
	if f.binary != "" {
		return usagef("--binary: compare is told its two programs as arguments")
	}
	if len(f.rates) != 1 {
		return usagef("--rate: compare takes one")
	}
	for _, p := range []string{first, second} {
		if _, err := os.Stat(p); err != nil {
			return usageError{err}
		}
	}
	progress := newBenchBar(a.errOut)
	defer progress.finish()
	of := func(binary string) func(context.Context) (*bench.Report, error) {
		return func(ctx context.Context) (_ *bench.Report, err error) {
			s, done, err := a.openBench(ctx, f, binary, progress)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, done()) }()
			return s.Trial(ctx, f.rates[0], f.warmUp, f.duration)
		}
	}
	ratios, err := bench.Compare(ctx, rounds, of(first), of(second))
	if err != nil {
		return interrupted(ctx, err)
	}
	progress.finish()
	a.emit(ratios, func() {
		var rows [][]string
		for _, r := range ratios {
			rows = append(rows, []string{r.Name, fmt.Sprintf("%.1f", r.A), fmt.Sprintf("%.1f", r.B), fmt.Sprintf("%.2f", r.Ratio), fmt.Sprintf("%.2f..%.2f", r.Low, r.High)})
		}
		a.table([]string{"", "A", "B", "B/A", "OF A ROUND"}, rows)
	})
	return nil
}

func newBenchPlanCmd(a *app) *cobra.Command {
	p, f := bench.Plan{Costs: bench.DefaultCosts()}, checkFlags{}
	var speed []float64
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Work out what a load needs: cores, memory, disk",
		Long: `Plan works out how many cores each part of a deployment needs, and what Redis and
history hold, from costs that were measured (docs/performance.md has the formula
and how they were). They are of one machine; --speed says how many times as fast
another one is. ROUNDS are cores that one process of a worker takes beside them
while it has room, for batches of few messages. Plan for twice of what it says: lag
is made up only with room above the rate.

With --check three loads are measured, as 'bench e2e' does, on a real Kafka and
Redis, and what the plan says of each stands beside what it was; that takes one to
three minutes. Without --speed the first of them says how fast this machine is, and
the others check what follows from it. With --processes each all is told of each
worker.`,
		Example: `  tidemark bench plan --rate 5000 --conversations 1000000 --members 2
  tidemark bench plan --check --kafka 127.0.0.1:9092 --redis 127.0.0.1:6379
  tidemark bench plan --rate 5000 --speed 1.8,1.9,1.9`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if p.Speed, err = bench.SpeedOf(speed); err != nil {
				return usageError{err}
			}
			if f.check {
				return a.checkPlan(cmd.Context(), f, p.Speed)
			}
			answer, err := p.Answer()
			if err != nil {
				return usageError{err}
			}
			a.emit(answer, func() {
				var rows [][]string
				for _, n := range answer.Needs {
					memory := ""
					if n.Memory > 0 {
						memory = fmt.Sprintf("%.1f", n.Memory/1e9)
					}
					rows = append(rows, []string{n.Part, fmt.Sprintf("%.2f", n.Cores), fmt.Sprintf("%.2f", n.Rounds), memory})
				}
				a.table([]string{"PART", "CORES", "ROUNDS", "GB OF MEMORY"}, rows)
				fmt.Fprintf(a.out, "\nb = %.1f messages of a conversation at once; history grows %.1f GB a day, Kafka keeps %.1f GB of one\n",
					answer.PerBatch, answer.HistoryPerDay/1e9, answer.LogPerDay/1e9)
			})
			return nil
		},
	}
	f.addFlags(cmd)
	flags := cmd.Flags()
	flags.Float64Var(&p.Rate, "rate", 1000, "messages a second")
	flags.IntVar(&p.Size, "size", 300, "bytes of a message's body")
	flags.IntVar(&p.Conversations, "conversations", 100_000, "conversations that get messages within a day")
	flags.IntVar(&p.Members, "members", 2, "members of each")
	flags.Float64Var(&p.Burst, "burst", 1, "messages that a conversation gets in a row, on average")
	flags.Float64Var(&p.Kept, "kept", 100, "messages of a conversation that stand in Redis, on average")
	flags.Float64SliceVar(&speed, "speed", nil, "how many times as fast the machine is as that of the costs: one `number`, or three: of roles, Redis and Kafka")
	flags.Float64Var(&p.Online, "online", 0.1, "share of members whose device is connected")
	return cmd
}
