package history_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

func TestAHistoryIsReadAsItWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.jsonl")
	w, err := history.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []history.Op{
		{Kind: history.Produce, T0: 1, T1: 2, OK: true, Conversation: "group:g", User: "ann", Producer: "p", N: 7, Ordered: true, ID: "id", Text: "a\nb"},
		{Kind: history.Pull, T0: 3, T1: 4, OK: true, Phase: history.PhaseRest, Begin: 1, End: 9, Desc: true, Page: &history.Page{
			Min: 1, Max: 2, Messages: []history.Message{{Seq: 2, Sender: "ann", ID: "id", Text: "x"}},
			Covered: &history.Range{Begin: 2, End: 2}, Rest: &history.Range{Begin: 1, End: 1}, IsEnd: true, Repair: 3,
		}},
		{Kind: history.Mark, T0: 5, T1: 6, Err: "no", Seq: 4},
		{Kind: history.Watermarks, T0: 7, T1: 8, OK: true, Marks: &history.Marks{Min: 1, Max: 2, Read: 1, Unread: 1, Visible: []history.Range{{Begin: 1, End: 2}}}},
	}
	for _, op := range want {
		w.Add(op)
	}
	if a, b := w.Now(), w.Now(); a > b || a < 0 {
		t.Errorf("the clock went from %d to %d", a, b)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := history.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A run that was killed leaves half a line.
	got, err = history.Read(bytes.NewReader(text[:len(text)-5]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[:3], got); diff != "" {
		t.Error(diff)
	}
}

func TestABrokenLineIsNamed(t *testing.T) {
	_, err := history.Read(bytes.NewReader([]byte("{}\nnot json\n")))
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("line 2")) {
		t.Errorf("error %v", err)
	}
}
