//go:build real

package pipeline_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
	"github.com/tidemark-im/tidemark/watermark"
)

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

// TestRealLostOffsets: what Kafka itself does to offsets, and how it is noticed.
func TestRealLostOffsets(t *testing.T) {
	cfg := withTopics(t, setting(t, "TIDEMARK_TEST_KAFKA"), 1)
	topic, group := cfg.Topics().ToRedis, cfg.TopicPrefix+"g"
	id := func() string {
		infos, err := pipeline.Describe(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return infos.ToRedis.ID
	}
	send(t, producer(t, cfg, topic), "group:1", numbered(10, "m")...)
	var got seen
	s := &stage{handle: func(_ context.Context, b []wire.Record) (int64, error) { got.add(b); return 5, nil }}
	run := func(gc pipeline.GroupConfig) *running {
		gc.Group, gc.Topic, gc.NewStage = group, topic, s.make
		return start(t, cfg, gc)
	}
	refuses := func(gc pipeline.GroupConfig, reason string, says ...string) {
		t.Helper()
		was := committedOffset(t, cfg, group, topic, 0)
		err := run(gc).wait(t)
		if fault.ClassOf(err) != fault.Fatal || fault.ReasonOf(err) != reason {
			t.Fatalf("Run = %v (%s), want %s", err, fault.ReasonOf(err), reason)
		}
		for _, want := range says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("Run = %v, want it to say %q", err, want)
			}
		}
		if now := committedOffset(t, cfg, group, topic, 0); now != was {
			t.Errorf("committed = %d, want it untouched at %d", now, was)
		}
	}
	g := run(pipeline.GroupConfig{})
	eventually(t, "all are handled", func() bool { return got.len() == 10 })
	g.stop(t)
	history := &knows{all: map[watermark.Position]int64{{Topic: topic, Partition: watermark.Partition{TopicID: id()}}: 3}}
	refuses(pipeline.GroupConfig{History: history, Projects: true}, pipeline.ReasonHistoryBehind, "up to 3 only", "committed 5, log from 0 to 10")

	if err := pipeline.DeleteRecordsForTest(cfg, topic, 0, 8); err != nil {
		t.Fatal(err)
	}
	refuses(pipeline.GroupConfig{}, pipeline.ReasonOvertaken, "committed 5, log from 8 to 10")

	// A group whose offsets expired.
	if err := pipeline.AdminForTest(cfg, func(a sarama.ClusterAdmin) error { return a.DeleteConsumerGroup(group) }); err != nil {
		t.Fatal(err)
	}
	refuses(pipeline.GroupConfig{}, pipeline.ReasonNoOffsets, "committed nothing, log from 8 to 10")
	got = seen{}
	g = run(pipeline.GroupConfig{OnLost: pipeline.LostEarliest})
	eventually(t, "the rest is handled", func() bool { return got.len() == 2 })
	g.stop(t)

	// A worker that outlived its topic commits into the next one, and Kafka takes
	// it; without such a worker it forgets the offsets with the topic.
	old := id()
	if err := pipeline.AdminForTest(cfg, func(a sarama.ClusterAdmin) error { return a.DeleteTopic(topic) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the topic is gone and made again", func() bool {
		_, err := pipeline.EnsureTopics(within(t), pipeline.TopicsConfig{Config: cfg, Create: true, Partitions: 1})
		return err == nil
	})
	send(t, producer(t, cfg, topic), "group:1", "one")
	refuses(pipeline.GroupConfig{History: history}, pipeline.ReasonRecreated, old, id(), "committed nothing, log from 0 to 1")
	if err := pipeline.CommitForTest(cfg, group, topic, old, 0, 1); err != nil {
		t.Fatal(err)
	}
	refuses(pipeline.GroupConfig{}, pipeline.ReasonRecreated, old, "committed 1, log from 0 to 1")
	if err := pipeline.CommitForTest(cfg, group, topic, "", 0, 5); err != nil {
		t.Fatal(err)
	}
	refuses(pipeline.GroupConfig{}, pipeline.ReasonAboveEnd, "committed 5, log from 0 to 1")
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
