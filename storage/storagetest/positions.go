package storagetest

import (
	"slices"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

var positionTests = []test{
	{"of each topic, topic id and partition the highest stands", highestPositionStands},
	{"an empty history has none", noPositions},
	{"reopened, positions are there", reopenedPositions},
}

func positionOf(topic, id string, partition int32, next int64) watermark.Position {
	return watermark.Position{Topic: topic, Partition: watermark.Partition{TopicID: id, Number: partition}, Next: next}
}

func positions(t *testing.T, h History) []watermark.Position {
	t.Helper()
	out := must(h.Positions(t.Context()))(t)
	slices.SortFunc(out, comparePositions)
	return out
}

func noPositions(t *testing.T, h History) {
	write(t, h, rowsOf(group, text(1, "alice", "a")))
	equal(t, "positions", positions(t, h), []watermark.Position(nil))
}

func highestPositionStands(t *testing.T, h History) {
	write(t, h, watermark.Change{Positions: []watermark.Position{
		positionOf("p.sequenced", "id-1_x", 0, 5), positionOf("p.sequenced", "id-1_x", 11, 1<<40), positionOf("toRedis", "id-3", 0, 0),
	}})
	// A writer that was late, another topic under the same name, and two in one.
	write(t, h, watermark.Change{Positions: []watermark.Position{
		positionOf("p.sequenced", "id-1_x", 0, 3), positionOf("p.sequenced", "id-2", 0, 2), positionOf("p.sequenced", "id-2", 0, 1),
	}})
	write(t, h, watermark.Change{Positions: []watermark.Position{positionOf("toRedis", "id-3", 0, 0)}})
	equal(t, "positions", positions(t, h), []watermark.Position{
		positionOf("p.sequenced", "id-1_x", 0, 5), positionOf("p.sequenced", "id-1_x", 11, 1<<40),
		positionOf("p.sequenced", "id-2", 0, 2), positionOf("toRedis", "id-3", 0, 0),
	})
	write(t, h, together(rowsOf(group, text(1, "alice", "a")), watermark.Change{Positions: []watermark.Position{positionOf("toRedis", "id-3", 0, 9)}}))
	equal(t, "the last one", positions(t, h)[3], positionOf("toRedis", "id-3", 0, 9))
}

func reopenedPositions(t *testing.T, h History) {
	r, ok := h.(Reopener)
	if !ok {
		return // what lives in memory ends with its process
	}
	want := []watermark.Position{positionOf("sequenced", "id", 3, 7)}
	write(t, h, watermark.Change{Positions: want})
	equal(t, "positions", positions(t, r.Reopen(t)), want)
}
