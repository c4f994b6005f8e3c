package pipeline_test

import (
	"errors"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
)

// TestATopicThatWasJustMadeIsWaitedFor: for longer than one that nobody made, and
// for less than the 30 s within which a process says what is wrong.
func TestATopicThatWasJustMadeIsWaitedFor(t *testing.T) {
	missing := fault.New(fault.Fatal, pipeline.ReasonMissingTopic, errors.New("missing"))
	made, nobody := pipeline.TopicsConfig{Create: true}.GraceOf(missing), pipeline.TopicsConfig{}.GraceOf(missing)
	if nobody < time.Second || made < 2*nobody || made > 25*time.Second {
		t.Errorf("made: %s, by nobody: %s", made, nobody)
	}
	for _, c := range []pipeline.TopicsConfig{{}, {Create: true}} {
		if d := c.GraceOf(sarama.ErrTopicAuthorizationFailed); d != 0 {
			t.Errorf("what cannot heal is waited for: %s", d)
		}
	}
}
