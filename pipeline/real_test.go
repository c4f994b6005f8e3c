//go:build real

package pipeline_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
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

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
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

func TestRealLag(t *testing.T) {
	cfg := withTopics(t, setting(t, "TIDEMARK_TEST_KAFKA"), 2)
	topic, group := cfg.Topics().ToRedis, cfg.TopicPrefix+"g"
	p := producer(t, cfg, topic)
	offsets, err := pipeline.NewOffsets(pipeline.OffsetsConfig{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = offsets.Close() })
	for i := range 40 {
		send(t, p, fmt.Sprint("group:", i), "v")
	}
	lag := func() (records int64) {
		all, err := offsets.Lag(within(t), pipeline.GroupTopic{Group: group, Topic: topic})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			records += l.Records
			if age := l.Age(time.Now()); l.Records > 0 && (age <= 0 || age > time.Minute) {
				t.Errorf("partition %d: the oldest record is %v old", l.Partition, age)
			}
		}
		return records
	}
	if got := lag(); got != 40 {
		t.Errorf("lag of a group that never was = %d, want 40", got)
	}
	ends, err := offsets.Ends(within(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return end(b), nil }}
	g := start(t, cfg, pipeline.GroupConfig{Group: group, Topic: topic, NewStage: s.make})
	if err := offsets.AwaitCommitted(within(t), group, topic, ends); err != nil {
		t.Fatal(err)
	}
	if got := lag(); got != 0 {
		t.Errorf("lag = %d, want 0", got)
	}
	g.stop(t)
}

// TestRealOffsetsOutOfRangeAreFatal: below the log and beyond it.
func TestRealOffsetsOutOfRangeAreFatal(t *testing.T) {
	cfg := withTopics(t, setting(t, "TIDEMARK_TEST_KAFKA"), 1)
	topic, group := cfg.Topics().ToRedis, cfg.TopicPrefix+"g"
	p := producer(t, cfg, topic)
	send(t, p, "group:1", numbered(10, "m")...)
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return 5, nil }}
	g := start(t, cfg, pipeline.GroupConfig{Group: group, Topic: topic, NewStage: s.make})
	eventually(t, "all are handled", func() bool { return got.len() == 10 })
	g.stop(t)
	refuses := func(want string) {
		t.Helper()
		g := start(t, cfg, pipeline.GroupConfig{Group: group, Topic: topic, NewStage: s.make})
		err := g.wait(t)
		if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != pipeline.ReasonOffsetOutOfRange {
			t.Fatalf("Run = %v", err)
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Run = %v, want it to say %q", err, want)
		}
		if got := committedOffset(t, cfg, group, topic, 0); got != 5 {
			t.Errorf("committed = %d, want it untouched at 5", got)
		}
	}
	if err := pipeline.DeleteRecordsForTest(cfg, topic, 0, 8); err != nil {
		t.Fatal(err)
	}
	refuses("is to read on at offset 5, but the log holds 8 to 10")

	// The topic is deleted and made again, and has fewer records than were
	// committed. Kafka 4 forgets a group's offsets with the topic, so they are
	// set as an operator would.
	err := pipeline.AdminForTest(cfg, func(a sarama.ClusterAdmin) error { return a.DeleteTopic(topic) })
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the topic is gone and made again", func() bool {
		_, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 1})
		return err == nil
	})
	p = producer(t, cfg, topic)
	send(t, p, "group:1", "one")
	resetOffset(t, cfg, group, topic, 5)
	refuses("is to read on at offset 5, but the log holds 0 to 1")
}

