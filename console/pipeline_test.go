package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tidemark-im/tidemark/console"
)

// process is another process: its metrics and its readiness.
func process(t *testing.T, reg *prometheus.Registry, report string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if strings.Contains(report, `"ready":false`) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, report)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

func counter(reg *prometheus.Registry, name string, n float64, labels ...string) {
	keys, values := split(labels)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: name}, keys)
	if err := reg.Register(v); err != nil {
		v = err.(prometheus.AlreadyRegisteredError).ExistingCollector.(*prometheus.CounterVec)
	}
	v.WithLabelValues(values...).Add(n)
}

func gauge(reg *prometheus.Registry, name string, n float64, labels ...string) {
	keys, values := split(labels)
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: name}, keys)
	if err := reg.Register(v); err != nil {
		v = err.(prometheus.AlreadyRegisteredError).ExistingCollector.(*prometheus.GaugeVec)
	}
	v.WithLabelValues(values...).Set(n)
}

func split(labels []string) (keys, values []string) {
	for i := 0; i+1 < len(labels); i += 2 {
		keys, values = append(keys, labels[i]), append(values, labels[i+1])
	}
	return keys, values
}

func pipelineOf(t *testing.T, cfg console.Config) *console.Pipeline {
	t.Helper()
	c, err := console.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c.Pipeline(t.Context())
}

