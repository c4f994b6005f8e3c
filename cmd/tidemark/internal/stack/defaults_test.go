package stack_test

import (
	"testing"

	"github.com/tidemark-im/tidemark/consumers/tomongo"
	"github.com/tidemark-im/tidemark/internal/config"
)

// What is tested of a stage by its own defaults holds for who sets nothing.
func TestDefaultsAreThoseOfTheStages(t *testing.T) {
	c := config.Default().ToMongo
	if c.FlushMarks != tomongo.DefaultFlushMarks || c.FlushInterval != tomongo.DefaultFlushEvery {
		t.Errorf("tomongo is flushed after %d advances or %v, the stage says %d and %v",
			c.FlushMarks, c.FlushInterval, tomongo.DefaultFlushMarks, tomongo.DefaultFlushEvery)
	}
}
