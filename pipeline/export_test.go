package pipeline

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/IBM/sarama"
)

// CommittedForTest gives a group's committed offset, -1: none.
func CommittedForTest(c Config, group, topic string, partition int32) (int64, error) {
	conf, err := c.adminConfig()
	if err != nil {
		return 0, err
	}
	client, err := sarama.NewClient(c.Brokers, conf)
	if err != nil {
		return 0, err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return 0, err
	}
	defer admin.Close()
	resp, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {partition}})
	if errors.Is(err, sarama.ErrGroupIDNotFound) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	if b := resp.GetBlock(topic, partition); b != nil {
		return b.Offset, nil
	}
	return -1, nil
}

// Classify shows the classifier.
var Classify = classify

// MaxUnpacked is the driver's bound.
const MaxUnpacked = maxUnpacked

// Answers counts the rows of the classifier's table.
func Answers() int { return len(kerrors) }

// SortError shows the wrapper.
var SortError = sortError

// WithTopicEvery sets how often the topic's id is looked at.
func (c GroupConfig) WithTopicEvery(d time.Duration) GroupConfig {
	c.topicEvery = d
	return c
}

// WithSession sets how long a member may keep silent.
func (c GroupConfig) WithSession(d time.Duration) GroupConfig {
	c.session = d
	return c
}

// CommitForTest commits for a group without members.
func CommitForTest(c Config, group, topic, topicID string, partition int32, offset int64) error {
	conf, err := c.adminConfig()
	if err != nil {
		return err
	}
	client, err := sarama.NewClient(c.Brokers, conf)
	if err != nil {
		return err
	}
	defer client.Close()
	return commitFor(client, group, topic, topicID, map[int32]int64{partition: offset})
}

// AdminForTest gives f a connected administrator.
func AdminForTest(c Config, f func(sarama.ClusterAdmin) error) error {
	conf, err := c.adminConfig()
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdmin(c.Brokers, conf)
	if err != nil {
		return err
	}
	defer admin.Close()
	return f(admin)
}

// DeleteRecordsForTest cuts the log below offset, as retention would.
func DeleteRecordsForTest(c Config, topic string, partition int32, offset int64) error {
	return AdminForTest(c, func(a sarama.ClusterAdmin) error { return a.DeleteRecords(topic, map[int32]int64{partition: offset}) })
}

// GraceOf is how long an error that looks final is waited for.
func (c TopicsConfig) GraceOf(err error) time.Duration { return c.graceOf(err) }

// Paced gives a connection of a group.
func Paced(conn net.Conn, every time.Duration) net.Conn { return newPacedConn(conn, every) }

// FlushAt is when a runner flushes.
var FlushAt = flushAt

// FeedForTest takes messages through a stage as a claim does whose partition is
// committed up to an offset, until messages is closed.
func FeedForTest(ctx context.Context, g *Group, stage Stage, committed int64, messages <-chan *sarama.ConsumerMessage) error {
	c := Claim{Topic: g.cfg.Topic, Committed: committed}
	r := &runner{
		g: g, claim: c, stage: stage, messages: messages, mark: func(int64) {}, log: g.log,
		next: committed, durable: committed, marked: committed, status: g.status.claimed(c),
	}
	defer g.status.released(r.status)
	return r.feed(ctx, ctx)
}
