package syncapi_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

func TestMetricNames(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld()
	w.say(t, group, "B", 3)
	w.with(group, func(t *talk) { t.unknown["A"] = true })
	c := clients(t, newService(t, w, counted(reg)))["json"]
	pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 3})
	if _, err := c.SetReadSeq(t.Context(), &v1.SetReadSeqRequest{User: "A", Conversation: string(group), ReadSeq: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Clear(t.Context(), &v1.ClearRequest{User: "A", Conversation: string(group)}); err != nil {
		t.Fatal(err)
	}
	w.flush()
	for range 3 {
		pull(t, c, "A", &v1.PullRange{Conversation: string(group), Begin: 1, End: 3})
	}
	eventually(t, "the owner is asked", func() bool { return sum(t, reg, "tidemark_syncapi_warms_total", "asked") == 1 })
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, fmt.Sprintf("%s %s: %s", f.GetType(), f.GetName(), f.GetHelp()))
	}
	slices.Sort(got)
	want := []string{
		"COUNTER tidemark_syncapi_answer_polls_total: Round trips to Redis for answers of owners, by outcome: ok, error.",
		"COUNTER tidemark_syncapi_calls_total: Calls by method and Connect code.",
		"COUNTER tidemark_syncapi_is_end_anomalies_total: Pages that should be rare, by kind: empty (no messages, not the end), repeat (the same range asked again and again), gap (a row is nowhere), ahead (the caller knows a seq that the conversation does not have), shrank (less could be seen at the end of the call than at its beginning).",
		"COUNTER tidemark_syncapi_limited_calls_total: Calls refused by a limit, by which: requests, bytes and in_flight (of their user), busy (of the process).",
		"COUNTER tidemark_syncapi_mark_appends_total: Records of marks, by outcome: ok, error.",
		"COUNTER tidemark_syncapi_marks_total: Marks taken to be appended.",
		"COUNTER tidemark_syncapi_member_merges_total: Conversations of which Redis was told members that it did not know, by outcome: ok, stale, error.",
		"COUNTER tidemark_syncapi_rows_total: Messages read for Pull, by source: hot, truth.",
		"COUNTER tidemark_syncapi_views_total: Views that Redis was asked for, by what it had: warm, cold, partial.",
		"COUNTER tidemark_syncapi_warms_total: Conversations that are read often while cold, by what became of asking their owner: asked, dropped, error.",
		"GAUGE tidemark_syncapi_waiting_calls: Calls that wait for an owner's answer.",
		"HISTOGRAM tidemark_syncapi_call_seconds: Time from a call's arrival to its answer.",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
