package bench

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// Latency is a histogram's summary, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

func (h *hist) latency() Latency {
	h.mu.Lock()
	defer h.mu.Unlock()
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return Latency{
		Count: h.h.TotalCount(), Mean: h.h.Mean() / 1000, P50: ms(h.h.ValueAtQuantile(50)), P90: ms(h.h.ValueAtQuantile(90)),
		P99: ms(h.h.ValueAtQuantile(99)), P999: ms(h.h.ValueAtQuantile(99.9)), Max: ms(h.h.Max()),
	}
}

// Machine is what something was measured on.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	Go    string `json:"go"`
	OS    string `json:"os"`
	// Load is the load average of the last minute when the trial ended; of a
	// machine that others use it says how much they did.
	Load float64 `json:"load_average"`
}

func thisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return m // not Linux
	}
	m.CPU = cpuModel(fs)
	if load, err := fs.LoadAvg(); err == nil {
		m.Load = load.Load1
	}
	return m
}

// Count is how often something was done for each message.
type Count struct {
	Name       string  `json:"name"`
	PerMessage float64 `json:"per_message"`
}

// Report is what one rate came to.
type Report struct {
	Machine Machine       `json:"machine"`
	Load    Load          `json:"load"`
	Rate    float64       `json:"rate"`
	WarmUp  time.Duration `json:"warm_up_ns"`
	Time    time.Duration `json:"time_ns"`
	// Achieved is messages a second that went through, see throughput; nil: the
	// trial was too short to tell.
	Achieved *float64 `json:"achieved"`
	// Sustained: nothing was further behind than the lag that is allowed, and of a
	// hundred messages no more than one was sequenced later than that.
	Sustained    bool    `json:"sustained"`
	LagSequenced float64 `json:"lag_sequenced_s"`
	LagPersisted float64 `json:"lag_persisted_s"`

	// Acked is the generator's and Kafka's part: until a message stands in the
	// topic toRedis. Late is how late the generator itself was.
	Late      Latency `json:"generator_late"`
	Acked     Latency `json:"acked"`
	Sequenced Latency `json:"sequenced"`
	Persisted Latency `json:"persisted"`
	Pullable  Latency `json:"pullable"`
	Pushed    Latency `json:"pushed"`
	// NotFound were looked for in vain, Skipped not looked for.
	NotFound int64 `json:"not_found"`
	Skipped  int64 `json:"skipped"`

	Processes []Usage `json:"processes"`
	Counts    []Count `json:"counts"`
	Points    []Point `json:"points"`
}

// shown are the metrics that are counted per message, and what they are called.
var shown = []struct{ metric, name string }{
	{"tidemark_seqalloc_calls_total", "script calls"},
	{"tidemark_toredis_appended_records_total", "sequenced records"},
	{"tidemark_embedded_queries_total", "history reads"},
	{"tidemark_history_commands_total", "history commands"},
	{"tidemark_embedded_call_seconds{op=write}", "history writes"},
	{"tidemark_tomongo_flushed_members_total", "watermarks written"},
	{"tidemark_tomongo_advances_total", "watermarks advanced"},
	{"tidemark_topush_recipients_total", "push recipients"},
	{"tidemark_toredis_cold_loads_total", "cold loads"},
}

func (s *Session) report(c *clock, w *watch, before, after *snapshot, late *hist) *Report {
	o := s.observer
	n := float64(c.to - c.from)
	r := &Report{
		Machine: thisMachine(), Load: s.cfg.Load, Rate: c.rate, WarmUp: s.cfg.WarmUp,
		Time: time.Duration(n / c.rate * float64(time.Second)),
		Late: late.latency(), Acked: o.acked.latency(), Sequenced: o.sequenced.latency(), Persisted: o.persisted.latency(),
		Pullable: o.pullable.latency(), Pushed: o.pushed.latency(), NotFound: o.gone.Load(), Skipped: o.skipped.Load(),
		Processes: usage(before, after, n), Points: w.points,
	}
	if rate, ok := throughput(w.points, c.from-w.first, c.to-w.first, c.rate); ok {
		r.Achieved = &rate
	}
	r.LagSequenced, r.LagPersisted = w.lags()
	limit := s.cfg.MaxLag.Seconds()
	r.Sustained = r.LagSequenced <= limit && r.LagPersisted <= limit+flushAllowance && r.NotFound == 0 && r.Sequenced.P99 <= 1000*limit
	count := func(name string, v float64) {
		if v != 0 {
			r.Counts = append(r.Counts, Count{name, v / n})
		}
	}
	for _, x := range shown {
		count(x.name, after.meters[x.metric]-before.meters[x.metric])
	}
	count("bytes of the sequenced log", float64(o.bytes.Load()))
	r.Counts = append(r.Counts, redisCounts(before.redis, after.redis, n)...)
	return r
}

// redisCounts gives the commands that Redis ran for each message, those inside
// scripts too, and what it keeps of one.
func redisCounts(before, after *redisState, n float64) []Count {
	if before == nil || after == nil {
		return nil
	}
	var out []Count
	for _, cmd := range slices.Sorted(maps.Keys(after.calls)) {
		if d := (after.calls[cmd] - before.calls[cmd]) / n; d >= 0.001 {
			out = append(out, Count{"redis " + cmd, d})
		}
	}
	return append(out, Count{"bytes of Redis memory", float64(after.memory-before.memory) / n})
}