// What nobody tells is null, never 0.
func TestNoMetricIsNoData(t *testing.T) {
	cfg := config()
	cfg.Now = func() time.Time { return time.UnixMilli(5) }
	b, err := json.Marshal(pipelineOf(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"nowMs":5,"processes":[{"name":"this process","ready":true,"parts":[{"name":"sync"}]}],"stages":[],"topics":[],"lag":[],` +
		`"deadLetters":null,"anomalies":null,"flush":null,"calls":null,"connections":null}`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Error(diff)
	}
}

// A counter that never moved is not there; that its part is there makes it 0.
func TestWhatNeverHappenedIsNone(t *testing.T) {
	reg := prometheus.NewRegistry()
	gauge(reg, "tidemark_pipeline_claimed_partitions", 4, "stage", "tidemark-toredis")
	gauge(reg, "tidemark_syncapi_waiting_calls", 0)
	cfg := config()
	cfg.Gatherer = reg
	p := pipelineOf(t, cfg)
	for name, c := range map[string]*console.Count{"dead letters": p.DeadLetters, "anomalies": p.Anomalies, "calls": p.Calls} {
		if c == nil || c.Total != 0 || len(c.By) != 0 {
			t.Errorf("%s: %v", name, c)
		}
	}
}

func TestProcessesAreAddedUp(t *testing.T) {
	here, there := prometheus.NewRegistry(), prometheus.NewRegistry()
	for i, reg := range []*prometheus.Registry{here, there} {
		n := float64(i + 1)
		counter(reg, "tidemark_pipeline_appended_records_total", 10*n, "topic", "sequenced")
		counter(reg, "tidemark_pipeline_appended_bytes_total", 1000*n, "topic", "sequenced")
		counter(reg, "tidemark_pipeline_handled_records_total", n, "stage", "tidemark-toredis")
		gauge(reg, "tidemark_pipeline_claimed_partitions", 2*n, "stage", "tidemark-toredis")
		// Both look at the same group, at different moments.
		gauge(reg, "tidemark_pipeline_lag_records", 5*n, "group", "tidemark-toredis", "topic", "toRedis", "partition", "11")
		gauge(reg, "tidemark_pipeline_lag_seconds", 7*n, "group", "tidemark-toredis", "topic", "toRedis", "partition", "11")
	}
	gauge(there, "tidemark_pipeline_lag_records", 3, "group", "tidemark-toredis", "topic", "toRedis", "partition", "2")
	gauge(there, "tidemark_pipeline_claimed_partitions", 1, "stage", "tidemark-tomongo")
	gauge(there, "tidemark_pipeline_stuck_seconds", 61, "stage", "tidemark-tomongo", "topic", "sequenced", "partition", "3", "reason", "store")
	gauge(there, "tidemark_tomongo_pending_members", 4)
	counter(there, "tidemark_tomongo_flushes_total", 2, "reason", "count")
	counter(there, "tidemark_tomongo_advances_total", 50)
	counter(there, "tidemark_tomongo_flushed_members_total", 6)
	gauge(there, "tidemark_pipeline_last_flush_timestamp_seconds", 1.5, "stage", "tidemark-tomongo")
	gauge(there, "tidemark_pipeline_last_flush_timestamp_seconds", 99, "stage", "tidemark-toredis")
	counter(here, "tidemark_pipeline_dead_letters_total", 2, "topic", "toRedis", "reason", "id_reused")
	counter(here, "tidemark_pipeline_dead_letters_total", 0, "topic", "toRedis", "reason", "invalid")
	counter(there, "tidemark_pipeline_dead_letters_total", 3, "topic", "sequenced", "reason", "undecodable")
	counter(here, "tidemark_syncapi_is_end_anomalies_total", 1, "kind", "gap")
	counter(there, "tidemark_syncapi_is_end_anomalies_total", 1, "kind", "gap")
	gauge(there, "tidemark_gateway_connections", 8)
	cfg := config()
	cfg.Gatherer = here
	cfg.Processes = []string{process(t, there, `{"ready":false,"parts":{"tomongo":"","kafka":"away"}}`) + "/"}
	p := pipelineOf(t, cfg)
	want := &console.Pipeline{
		NowMs: p.NowMs,
		Processes: []console.Process{
			{Name: console.ThisProcess, Ready: true, Parts: []console.Part{{Name: "sync"}}},
			{Name: p.Processes[1].Name, Parts: []console.Part{{Name: "kafka", Why: "away"}, {Name: "tomongo"}}},
		},
		Stages: []console.Stage{
			{Name: "tidemark-toredis", Records: 3, Partitions: 6, Stuck: []console.Stuck{}},
			{Name: "tidemark-tomongo", Partitions: 1, Stuck: []console.Stuck{{Topic: "sequenced", Partition: 3, Reason: "store", Seconds: 61}}},
		},
		Topics: []console.Topic{{Name: "sequenced", Records: 30, Bytes: 3000}},
		Lag: []console.Lag{
			{Group: "tidemark-toredis", Topic: "toRedis", Partition: 2, Records: 3},
			{Group: "tidemark-toredis", Topic: "toRedis", Partition: 11, Records: 10, Seconds: 14},
		},
		DeadLetters: &console.Count{Total: 5, By: []console.Kind{{Labels: []string{"sequenced", "undecodable"}, Count: 3}, {Labels: []string{"toRedis", "id_reused"}, Count: 2}}},
		Anomalies:   &console.Count{Total: 2, By: []console.Kind{{Labels: []string{"gap"}, Count: 2}}},
		Flush:       &console.Flush{Flushes: 2, Members: 6, Advances: 50, Pending: 4, LastMs: 1500},
		Connections: new(8.0),
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestProcessesThatCannotBeAsked(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	silent := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-silent }))
	t.Cleanup(func() { close(silent); hangs.Close() })
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			fmt.Fprint(w, `{"ready":true,"parts":{"sync":""}}`)
			return
		}
		fmt.Fprint(w, "<html>")
	}))
	t.Cleanup(odd.Close)
	cfg := config()
	cfg.Processes, cfg.Patience = []string{gone.URL, hangs.URL, other.URL, odd.URL}, 200*time.Millisecond
	p := pipelineOf(t, cfg)
	for i, want := range []string{"it cannot be reached: dial", "it does not answer in time", "/readyz answers 404", "/metrics cannot be read"} {
		got := p.Processes[i+1]
		if got.Ready || !strings.Contains(got.Error, want) || strings.Contains(got.Error, "http://") {
			t.Errorf("%+v does not say %q", got, want)
		}
	}
	if !p.Processes[0].Ready {
		t.Error("this process suffers from others")
	}
}

// However many pages ask, the processes are asked once in a while.
func TestAnAnswerIsSharedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		cfg := config()
		cfg.Report = func() (map[string]string, bool) {
			asked.Add(1)
			time.Sleep(100 * time.Millisecond)
			return nil, true
		}
		c, err := console.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		// The first of them gives up; the others are served all the same.
		first, cancel := context.WithCancel(t.Context())
		var pages sync.WaitGroup
		pages.Go(func() { c.Pipeline(first) })
		for range 20 {
			pages.Go(func() { c.Pipeline(t.Context()) })
		}
		cancel()
		pages.Wait()
		c.Pipeline(t.Context())
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
		time.Sleep(console.DefaultFresh)
		c.Pipeline(t.Context())
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times after a while", n)
		}
	})
}
