package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// PlannedLoad is a load for which a plan is held against a trial.
type PlannedLoad struct {
	Name string
	Plan Plan
	Load Load
}

// PlannedLoads are those. The first one tells how fast a machine is, as it is of
// rounds and of messages by halves; at few messages a second rounds are most of the
// cost, and bursts share what is done for a conversation.
func PlannedLoads() []PlannedLoad {
	one := func(rate float64, conversations, burst int) PlannedLoad {
		l := PlannedLoad{
			Name: fmt.Sprintf("%g a second", rate),
			Plan: Plan{Rate: rate, Size: 300, Conversations: conversations, Members: 2, Kept: 1, Burst: float64(burst), Costs: DefaultCosts()},
			Load: Load{Conversations: conversations, Size: 300, Seed: 1},
		}
		if burst > 1 {
			l.Name += fmt.Sprintf(", bursts of %d", burst)
			l.Load.Bursts = []int{burst}
		}
		return l
	}
	return []PlannedLoad{one(3000, 10_000, 1), one(1000, 10_000, 1), one(4000, 5_000, 10)}
}

// Checked is what a plan says of one part, beside what a trial came to, in
// microseconds of processor time for each message.
type Checked struct {
	Load string `json:"load"`
	// Part is a worker, "all roles", "redis" or "kafka".
	Part string `json:"part"`
	// Planned is with Rounds, which a busy machine makes less of.
	Planned  float64 `json:"planned_us"`
	Rounds   float64 `json:"rounds_us"`
	Measured float64 `json:"measured_us"`
	// Ratio is Planned/Measured.
	Ratio float64 `json:"ratio"`
	// PerBatch is b, as planned, and as it was.
	PerBatch         float64 `json:"per_batch_planned"`
	MeasuredPerBatch float64 `json:"per_batch_measured"`
	// Sustained tells whether the load went through; otherwise fewer rounds were
	// made than planned.
	Sustained bool `json:"sustained"`
	// Speed is what the plan takes the machine for. Calibrates: it is from this very
	// trial, which therefore checks nothing by itself.
	Speed      Speed `json:"speed"`
	Calibrates bool  `json:"calibrates"`
}

// Calibrate gives the speed of the machine by a trial of a load: what the plan says
// by what it was. A part that could not be watched counts as fast as the roles.
func (l *PlannedLoad) Calibrate(r *Report) (Speed, error) {
	plain := *l
	plain.Plan.Speed = Speed{}
	got, err := plain.Check(r)
	if err != nil {
		return Speed{}, err
	}
	ratio := map[string]float64{}
	for _, c := range got {
		ratio[c.Part] = c.Ratio
	}
	s := Speed{ratio["all roles"], ratio["redis"], ratio["kafka"]}
	if s.Roles == 0 {
		return Speed{}, errors.New("the processes of the roles could not be watched, so nothing tells how fast this machine is")
	}
	for _, part := range []*float64{&s.Redis, &s.Kafka} {
		if *part == 0 {
			*part = s.Roles
		}
	}
	return s, nil
}

// Check holds a plan against a trial of its load. Parts whose processes could not be
// watched are left out; where all roles are one process they are one part.
func (l *PlannedLoad) Check(r *Report) ([]Checked, error) {
	a, err := l.Plan.Answer()
	if err != nil {
		return nil, err
	}
	measured := map[string]float64{}
	for _, u := range r.Processes {
		if name, ok := strings.CutPrefix(u.Name, "tidemark"); ok {
			measured["all roles"] += u.PerMessage
			measured[strings.TrimSpace(name)] += u.PerMessage
			continue
		}
		measured[u.Name] = u.PerMessage
	}
	perBatch := 0.0
	for _, c := range r.Counts {
		if c.Name == "sequenced records" && c.PerMessage > 0 {
			perBatch = 1 / c.PerMessage
		}
	}
	roles := Need{Part: "all roles"}
	for _, n := range a.Needs {
		if !slices.Contains([]string{"redis", "kafka"}, n.Part) {
			roles.Cores, roles.Rounds = roles.Cores+n.Cores, roles.Rounds+n.Rounds
		}
	}
	var out []Checked
	for _, n := range append([]Need{roles}, a.Needs...) {
		m := measured[n.Part]
		us := func(cores float64) float64 { return cores / l.Plan.Rate * 1e6 }
		planned := us(n.Cores + n.Rounds)
		if m <= 0 || planned <= 0 {
			continue
		}
		out = append(out, Checked{
			Load: l.Name, Part: n.Part, Planned: planned, Rounds: us(n.Rounds), Measured: m, Ratio: planned / m,
			PerBatch: a.PerBatch, MeasuredPerBatch: perBatch, Sustained: r.Sustained, Speed: l.Plan.Speed,
		})
	}
	return out, nil
}
