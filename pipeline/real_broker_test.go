//go:build real

package pipeline_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// TestRealBrokerKilled kills a broker of its own under load, twice. Nothing may
// be lost, written twice or out of order, and the group comes back by itself.
func TestRealBrokerKilled(t *testing.T) {
	b := newBroker(t)
	cfg := withTopics(t, b.address, 2)
	topic := cfg.Topics().ToRedis
	p := producer(t, cfg, topic)
	var got seen
	s := &stage{handle: func(_ context.Context, batch []wire.Record) (int64, error) { got.add(batch); return end(batch), nil }}
	g := start(t, cfg, pipeline.GroupConfig{Group: "g", Topic: topic, NewStage: s.make})
	eventually(t, "the group is ready", func() bool { return g.Ready() == nil })

	const keys = 10
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	var sent [keys]int
	var mu sync.Mutex
	quit := make(chan struct{})
	var load sync.WaitGroup
	for k := range keys {
		load.Go(func() {
			for i := 0; ; i += 5 {
				select {
				case <-quit:
					return
				default:
				}
				var batch []wire.Out
				for n := range 5 {
					batch = append(batch, outs(fmt.Sprint("group:", k), strconv.Itoa(i+n))...)
				}
				if err := p.Append(ctx, batch); err != nil {
					t.Errorf("Append: %v", err)
					return
				}
				mu.Lock()
				sent[k] = i + 5
				mu.Unlock()
			}
		})
	}
	total := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range sent {
			n += s
		}
		return n
	}
	grows := func() {
		t.Helper()
		before, handled := total(), got.len()
		within := time.Now().Add(90 * time.Second)
		for total() < before+500 || got.len() < handled+500 || g.Ready() != nil {
			if time.Now().After(within) {
				t.Fatalf("90 s after the broker came back: %d appended, %d handled, ready: %v", total()-before, got.len()-handled, g.Ready())
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	grows()
	for range 2 {
		b.kill()
		eventually(t, "the group says that it is not ready", func() bool { return g.Ready() != nil })
		b.start()
		grows()
	}
	close(quit)
	load.Wait()

	next := make(map[string]int)
	for rec, err := range pipeline.Scan(within(t), cfg, topic) {
		if err != nil {
			t.Fatal(err)
		}
		key := string(rec.Key)
		if string(rec.Value) != strconv.Itoa(next[key]) {
			t.Fatalf("%s: offset %d has %s, want %d", key, rec.Offset, rec.Value, next[key])
		}
		next[key]++
	}
	for k := range keys {
		if got := next[fmt.Sprint("group:", k)]; got != sent[k] {
			t.Errorf("group:%d has %d records, %d were acknowledged", k, got, sent[k])
		}
	}
	distinct := func() int {
		got.mu.Lock()
		defer got.mu.Unlock()
		all := make(map[string]bool)
		for _, r := range got.records {
			all[fmt.Sprint(string(r.Key), "-", string(r.Value))] = true
		}
		return len(all)
	}
	eventually(t, "every record is handled", func() bool { return distinct() == total() })
	g.stop(t)
	var committed int64
	for n := range int32(2) {
		committed += committedOffset(t, cfg, "g", topic, n)
	}
	if committed != int64(total()) {
		t.Errorf("committed %d of %d", committed, total())
	}
}

// broker is a Kafka of one test, which it may kill.
type broker struct {
	t       testing.TB
	dir     string
	address string
}

func newBroker(t testing.TB) *broker {
	b := &broker{t: t, dir: t.TempDir()}
	b.start()
	t.Cleanup(func() {
		if out, err := exec.Command("../deploy/local/down", "--dir", b.dir).CombinedOutput(); err != nil {
			t.Errorf("stop Kafka: %v\n%s", err, out)
		}
	})
	return b
}

// start starts it, again at the address that it had.
func (b *broker) start() {
	b.t.Helper()
	up := exec.Command("../deploy/local/up", "--kafka", "--dir", b.dir)
	var said bytes.Buffer
	up.Stderr = &said
	out, err := up.Output()
	if err != nil {
		b.t.Fatalf("start Kafka: %v\n%s", err, said.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "export TIDEMARK_TEST_KAFKA="); ok {
			v = strings.TrimSpace(v)
			if b.address != "" && b.address != v {
				b.t.Fatalf("the broker moved from %s to %s", b.address, v)
			}
			b.address = v
		}
	}
}

// kill ends it as a power cut does.
func (b *broker) kill() {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, "kafka-1", "1", "pid"))
	if err != nil {
		b.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	eventually(b.t, "the broker is gone", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err != nil || syscall.Kill(pid, 0) != nil
	})
}
