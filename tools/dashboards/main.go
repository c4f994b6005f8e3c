// Command dashboards makes the Grafana dashboards of deploy/grafana, proves that
// each of their queries parses and returns data on a Prometheus that watches a
// deployment, and draws what they show.
//
//	go -C tools/dashboards run . generate
//	go -C tools/dashboards run . prove -prometheus http://127.0.0.1:9090
//	go -C tools/dashboards run . draw -prometheus http://127.0.0.1:9090
//
// It is a module of its own, so that nobody who builds Tidemark needs its
// libraries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("one of generate, prove and draw is needed")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	root := flags.String("root", "../..", "folder of the checkout")
	url := flags.String("prometheus", "http://127.0.0.1:9090", "URL of Prometheus")
	wait := flags.Duration("wait", time.Minute, "how long prove waits for the last query to return data")
	since := flags.Duration("since", 5*time.Minute, "what draw shows ends now and begins so long before")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	dir := filepath.Join(*root, "deploy/grafana/dashboards")
	p := &prometheus{url: *url}
	switch args[0] {
	case "generate":
		return generate(dir)
	case "prove":
		return prove(ctx, p, dir, *wait)
	case "draw":
		return draw(ctx, p, filepath.Join(*root, "docs/img"), *since)
	}
	return fmt.Errorf("%q is none of generate, prove and draw", args[0])
}
