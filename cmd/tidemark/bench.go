package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
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

// benchTarget says what is measured: embedded servers, or given ones.
type benchTarget struct {
	kafka, redis []string
	processes    string
	binary       string
	dir          string
	partitions   int32
}

func (t *benchTarget) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&t.kafka, "kafka", nil, "measure on the Kafka at these `addresses`, with topics of its own; needs --redis (default: embedded servers)")
	flags.StringSliceVar(&t.redis, "redis", nil, "and on the Redis at these `addresses`, with keys of its own")
	flags.StringVar(&t.processes, "processes", "one", "`how` the roles run: one (process for all), or each (in one of its own); embedded servers have one")
	flags.StringVar(&t.binary, "binary", "", "`program` that runs the roles (default: this one)")
	flags.StringVar(&t.dir, "dir", "", "`directory` for history and the embedded servers' data; a new one inside it is deleted at the end (default: the system's)")
	flags.Int32Var(&t.partitions, "partitions", 0, "partitions of the topics (default 4)")
}

// loadFlags are the shape of a load.
type loadFlags struct {
	bench.Load
}

func (l *loadFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&l.Conversations, "conversations", 10_000, "how many conversations there are")
	flags.IntVar(&l.Members, "members", 0, "members of each; 0: conversations of two users")
	flags.IntVar(&l.Size, "size", 300, "bytes of a message's body")
	flags.Float64Var(&l.Skew, "skew", 0, "Zipf exponent of the conversations' shares; 0: all the same")
	flags.IntSliceVar(&l.Bursts, "bursts", nil, "`numbers` of messages that a conversation gets in a row, each as likely as the others (default 1)")
	flags.Uint64Var(&l.Seed, "seed", 1, "makes two loads the same")
}

func newBenchCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Measure speed: end to end, by stage, of two builds",
		Example: `  tidemark bench e2e --rate 1000 --duration 30s`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		bench.OutliveReaders()
		// A variable that is not set must not turn into a trial of the embedded servers.
		for _, name := range []string{"kafka", "redis"} {
			if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "[]" {
				return usagef("--%s is empty", name)
			}
		}
		return cmd.Root().PersistentPreRunE(cmd, args)
	}
	cmd.AddCommand(newBenchE2ECmd(a), newBenchStageCmd(a), newBenchSyncCmd(a), newBenchCompareCmd(a), newBenchPlanCmd(a), newBenchScaleCmd(a), newBenchDevicesCmd(a))
	return cmd
}

type e2eFlags struct {
	benchTarget
	loadFlags
	rates            []float64
	duration, warmUp time.Duration
	devices          int
	probes           float64
	maxLag           time.Duration
	max              bool
	plot             string
}

