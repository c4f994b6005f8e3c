package tooffline_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/internal/fault"
)

// gauge gives the only series of a metric.
func (w *world) gauge(name string) float64 {
	w.t.Helper()
	for _, f := range w.gather() {
		if f.name == name {
			return f.value
		}
	}
	w.t.Fatalf("no metric %s", name)
	return 0
}

// outcome checks how many notifications had an outcome.
func (w *world) outcome(outcome string, want float64) {
	w.t.Helper()
	for _, f := range w.gather() {
		if f.name == "tidemark_tooffline_notifications_total" && f.labels["outcome"] == outcome {
			if f.value != want {
				w.t.Errorf("%s: %v, want %v", outcome, f.value, want)
			}
			return
		}
	}
	w.t.Errorf("no notification ended %s", outcome)
}

type series struct {
	name, help string
	labels     map[string]string
	value      float64
}

func (w *world) gather() []series {
	w.t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	var out []series
	for _, f := range families {
		for _, m := range f.GetMetric() {
			s := series{name: f.GetName(), help: f.GetHelp(), labels: map[string]string{}}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			s.value = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			out = append(out, s)
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin(nil)
		w.tell(group, 1, "B")
		w.tell(group, 2, "B")
		w.after(time.Minute)
		w.close()
		var got []string
		for _, s := range w.gather() {
			if s.labels["endpoint"] != "webhook" {
				t.Errorf("%s lacks its endpoint: %v", s.name, s.labels)
			}
			got = append(got, s.name+" "+s.labels["outcome"]+s.labels["result"]+": "+s.help)
		}
		if d := cmp.Diff([]string{
			"tidemark_tooffline_attempt_seconds : How long an attempt took.",
			"tidemark_tooffline_attempts_total ok: Attempts to deliver, by result (ok, retry, refused).",
			"tidemark_tooffline_circuit_open : 1 while no attempts are made because those before failed.",
			"tidemark_tooffline_collapsed_total : Messages that joined a notification which was waiting already.",
			"tidemark_tooffline_devices_gone_total : Device tokens that the endpoint said are not good any more.",
			"tidemark_tooffline_lookup_errors_total : Notifications put off because the state of the user could not be read.",
			"tidemark_tooffline_notifications_total delivered: Notifications that are done with, by outcome (delivered, dead_letter, read, muted, revoked, not_visible, old, no_device).",
			"tidemark_tooffline_pending : Messages times users that wait or are under way.",
		}, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

func TestAllFaultsOfAConfigAreNamed(t *testing.T) {
	_, err := tooffline.New(tooffline.Config{
		Endpoint: "Bad Name", Preview: -1, MaxAge: -1, Tries: -1, Concurrency: -1, Timeout: -1, MaxPending: -1, BreakerAfter: -1, BreakerPause: -1,
		FirstPause: time.Hour,
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"Endpoint", "Sender", "Store", "DeadLetters", "DeadLetter", "Preview", "MaxAge", "Tries", "Concurrency", "Timeout", "MaxPending", "BreakerAfter", "BreakerPause", "FirstPause"} {
		if !strings.Contains(err.Error(), want+" ") {
			t.Errorf("%s is not named in:\n%v", want, err)
		}
	}
	if _, err := newWorld(t).worker(nil).Stage(t.Context(), -1); fault.ClassOf(err) != fault.Fatal {
		t.Errorf("partition -1: %v", err)
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "soon": 0, "-3": 0, "90": 90 * time.Second, "99999999999": tooffline.MaxRetryAfterRead,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:00:00 GMT": 0, "Fri, 02 Jan 2099 03:00:00 GMT": tooffline.MaxRetryAfterRead,
	} {
		if got := tooffline.RetryAfter(http.Header{"Retry-After": {header}}, now); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
	final := []int{400, 410, 413, 415, 422}
	for status := 200; status < 600; status++ {
		err := tooffline.OutcomeOf("x", status, http.Header{"Retry-After": {"7"}})
		if (err == nil) != (status < 300) {
			t.Errorf("%d: %v", status, err)
		}
		if err == nil {
			continue
		}
		e := err.(*tooffline.SendError)
		whole := status == 429 || status == 503
		if e.Final != slices.Contains(final, status) || e.Whole != whole || e.Final != (e.RetryAfter == 0) {
			t.Errorf("%d: %+v", status, e)
		}
	}
}
