package pipeline

import (
	"context"
	"fmt"
	"strings"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// OnLost says what a group does when it starts and its offsets are no longer
// worth anything. It is asked once, when the process starts: what is lost later
// stops the group.
type OnLost string

// The zero value stops too.
const (
	LostStop     OnLost = "stop"     // with a line that says what there is to choose from
	LostEarliest OnLost = "earliest" // read on at the first record that may be missing and still stands
	LostLatest   OnLost = "latest"   // give up what was not read
)

// Reasons why a group cannot just read on. Each has a section of this name in
// docs/runbook.md.
const (
	ReasonOvertaken     = "offsets_overtaken" // retention deleted records before the group read them
	ReasonAboveEnd      = "offsets_above_end" // the log ends below what the group has committed
	ReasonNoOffsets     = "offsets_missing"   // nothing is committed, and the log's beginning is gone
	ReasonRecreated     = "topic_recreated"   // the topic is another one than the offsets are of
	ReasonHistoryBehind = "history_behind"    // history lacks what the group has committed
)

// History is the store that a topic is brought into, as far as a group needs it
// to notice that one of the two is not what it was.
type History interface {
	// Positions tells how far the store has each partition of each topic.
	Positions(ctx context.Context) ([]watermark.Position, error)
	// Write raises the positions of a change.
	Write(ctx context.Context, c watermark.Change) (watermark.Written, error)
}

// Lost is a partition at which a group cannot just read on.
type Lost struct {
	Partition  int32
	Reason     string // one of those above
	Committed  int64  // -1: nothing is
	Start, End int64  // of the log
	// History is how far history has the partition; -1: not at all, or it was
	// not asked.
	History int64
	// OldID is the id of the topic that the offsets are of, where it is known
	// and differs.
	OldID string
}

// LostOffsetsError says that a group's offsets are lost, and what can be done.
type LostOffsetsError struct {
	Group, Topic, TopicID string
	Partitions            []Lost // at least one
	// Earliest and Latest tell whether that choice is open to the group.
	Earliest, Latest bool
}

// Error gives one line.
func (e *LostOffsetsError) Error() string {
	const shown = 8
	var b strings.Builder
	fmt.Fprintf(&b, "group %s cannot read on in topic %s (id %s): ", e.Group, e.Topic, e.TopicID)
	for i, l := range e.Partitions {
		if i == shown {
			fmt.Fprintf(&b, "; and %d partitions more", len(e.Partitions)-shown)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(l.text())
	}
	first := e.Partitions[0]
	b.WriteString("; nothing is skipped by itself: see docs/runbook.md#" + first.Reason)
	var choices []string
	if e.Earliest {
		choices = append(choices, fmt.Sprintf("earliest (partition %d from %d)", first.Partition, first.target(LostEarliest)))
	}
	if e.Latest {
		choices = append(choices, fmt.Sprintf("latest (partition %d from %d)", first.Partition, first.target(LostLatest)))
	}
	if len(choices) > 0 {
		b.WriteString(", then stop the group's processes and start one with --on-lost-offsets " + strings.Join(choices, " or "))
	}
	return b.String()
}

func (l *Lost) text() string {
	committed := "nothing"
	if l.Committed != noOffset {
		committed = fmt.Sprint(l.Committed)
	}
	return fmt.Sprintf("partition %d: %s (committed %s, log from %d to %d)", l.Partition, l.why(), committed, l.Start, l.End)
}

func (l *Lost) why() string {
	switch l.Reason {
	case ReasonOvertaken:
		return fmt.Sprintf("retention deleted %d records before they were read", l.Start-l.Committed)
	case ReasonAboveEnd:
		return fmt.Sprintf("the log lost its last %d records or was restored from an older copy", l.Committed-l.End)
	case ReasonNoOffsets:
		return fmt.Sprintf("the group never committed or its offsets expired, and the log's first %d records are deleted", l.Start)
	case ReasonHistoryBehind:
		if l.History == noOffset {
			return "history has nothing of it, so it is another one or empty"
		}
		return fmt.Sprintf("history has it up to %d only, so it was restored from an older copy", l.History)
	default:
		return fmt.Sprintf("the topic was deleted and made again, it was known as id %s", l.OldID)
	}
}

// target is where a choice reads on.
func (l *Lost) target(how OnLost) int64 {
	switch {
	case how == LostLatest:
		return l.End
	case l.Reason == ReasonHistoryBehind:
		return max(l.Start, l.History)
	}
	return l.Start
}

// place is what there is to know about a partition before it is read.
type place struct {
	partition  int32
	committed  int64
	id         string // of the topic that the commit was made for; empty: unknown
	start, end int64
}

// judge tells what is wrong with a place; nil: nothing, the group reads on at
// what it committed, or at a start below which there never was anything.
func (c *GroupConfig) judge(p place, topicID string, known []watermark.Position) *Lost {
	l := &Lost{Partition: p.partition, Committed: p.committed, Start: p.start, End: p.end, History: noOffset}
	var other string
	for _, k := range known {
		switch {
		case k.Topic != c.Topic || k.Number != p.partition:
		case k.TopicID == topicID:
			l.History = k.Next
		default:
			other = k.TopicID
		}
	}
	switch {
	case p.id != "" && p.id != topicID:
		// A process that outlived the topic committed into its successor.
		l.Reason, l.OldID = ReasonRecreated, p.id
	case p.id == "" && other != "" && l.History == noOffset:
		// Kafka forgets offsets with their topic; history does not.
		l.Reason, l.OldID = ReasonRecreated, other
	case p.committed == noOffset && p.start > 0:
		l.Reason = ReasonNoOffsets
	case p.committed == noOffset:
		return nil
	case p.committed < p.start:
		l.Reason = ReasonOvertaken
	case p.committed > p.end:
		l.Reason = ReasonAboveEnd
	case c.Projects && p.committed > max(l.History, 0):
		l.Reason = ReasonHistoryBehind
	default:
		return nil
	}
	return l
}

// lost makes the error of what was judged.
func (c *GroupConfig) lost(topicID string, parts []Lost) *LostOffsetsError {
	e := &LostOffsetsError{Group: c.Group, Topic: c.Topic, TopicID: topicID, Partitions: parts, Earliest: true}
	for _, l := range parts {
		// The stage would take new records for those that it handled under the
		// same offsets of the same topic.
		if c.Origins && l.Reason == ReasonAboveEnd {
			e.Earliest = false
		}
	}
	// History must not lack what the log still holds.
	e.Latest = e.Earliest && !c.Projects
	return e
}

func (e *LostOffsetsError) fatal() error {
	return fault.New(fault.Fatal, e.Partitions[0].Reason, e)
}
