package console

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Pipeline is what the processes say about themselves at one moment. Numbers
// that only ever grow are counted since each process started; a pointer is nil
// where no process tells.
type Pipeline struct {
	// NowMs is when the processes were asked, in milliseconds since 1970.
	NowMs     int64     `json:"nowMs"`
	Processes []Process `json:"processes"`
	Stages    []Stage   `json:"stages"`
	Topics    []Topic   `json:"topics"`
	Lag       []Lag     `json:"lag"`
	// DeadLetters counts records that were set aside, by the topic that they stood
	// in and by reason.
	DeadLetters *Count `json:"deadLetters"`
	// Anomalies counts pages of Pull that should be rare, by kind.
	Anomalies *Count `json:"anomalies"`
	// Flush is about the watermarks that go to history later.
	Flush *Flush `json:"flush"`
	// Calls counts calls of the sync API, by method and code.
	Calls *Count `json:"calls"`
	// Connections is how many devices are connected to gateways.
	Connections *float64 `json:"connections"`
}

// Process is one that was asked.
type Process struct {
	Name string `json:"name"`
	// Ready: every part works.
	Ready bool `json:"ready"`
	// Error is why it could not be asked; its parts are not known then.
	Error string `json:"error,omitempty"`
	Parts []Part `json:"parts"`
}

// Part is a part of a process.
type Part struct {
	Name string `json:"name"`
	// Why it is not ready; empty when it is.
	Why string `json:"why,omitempty"`
}

// Stage is a worker that reads a topic.
type Stage struct {
	Name       string  `json:"name"`
	Records    float64 `json:"records"`
	Batches    float64 `json:"batches"`
	Partitions float64 `json:"partitions"`
	// HandleSeconds is the time that Handled attempts at a batch took together.
	HandleSeconds float64 `json:"handleSeconds"`
	Handled       float64 `json:"handled"`
	Retries       float64 `json:"retries"`
	Stuck         []Stuck `json:"stuck"`
}

// Stuck is a partition that does not move.
type Stuck struct {
	Topic     string  `json:"topic"`
	Partition int     `json:"partition"`
	Reason    string  `json:"reason"`
	Seconds   float64 `json:"seconds"`
}

// Topic is what the processes appended to one.
type Topic struct {
	Name    string  `json:"name"`
	Records float64 `json:"records"`
	Bytes   float64 `json:"bytes"`
}

// Lag is how far a group is behind on a partition.
type Lag struct {
	Group     string  `json:"group"`
	Topic     string  `json:"topic"`
	Partition int     `json:"partition"`
	Records   float64 `json:"records"`
	// Seconds is the age of the oldest record that waits.
	Seconds float64 `json:"seconds"`
	// Retention is the part of the topic's retention that this age has used.
	Retention float64 `json:"retention"`
	Lost      float64 `json:"lost"`
}

// Count is a number and what it is made of.
type Count struct {
	Total float64 `json:"total"`
	By    []Kind  `json:"by"`
}

// Kind is a part of a count; those that never happened are left out.
type Kind struct {
	Labels []string `json:"labels"`
	Count  float64  `json:"count"`
}

// Flush is what the history writer holds back and writes together.
type Flush struct {
	Flushes  float64 `json:"flushes"`
	Members  float64 `json:"members"`
	Advances float64 `json:"advances"`
	Pending  float64 `json:"pending"`
	// LastMs is when the last flush ended, in milliseconds since 1970; 0: there
	// was none, or nobody tells.
	LastMs int64 `json:"lastMs"`
}

