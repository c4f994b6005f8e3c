package history

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// memberChange is all that a Change says about one member.
type memberChange struct {
	row     watermark.MemberRow // marks and own messages, folded
	indexes []int               // of Change.Members, those with a version

	// Of the last look at what stands:
	standing watermark.Member // windows only
	windows  watermark.Member // after the Change
	clashes  []int
}

// writeMembers merges members. Marks are a max and own messages a set, and
// need no look at what stands; who has a version is read first, since a version
// that stands with other windows has to be told of, and is written only if the
// version is still the one that was read.
func (s *Store) writeMembers(ctx context.Context, rows []watermark.MemberRow) (conflicts []int, err error) {
	pending := foldMembers(rows)
	for try := 0; len(pending) > 0; try++ {
		if try == tries {
			return nil, fmt.Errorf("%d members: %w", len(pending), errRace)
		}
		if try > 0 {
			s.metrics.races.Add(float64(len(pending)))
		}
		if err := s.lookAtWindows(ctx, rows, pending); err != nil {
			return nil, err
		}
		models := make([]mongo.WriteModel, len(pending))
		for i, c := range pending {
			models[i] = c.model()
		}
		lost, err := bulk(ctx, s.members.Collection, models)
		if err != nil {
			return nil, err
		}
		again := make([]*memberChange, len(lost))
		for i, at := range lost {
			again[i] = pending[at]
			pending[at] = nil
		}
		for _, c := range pending {
			if c != nil {
				conflicts = append(conflicts, c.clashes...)
			}
		}
		pending = again
	}
	slices.Sort(conflicts)
	return conflicts, nil
}

// foldMembers gathers what rows say of each member, sorted by key. Folding
// marks and own messages first and bounding the list once comes to the same as
// one after the other: what a step would drop has MaxOwn messages above it, and
// those stay unless a mark passes them, and with them what was dropped.
func foldMembers(rows []watermark.MemberRow) []*memberChange {
	byID := make(map[string]*memberChange, len(rows))
	var out []*memberChange
	for i, r := range rows {
		key := memberKey(r.Conversation, r.Member.User)
		c := byID[key]
		if c == nil {
			c = &memberChange{row: watermark.MemberRow{Conversation: r.Conversation, Member: watermark.Member{User: r.Member.User}}}
			byID[key] = c
			out = append(out, c)
		}
		marks := r.Member
		marks.Version, marks.Memberships, marks.Ops, marks.Attributes, marks.LastMembership = 0, nil, nil, nil, 0
		c.row.Member.Merge(marks)
		if r.Member.Version > 0 {
			c.indexes = append(c.indexes, i)
		}
	}
	byKey(out, func(c *memberChange) string { return memberKey(c.row.Conversation, c.row.Member.User) })
	return out
}

// lookAtWindows reads what stands of the members whose windows may change, and
// merges their entries one after the other.
func (s *Store) lookAtWindows(ctx context.Context, rows []watermark.MemberRow, changes []*memberChange) error {
	var keys []string
	for _, c := range changes {
		if len(c.indexes) > 0 {
			keys = append(keys, memberKey(c.row.Conversation, c.row.Member.User))
		}
	}
	found := make(map[string]watermark.Member, len(keys))
	for part := range slices.Chunk(keys, chunk) {
		opts := options.Find().SetProjection(windowFieldsOnly).SetBatchSize(chunk)
		err := each(ctx, s.members.newest, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: part}}}}, opts, func(d *memberDoc) error {
			found[d.Key] = d.row().Member
			return nil
		})
		if err != nil {
			return fmt.Errorf("read windows: %w", err)
		}
	}
	for _, c := range changes {
		c.standing = found[memberKey(c.row.Conversation, c.row.Member.User)]
		c.windows, c.clashes = c.standing, nil
		for _, i := range c.indexes {
			if clash(&c.windows, &rows[i].Member) {
				c.clashes = append(c.clashes, i)
			}
			c.windows.Merge(rows[i].Member)
		}
	}
	return nil
}

var windowFieldsOnly = bson.D{{Key: "v", Value: 1}, {Key: "lm", Value: 1}, {Key: "w", Value: 1}, {Key: "ops", Value: 1}, {Key: "a", Value: 1}}

// clash tells whether two states of one version differ in what the version
// counts.
func clash(a, b *watermark.Member) bool {
	return a.Version == b.Version && a.Version > 0 && !a.SameState(b)
}

