package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// aboveEndLooks is how often an end below a committed offset is looked at
	// again: a leader that has just taken over may need a moment.
	aboveEndLooks = 4
	aboveEndPause = 250 * time.Millisecond
	// maxMoves is how often what is lost is moved before a group is joined: each
	// member that leaves meanwhile may make another one necessary.
	maxMoves = 5
	// topicEvery is how often the topic's id is looked at while it is read.
	topicEvery = 30 * time.Second
)

// resume looks at all partitions before the group is joined. What is lost ends
// the process, or, when it starts and was told so, is moved: while the group has
// no members, as Kafka's own tools do it, so that no member ever reads on at an
// offset that was moved under it.
func (g *Group) resume(ctx context.Context, client sarama.Client, first bool) error {
	topic, err := g.topic(client)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.topicID = topic.ID
	g.mu.Unlock()
	for moves := 0; ; moves++ {
		parts, err := g.lostOf(ctx, client, topic.ID, partitionsOf(topic), first || g.cfg.Projects)
		if err != nil || len(parts) == 0 {
			return err
		}
		lost := g.cfg.lost(topic.ID, parts)
		how := g.cfg.OnLost
		if !first || moves == maxMoves || how == LostEarliest && !lost.Earliest || how == LostLatest && !lost.Latest || how == LostStop || how == "" {
			return lost.fatal()
		}
		// The last member may have committed after the look and left before the
		// move, so what stands now is looked at again.
		if err := g.move(ctx, client, lost, how); err != nil {
			return err
		}
	}
}

func partitionsOf(t TopicInfo) []int32 {
	out := make([]int32, t.Partitions)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// topic gives the topic as it is now.
func (g *Group) topic(client sarama.Client) (TopicInfo, error) {
	infos, err := describe(client, g.cfg.Topic)
	if err != nil {
		return TopicInfo{}, err
	}
	if infos[0].Missing() {
		return TopicInfo{}, fmt.Errorf("topic %s: %w", g.cfg.Topic, sarama.ErrUnknownTopicOrPartition)
	}
	return infos[0], nil
}

// verify looks at one partition when it is claimed. The roles that only read
// history do not need it for that: a partition must move to another process
// also while history is away.
func (g *Group) verify(ctx context.Context, client sarama.Client, claim Claim) error {
	topic, err := g.topic(client)
	if err != nil {
		return err
	}
	if topic.ID != claim.TopicID {
		return g.recreated(topic.ID, claim.TopicID)
	}
	parts, err := g.lostOf(ctx, client, topic.ID, []int32{claim.Partition}, g.cfg.Projects)
	if err != nil || len(parts) == 0 {
		return err
	}
	return g.cfg.lost(topic.ID, parts).fatal()
}

// recreated is the error of a topic that was made anew while it was read.
func (g *Group) recreated(id, oldID string) error {
	return fault.New(fault.Fatal, ReasonRecreated, fmt.Errorf(
		"group %s: topic %s was deleted and made again while it was read: its id is %s and was %s; see docs/runbook.md#%s",
		g.cfg.Group, g.cfg.Topic, id, oldID, ReasonRecreated))
}

// watchTopic stops the group when its topic is made anew. Fetches name the topic
// and not its id, so that the driver would go on at the old offsets as soon as
// the new log is long enough.
func (g *Group) watchTopic(ctx context.Context, client sarama.Client, every time.Duration) {
	for tailSleep(ctx, every) {
		topic, err := g.topic(client)
		if err != nil {
			continue // whoever reads meets the same, and tells
		}
		g.mu.Lock()
		was := g.topicID
		g.mu.Unlock()
		if was != "" && topic.ID != was {
			g.stop(g.recreated(topic.ID, was))
			return
		}
	}
}

// lostOf judges partitions.
func (g *Group) lostOf(ctx context.Context, client sarama.Client, topicID string, partitions []int32, askHistory bool) ([]Lost, error) {
	var known []watermark.Position
	if askHistory && g.cfg.History != nil {
		var err error
		if known, err = g.cfg.History.Positions(ctx); err != nil {
			return nil, fmt.Errorf("how far history has topic %s: %w", g.cfg.Topic, err)
		}
	}
	for look := 1; ; look++ {
		places, err := g.places(client, partitions)
		if err != nil {
			return nil, err
		}
		var lost []Lost
		again := false
		for _, p := range places {
			if l := g.cfg.judge(p, topicID, known); l != nil {
				lost = append(lost, *l)
				again = again || l.Reason == ReasonAboveEnd
			}
		}
		if !again || look == aboveEndLooks {
			return lost, nil
		}
		if !tailSleep(ctx, aboveEndPause) {
			return nil, ctx.Err()
		}
	}
}

// places asks what is committed before it asks for the ends: a group that goes
// on meanwhile never seems to be above an end.
func (g *Group) places(client sarama.Client, partitions []int32) ([]place, error) {
	commits, err := commitsOf(client, g.cfg.Group, g.cfg.Topic, partitions)
	if err != nil {
		return nil, err
	}
	out := make([]place, len(partitions))
	err = eachOf(partitions, func(i int, p int32) (err error) {
		out[i] = place{partition: p, committed: commits[p].offset, id: commits[p].metadata}
		if out[i].start, err = listedOffset(client, g.cfg.Topic, p, sarama.OffsetOldest); err != nil {
			return err
		}
		out[i].end, err = listedOffset(client, g.cfg.Topic, p, sarama.OffsetNewest)
		return err
	})
	return out, err
}

// move commits where an operator decided to read on. History learns it first: a
// death in between finds the same loss again.
func (g *Group) move(ctx context.Context, client sarama.Client, lost *LostOffsetsError, how OnLost) error {
	if g.cfg.History != nil {
		var c watermark.Change
		for _, l := range lost.Partitions {
			at := watermark.Position{Topic: g.cfg.Topic, Partition: watermark.Partition{TopicID: lost.TopicID, Number: l.Partition}}
			if g.cfg.Projects {
				at.Next = l.target(how)
			}
			c.Positions = append(c.Positions, at)
		}
		if _, err := g.cfg.History.Write(ctx, c); err != nil {
			return fmt.Errorf("accept the offsets of topic %s: %w", g.cfg.Topic, err)
		}
	}
	offsets := make(map[int32]int64, len(lost.Partitions))
	for _, l := range lost.Partitions {
		offsets[l.Partition] = l.target(how)
	}
	if err := commitFor(client, g.cfg.Group, g.cfg.Topic, lost.TopicID, offsets); err != nil {
		if isMembership(err) {
			err = fmt.Errorf("offsets are moved when the group has no members, stop its other processes: %w", err)
		}
		return fmt.Errorf("move offsets of group %s: %w", g.cfg.Group, err)
	}
	for _, l := range lost.Partitions {
		g.metrics.moved.WithLabelValues(l.Reason).Inc()
		g.log.Error("offset moved, as the operator decided", "partition", l.Partition, "reason", l.Reason, "how", string(how),
			"committed", l.Committed, "start", l.Start, "end", l.End, "history", l.History, "to", offsets[l.Partition])
	}
	return nil
}

func isMembership(err error) bool {
	return errors.Is(err, sarama.ErrUnknownMemberId) || errors.Is(err, sarama.ErrIllegalGeneration) || errors.Is(err, sarama.ErrRebalanceInProgress)
}
