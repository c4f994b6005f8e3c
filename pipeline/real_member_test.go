//go:build real

package pipeline_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// memberEnv makes the test binary a member of a group, which is to be killed:
// its topic prefix.
const memberEnv = "TIDEMARK_TEST_MEMBER_PREFIX"

// TestRealMemberProcess is that member. It says of each record when it has
// handled it, before it is marked.
func TestRealMemberProcess(t *testing.T) {
	prefix := os.Getenv(memberEnv)
	if prefix == "" {
		return // only TestRealMemberKilled runs it
	}
	cfg := pipeline.Config{Brokers: strings.Split(setting(t, "TIDEMARK_TEST_KAFKA"), ","), TopicPrefix: prefix, Registerer: prometheus.NewRegistry()}
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
		for _, r := range b {
			fmt.Printf("%s\n", r.Value)
		}
		return end(b), nil
	}}
	g := start(t, cfg, pipeline.GroupConfig{Group: prefix + "g", Topic: cfg.Topics().ToRedis, NewStage: s.make, MaxBatch: 20})
	t.Fatalf("Run = %v, but should have been killed", <-g.done)
}

// TestRealMemberKilled kills one of two members with -9 under load.
func TestRealMemberKilled(t *testing.T) {
	const partitions = 4
	cfg := withTopics(t, setting(t, "TIDEMARK_TEST_KAFKA"), partitions)
	topic, group := cfg.Topics().ToRedis, cfg.TopicPrefix+"g"
	p := producer(t, cfg, topic)
	var mu sync.Mutex
	handled := make(map[string]bool)
	newStage := func(_ context.Context, c pipeline.Claim) (pipeline.Stage, error) {
		next := c.Committed // -1: unknown
		return &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) {
			if next >= 0 && b[0].Offset != next {
				t.Errorf("partition %d: %d comes after %d", c.Partition, b[0].Offset, next-1)
			}
			next = end(b)
			mu.Lock()
			defer mu.Unlock()
			for _, r := range b {
				handled[string(r.Value)] = true
			}
			return next, nil
		}}, nil
	}
	first := start(t, cfg, pipeline.GroupConfig{Group: group, Topic: topic, NewStage: newStage, MaxBatch: 20})
	has := func(n int) func() bool { return func() bool { return len(first.State().Partitions) == n } }
	eventually(t, "the first member has everything", has(partitions))

	child := exec.Command(os.Args[0], "-test.run=^TestRealMemberProcess$")
	child.Env = append(os.Environ(), memberEnv+"="+cfg.TopicPrefix)
	said, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	var others sync.WaitGroup
	byChild := 0
	others.Go(func() {
		for lines := bufio.NewScanner(said); lines.Scan(); {
			mu.Lock()
			handled[lines.Text()] = true
			byChild++
			mu.Unlock()
		}
	})
	eventually(t, "two members share", has(partitions/2))

	var load sync.WaitGroup
	quit := make(chan struct{})
	var sent [20]int
	for k := range sent {
		load.Go(func() {
			for ; ; sent[k]++ {
				select {
				case <-quit:
					return
				default:
				}
				if err := p.Append(within(t), outs(fmt.Sprint("group:", k), fmt.Sprint(k, "-", sent[k]))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	eventually(t, "the second member works", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return byChild > 200
	})
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	others.Wait()
	eventually(t, "the first member takes over", has(partitions))
	t.Logf("taken over after %v", time.Since(began).Round(time.Millisecond))
	close(quit)
	load.Wait()
	total := 0
	for _, n := range sent {
		total += n
	}
	eventually(t, "everything is handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handled) == total
	})
	first.stop(t)
	var committed int64
	for n := range int32(partitions) {
		committed += committedOffset(t, cfg, group, topic, n)
	}
	if committed != int64(total) {
		t.Errorf("committed %d of %d", committed, total)
	}
}
