package bench_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/watermark"
)

// TestALongLoadIsMadeInPieces that differ in nothing from what is made at once.
func TestALongLoadIsMadeInPieces(t *testing.T) {
	cfg := bench.StageConfig{Stage: "topush", Conversations: 70, Hot: 0.1, Batch: 20, PerConversation: 2, Batches: 9, Partitions: 2, Size: 10}
	whole, _, err := bench.Chunks(cfg, 9)
	if err != nil {
		t.Fatal(err)
	}
	pieces, _, err := bench.Chunks(cfg, 2, 4, 3)
	if err != nil {
		t.Fatal(err)
	}
	type place struct {
		Key    string
		Offset int64
		Seqs   []watermark.Seq
	}
	of := func(batches [][]wire.Record) (out []place) {
		for _, b := range batches {
			for _, r := range b {
				rec, err := wire.DecodeRecord(r)
				if err != nil {
					t.Fatal(err)
				}
				p := place{Key: string(rec.Conversation), Offset: r.Offset}
				for _, m := range rec.Events[0].(watermark.MessagesSequenced).Messages {
					p.Seqs = append(p.Seqs, m.Seq)
				}
				out = append(out, p)
			}
		}
		return out
	}
	if diff := cmp.Diff(of(whole), of(pieces)); diff != "" {
		t.Errorf("in pieces (-at once +in pieces): %s", diff)
	}
	// A million records are never in memory at once.
	cfg.Batch, cfg.Partitions, cfg.Batches = 500, 4, 500
	if _, atOnce, err := bench.Chunks(cfg); err != nil || atOnce*cfg.Batch*cfg.Partitions > 100_000 {
		t.Errorf("%d batches of each partition are made at once, %v", atOnce, err)
	}
}

// TestHistoryIsFilledBeforehand: the stage goes on where history stands, which is
// then read.
func TestHistoryIsFilledBeforehand(t *testing.T) {
	store, err := embedded.New(embedded.Config{Path: filepath.Join(t.TempDir(), "h.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	cfg := bench.StageConfig{
		Stage: "tomongo", Conversations: 40, Kept: 7, Batch: 20, PerConversation: 1, Batches: 2, Partitions: 2, Size: 10, Writer: store,
	}
	if _, err := bench.RunStage(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	n, err := store.Sizes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Each of 40 has 7, and got two to be warm and two more.
	if want := int64(40 * (7 + 2 + 2)); n.Rows != want {
		t.Errorf("history has %d messages, want %d", n.Rows, want)
	}
	if err := bench.ReadHistory(t.Context(), cfg); err != nil {
		t.Error(err)
	}
	members, err := store.Roster(t.Context(), "group:crowd", "", 100)
	if err != nil || len(members) != 100 {
		t.Errorf("a page of the crowd's roster has %d members, %v", len(members), err)
	}
	cfg.Writer = nil
	if _, err := bench.RunStage(t.Context(), cfg); err == nil {
		t.Error("nobody keeps what is to be kept, and that is no error")
	}
}

func TestShapesHaveLimits(t *testing.T) {
	for _, s := range bench.Shapes() {
		if !slices.IsSorted(s.Sizes) {
			t.Errorf("%s: %v is not ascending", s.Name, s.Sizes)
		}
		usual := s.Upto(0)
		if len(usual) == 0 || (s.Usual > 0 && usual[len(usual)-1] > s.Usual) || (s.Usual == 0 && len(usual) != len(s.Sizes)) {
			t.Errorf("%s: %v are measured without a limit of %g", s.Name, usual, s.Usual)
		}
		largest := s.Sizes[len(s.Sizes)-1]
		if got := s.Upto(largest); len(got) != len(s.Sizes) {
			t.Errorf("%s: %v are measured up to %g", s.Name, got, largest)
		}
		if s.Has("toredis") != (s.Name != "history") || !s.Has("tomongo") {
			t.Errorf("%s: about the wrong workers", s.Name)
		}
	}
	shapes := bench.Shapes()
	_, err := bench.Scale(t.Context(), shapes[0], "toredis", 100, func(*bench.StageConfig) (bench.Opened, error) {
		return bench.Opened{Close: func() error { return nil }}, nil
	})
	if err == nil {
		t.Error("toredis without a Redis is no error")
	}
}