// model gives the update. Where windows change it names the version that was
// read: if another one stands by now, nothing matches, the upsert meets the
// document that is there, and the duplicate key says that the look has to be
// taken again.
func (c *memberChange) model() mongo.WriteModel {
	filter := bson.D{{Key: "_id", Value: memberKey(c.row.Conversation, c.row.Member.User)}}
	windows := bson.D{}
	if c.windows.Version > c.standing.Version {
		filter = append(filter, bson.E{Key: "v", Value: c.standing.Version})
		windows = bson.D{
			{Key: "v", Value: c.windows.Version},
			{Key: "lm", Value: c.windows.LastMembership},
			{Key: "w", Value: windowFields(&c.windows)},
			{Key: "ops", Value: opFields(&c.windows)},
			{Key: "a", Value: attributesOf(c.windows.Attributes)},
		}
	}
	m := mongo.NewUpdateOneModel().SetUpsert(true).SetFilter(filter)
	if len(c.row.Member.Own) > 0 {
		return m.SetUpdate(c.ownUpdate(windows))
	}
	return m.SetUpdate(c.marksUpdate(windows))
}

// marksUpdate raises marks. What the read watermark passes of the own messages
// goes; of a lower one that is late there is nothing left to go.
func (c *memberChange) marksUpdate(windows bson.D) bson.D {
	m := &c.row.Member
	once := bson.D{{Key: "c", Value: c.row.Conversation}, {Key: "u", Value: m.User}}
	update := bson.D{{Key: "$max", Value: bson.D{
		{Key: "r", Value: int64(m.Read)}, {Key: "rc", Value: int64(m.Receipt)}, {Key: "at", Value: m.ChangedAt},
	}}}
	if len(windows) > 0 {
		update = append(update, bson.E{Key: "$set", Value: windows})
	} else {
		once = append(once, bson.E{Key: "v", Value: int64(0)})
	}
	if m.Read > 0 {
		update = append(update, bson.E{Key: "$pull", Value: bson.D{{Key: "own", Value: bson.D{{Key: "$lte", Value: int64(m.Read)}}}}})
	}
	return append(update, bson.E{Key: "$setOnInsert", Value: once})
}

// ownUpdate also adds own messages, as a pipeline: they are a set above the
// read watermark that stands, and at most MaxOwn; if more, the lowest go and
// the watermark rises to the last that went.
func (c *memberChange) ownUpdate(windows bson.D) mongo.Pipeline {
	m := &c.row.Member
	own := make([]int64, len(m.Own))
	for i, s := range m.Own {
		own[i] = int64(s)
	}
	op := func(name string, args ...any) bson.D { return bson.D{{Key: name, Value: bson.A(args)}} }
	literal := func(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }
	marks := bson.D{
		{Key: "c", Value: literal(c.row.Conversation)}, {Key: "u", Value: literal(m.User)},
		{Key: "r", Value: op("$max", "$r", int64(m.Read))},
		{Key: "rc", Value: op("$max", "$rc", int64(m.Receipt))},
		{Key: "at", Value: op("$max", "$at", m.ChangedAt)},
	}
	if len(windows) == 0 {
		marks = append(marks, bson.E{Key: "v", Value: op("$ifNull", "$v", int64(0))})
	}
	for _, w := range windows {
		marks = append(marks, bson.E{Key: w.Key, Value: literal(w.Value)})
	}
	union := op("$setUnion", op("$ifNull", "$own", bson.A{}), own)
	above := bson.D{{Key: "$filter", Value: bson.D{
		{Key: "input", Value: union}, {Key: "as", Value: "o"}, {Key: "cond", Value: op("$gt", "$$o", "$r")},
	}}}
	sorted := bson.D{{Key: "$sortArray", Value: bson.D{{Key: "input", Value: above}, {Key: "sortBy", Value: 1}}}}
	excess := op("$subtract", bson.D{{Key: "$size", Value: "$own"}}, watermark.MaxOwn)
	// The last that goes stands at the place of the excess, less one.
	lastGone := op("$arrayElemAt", "$own", op("$subtract", excess, 1))
	return mongo.Pipeline{
		{{Key: "$set", Value: marks}},
		{{Key: "$set", Value: bson.D{{Key: "own", Value: sorted}}}},
		{{Key: "$set", Value: bson.D{
			{Key: "r", Value: op("$cond", op("$gt", excess, 0), lastGone, "$r")},
			{Key: "own", Value: op("$slice", "$own", -watermark.MaxOwn)},
		}}},
	}
}
