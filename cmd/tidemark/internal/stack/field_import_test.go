package stack_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/api/convert"
	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/importer"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// What was imported goes on: the next message gets the next seq, a resend of an
// imported one is recognised within the horizon, and who was away sees all of
// it, whatever Redis forgets.
func TestImportedConversationsGoOn(t *testing.T) {
	const group, single, n = "group:imported", "single:ann:bob", 1200
	var lines []string
	for seq := 1; seq <= n; seq++ {
		id := fmt.Sprint("id-", seq)
		lines = append(lines, fmt.Sprintf(`{"type":"message","conversation":%q,"seq":%d,"timeMs":%d,"sender":"ann","clientMessageId":%q,"text":%q}`, group, seq, 1000+seq, id, "text of "+id))
	}
	lines = append(lines, fmt.Sprintf(`{"type":"member","conversation":%q,"user":"bob","joined":1001,"read":1100}`, group),
		fmt.Sprintf(`{"type":"member","conversation":%q,"user":"cid","joined":1,"left":3}`, group),
		fmt.Sprintf(`{"type":"message","conversation":%q,"order":5,"timeMs":7,"sender":"ann","text":"x"}`, single))
	path := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, nil)
	rep, err := importer.Import(t.Context(), importer.Config{Source: importer.Lines(path, convert.Limits{}), To: r.history()})
	if err != nil {
		t.Fatalf("%v: %+v", err, rep.Faults)
	}
	r.start(stack.Roles()...)
	for _, flush := range []bool{false, true} {
		if flush {
			r.settle()
			r.flush()
		}
		for _, seq := range []int64{n, n - 500, n - 997} {
			if got := r.send(group, "ann", fmt.Sprint("id-", seq)); got != seq {
				t.Errorf("a resend of %d got %d", seq, got)
			}
		}
		if !flush {
			if got := r.send(group, "bob", "new"); got != n+1 {
				t.Errorf("the next message got %d", got)
			}
			if got := r.send(single, "bob", "new"); got != 2 {
				t.Errorf("the next message of the single conversation got %d", got)
			}
		}
		wantSeqs(t, r.pullAll("bob", group, 1, n+1), 1001, n+1)
		wantSeqs(t, r.pullAll("cid", group, 1, n+1), 1, 3)
		wantSeqs(t, r.pullAll("ann", single, 1, 9), 1, 2)
		if w := r.marks("bob", group); w.GetMaxSeq() != n+1 || w.GetReadSeq() != n+1 || w.GetUnread() != 0 {
			t.Errorf("bob's marks: %v", w)
		}
		if w := r.marks("ann", group); w.GetMaxSeq() != n+1 || w.GetUnread() != 1 {
			t.Errorf("ann's marks: %v", w)
		}
	}
	// Without names they are all of the user's conversations.
	res, err := r.svc.GetWatermarks(r.ctx(), &tidemarkv1.GetWatermarksRequest{User: "bob"})
	if err != nil || len(res.GetWatermarks()) != 2 {
		t.Errorf("bob's conversations: %v, %v", res, err)
	}
	r.settle()
	rep, err = importer.Import(t.Context(), importer.Config{Source: importer.Lines(path, convert.Limits{}), To: r.history(), IntoLive: true})
	if err != nil || rep.Live != 2 || rep.Written != (importer.Counts{}) {
		t.Errorf("imported again: %v, %+v", err, rep)
	}
}
