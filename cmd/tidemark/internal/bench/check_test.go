package bench_test

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
)

// TestAPlanIsHeldAgainstATrial: each part that was watched, and all roles together,
// in the same measure.
func TestAPlanIsHeldAgainstATrial(t *testing.T) {
	l := bench.PlannedLoads()[1]
	a, err := l.Plan.Answer()
	if err != nil {
		t.Fatal(err)
	}
	each := &bench.Report{
		Processes: []bench.Usage{
			{Name: "generator", PerMessage: 1000}, {Name: "tidemark toredis", PerMessage: 40}, {Name: "tidemark tomongo", PerMessage: 100},
			{Name: "tidemark sync", PerMessage: 3}, {Name: "redis", PerMessage: 50},
		},
		Counts: []bench.Count{{Name: "script calls", PerMessage: 0.9}, {Name: "sequenced records", PerMessage: 0.5}},
	}
	got, err := l.Check(each)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"all roles": 143, "toredis": 40, "tomongo": 100, "redis": 50}
	if len(got) != len(want) {
		t.Errorf("%d parts, want %d: %+v", len(got), len(want), got)
	}
	for _, c := range got {
		if c.Measured != want[c.Part] || c.MeasuredPerBatch != 2 || math.Abs(c.Ratio*c.Measured-c.Planned) > 1e-9 || c.Rounds > c.Planned {
			t.Errorf("%+v", c)
		}
		for _, n := range a.Needs {
			if n.Part == c.Part && math.Abs(c.Planned*l.Plan.Rate/1e6-n.Cores-n.Rounds) > 1e-9 {
				t.Errorf("%s: %g us of a plan of %g cores and %g of rounds", c.Part, c.Planned, n.Cores, n.Rounds)
			}
		}
	}
	one, err := l.Check(&bench.Report{Processes: []bench.Usage{{Name: "tidemark", PerMessage: 200}}})
	if err != nil || len(one) != 1 || one[0].Part != "all roles" || one[0].Measured != 200 {
		t.Errorf("of one process: %+v, %v", one, err)
	}
}

func TestPlannedLoadsAreSound(t *testing.T) {
	for _, l := range bench.PlannedLoads() {
		if err := l.Load.Validate(); err != nil {
			t.Errorf("%s: %v", l.Name, err)
		}
		if _, err := l.Check(&bench.Report{}); err != nil {
			t.Errorf("%s: %v", l.Name, err)
		}
		if l.Load.Conversations != l.Plan.Conversations || l.Load.Size != l.Plan.Size {
			t.Errorf("%s: the plan is of another load", l.Name)
		}
	}
}

// The first load tells how fast the machine is: its own plan is exact then, and
// that of another load is as much less.
func TestATrialTellsTheSpeed(t *testing.T) {
	loads := bench.PlannedLoads()
	r := &bench.Report{Processes: []bench.Usage{{Name: "tidemark", PerMessage: 200}, {Name: "kafka", PerMessage: 100}}}
	speed, err := loads[0].Calibrate(r)
	if err != nil || speed.Redis != speed.Roles || speed.Kafka == speed.Roles {
		t.Fatalf("%+v, %v: Redis could not be watched, so it is taken to be as fast as the roles", speed, err)
	}
	loads[0].Plan.Speed = speed
	if again, err := loads[0].Calibrate(r); err != nil || again != speed {
		t.Errorf("by a load that has a speed: %+v, %v", again, err)
	}
	for _, l := range loads[:2] {
		l.Plan.Speed = bench.Speed{}
		before, err := l.Plan.Answer()
		if err != nil {
			t.Fatal(err)
		}
		l.Plan.Speed = speed
		after, err := l.Plan.Answer()
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(after.Needs[5].Cores*speed.Kafka-before.Needs[5].Cores) > 1e-9 {
			t.Errorf("%s: %+v, before %+v at %+v", l.Name, after.Needs[5], before.Needs[5], speed)
		}
	}
	got, err := loads[0].Check(r)
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, c := range got {
		if math.Abs(c.Ratio-1) > 1e-9 || c.Speed != speed {
			t.Errorf("%+v", c)
		}
	}
	if s, err := loads[0].Calibrate(&bench.Report{}); err == nil {
		t.Errorf("of nothing: %+v", s)
	}
}

// A process that is ready has no part in it; the time of whoever asks is over.
func TestAStandstillIsExplained(t *testing.T) {
	ready := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer ready.Close()
	stuck := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, r.URL.Path+": toRedis/0 is stuck: redis_oom", http.StatusServiceUnavailable)
	}))
	defer stuck.Close()
	over, stop := context.WithCancel(t.Context())
	stop()
	got, err := bench.Troubles(over, "an old line\nstage failed\n", ready.URL, stuck.URL)
	if want := "\nrole 1 is not ready: /readyz: toRedis/0 is stuck: redis_oom\nit said: stage failed"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if got, err := bench.Troubles(t.Context(), "", ready.URL); err != nil || got != "" {
		t.Errorf("of a process that is ready: %q, %v", got, err)
	}
}
