//go:build real

package pipeline_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// Tests on Apache Kafka. They find it by the environment, as deploy/local/up
// prints it, and each has topics of its own.

// setting gives an environment variable. A service that is not there is a
// failure: a test that passes itself over proves nothing.
func setting(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf(`%s is not set; eval "$(deploy/local/up --kafka --kafka-secure)"`, name)
	}
	return v
}

// onKafka gives a configuration with a topic prefix of its own. change, if not
// nil, says how to connect.
func onKafka(t testing.TB, brokers string, change func(*pipeline.Config)) pipeline.Config {
	t.Helper()
	cfg := pipeline.Config{
		Brokers: strings.Split(brokers, ","), TopicPrefix: "t" + strings.ToLower(rand.Text()) + ".",
		Registerer: prometheus.NewRegistry(), Logger: logger(t),
	}
	if change != nil {
		change(&cfg)
	}
	t.Cleanup(func() {
		topics := cfg.Topics()
		err := pipeline.AdminForTest(cfg, func(a sarama.ClusterAdmin) error {
			for _, name := range []string{topics.ToRedis, topics.Sequenced, topics.DeadLetter} {
				if err := a.DeleteTopic(name); err != nil && !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("delete topics: %v", err)
		}
	})
	return cfg
}

// withTopics makes the topics too.
func withTopics(t testing.TB, brokers string, partitions int32) pipeline.Config {
	t.Helper()
	cfg := onKafka(t, brokers, nil)
	if _, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: partitions}); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestRealTopics(t *testing.T) {
	cfg := onKafka(t, setting(t, "TIDEMARK_TEST_KAFKA"), nil)
	began := time.Now()
	_, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg})
	if fault.ReasonOf(err) != pipeline.ReasonMissingTopic || fault.ClassOf(err) != fault.Fatal {
		t.Fatalf("topics that nobody made: %v, want fatal", err)
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("it took %v to say so", d)
	}

	// Processes of a deployment start together.
	var made [3]pipeline.TopicInfos
	var wg sync.WaitGroup
	for i := range made {
		wg.Go(func() {
			var err error
			if made[i], err = pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 6}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made[0] != made[1] || made[1] != made[2] {
		t.Errorf("processes see different topics:\n%+v", made)
	}
	if got := made[0]; got.ToRedis.Partitions != 6 || got.Sequenced.Partitions != 6 || got.DeadLetter.Partitions != 1 || len(got.ToRedis.ID) < 16 {
		t.Errorf("topics = %+v", got)
	}
	seen, err := pipeline.Describe(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if seen != made[0] {
		t.Errorf("Describe = %+v, want %+v", seen, made[0])
	}

	// What an operator does later is found at the next start.
	topics := cfg.Topics()
	err = pipeline.AdminForTest(cfg, func(a sarama.ClusterAdmin) error {
		if err := a.CreatePartitions(topics.Sequenced, 8, nil, false); err != nil {
			return err
		}
		return a.IncrementalAlterConfig(sarama.TopicResource, topics.ToRedis, map[string]sarama.IncrementalAlterConfigsEntry{
			"cleanup.policy":    {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: new("compact")},
			"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: new("1000")},
		}, false)
	})
	if err != nil {
		t.Fatal(err)
	}
	says := func() error {
		_, err = pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg})
		if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != pipeline.ReasonConfig {
			return fmt.Errorf("unfit topics: %w, want fatal", err)
		}
		for _, want := range []string{"6 and 8", "cleanup.policy is compact, must be delete", "max.message.bytes is 1000"} {
			if !strings.Contains(err.Error(), want) {
				return fmt.Errorf("the error does not say %q:\n%w", want, err)
			}
		}
		return nil
	}
	// A broker knows of a change a moment after it was made.
	for until := time.Now().Add(5 * time.Second); ; {
		err := says()
		if err == nil {
			break
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// TestRealPartitionsAreKafkas: a record must stand where every other client
// would put it, so the partition that we compute is compared with kcat's.
func TestRealPartitionsAreKafkas(t *testing.T) {
	cfg := withTopics(t, setting(t, "TIDEMARK_TEST_KAFKA"), 7)
	var lines bytes.Buffer
	for i := range 100 {
		fmt.Fprintf(&lines, "group:%d\tv%d\n", i*i, i)
	}
	kcat := exec.CommandContext(t.Context(), "kcat", "-b", cfg.Brokers[0], "-t", cfg.Topics().ToRedis, "-P", "-K", "\t",
		"-X", "topic.partitioner=murmur2_random")
	kcat.Stdin = &lines
	if out, err := kcat.CombinedOutput(); err != nil {
		t.Fatalf("kcat: %v\n%s", err, out)
	}
	p := producer(t, cfg, cfg.Topics().ToRedis)
	for i := range 100 {
		send(t, p, fmt.Sprint("group:", i*i), fmt.Sprint("w", i))
	}
	n := 0
	for rec, err := range pipeline.Scan(within(t), cfg, cfg.Topics().ToRedis) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if want := wire.PartitionOf(string(rec.Key), 7); rec.Partition != want {
			t.Errorf("%s of %s stands in partition %d, want %d", rec.Value, rec.Key, rec.Partition, want)
		}
	}
	if n != 200 {
		t.Errorf("%d records, want 200", n)
	}
}

func TestRealRefusalNamesTheRecord(t *testing.T) {
	cfg := withTopics(t, setting(t, "TIDEMARK_TEST_KAFKA"), 1)
	topic := cfg.Topics().Sequenced
	err := pipeline.AdminForTest(cfg, func(a sarama.ClusterAdmin) error {
		return a.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
			"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: new("4000")},
		}, false)
	})
	if err != nil {
		t.Fatal(err)
	}
	p := producer(t, cfg, topic)
	var rejected *pipeline.RejectedError
	eventually(t, "the smaller limit holds", func() bool {
		batch := append(outs("group:1", "a1"), outs("group:2", strings.Repeat("x", 8000))...)
		batch = append(batch, outs("group:3", "c1")...)
		err = p.Append(within(t), batch)
		return err != nil
	})
	rejected, ok := errors.AsType[*pipeline.RejectedError](err)
	if !ok || rejected.Index != 1 || fault.ReasonOf(err) != pipeline.ReasonTooLarge {
		t.Fatalf("err = %v, want record 1 refused as too large", err)
	}
	got := strings.Join(values(stored(t, cfg, topic, 0, 2)), " ")
	if !strings.Contains(got, "a1") || !strings.Contains(got, "c1") {
		t.Error("the neighbours of the refused record are missing")
	}
}
