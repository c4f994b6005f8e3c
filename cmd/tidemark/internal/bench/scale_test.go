package bench_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
)

// TestConversationsTakeTurns: all of them get a message before the measuring
// begins, and a batch has each as often as it should.
func TestConversationsTakeTurns(t *testing.T) {
	batches, warm, err := bench.Prepare(bench.StageConfig{
		Stage: "topush", Conversations: 600, Batch: 100, PerConversation: 2, Batches: 4, Partitions: 2, Size: 10,
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, b := range batches[:warm] {
		inBatch := map[string]int{}
		for _, r := range b {
			seen[string(r.Key)]++
			inBatch[string(r.Key)]++
		}
		for k, n := range inBatch {
			if n != 2 {
				t.Fatalf("%s has %d messages in a batch, want 2", k, n)
			}
		}
	}
	if len(seen) != 300 {
		t.Errorf("%d conversations of the partition got a message, want 300", len(seen))
	}
}

// TestAHotConversationHasItsShare and the others have the rest.
func TestAHotConversationHasItsShare(t *testing.T) {
	batches, _, err := bench.Prepare(bench.StageConfig{
		Stage: "topush", Conversations: 1000, Hot: 0.1, Batch: 100, PerConversation: 1, Batches: 10, Partitions: 1, Size: 10,
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen, all := map[string]int{}, 0
	for _, b := range batches {
		for _, r := range b {
			seen[string(r.Key)]++
			all++
		}
	}
	var most int
	for _, n := range seen {
		most = max(most, n)
	}
	if share := float64(most) / float64(all); math.Abs(share-0.1) > 0.01 {
		t.Errorf("the hot one has a share of %.3f, want 0.1", share)
	}
}

func TestShapesAreMeasuredAndDrawn(t *testing.T) {
	shapes := bench.Shapes()
	at := slices.IndexFunc(shapes, func(s bench.Shape) bool { return s.Name == "members" })
	s := shapes[at]
	points, err := bench.Scale(t.Context(), s, "topush", 100, func(*bench.StageConfig) (bench.Opened, error) {
		return bench.Opened{Close: func() error { return nil }}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(points) != 2 || points[0].Size != 10 || points[1].Size != 100 || points[0].Shape != "members" {
		t.Fatalf("%+v, want a point for 10 and one for 100 members", points)
	}
	// What so few messages take may be below what the system's clock tells apart.
	for i := range points {
		points[i].Worker = max(points[i].Worker, 1)
	}
	file := filepath.Join(t.TempDir(), "members.svg")
	if err := bench.PlotScale(s, points, file); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		t.Errorf("the plot: %v", err)
	}
	if err := bench.PlotScale(s, nil, file); err == nil {
		t.Error("nothing was drawn without an error")
	}
}
