package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/pipeline"
)

func TestMetricNames(t *testing.T) {
	const want = `tidemark_pipeline_append_in_flight_records: Records sent and not yet answered. [client]
tidemark_pipeline_append_metadata_waits_total: Times that a producer waited because no broker told it a leader. [client]
tidemark_pipeline_append_retries_total: Records that failed to be appended and are sent again, by reason. [topic reason]
tidemark_pipeline_appended_bytes_total: Bytes of key, value and headers that Kafka acknowledged. [topic]
tidemark_pipeline_appended_records_total: Records that Kafka acknowledged. [topic]
tidemark_pipeline_batch_records: Records per handled batch. [stage]
tidemark_pipeline_claimed_partitions: Partitions claimed by this process. [stage]
tidemark_pipeline_consumer_errors_total: Errors of the group's connection, by reason. [stage reason]
tidemark_pipeline_dead_letters_total: Records set aside, by the topic that they stood in and by reason. [topic reason]
tidemark_pipeline_flush_seconds: Time of one attempt to flush a stage, good or bad. [stage]
tidemark_pipeline_handle_seconds: Time of one attempt to handle a batch, good or bad. [stage]
tidemark_pipeline_handled_batches_total: Batches that a stage has handled. [stage]
tidemark_pipeline_handled_records_total: Records that a stage has handled. [stage]
tidemark_pipeline_last_flush_timestamp_seconds: When a stage was last flushed with success, in seconds since 1970; 0: not yet. [stage]
tidemark_pipeline_moved_offsets_total: Offsets that were lost and moved because an operator said so, by reason. [stage reason]
tidemark_pipeline_retries_total: Failed attempts of a stage that are repeated in place, by reason. [stage reason]
tidemark_pipeline_stuck_partitions: Claimed partitions that do not move. [stage]
tidemark_pipeline_stuck_seconds: For how long a claimed partition has not moved, by why its last attempt failed; none when it moves. [stage topic partition reason]`
	reg := &recorder{}
	cfg := pipeline.Config{Brokers: []string{"127.0.0.1:1"}, Registerer: reg}
	p := producer(t, cfg, "")
	s := &stage{}
	if _, err := pipeline.NewGroup(pipeline.GroupConfig{Config: cfg, Group: "a", Topic: "t", NewStage: s.make, DeadLetters: p}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, reg.text()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestGroupsShareARegisterer: each role of a process has its own group.
func TestGroupsShareARegisterer(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := pipeline.Config{Brokers: []string{"127.0.0.1:1"}, Registerer: reg}
	s := &stage{}
	for _, name := range []string{"a", "b"} {
		if _, err := pipeline.NewGroup(pipeline.GroupConfig{Config: cfg, Group: name, Topic: "t", NewStage: s.make, DeadLetters: producer(t, cfg, "")}); err != nil {
			t.Fatal(err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tidemark_pipeline_handled_records_total" && len(f.GetMetric()) != 2 {
			t.Errorf("%d series, want one for each group", len(f.GetMetric()))
		}
	}
}

// recorder lists what is registered, also what has no series yet.
type recorder struct {
	prometheus.Registry
	lines []string
}

func (r *recorder) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc, 8)
	c.Describe(ch)
	close(ch)
	for d := range ch {
		var name, help, labels string
		text := strings.NewReplacer(`\'`, "'").Replace(d.String())
		if _, err := fmt.Sscanf(text, "Desc{fqName: %q, help: %q", &name, &help); err != nil {
			return err
		}
		_, labels, _ = strings.Cut(text, "variableLabels: {")
		labels = strings.Join(strings.Split(strings.TrimRight(labels, "}"), ","), " ")
		r.lines = append(r.lines, fmt.Sprintf("%s: %s [%s]", name, help, labels))
	}
	return nil
}

func (r *recorder) text() string {
	lines := append([]string(nil), r.lines...)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
