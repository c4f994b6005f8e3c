package stack_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
)

// TestLagIsSeenFromOutside: no worker runs, Redis is away and nothing comes,
// and the role shows how far behind each group is and that nobody reads.
func TestLagIsSeenFromOutside(t *testing.T) {
	const conv = "group:lag"
	// A port on which nobody listens.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, nil)
	r.onOpen = func(role stack.Role, cfg *config.Config) {
		if role == stack.Lag {
			cfg.Redis.Addresses, cfg.Lag.Every = []string{nobody}, 10*time.Millisecond
		}
	}
	r.start(stack.ToRedis)
	r.produce(conv, line(conv, "A", "1", "text"), line(conv, "A", "2", "text"))
	r.settle()
	r.stop(stack.ToRedis)
	r.produce(conv, line(conv, "A", "3", "text"))

	r.open(stack.Lag, stack.Lag)
	defer r.stop(stack.Lag)
	group := func(role stack.Role) []string { return []string{"group", r.topic("tidemark-" + string(role))} }
	total := func(name string, role stack.Role) float64 { return r.metric(stack.Lag, name, group(role)...) }
	// Two messages in one batch are one record of the sequenced log, or two.
	if n := total("tidemark_pipeline_lag_records", stack.ToRedis); n != 1 {
		t.Errorf("toredis is %v records behind, want 1", n)
	}
	if n := total("tidemark_pipeline_lag_records", stack.ToMongo); n < 1 || n > 2 {
		t.Errorf("tomongo, which never ran, is %v records behind, want 1 or 2", n)
	}
	r.eventually("the age grows while nothing happens", func() error {
		if age := total("tidemark_pipeline_lag_seconds", stack.ToRedis); age < 1 {
			return fmt.Errorf("%v s", age)
		}
		return nil
	})
	r.eventually("the worker that stopped is no member", func() error {
		if n := r.metric(stack.Lag, "tidemark_pipeline_group_members", group(stack.ToRedis)...); n != 0 {
			return fmt.Errorf("%v members", n)
		}
		return nil
	})
	r.start(stack.ToRedis)
	r.eventually("it is read", func() error {
		n, looked := r.sum(stack.Lag, "tidemark_pipeline_lag_records", group(stack.ToRedis)...)
		m, _ := r.sum(stack.Lag, "tidemark_pipeline_group_members", group(stack.ToRedis)...)
		if !looked || n != 0 || m != 1 {
			return fmt.Errorf("%v records behind, %v members, looked: %v", n, m, looked)
		}
		return nil
	})
}
