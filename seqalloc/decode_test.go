package seqalloc_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/seqalloc"
	"github.com/tidemark-im/tidemark/watermark"
)

// reply builds what the client gives for a script's reply from JSON.
func reply(t testing.TB, text string) (any, bool) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, false
	}
	return fromJSON(v), true
}

func fromJSON(v any) any {
	switch v := v.(type) {
	case float64:
		return int64(v)
	case []any:
		for i := range v {
			v[i] = fromJSON(v[i])
		}
		return v
	default:
		return v
	}
}

var oneCommand = &watermark.Batch{Inputs: []watermark.Input{{Act: watermark.ActJoin, User: "bob"}}}

func TestDamagedRepliesAreFatal(t *testing.T) {
	for _, text := range []string{
		`null`, `5`, `[]`, `["what"]`, `["cold"]`, `["cold", 5]`, `["partial", 5]`, `["partial"]`, `["partial", "", "bob"]`, `["partial", "t", 5]`, `["ok"]`, `["ok", 1, 0, 0]`, `["ok", "1", 0, 0, 1]`, `["ok", 1, 0, 0, 1, 2]`, `["ok", 1, 0, "0", 1]`,
		`["ok", 1, 0, 0, "x"]`, `["ok", 1, 0, 0, []]`,
		`["ok", 1, 0, 0, ["what", 1, "", 0, 0, "", 0, 0, 0, 0, 0, 0]]`,
		`["ok", 1, 0, 0, ["accepted", "1", "", 0, 0, "", 0, 0, 0, 0, 0, 0]]`,
		`["ok", 1, 0, 0, ["accepted", 1, "", 0, 0, "1|1", 0, 0, 0, 0, 0, 0]]`,
		`["ok", 1, 0, 0, ["accepted", 1, "", 0, 0, "", 0, 0, 0, 0, 0]]`,
	} {
		v, ok := reply(t, text)
		if !ok {
			t.Fatalf("%s is no JSON", text)
		}
		if a, err := seqalloc.DecodeReply(oneCommand, v); fault.ClassOf(err) != fault.Fatal {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
	}
}

func TestReplyOfACommand(t *testing.T) {
	v, _ := reply(t, `["ok", 7, 2, 0, ["accepted", 7, "", 1, 3, "1|1|1:8:0|op;7|pinned;1", 5, 4, 0, 0, 1, 0]]`)
	got, err := seqalloc.DecodeReply(oneCommand, v)
	if err != nil {
		t.Fatal(err)
	}
	want := watermark.Allocation{Max: 7, Outcomes: []watermark.Outcome{{
		Seq: 7, Min: 3, Changed: true,
		Member: &watermark.Member{
			User: "bob", Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 8}},
			Ops: []watermark.AppliedOp{{ID: "op", Edge: 7}}, Attributes: map[string]string{"pinned": "1"}, Read: 5, Receipt: 4,
		},
		Policy: watermark.KeepOnSend,
	}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestReplyAfterAChangeOfPolicy(t *testing.T) {
	send := watermark.Input{Act: watermark.ActSend, Message: &watermark.Message{Sender: "bob"}}
	b := &watermark.Batch{Inputs: []watermark.Input{send, {Act: watermark.ActSetPolicy}, send}}
	v, _ := reply(t, `["ok", 2, 0, 0, 1, ["accepted", 1, "", 1, 0, "", 0, 0, 0, 0, 1, 14], 2]`)
	got, err := seqalloc.DecodeReply(b, v)
	if err != nil {
		t.Fatal(err)
	}
	want := watermark.Allocation{Max: 2, Outcomes: []watermark.Outcome{
		{Seq: 1},
		{Seq: 1, Changed: true, Policy: watermark.KeepOnSend, Override: watermark.PolicyChanged{Version: 3, Choice: watermark.ChooseKeep}},
		{Seq: 2, Policy: watermark.KeepOnSend},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func FuzzDecodeReply(f *testing.F) {
	f.Add(`["ok", 7, 2, 0, ["accepted", 7, "", 1, 3, "1|1|1:8:0|op;7|pinned;1", 5, 4, 0, 0, 1, 0]]`)
	f.Add(`["ok", 7, 2, 0, 7]`)
	f.Add(`["cold", "floor"]`)
	f.Add(`["partial", "token", "bob"]`)
	f.Fuzz(func(t *testing.T, text string) {
		v, ok := reply(t, text)
		if !ok {
			return
		}
		a, err := seqalloc.DecodeReply(oneCommand, v)
		if err == nil && a.Temperature == watermark.Warm && len(a.Outcomes) != 1 {
			t.Fatalf("%+v", a)
		}
	})
}
