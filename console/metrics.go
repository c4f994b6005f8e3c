package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metrics are the samples of one or more processes by the metric's name.
type metrics map[string]family

type family struct{ samples []sample }

type sample struct {
	labels map[string]string
	value  float64 // of a histogram or summary: the sum
	count  float64 // of a histogram or summary: how many were observed
}

// add takes a family in. What is no number (an empty summary's quantile, say) is
// left out.
func (m metrics) add(f *dto.MetricFamily) {
	at := m[f.GetName()]
	for _, x := range f.GetMetric() {
		s := sample{labels: make(map[string]string, len(x.GetLabel()))}
		for _, l := range x.GetLabel() {
			s.labels[l.GetName()] = l.GetValue()
		}
		switch {
		case x.Counter != nil:
			s.value = x.GetCounter().GetValue()
		case x.Gauge != nil:
			s.value = x.GetGauge().GetValue()
		case x.Histogram != nil:
			s.value, s.count = x.GetHistogram().GetSampleSum(), float64(x.GetHistogram().GetSampleCount())
		case x.Untyped != nil:
			s.value = x.GetUntyped().GetValue()
		default:
			continue
		}
		// JSON has no words for these.
		if math.IsNaN(s.value) || math.IsInf(s.value, 0) {
			continue
		}
		at.samples = append(at.samples, s)
	}
	m[f.GetName()] = at
}

// join gives the samples of all processes.
func join(all []metrics) metrics {
	out := metrics{}
	for _, m := range all {
		for name, f := range m {
			at := out[name]
			at.samples = append(at.samples, f.samples...)
			out[name] = at
		}
	}
	return out
}

func (m metrics) has(name string) bool { return len(m[name].samples) > 0 }

// sum adds up the samples whose labels have the given values; where is name,
// value, name, value ...
func (m metrics) sum(name string, where ...string) float64 {
	var out float64
	for _, s := range m[name].samples {
		if s.is(where) {
			out += s.value
		}
	}
	return out
}

func (m metrics) observations(name string, where ...string) float64 {
	var out float64
	for _, s := range m[name].samples {
		if s.is(where) {
			out += s.count
		}
	}
	return out
}

func (s sample) is(where []string) bool {
	for i := 0; i+1 < len(where); i += 2 {
		if s.labels[where[i]] != where[i+1] {
			return false
		}
	}
	return true
}

type grouped struct {
	values []string
	value  float64
}

// by adds the samples up for each combination of labels, in their order.
func (m metrics) by(name string, labels ...string) []grouped {
	at := map[string]*grouped{}
	for _, s := range m[name].samples {
		values := make([]string, len(labels))
		for i, l := range labels {
			values[i] = s.labels[l]
		}
		key := strings.Join(values, "\x00")
		g := at[key]
		if g == nil {
			g = &grouped{values: values}
			at[key] = g
		}
		g.value += s.value
	}
	out := make([]grouped, 0, len(at))
	for _, g := range at {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b grouped) int { return slices.Compare(a.values, b.values) })
	return out
}

// What another process may answer with, in bytes.
const (
	maxMetrics = 16 << 20
	maxReport  = 1 << 20
)

// ask asks another process. What it cannot tell is missing from the answer, and
// its error says why.
func (c *Console) ask(ctx context.Context, base string) (Process, metrics) {
	base = strings.TrimSuffix(base, "/")
	_, host, _ := strings.Cut(base, "://")
	p := Process{Name: host, Parts: []Part{}}
	report, ready, err := c.report(ctx, base)
	if err != nil {
		p.Error = err.Error()
		return p, nil
	}
	p.Ready, p.Parts = ready, partsOf(report)
	m, err := c.scrape(ctx, base)
	if err != nil {
		p.Ready, p.Error = false, err.Error()
	}
	return p, m
}

func (c *Console) scrape(ctx context.Context, base string) (metrics, error) {
	res, err := c.get(ctx, base+"/metrics", "text/plain")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/metrics answers %s", res.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(res.Body, maxMetrics))
	if err != nil {
		return nil, fmt.Errorf("/metrics cannot be read: %w", err)
	}
	m := metrics{}
	for _, f := range families {
		m.add(f)
	}
	return m, nil
}

func (c *Console) report(ctx context.Context, base string) (parts map[string]string, ready bool, err error) {
	res, err := c.get(ctx, base+"/readyz", "application/json")
	if err != nil {
		return nil, false, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusServiceUnavailable {
		return nil, false, fmt.Errorf("/readyz answers %s", res.Status)
	}
	var body struct {
		Ready bool              `json:"ready"`
		Parts map[string]string `json:"parts"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxReport)).Decode(&body); err != nil {
		return nil, false, fmt.Errorf("/readyz cannot be read: %w", err)
	}
	return body.Parts, body.Ready, nil
}

func (c *Console) get(ctx context.Context, where, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	res, err := c.cfg.Client.Do(req)
	if err == nil {
		return res, nil
	}
	if ctx.Err() != nil {
		return nil, errors.New("it does not answer in time")
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the address, which stands beside it
	}
	return nil, fmt.Errorf("it cannot be reached: %w", err)
}
