// Package simulation plays histories of a whole deployment in one process and
// one thread: producers, two owners, two toMongos, two query services, a Redis
// and a history, of which rapid says at each step who goes on, what becomes of
// the call that is under way, and what breaks. The stages, the truth, the query
// service, the codec and all merges are the real ones; Kafka is two lists, Redis
// is seqtest's model of the scripts, history is storagetest's Memory.
//
// A history is a function of its seed. For long runs:
//
//	go test ./internal/simulation -rapid.checks=1000000 -timeout 1h
//
// and a failure prints the seed and the shrunk history.
package simulation

import (
	"runtime"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Of all goroutines one runs at a time in any case, and handing over within
	// one thread is faster; what a history leaves behind is small.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(800)
	goleak.VerifyTestMain(m)
}