// Pipeline asks the processes, or gives what they said a moment ago. Who comes
// while they are being asked gets the same answer.
func (c *Console) Pipeline(ctx context.Context) *Pipeline {
	out, _, _ := c.asking.Do("", func() (any, error) {
		c.mu.Lock()
		last, at := c.last, c.at
		c.mu.Unlock()
		if last != nil && c.cfg.Now().Sub(at) < c.cfg.Fresh {
			return last, nil
		}
		// The one who came first may leave; the others wait for it all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Patience)
		defer cancel()
		p := c.askAll(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last, c.at = p, time.UnixMilli(p.NowMs)
		return p, nil
	})
	return out.(*Pipeline)
}

func (c *Console) askAll(ctx context.Context) *Pipeline {
	samples := make([]metrics, len(c.cfg.Processes)+1)
	processes := make([]Process, len(samples))
	var asked sync.WaitGroup
	for i, base := range c.cfg.Processes {
		asked.Go(func() { processes[i+1], samples[i+1] = c.ask(ctx, base) })
	}
	processes[0], samples[0] = c.self()
	asked.Wait()
	all := join(samples)
	return &Pipeline{
		NowMs: c.cfg.Now().UnixMilli(), Processes: processes,
		Stages: all.stages(), Topics: all.topics(), Lag: all.lag(),
		DeadLetters: all.count(setAside, claimed, "topic", "reason"), Anomalies: all.count("tidemark_syncapi_is_end_anomalies_total", "tidemark_syncapi_waiting_calls", "kind"),
		Flush: all.flush(), Calls: all.count("tidemark_syncapi_calls_total", "tidemark_syncapi_waiting_calls", "method", "code"),
		Connections: all.one("tidemark_gateway_connections"),
	}
}

// ThisProcess is the name of the process that serves the console.
const ThisProcess = "this process"

func (c *Console) self() (Process, metrics) {
	parts, ready := c.cfg.Report()
	p := Process{Name: ThisProcess, Ready: ready, Parts: partsOf(parts)}
	families, err := c.cfg.Gatherer.Gather()
	if err != nil {
		c.cfg.Logger.Warn("some metrics cannot be gathered", "error", err)
	}
	m := metrics{}
	for _, f := range families {
		m.add(f)
	}
	return p, m
}

func partsOf(report map[string]string) []Part {
	out := make([]Part, 0, len(report))
	for _, name := range slices.Sorted(maps.Keys(report)) {
		out = append(out, Part{name, report[name]})
	}
	return out
}

// one gives the sum of a metric, nil where no process has it.
func (m metrics) one(name string) *float64 {
	if !m.has(name) {
		return nil
	}
	return new(m.sum(name))
}

// count adds a counter up by labels. A counter that never moved is not there, so
// another metric of the same part tells whether anybody counts.
func (m metrics) count(name, beside string, labels ...string) *Count {
	if !m.has(name) && !m.has(beside) {
		return nil
	}
	out := &Count{Total: m.sum(name), By: []Kind{}}
	for _, g := range m.by(name, labels...) {
		// Many are there from the start so that their first one is seen.
		if g.value > 0 {
			out.By = append(out.By, Kind{g.values, g.value})
		}
	}
	return out
}

const (
	claimed     = "tidemark_pipeline_claimed_partitions"
	stuck       = "tidemark_pipeline_stuck_seconds"
	setAside    = "tidemark_pipeline_dead_letters_total"
	handled     = "tidemark_pipeline_handled_records_total"
	batches     = "tidemark_pipeline_handled_batches_total"
	handling    = "tidemark_pipeline_handle_seconds"
	retries     = "tidemark_pipeline_retries_total"
	lastFlush   = "tidemark_pipeline_last_flush_timestamp_seconds"
	lagRecords  = "tidemark_pipeline_lag_records"
	lagSeconds  = "tidemark_pipeline_lag_seconds"
	lagUsed     = "tidemark_pipeline_lag_retention_ratio"
	lagLost     = "tidemark_pipeline_lag_lost_records"
	appended    = "tidemark_pipeline_appended_records_total"
	bytesTotal  = "tidemark_pipeline_appended_bytes_total"
	flushes     = "tidemark_tomongo_flushes_total"
	flushedRows = "tidemark_tomongo_flushed_members_total"
	advances    = "tidemark_tomongo_advances_total"
	pending     = "tidemark_tomongo_pending_members"
)

// order is that in which a message goes through the stages.
var order = []string{"toredis", "tomongo", "topush", "tooffline"}

func (m metrics) stages() []Stage {
	out := []Stage{}
	for _, g := range m.by(claimed, "stage") {
		name := g.values[0]
		s := Stage{
			Name: name, Partitions: g.value,
			Records: m.sum(handled, "stage", name), Batches: m.sum(batches, "stage", name),
			HandleSeconds: m.sum(handling, "stage", name), Handled: m.observations(handling, "stage", name),
			Retries: m.sum(retries, "stage", name), Stuck: []Stuck{},
		}
		for _, g := range m.by(stuck, "stage", "topic", "partition", "reason") {
			if g.values[0] == name {
				s.Stuck = append(s.Stuck, Stuck{Topic: g.values[1], Partition: number(g.values[2]), Reason: g.values[3], Seconds: g.value})
			}
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b Stage) int { return cmp.Compare(place(a.Name), place(b.Name)) })
	return out
}

// place tells where a stage comes: a group's name has its role's in it.
func place(stage string) int {
	for i, role := range order {
		if strings.Contains(stage, role) {
			return i
		}
	}
	return len(order)
}

func (m metrics) topics() []Topic {
	out := []Topic{}
	for _, g := range m.by(appended, "topic") {
		out = append(out, Topic{Name: g.values[0], Records: g.value, Bytes: m.sum(bytesTotal, "topic", g.values[0])})
	}
	return out
}

func (m metrics) lag() []Lag {
	type key struct{ group, topic, partition string }
	at := map[key]*Lag{}
	// Several processes may look at the same group; the one that looked last saw
	// it worst or best, and worst is what must not be overlooked.
	take := func(name string, field func(*Lag) *float64) {
		for _, s := range m[name].samples {
			k := key{s.labels["group"], s.labels["topic"], s.labels["partition"]}
			l := at[k]
			if l == nil {
				l = &Lag{Group: k.group, Topic: k.topic, Partition: number(k.partition)}
				at[k] = l
			}
			f := field(l)
			*f = max(*f, s.value)
		}
	}
	take(lagRecords, func(l *Lag) *float64 { return &l.Records })
	take(lagSeconds, func(l *Lag) *float64 { return &l.Seconds })
	take(lagUsed, func(l *Lag) *float64 { return &l.Retention })
	take(lagLost, func(l *Lag) *float64 { return &l.Lost })
	out := make([]Lag, 0, len(at))
	for _, l := range at {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b Lag) int {
		return cmp.Or(cmp.Compare(place(a.Group), place(b.Group)), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

func (m metrics) flush() *Flush {
	if !m.has(pending) {
		return nil
	}
	f := &Flush{Flushes: m.sum(flushes), Members: m.sum(flushedRows), Advances: m.sum(advances), Pending: m.sum(pending)}
	for _, s := range m[lastFlush].samples {
		if place(s.labels["stage"]) == slices.Index(order, "tomongo") {
			f.LastMs = max(f.LastMs, int64(math.Round(s.value*1000)))
		}
	}
	return f
}

// number reads a partition's number; -1 for what is none.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}
