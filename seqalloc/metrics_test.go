package seqalloc_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/tidemark-im/tidemark/seqalloc"
)

func TestMetrics(t *testing.T) {
	x := embedded(t)
	reg := prometheus.NewRegistry()
	a, err := seqalloc.New(seqalloc.Config{Redis: x.client, Space: x.space, Append: encode, Registerer: reg})
	check(t, err)
	x.Allocator = a
	x.call(t, x.send("alice", "a"))
	x.warm(t, fresh())
	in := x.send("alice", "a")
	x.decide(t, in, x.send("alice", "a"), x.raiseMin(9), x.send("bob", "b"))
	x.decide(t, in)
	x.floor = 5
	x.call(t, in)
	_, err = x.Install(t.Context(), []seqalloc.Loaded{{Token: "stale", State: fresh()}})
	check(t, err)
	want := `
# HELP tidemark_seqalloc_calls_total Batches handed to the script, by what it made of them: warm, partial, error, or why the conversation is cold.
# TYPE tidemark_seqalloc_calls_total counter
tidemark_seqalloc_calls_total{result="absent"} 1
tidemark_seqalloc_calls_total{result="floor"} 1
tidemark_seqalloc_calls_total{result="warm"} 2
# HELP tidemark_seqalloc_installs_total Cold loads brought to an end, by result: installed, or outrun by another one.
# TYPE tidemark_seqalloc_installs_total counter
tidemark_seqalloc_installs_total{result="installed"} 1
tidemark_seqalloc_installs_total{result="outrun"} 1
# HELP tidemark_seqalloc_outcomes_total Inputs decided, by verdict.
# TYPE tidemark_seqalloc_outcomes_total counter
tidemark_seqalloc_outcomes_total{verdict="accepted"} 2
tidemark_seqalloc_outcomes_total{verdict="again"} 1
tidemark_seqalloc_outcomes_total{verdict="refused"} 1
tidemark_seqalloc_outcomes_total{verdict="resent"} 1
`
	families, err := reg.Gather()
	check(t, err)
	var got strings.Builder
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&got, f)
		check(t, err)
	}
	if d := cmp.Diff(want[1:], got.String()); d != "" {
		t.Error(d)
	}
}