// flushAllowance is what gathering rows for tomongo.write_interval, 5 s, and
// counting them once a second adds to a lag.
const flushAllowance = 6.0

func (r *Report) through() string {
	if r.Achieved == nil {
		return "too short to tell how many went through"
	}
	return fmt.Sprintf("%.0f went through", *r.Achieved)
}

// Text gives the report for people, as rows of cells.
func (r *Report) Text() (summary []string, latencies, processes, counts [][]string) {
	state := "sustained"
	if !r.Sustained {
		state = "NOT sustained"
	}
	summary = []string{
		fmt.Sprintf("%.0f messages a second for %s, %s: %s; behind at most %.2f s (log), %.2f s (history)",
			r.Rate, r.Time.Round(time.Second), state, r.through(), r.LagSequenced, r.LagPersisted),
		fmt.Sprintf("%d conversations, %s, bodies of %d bytes, skew %g", r.Load.Conversations, membersText(r.Load.Members), r.Load.Size, r.Load.Skew),
		fmt.Sprintf("%d cores (%s), %s, load average %.1f", r.Machine.Cores, r.Machine.CPU, r.Machine.Go, r.Machine.Load),
	}
	if r.NotFound+r.Skipped > 0 {
		summary = append(summary, fmt.Sprintf("%d probes found nothing within %s, %d were not made", r.NotFound, probeFor, r.Skipped))
	}
	if line := memoryText(r.Points); line != "" {
		summary = append(summary, line)
	}
	for _, x := range []struct {
		name string
		l    Latency
	}{
		{"generator was late", r.Late}, {"in toRedis (Kafka)", r.Acked}, {"sequenced", r.Sequenced},
		{"pullable", r.Pullable}, {"in history", r.Persisted}, {"on a device", r.Pushed},
	} {
		if x.l.Count > 0 {
			latencies = append(latencies, x.l.row(x.name))
		}
	}
	return summary, latencies, UsageRows(r.Processes), CountRows(r.Counts)
}

// memoryText says what each process held after a quarter, a half, three quarters
// and at the end of a trial, the time included that it took to catch up.
func memoryText(points []Point) string {
	if len(points) < 4 {
		return ""
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(points[0].Memory)) {
		at := make([]string, 4)
		for i := range at {
			at[i] = fmt.Sprintf("%.0f", float64(points[(i+1)*len(points)/4-1].Memory[name])/1e6)
		}
		out = append(out, name+" "+strings.Join(at, ", "))
	}
	return "MB after each quarter: " + strings.Join(out, "; ")
}

// UsageRows gives processes for a table.
func UsageRows(us []Usage) (rows [][]string) {
	for _, p := range us {
		rows = append(rows, []string{p.Name, fmt.Sprintf("%.1f", p.Cores), fmt.Sprintf("%.1f", p.PerMessage), fmt.Sprintf("%.0f", float64(p.Memory)/1e6)})
	}
	return rows
}

// CountRows gives counts for a table.
func CountRows(cs []Count) (rows [][]string) {
	for _, c := range cs {
		rows = append(rows, []string{c.Name, fmt.Sprintf("%.3f", c.PerMessage)})
	}
	return rows
}

// Rows gives the latencies for a table.
func (r *SyncReport) Rows() (rows [][]string) {
	for _, x := range []struct {
		name string
		l    Latency
	}{
		{"GetWatermarks, warm", r.WarmMarks}, {"a page of it", r.WarmPage}, {"GetWatermarks, cold", r.ColdMarks},
		{"Pull, warm", r.WarmPull}, {"Pull, cold", r.ColdPull},
	} {
		if x.l.Count > 0 {
			rows = append(rows, x.l.row(x.name))
		}
	}
	return rows
}

// SyncHeader and SyncRow give a curve over the number of conversations. Times
// are in milliseconds, those of a warm round by process in milliseconds of
// processor time.
var SyncHeader = []string{
	"CONVERSATIONS", "PAGES", "WATERMARKS P50", "P99", "A PAGE AT THE SERVER", "COLD P50", "CPU OF A WARM ROUND",
	"HISTORY READS", "PULL P50", "P99", "AT THE SERVER", "COLD P50",
}

// SyncRow gives one row under SyncHeader.
func (r *SyncReport) SyncRow() []string {
	f := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	reads := 0.0
	for _, c := range r.WarmCounts {
		if c.Name == historyReads {
			reads = c.PerMessage
		}
	}
	var cpu []string
	for _, u := range r.WarmUsage {
		cpu = append(cpu, u.Name+" "+f(u.PerMessage/1000))
	}
	return []string{
		fmt.Sprint(r.Conversations), fmt.Sprint(r.Pages), f(r.WarmMarks.P50), f(r.WarmMarks.P99), f(r.ServerPage), f(r.ColdMarks.P50),
		strings.Join(cpu, ", "), fmt.Sprintf("%.0f", reads), f(r.WarmPull.P50), f(r.WarmPull.P99), f(r.ServerPull), f(r.ColdPull.P50),
	}
}

func (l Latency) row(name string) []string {
	f := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	return []string{name, f(l.P50), f(l.P90), f(l.P99), f(l.P999), f(l.Max), fmt.Sprint(l.Count)}
}

func membersText(n int) string {
	if n == 0 {
		return "each of two users"
	}
	return fmt.Sprintf("groups of %d", n)
}
