package toredis_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/consumers/toredis"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

func TestNewReportsAllFaults(t *testing.T) {
	_, err := toredis.New(toredis.Config{FloorEntries: -1})
	if err == nil {
		t.Fatal("want an error")
	}
	for _, want := range []string{"Allocator", "Truth", "Members", "Log", "Origins", "Answers", "Partitions", "FloorEntries"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}

func TestStageOfNoSuchPartition(t *testing.T) {
	seq := newWorld(2).sequencer(t, func(*toredis.Config) {})
	for _, p := range []int32{-1, 2} {
		if _, err := seq.Stage(p); fault.ClassOf(err) != fault.Fatal {
			t.Errorf("partition %d: %v, want a fatal error", p, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(1)
	seq := w.sequencer(t, func(c *toredis.Config) { c.Registerer = reg })
	s, err := seq.Stage(0)
	if err != nil {
		t.Fatal(err)
	}
	w.send(t, -1, group, "A", "1", "a", "")
	w.send(t, -1, group, "A", "1", "b", "")
	w.put(wire.Out{Topic: wire.TopicToRedis, Key: group, Value: []byte{0xff}})
	w.command(t, leave(group, "B", "op", ""))
	w.failAt, w.failHow = 7, before
	if _, err := s.Handle(t.Context(), w.input(0)); err == nil {
		t.Fatal("want an error")
	}
	handle(t, s, w.input(0)) // counted once, though tried twice
	equal(t, "metrics", gather(t, reg), []string{
		"# tidemark_toredis_appended_records_total: Records acknowledged by the sequenced log.",
		"tidemark_toredis_appended_records_total{} 1",
		"# tidemark_toredis_batch_conversations: Conversations in one batch.",
		"tidemark_toredis_batch_conversations{} 1",
		"# tidemark_toredis_cold_loads_total: Conversations that were loaded from history and tail, by why Redis could not be believed.",
		"tidemark_toredis_cold_loads_total{why=absent} 1",
		"# tidemark_toredis_dropped_warms_total: Commands to make a conversation warm that were left out, because it could not be loaded.",
		"tidemark_toredis_dropped_warms_total{} 0",
		"# tidemark_toredis_forged_origins_total: Records that named another place as where they came from, which holds something else: they counted at their own.",
		"tidemark_toredis_forged_origins_total{} 0",
		"# tidemark_toredis_forwarded_records_total: Records that arrived by way of another partition and were decided here.",
		"tidemark_toredis_forwarded_records_total{} 0",
		"# tidemark_toredis_inputs_total: Inputs that are done, by kind (message, command) and verdict.",
		"tidemark_toredis_inputs_total{kind=command,verdict=again} 1",
		"tidemark_toredis_inputs_total{kind=message,verdict=again} 1",
		"tidemark_toredis_inputs_total{kind=message,verdict=refused} 1",
		"# tidemark_toredis_member_loads_total: Members of warm conversations that were loaded because Redis did not know them.",
		"tidemark_toredis_member_loads_total{} 0",
		"# tidemark_toredis_misrouted_records_total: Records that stood on another partition than their conversation's.",
		"tidemark_toredis_misrouted_records_total{} 0",
		"# tidemark_toredis_parked_bytes: Bytes of the records that are parked.",
		"tidemark_toredis_parked_bytes{} 0",
		"# tidemark_toredis_parked_conversations: Conversations whose records are parked.",
		"tidemark_toredis_parked_conversations{} 0",
		"# tidemark_toredis_parked_inputs_total: Records that were parked because their conversations could not be loaded at once.",
		"tidemark_toredis_parked_inputs_total{} 0",
		"# tidemark_toredis_parked_records: Records that are parked until their conversations can be loaded.",
		"tidemark_toredis_parked_records{} 0",
		"# tidemark_toredis_pauses_total: Times a partition paused because history was too far behind the sequenced log.",
		"tidemark_toredis_pauses_total{} 0",
		"# tidemark_toredis_refused_inputs_total: Inputs that were refused or could not be decoded, by reason.",
		"tidemark_toredis_refused_inputs_total{reason=id_reused} 1",
		"tidemark_toredis_refused_inputs_total{reason=undecodable} 1",
		"# tidemark_toredis_sequenced_seconds: Time from a message's record, as its producer gave it, until the sequenced log has acknowledged the message with its seq.",
		"tidemark_toredis_sequenced_seconds{} 0",
		"# tidemark_toredis_waiting_partitions: Partitions that hold records back, by reason.",
		"tidemark_toredis_waiting_partitions{reason=append} 0",
		"tidemark_toredis_waiting_partitions{reason=cold_load} 0",
		"tidemark_toredis_waiting_partitions{reason=parking_full} 0",
		"tidemark_toredis_waiting_partitions{reason=tail_too_long} 0",
	})
}
