package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"
	"github.com/redis/go-redis/v9"
)

// Usage is what one process has used.
type Usage struct {
	Name string `json:"name"`
	// CPU is seconds of processor time, PerMessage microseconds of it for each
	// message that was sequenced meanwhile.
	CPU        float64 `json:"cpu_seconds"`
	PerMessage float64 `json:"cpu_us_per_message"`
	// Cores is how many were kept busy.
	Cores float64 `json:"cores"`
	// Memory is resident at the end, in bytes.
	Memory int64 `json:"memory_bytes"`
}

// stat gives the processor time and memory of a process of this machine.
func stat(pid int) (cpu float64, memory int64, err error) {
	if !watches {
		return 0, 0, errors.New("what a process takes is read from /proc, which only Linux has")
	}
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0, err
	}
	s, err := p.Stat()
	if err != nil {
		return 0, 0, err
	}
	return s.CPUTime(), int64(s.ResidentMemory()), nil
}

// listener gives the process of this machine that listens at an address; false
// where that cannot be told: another machine, or another user's.
func listener(addr string) (pid int, ok bool) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || (host != "localhost" && !net.ParseIP(host).IsLoopback()) {
		return 0, false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, false
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, false
	}
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		listening(table, number, inodes)
	}
	procs, err := fs.AllProcs()
	if err != nil || len(inodes) == 0 {
		return 0, false
	}
	for _, p := range procs {
		targets, err := p.FileDescriptorTargets()
		if err != nil {
			continue // another user's
		}
		for _, t := range targets {
			if inodes[t] {
				return p.PID, true
			}
		}
	}
	return 0, false
}

// listening finds the sockets that listen at a port in a table of Linux's: its
// columns are number, local address, remote address, state, ..., and the tenth
// is the inode.
func listening(table string, port uint64, inodes map[string]bool) {
	text, err := os.ReadFile(table)
	if err != nil {
		return // no such protocol here
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "0A" {
			continue
		}
		if at, err := strconv.ParseUint(f[1][strings.LastIndexByte(f[1], ':')+1:], 16, 16); err == nil && at == port {
			inodes["socket:["+f[9]+"]"] = true
		}
	}
}

// sumOf stands behind the name of a histogram for the sum of what it was fed.
const sumOf = ".sum"

// meters are sums of metrics, by name and by name{label=value}.
type meters map[string]float64

// scrape adds up the metrics of several processes.
func scrape(ctx context.Context, admins []string) (meters, error) {
	m := meters{}
	for _, a := range admins {
		body, _, err := get(ctx, a+"/metrics")
		if err != nil {
			return nil, err
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("metrics of %s: %w", a, err)
		}
		for name, f := range families {
			for _, x := range f.GetMetric() {
				v := value(x)
				sum := x.GetHistogram().GetSampleSum()
				m[name], m[name+sumOf] = m[name]+v, m[name+sumOf]+sum
				for _, l := range x.GetLabel() {
					label := "{" + l.GetName() + "=" + l.GetValue() + "}"
					m[name+label], m[name+sumOf+label] = m[name+label]+v, m[name+sumOf+label]+sum
				}
			}
		}
	}
	return m, nil
}

// value gives a counter's or a gauge's; of a histogram how often it was fed.
func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	case m.GetHistogram() != nil:
		return float64(m.GetHistogram().GetSampleCount())
	case m.GetSummary() != nil:
		return float64(m.GetSummary().GetSampleCount())
	}
	return 0
}

// redisState is what Redis has counted, over all masters.
type redisState struct {
	calls  map[string]float64 // by command
	memory int64
	keys   int64
}

func askRedis(ctx context.Context, client redis.UniversalClient) (*redisState, error) {
	if client == nil {
		return nil, nil
	}
	s := &redisState{calls: map[string]float64{}}
	one := func(ctx context.Context, c *redis.Client) error {
		text, err := c.Info(ctx, "commandstats", "memory").Result()
		if err != nil {
			return err
		}
		keys, err := c.DBSize(ctx).Result()
		s.keys += keys
		s.read(text)
		return err
	}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return s, cluster.ForEachMaster(ctx, one)
	}
	single, ok := client.(*redis.Client)
	if !ok {
		return nil, errors.New("what Redis has counted cannot be asked of this client")
	}
	return s, one(ctx, single)
}

// read takes the lines of INFO. Commands inside a script are counted as
// commands, too.
func (s *redisState) read(info string) {
	for line := range strings.Lines(info) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_memory" {
			n, _ := strconv.ParseInt(rest, 10, 64)
			s.memory += n
		}
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		for field := range strings.SplitSeq(rest, ",") {
			key, value, _ := strings.Cut(field, "=")
			if n, err := strconv.ParseFloat(value, 64); key == "calls" && err == nil {
				s.calls[command] += n
			}
		}
	}
}

// snapshot is everything that is compared before and after.
type snapshot struct {
	at     time.Time
	cpu    map[string]float64
	memory map[string]int64
	meters meters
	redis  *redisState
}

// snapshot asks everything at once.
func (s *system) snapshot(ctx context.Context) (*snapshot, error) {
	x := &snapshot{at: time.Now(), cpu: map[string]float64{}, memory: map[string]int64{}}
	for name, pid := range s.pids {
		cpu, memory, err := stat(pid)
		if err != nil {
			return nil, fmt.Errorf("process %s (%d): %w", name, pid, err)
		}
		x.cpu[name], x.memory[name] = cpu, memory
	}
	var err error
	if x.meters, err = scrape(ctx, s.admins()); err != nil {
		return nil, err
	}
	x.redis, err = askRedis(ctx, s.redis)
	return x, err
}

// usage gives what each process used between two moments.
func usage(before, after *snapshot, messages float64) []Usage {
	wall := after.at.Sub(before.at).Seconds()
	var out []Usage
	for _, name := range slices.Sorted(maps.Keys(after.cpu)) {
		cpu := after.cpu[name] - before.cpu[name]
		u := Usage{Name: name, CPU: cpu, Cores: cpu / wall, Memory: after.memory[name]}
		if messages > 0 {
			u.PerMessage = cpu / messages * 1e6
		}
		out = append(out, u)
	}
	return out
}

func ownPID() int { return os.Getpid() }
