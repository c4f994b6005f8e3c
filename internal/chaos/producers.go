//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// The conversations of a run. In some groups members come and go.
var (
	groups  = []string{"group:g1", "group:g2", "group:g3", "group:g4", "group:g5", "group:g6", "group:g7"}
	singles = []string{"single:ann:bob", "single:ann:cid", "single:bob:cid"}
	churned = groups[:4]
)

func conversations() []string { return append(slices.Clone(groups), singles...) }

// pairOf gives the two users of a single conversation, and nobody for a group.
func pairOf(conv string) []string {
	if parts := strings.Split(conv, ":"); len(parts) == 3 {
		return parts[1:]
	}
	return nil
}

// outside is a producer that is not ours.
type outside struct {
	c    *cluster
	name string
	rng  *rand.Rand
	n    int64
}

// next makes the next message, and the JSON that says it. Some have no id, so
// that one is derived for them.
func (o *outside) next() (history.Op, []byte) {
	o.n++
	conv := conversations()[o.rng.IntN(len(groups)+len(singles))]
	op := history.Op{
		Kind: history.Produce, Conversation: conv, User: o.name, Producer: o.name, N: o.n, Ordered: true,
		Text: fmt.Sprintf("%s says %d", o.name, o.n),
	}
	if two := pairOf(conv); two != nil {
		op.User = two[o.rng.IntN(2)]
	}
	body := map[string]string{"conversation": conv, "sender": op.User, "text": op.Text}
	if o.rng.IntN(10) > 0 {
		op.ID = fmt.Sprintf("%s-%d", o.name, o.n)
		body["clientMessageId"] = op.ID
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // of strings
	}
	return op, text
}

// sent is a message that was acknowledged and can be sent again.
type sent struct {
	op   history.Op
	body []byte
}

// stream produces by the franz-go client, which is not what our workers use:
// idempotent, acknowledged by all. Now and then it sends one again.
func (o *outside) stream(ctx context.Context, every time.Duration) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(o.c.kafkaAt), kgo.DefaultProduceTopic("toRedis"), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return err
	}
	defer client.Close()
	var mu sync.Mutex
	var recent []sent
	send := func(s sent) {
		s.op.T0 = o.c.hist.Now()
		record := &kgo.Record{Key: []byte(s.op.Conversation), Value: s.body}
		client.Produce(context.WithoutCancel(ctx), record, func(_ *kgo.Record, err error) {
			s.op.T1, s.op.OK = o.c.hist.Now(), err == nil
			if err != nil {
				s.op.Err = err.Error()
			}
			o.c.hist.Add(s.op)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && s.op.ID != "" {
				recent = append(recent[max(0, len(recent)-50):], s)
			}
		})
	}
	for pause(ctx, every/2+time.Duration(o.rng.Int64N(int64(every)))) == nil {
		op, body := o.next()
		send(sent{op, body})
		mu.Lock()
		var again *sent
		if len(recent) > 0 && o.rng.IntN(30) == 0 {
			again = &recent[o.rng.IntN(len(recent))]
			s := *again
			again = &s
		}
		mu.Unlock()
		if again != nil {
			send(*again)
		}
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), startUp)
	defer cancel()
	return client.Flush(flush)
}

// batches produces by a program, n messages at a time: they are acknowledged
// when it ends well.
func (o *outside) batches(ctx context.Context, n int, every time.Duration, command func(ctx context.Context, file string) *exec.Cmd) error {
	file := filepath.Join(o.c.dir, o.name+".lines")
	for pause(ctx, every) == nil {
		var ops []history.Op
		var lines []byte
		for range n {
			op, body := o.next()
			ops = append(ops, op)
			lines = fmt.Appendf(lines, "%s\t%s\n", op.Conversation, body)
		}
		if err := os.WriteFile(file, lines, 0o600); err != nil {
			return err
		}
		run, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
		t0 := o.c.hist.Now()
		err := command(run, file).Run()
		cancel()
		t1 := o.c.hist.Now()
		for _, op := range ops {
			op.T0, op.T1, op.OK = t0, t1, err == nil
			if err != nil {
				op.Err = err.Error()
			}
			o.c.hist.Add(op)
		}
	}
	return nil
}

// kcat is a producer on librdkafka.
func (o *outside) kcat(ctx context.Context, file string) *exec.Cmd {
	return exec.CommandContext(ctx, "kcat", "-b", o.c.kafkaAt, "-P", "-t", "toRedis", "-K", "\t", "-l", file,
		"-X", "topic.partitioner=murmur2_random", "-X", "enable.idempotence=true", "-X", "message.timeout.ms=120000")
}

// java is Kafka's own console producer. Unless it waits for each message, it ends
// well whatever became of them: they are sent while the JVM shuts down, together
// with its log. By default it tries three times for a second and a half.
func (o *outside) java(ctx context.Context, file string) *exec.Cmd {
	libs := ""
	if i := slices.Index(o.c.kafka.argv, "-cp"); i >= 0 {
		libs = o.c.kafka.argv[i+1]
	}
	cmd := exec.CommandContext(ctx, "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=ERROR", "-cp", libs,
		"org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", o.c.kafkaAt, "--topic", "toRedis",
		"--sync", "--timeout", "0", "--request-timeout-ms", "30000", "--message-send-max-retries", "1000000",
		"--reader-property", "parse.key=true", "--command-property", "acks=all", "--command-property", "enable.idempotence=true")
	in, err := os.Open(file)
	if err == nil {
		cmd.Stdin = in
	}
	return cmd
}
