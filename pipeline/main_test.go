package pipeline_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// sarama sizes a fetch request with an encoder that has no metric
		// registry, which starts go-metrics' one global ticker for the life of
		// the process.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
