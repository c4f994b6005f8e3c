package pipeline_test

import (
	"os"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/pipeline"
)

// Lines name a section of the runbook, which must be there.
func TestTheRunbookHasASectionForEachReason(t *testing.T) {
	page, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{
		pipeline.ReasonOvertaken, pipeline.ReasonAboveEnd, pipeline.ReasonNoOffsets,
		pipeline.ReasonRecreated, pipeline.ReasonHistoryBehind, pipeline.ReasonBatchTooLarge,
	} {
		if !strings.Contains(string(page), "\n### "+reason+"\n") {
			t.Errorf("there is no section %s", reason)
		}
	}
}
