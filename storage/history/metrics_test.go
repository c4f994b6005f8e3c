package history_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/tidemark-im/tidemark/storage/history"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	inserts, updates := once("insert", writeErrors(11000, 0), failed(13)), once("update", writeErrors(11000, 0))
	finds := once("find", found(), found(bson.D{
		{Key: "c", Value: group}, {Key: "s", Value: int64(1)}, {Key: "f", Value: "bob"}, {Key: "h", Value: make([]byte, 16)},
	}))
	f := startFake(t, func(name string, cmd bson.Raw) bson.D {
		for _, answer := range []func(string, bson.Raw) bson.D{inserts, updates, finds} {
			if d := answer(name, cmd); d != nil {
				return d
			}
		}
		return nil
	})
	s := f.open(t, history.Config{Registerer: reg})
	c := watermark.Change{Rows: rowsOf(group, text(1, "a"), text(2, "b")), Conversations: convsOf(group).Conversations}
	if _, err := s.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(t.Context(), c); err == nil {
		t.Fatal("no error")
	}
	want := `
# HELP tidemark_history_commands_total Commands that were sent to the server, by name.
# TYPE tidemark_history_commands_total counter
tidemark_history_commands_total{command="find"} 3
tidemark_history_commands_total{command="insert"} 2
tidemark_history_commands_total{command="update"} 2
# HELP tidemark_history_deleted_rows_total Message rows of which retention took the content.
# TYPE tidemark_history_deleted_rows_total counter
tidemark_history_deleted_rows_total 0
# HELP tidemark_history_errors_total Calls that failed, by operation, class and reason.
# TYPE tidemark_history_errors_total counter
tidemark_history_errors_total{class="fatal",op="write",reason="auth"} 1
# HELP tidemark_history_member_conflicts_total Member states whose version stood there already with another window.
# TYPE tidemark_history_member_conflicts_total counter
tidemark_history_member_conflicts_total 0
# HELP tidemark_history_races_total Updates that were done again because another writer was faster.
# TYPE tidemark_history_races_total counter
tidemark_history_races_total 1
# HELP tidemark_history_rows_total Message rows that were to be inserted, by what became of them.
# TYPE tidemark_history_rows_total counter
tidemark_history_rows_total{fate="conflict"} 1
tidemark_history_rows_total{fate="inserted"} 1
tidemark_history_rows_total{fate="replay"} 0
tidemark_history_rows_total{fate="retired"} 0
`
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range families {
		if f.GetName() == "tidemark_history_call_seconds" {
			continue // times
		}
		if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got.String())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