func newBenchE2ECmd(a *app) *cobra.Command {
	f := e2eFlags{}
	cmd := &cobra.Command{
		Use:   "e2e",
		Short: "Measure a system end to end, at rates that nothing slows down",
		Long: `E2e publishes messages at a constant rate, whatever the system makes of it, and
measures for each how long after the moment at which it was meant to be sent it
is sequenced, pullable, in history, and on a device.

Without --kafka it runs on embedded servers, which are slow and say little about
real ones. With --kafka and --redis the roles run on those, with topics, keys and
an SQLite history of their own, which are deleted at the end; with --set
history.backend=mongodb and history.uri history is a new database there.

Settings of the configuration hold for the roles as for 'tidemark run'.`,
		Example: `  tidemark bench e2e --rate 500
  tidemark bench e2e --kafka 127.0.0.1:9092 --redis 127.0.0.1:6379 --rate 1000,5000,15000 --plot latency.svg
  tidemark bench e2e --kafka 127.0.0.1:9092 --redis 127.0.0.1:6379 --max
  tidemark bench e2e --members 100 --conversations 1000 --skew 1 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchE2E(cmd.Context(), f) },
	}
	f.addFlags(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.max, "max", false, "find the highest rate that is sustained, beginning at --rate")
	flags.StringVar(&f.plot, "plot", "", "draw latency by rate into this `file` (.svg or .png)")
	return cmd
}

func (f *e2eFlags) addFlags(cmd *cobra.Command) {
	f.benchTarget.addFlags(cmd)
	f.loadFlags.addFlags(cmd)
	flags := cmd.Flags()
	flags.Float64SliceVar(&f.rates, "rate", []float64{1000}, "messages a second; several are measured one after another")
	flags.DurationVar(&f.duration, "duration", 20*time.Second, "how long each rate is measured")
	flags.DurationVar(&f.warmUp, "warm-up", 5*time.Second, "how long each rate runs before it is measured")
	flags.IntVar(&f.devices, "devices", 4, "users that are connected and wait for pushes")
	flags.Float64Var(&f.probes, "probes", 25, "messages a second that are looked for in history and by pulls")
	flags.DurationVar(&f.maxLag, "max-lag", 2*time.Second, "how far behind everything may be for a rate to count as sustained")
}

// generatorGCPercent is gcPercent for the load generator, whose heap is small and whose
// time is not the system's.
const generatorGCPercent = 400

func (a *app) benchE2E(ctx context.Context, f e2eFlags) (err error) {
	if f.plot != "" {
		if err := bench.Plottable(f.plot); err != nil {
			return usageError{fmt.Errorf("--plot %w", err)}
		}
	}
	for _, rate := range f.rates {
		if err := bench.CheckRate(rate); err != nil {
			return err
		}
	}
	if len(f.rates) == 0 || (f.max && len(f.rates) > 1) {
		return usagef("--rate: at least one is needed, and --max takes one to begin at")
	}
	// A trial that is over sooner cannot fall behind by what is allowed, and what it
	// sends at once counts as sustained.
	if least := 5 * f.maxLag; f.max && f.duration < least {
		return usagef("--max needs a --duration of at least %v, five times --max-lag, is %v", least, f.duration)
	}
	if len(f.kafka) > 0 { // otherwise the roles run in this process
		collectAt(generatorGCPercent)
	}
	progress := newBenchBar(a.errOut)
	defer progress.finish()
	s, done, err := a.openBench(ctx, f, f.binary, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	var reports []*bench.Report
	each := func(r *bench.Report) {
		progress.finish()
		a.printBench(r)
		reports = append(reports, r)
	}
	if f.max {
		best, err := s.Highest(ctx, f.rates[0], f.warmUp, f.duration, each)
		if err != nil {
			return interrupted(ctx, err)
		}
		if best == nil {
			return errors.New("no rate was sustained")
		}
		if a.output != "json" {
			fmt.Fprintf(a.out, "The highest rate that was sustained is %.0f messages a second.\n", best.Rate)
		}
	}
	for _, rate := range f.rates {
		if f.max {
			break
		}
		r, err := s.Trial(ctx, rate, f.warmUp, f.duration)
		if err != nil {
			return interrupted(ctx, err)
		}
		each(r)
	}
	if f.plot != "" {
		return bench.Plot(reports, f.plot)
	}
	return nil
}

// openBench makes a system that is ready to be measured; done ends it and
// deletes what it left.
func (a *app) openBench(ctx context.Context, f e2eFlags, binary string, progress *benchBar) (_ *bench.Session, done func() error, err error) {
	f.binary = binary
	given := a.sets
	defer func() { a.sets = given }() // the next system has names of its own
	sys, clean, err := a.benchSystem(ctx, f.benchTarget)
	if err != nil {
		return nil, nil, err
	}
	s, err := bench.Open(ctx, bench.Config{
		System: sys, Load: f.Load, Rate: f.rates[0], WarmUp: f.warmUp, Duration: f.duration,
		Devices: f.devices, Probes: f.probes, MaxLag: f.maxLag, Progress: progress.tell,
	})
	if err != nil {
		return nil, nil, errors.Join(interrupted(ctx, err), clean())
	}
	return s, func() error { return errors.Join(s.Close(), clean()) }, nil
}

func (a *app) printBench(r *bench.Report) {
	a.emit(r, func() {
		summary, latencies, processes, counts := r.Text()
		for _, line := range summary {
			fmt.Fprintln(a.out, oneLine(line))
		}
		fmt.Fprintln(a.out)
		a.table([]string{"MS AFTER IT WAS MEANT TO BE SENT", "P50", "P90", "P99", "P99.9", "MAX", "COUNT"}, latencies)
		fmt.Fprintln(a.out)
		a.table([]string{"PROCESS", "CORES", "US/MESSAGE", "MB"}, processes)
		fmt.Fprintln(a.out)
		a.table([]string{"FOR EACH MESSAGE", ""}, counts)
		fmt.Fprintln(a.out)
	})
}

// benchSystem gives the processes of a target. clean deletes what they leave on
// services that others use.
func (a *app) benchSystem(ctx context.Context, t benchTarget) (_ bench.System, clean func() error, err error) {
	if (len(t.kafka) == 0) != (len(t.redis) == 0) {
		return bench.System{}, nil, usagef("--kafka and --redis go together")
	}
	if t.processes != "one" && t.processes != "each" {
		return bench.System{}, nil, usagef("--processes must be one or each, is %q", t.processes)
	}
	dir, err := os.MkdirTemp(t.dir, "tidemark-bench-")
	if err != nil {
		return bench.System{}, nil, usageError{fmt.Errorf("--dir: %w", err)}
	}
	clean = func() error { return os.RemoveAll(dir) }
	defer func() {
		if err != nil {
			err = errors.Join(err, clean())
		}
	}()
	if t.partitions == 0 {
		t.partitions = 4
	}
	if len(t.kafka) == 0 {
		sys, err := a.benchEmbedded(t, dir)
		return sys, clean, err
	}
	sys, drop, err := a.benchReal(ctx, t, dir)
	if err != nil {
		return sys, clean, err
	}
	remove := clean
	return sys, func() error { return errors.Join(drop(), remove()) }, err
}

func (a *app) benchEmbedded(t benchTarget, dir string) (bench.System, error) {
	base := config.Default()
	a.sets = append(a.sets, fmt.Sprintf("kafka.partitions=%d", t.partitions))
	cfg, err := a.loadEmbedded("bench", &base)
	if err != nil {
		return bench.System{}, err
	}
	args := []string{"dev", "--data", filepath.Join(dir, "data"), "--kafka-port", "0", "--sync", "127.0.0.1:0",
		"--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--output", "json"}
	kafka, err := stack.Kafka(cfg, nil)
	cfg.History.Path = filepath.Join(dir, "data", "history.db")
	return bench.System{
		Binary: t.binary, Kafka: kafka, Partitions: t.partitions, OpenHistory: openBenchHistory(cfg.History),
		Commands: []bench.Command{{Name: "tidemark dev", Args: a.passed(args), Wants: []string{"kafka", "sync", "gateway"}}},
	}, err
}

func openBenchHistory(cfg config.History) func(ctx context.Context) (bench.History, func() error, error) {
	return func(ctx context.Context) (bench.History, func() error, error) {
		return stack.OpenHistory(ctx, cfg, slog.New(slog.DiscardHandler))
	}
}

// passed adds to a command line what this one says of the configuration.
func (a *app) passed(args []string) []string {
	if a.configFile != "" {
		args = append(args, "--config", a.configFile)
	}
	for _, s := range a.sets {
		args = append(args, "--set", s)
	}
	return args
}

// benchReal gives the roles on given services.
func (a *app) benchReal(ctx context.Context, t benchTarget, dir string) (_ bench.System, drop func() error, err error) {
	name := "bench-" + strings.ToLower(rand.Text()[:10]) + "."
	a.sets = append(a.sets,
		"kafka.brokers="+strings.Join(t.kafka, ","), "redis.addresses="+strings.Join(t.redis, ","),
		"kafka.topic_prefix="+name, "redis.prefix="+name, "kafka.create_topics=true", fmt.Sprintf("kafka.partitions=%d", t.partitions),
		"history.path="+filepath.Join(dir, "history.db"), "history.database="+strings.Trim(name, "."),
		"sync.listen=127.0.0.1:0", "gateway.listen=127.0.0.1:0", "admin.listen=127.0.0.1:0", fmt.Sprintf("gateway.redis=%t", t.processes == "each"),
	)
	cfg, err := a.load(nil)
	if err != nil {
		return bench.System{}, nil, err
	}
	kafka, err := stack.Kafka(cfg, nil)
	if err != nil {
		return bench.System{}, nil, err
	}
	client, err := stack.Redis(cfg.Redis)
	if err != nil {
		return bench.System{}, nil, err
	}
	if err := bench.Reachable(ctx, kafka, client); err != nil {
		return bench.System{}, nil, errors.Join(interrupted(ctx, err), client.Close())
	}
	drop = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return errors.Join(bench.DropTopics(ctx, kafka), bench.DropKeys(ctx, client, cfg.Redis.Prefix), client.Close())
	}
	sys := bench.System{
		Binary: t.binary, Kafka: kafka, Partitions: t.partitions, Redis: client, RedisAddress: t.redis[0], OpenHistory: openBenchHistory(cfg.History),
	}
	roles := stack.Roles()
	if t.processes == "one" {
		args := []string{"run"}
		for _, r := range roles {
			args = append(args, string(r))
		}
		sys.Commands = []bench.Command{{Name: "tidemark", Args: a.passed(append(args, "--output", "json")), Wants: []string{"sync", "gateway"}}}
		return sys, drop, nil
	}
	for _, r := range roles {
		c := bench.Command{Name: "tidemark " + string(r), Args: a.passed([]string{"run", string(r), "--output", "json"})}
		if r == stack.Sync || r == stack.Gateway {
			c.Wants = []string{string(r)}
		}
		sys.Commands = append(sys.Commands, c)
	}
	return sys, drop, nil
}

// benchBar shows what a benchmark does, one bar after another.
type benchBar struct {
	w    io.Writer
	what string
	bar  *bar
	done int64
}

func newBenchBar(w io.Writer) *benchBar { return &benchBar{w: w} }

func (b *benchBar) tell(what string, done, total int64) {
	if total == 0 {
		return
	}
	if b.bar == nil || what != b.what {
		b.finish()
		b.what, b.done, b.bar = what, 0, newBar(b.w, what, total)
	}
	b.bar.step(done - b.done)
	b.done = done
}

func (b *benchBar) finish() {
	if b.bar != nil {
		b.bar.finish()
	}
	b.bar = nil
}
