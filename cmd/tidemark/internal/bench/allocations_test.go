//go:build !race

package bench_test

// The race detector allocates by itself, and empties pools at random.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
)

// allocs is what a stage allocates for one message.
type allocs struct {
	Objects float64 `json:"objects"`
	Bytes   float64 `json:"bytes"`
}

// Allocations depend neither on the machine nor on its load, so they are what a
// change is held against: a stage must not need more than this much more, and
// what it no longer needs must be written down, or the next change could take it
// back unseen. TIDEMARK_UPDATE_BUDGET=1 writes the file.
const (
	tolerance  = 0.08
	budgetFile = "testdata/allocations.json"
)

func TestStagesAllocateWhatIsWrittenDown(t *testing.T) {
	stored := map[string]allocs{}
	text, err := os.ReadFile(budgetFile)
	if err == nil {
		err = json.Unmarshal(text, &stored)
	}
	update := os.Getenv("TIDEMARK_UPDATE_BUDGET") != ""
	if err != nil && !(update && errors.Is(err, fs.ErrNotExist)) {
		t.Fatal(err)
	}
	got := map[string]allocs{}
	for _, stage := range []string{"toredis", "tomongo", "topush"} {
		for _, per := range []int{1, 10} {
			name := fmt.Sprintf("%s b=%d", stage, per)
			got[name] = measure(t, stage, per)
		}
	}
	if update {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetIndent("", "  ")
		if err := errors.Join(enc.Encode(got), os.MkdirAll(filepath.Dir(budgetFile), 0o750), os.WriteFile(budgetFile, b.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		return
	}
	for name, g := range got {
		want, ok := stored[name]
		if !ok {
			t.Errorf("%s is not in %s", name, budgetFile)
			continue
		}
		for what, x := range map[string][2]float64{"objects": {g.Objects, want.Objects}, "bytes": {g.Bytes, want.Bytes}} {
			if math.Abs(x[0]-x[1]) > tolerance*x[1] {
				t.Errorf("%s: %.1f %s for a message, written down are %.1f (TIDEMARK_UPDATE_BUDGET=1 writes anew)", name, x[0], what, x[1])
			}
		}
	}
}

// measure gives what a stage allocates for one message, without what it is fed
// with and without Redis's part of the driver's socket.
func measure(t *testing.T, stage string, per int) allocs {
	t.Helper()
	cfg := bench.StageConfig{Stage: stage, PerConversation: per, Batch: 500, Batches: 20, Partitions: 1, Size: 300, Now: stopped}
	if stage == "toredis" {
		cfg.Redis, _ = answering(t)
	}
	handle, messages, err := bench.Feed(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := handle(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	n := float64(messages)
	round := func(v uint64) float64 { return math.Round(float64(v)/n*10) / 10 }
	return allocs{round(after.Mallocs - before.Mallocs), round(after.TotalAlloc - before.TotalAlloc)}
}