// resetOffset commits an offset for a group that has no members.
func resetOffset(t testing.TB, cfg pipeline.Config, group, topic string, offset int64) {
	t.Helper()
	err := pipeline.AdminForTest(cfg, func(a sarama.ClusterAdmin) error {
		coordinator, err := a.Coordinator(group)
		if err != nil {
			return err
		}
		req := &sarama.OffsetCommitRequest{Version: 2, ConsumerGroup: group, ConsumerGroupGeneration: -1, RetentionTime: -1}
		req.AddBlock(topic, 0, offset, 0, "")
		resp, err := coordinator.CommitOffset(req)
		if err != nil {
			return err
		}
		if code := resp.Errors[topic][0]; code != sarama.ErrNoError {
			return code
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRealTail pins, reads what history may lack and follows appends.
func TestRealTail(t *testing.T) {
	cfg := withTopics(t, setting(t, "TIDEMARK_TEST_KAFKA"), 3)
	topic, group := cfg.Topics().Sequenced, cfg.TopicPrefix+"toMongo"
	p := producer(t, cfg, topic)
	const conv, other = watermark.ConversationID("group:tail"), watermark.ConversationID("group:other")
	add := func(id watermark.ConversationID, events ...watermark.Event) {
		t.Helper()
		value, err := wire.EncodeRecord(watermark.Record{Conversation: id, Events: events})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Append(within(t), []wire.Out{{Topic: topic, Partition: -1, Key: string(id), Value: value}}); err != nil {
			t.Fatal(err)
		}
	}
	for s := range watermark.Seq(10) {
		add(conv, tailRun(s+1))
	}
	// A group has the first four in history.
	partition := wire.PartitionOf(string(conv), 3)
	var handled seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { handled.add(b); return min(end(b), 4), nil }}
	g := start(t, cfg, pipeline.GroupConfig{Group: group, Topic: topic, NewStage: s.make})
	eventually(t, "all are handled", func() bool { return handled.len() == 10 })
	g.stop(t)
	if got := committedOffset(t, cfg, group, topic, partition); got != 4 {
		t.Fatalf("committed = %d, want 4", got)
	}

	tail, err := pipeline.NewTail(pipeline.TailConfig{Config: cfg, Group: group})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tail.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	pin, err := tail.Pin(within(t), []watermark.ConversationID{conv, other})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pin.Release)
	state := func(id watermark.ConversationID) *watermark.State {
		t.Helper()
		states, err := pin.States(within(t), []watermark.ConversationID{id})
		if err != nil {
			t.Fatal(err)
		}
		return states[id]
	}
	if got := state(conv); got == nil || got.Max != 10 {
		t.Fatalf("state = %+v, want max 10", got)
	}
	if got := state(other); got != nil {
		t.Errorf("state of a conversation without records = %+v", got)
	}
	// What is acknowledged before the question is in the answer.
	for s := watermark.Seq(11); s <= 60; s++ {
		add(conv, tailRun(s))
		if got := state(conv); got.Max != s {
			t.Fatalf("after seq %d was acknowledged the tail says %d", s, got.Max)
		}
	}
	msgs, err := pin.Messages(within(t), conv, watermark.Interval{First: 5, Last: 60}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(msgs) != 56 || msgs[0].Seq != 5 || msgs[55].Seq != 60 {
		t.Errorf("%d messages of the tail, want 5..60", len(msgs))
	}
}

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

// TestRealSecure: TLS and SASL, and what a wrong setting looks like.
func TestRealSecure(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) { secure(t, mechanism) })
	}
}

func secure(t *testing.T, mechanism string) {
	pem, err := os.ReadFile(setting(t, "TIDEMARK_TEST_KAFKA_SECURE_CA"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate in the file")
	}
	password := setting(t, "TIDEMARK_TEST_KAFKA_SECURE_PASSWORD")
	right := pipeline.SASL{Mechanism: mechanism, User: setting(t, "TIDEMARK_TEST_KAFKA_SECURE_USER"), Password: password}
	cfg := onKafka(t, setting(t, "TIDEMARK_TEST_KAFKA_SECURE"), func(c *pipeline.Config) {
		c.TLS, c.SASL = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, right
	})
	if _, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	topic := cfg.Topics().ToRedis
	p := producer(t, cfg, topic)
	send(t, p, "group:1", numbered(20, "m")...)
	if got := stored(t, cfg, topic, 0, 20); len(got) != 20 {
		t.Errorf("%d records, want 20", len(got))
	}

	for _, tt := range []struct {
		name   string
		change func(*pipeline.Config)
		reason string
	}{
		{"wrong password", func(c *pipeline.Config) { c.SASL.Password = "hunter2" }, pipeline.ReasonAuth},
		{"wrong user", func(c *pipeline.Config) { c.SASL.User = "mallory" }, pipeline.ReasonAuth},
		{"unknown authority", func(c *pipeline.Config) {
			c.TLS = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		}, pipeline.ReasonTLS},
		{"another host's certificate", func(c *pipeline.Config) {
			c.TLS = c.TLS.Clone()
			c.TLS.ServerName = "kafka.example"
		}, pipeline.ReasonTLS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := cfg
			c.Registerer, c.Logger = prometheus.NewRegistry(), nil
			tt.change(&c)
			_, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: c})
			if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != tt.reason {
				t.Fatalf("err = %v, want fatal %s", err, tt.reason)
			}
			for _, secret := range []string{"hunter2", password} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("a password is in the error: %v", err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several lines: %q", err.Error())
			}
			wp := producer(t, c, topic)
			if err := wp.Append(within(t), outs("group:1", "x")); fault.ReasonOf(err) != tt.reason {
				t.Errorf("Append = %v, want %s", err, tt.reason)
			}
		})
	}
}

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
