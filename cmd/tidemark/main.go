// Command tidemark runs Tidemark and speaks to it: the roles of a deployment,
// a development stack in one process, and a client for every call of the sync
// API.
//
// It promises that what is printed with --output json is one JSON object a
// line, that faults go to standard error, one line each, and exit codes: 0, it
// was done; 1, it was not; 2, the command line or the configuration is wrong;
// 130, a signal ended it before it was ready or done, or a second one before
// everything was drained.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitInterrupted)
	}()
	stack.Quiet()
	a := &app{in: os.Stdin, out: os.Stdout, errOut: os.Stderr, environ: os.Environ}
	os.Exit(a.execute(ctx, os.Args[1:]))
}
