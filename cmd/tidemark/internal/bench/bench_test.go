package bench_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
)

func TestLoadsAreChecked(t *testing.T) {
	good := bench.Load{Conversations: 10, Size: 300}
	if err := good.Validate(); err != nil {
		t.Errorf("a good load: %v", err)
	}
	err := bench.Load{Members: 1, Skew: -1, Bursts: []int{0}}.Validate()
	if err == nil {
		t.Fatal("want an error")
	}
	for _, want := range []string{"conversations", "members", "size", "skew", "bursts"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}

func TestPlans(t *testing.T) {
	plan := func(change func(*bench.Plan)) *bench.Answer {
		t.Helper()
		p := bench.Plan{Rate: 1000, Size: 300, Conversations: 10_000, Members: 2, Kept: 100, Costs: bench.DefaultCosts()}
		change(&p)
		a, err := p.Answer()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	one := plan(func(*bench.Plan) {})
	ten := plan(func(p *bench.Plan) { p.Rate *= 10 })
	for i := range one.Needs {
		if one.Needs[i].Cores > 0 && ten.Needs[i].Cores <= one.Needs[i].Cores {
			t.Errorf("%s needs no more for ten times the rate", one.Needs[i].Part)
		}
	}
	// Where a conversation has many messages at once each of them costs less.
	hot := plan(func(p *bench.Plan) { p.Conversations = 1 })
	if hot.PerBatch < 40 || one.PerBatch < 1 || one.PerBatch > 1.01 || hot.Needs[0].Cores >= one.Needs[0].Cores {
		t.Errorf("b = %g of one conversation, %g of 10,000; cores %+v, %+v", hot.PerBatch, one.PerBatch, hot.Needs[0], one.Needs[0])
	}
	// So it is where messages come in bursts.
	bursts := plan(func(p *bench.Plan) { p.Burst = 5 })
	if bursts.PerBatch <= 1.5 || bursts.PerBatch > 5 || bursts.Needs[0].Cores >= one.Needs[0].Cores || bursts.Needs[0].Rounds >= one.Needs[0].Rounds {
		t.Errorf("b = %g of bursts of 5; %+v", bursts.PerBatch, bursts.Needs[0])
	}
	// The faster the messages of one follow, the fewer pieces it is cut into; never
	// more than it has messages.
	quick := plan(func(p *bench.Plan) { p.Burst, p.Rate, p.Conversations = 5, 100_000, 1e9 })
	slow := plan(func(p *bench.Plan) { p.Burst, p.Rate = 5, 1 })
	if quick.PerBatch < 4.9 || quick.PerBatch > 5 || slow.PerBatch < 1 || slow.PerBatch > 1.01 {
		t.Errorf("b = %g of bursts of 5 in a rush, %g of slow ones", quick.PerBatch, slow.PerBatch)
	}
	// Rounds grow less and less with the rate, and what a machine does faster takes less of all.
	if one.Needs[0].Rounds <= 0 || ten.Needs[0].Rounds > 1.3*one.Needs[0].Rounds || ten.Needs[0].Rounds < one.Needs[0].Rounds {
		t.Errorf("rounds take %g cores, %g for ten times the rate", one.Needs[0].Rounds, ten.Needs[0].Rounds)
	}
	twice := plan(func(p *bench.Plan) { p.Speed = bench.Speed{Roles: 2, Redis: 4} })
	for i, n := range twice.Needs {
		by := map[string]float64{"redis": 4, "kafka": 1}[n.Part]
		if by == 0 {
			by = 2
		}
		if math.Abs(n.Cores*by-one.Needs[i].Cores) > 1e-9 || math.Abs(n.Rounds*by-one.Needs[i].Rounds) > 1e-9 || n.Memory != one.Needs[i].Memory {
			t.Errorf("at a speed of %g %+v, before %+v", by, n, one.Needs[i])
		}
	}
	for _, wrong := range [][]float64{{0}, {-1}, {1, 2}, {1, 2, 3, 4}, {math.NaN()}, {math.Inf(1)}} {
		if s, err := bench.SpeedOf(wrong); err == nil {
			t.Errorf("%v is a speed: %+v", wrong, s)
		}
	}
	if s, err := bench.SpeedOf([]float64{3}); err != nil || s != (bench.Speed{Roles: 3, Redis: 3, Kafka: 3}) {
		t.Errorf("one number: %+v, %v", s, err)
	}
	bad := bench.Plan{Rate: 0, Size: 0, Online: 2}
	if _, err := bad.Answer(); err == nil || !strings.Contains(err.Error(), "rate") || !strings.Contains(err.Error(), "online") {
		t.Errorf("err = %v, want all faults", err)
	}
}

func TestPlotsAreDrawn(t *testing.T) {
	r := func(rate, p99 float64) *bench.Report {
		l := bench.Latency{Count: 1, P50: 1, P99: p99}
		return &bench.Report{Rate: rate, Sequenced: l, Pullable: l}
	}
	for name, begin := range map[string]string{"a.svg": "<?xml", "a.png": "\x89PNG"} {
		path := filepath.Join(t.TempDir(), name)
		if err := bench.Plot([]*bench.Report{r(2000, 9), r(1000, 3)}, path); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(b), begin) {
			t.Errorf("%s begins with %q, %v", name, b[:min(len(b), 8)], err)
		}
	}
	if err := bench.Plot([]*bench.Report{r(1, 1)}, "a.gif"); err == nil {
		t.Error("a plot of an unknown kind is drawn")
	}
}

func TestBuildsAreMeasuredInTurn(t *testing.T) {
	var order strings.Builder
	of := func(name string, us float64) func(ctx context.Context) (*bench.Report, error) {
		return func(context.Context) (*bench.Report, error) {
			order.WriteString(name)
			return &bench.Report{Processes: []bench.Usage{{Name: "tidemark", PerMessage: us}, {Name: "generator", PerMessage: 1e6}}}, nil
		}
	}
	got, err := bench.Compare(t.Context(), 3, of("a", 100), of("b", 50))
	if err != nil {
		t.Fatal(err)
	}
	if order.String() != "abbaab" {
		t.Errorf("order = %s, want abbaab", order.String())
	}
	if len(got) != 1 || got[0].A != 100 || got[0].B != 50 || got[0].Ratio != 0.5 {
		t.Errorf("ratios = %+v, want one of the roles' time, 0.5", got)
	}
}
