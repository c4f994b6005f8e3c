package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

const (
	// chunk is how many documents one command is about.
	chunk = 500
	// chunkBytes keeps an insert below the size of one message of the protocol,
	// so that the indexes in its answer are those of the chunk.
	chunkBytes = 8 << 20
	// tries is how often an update is done again because another writer was
	// faster. Each time at least one of them has succeeded.
	tries = 20
)

// Write applies a Change in the order rows, revokes, members, conversations,
// positions. Without an error everything is durable on a majority, also what stood there
// before; with one any part of it may have been done, and the same Change again
// completes it.
func (s *Store) Write(ctx context.Context, c watermark.Change) (w watermark.Written, err error) {
	defer s.done("write", time.Now(), &err)
	if c.Empty() {
		return watermark.Written{}, nil
	}
	if w.Rows, err = s.writeRows(ctx, c.Rows); err != nil {
		return watermark.Written{}, fmt.Errorf("write messages: %w", err)
	}
	if err := s.revoke(ctx, c.Revokes); err != nil {
		return watermark.Written{}, fmt.Errorf("revoke messages: %w", err)
	}
	if w.MemberConflicts, err = s.writeMembers(ctx, c.Members); err != nil {
		return watermark.Written{}, fmt.Errorf("write members: %w", err)
	}
	if err := s.writeConversations(ctx, c.Conversations); err != nil {
		return watermark.Written{}, fmt.Errorf("write conversations: %w", err)
	}
	if err := s.writePositions(ctx, c.Positions); err != nil {
		return watermark.Written{}, fmt.Errorf("write positions: %w", err)
	}
	s.metrics.written(w)
	return w, nil
}

// place names a row.
type place struct {
	conv watermark.ConversationID
	seq  watermark.Seq
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.conv, b.conv), cmp.Compare(a.seq, b.seq))
}

// writeRows inserts what may be inserted, looks up what stands in its way, and
// tells each row's fate.
func (s *Store) writeRows(ctx context.Context, rows []watermark.Row) ([]watermark.Fate, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	lows, err := s.minima(ctx, rows)
	if err != nil {
		return nil, err
	}
	first := make(map[place]*watermark.Row, len(rows)) // the rows to insert, one for each place
	var look []place
	for i := range rows {
		p := place{rows[i].Conversation, rows[i].Message.Seq}
		if p.seq < lows[p.conv] {
			look = append(look, p)
		} else if first[p] == nil {
			first[p] = &rows[i]
		}
	}
	taken, err := s.insert(ctx, first)
	if err != nil {
		return nil, err
	}
	standing, err := s.standing(ctx, append(look, taken...))
	if err != nil {
		return nil, err
	}
	for _, p := range taken {
		if standing[p] == nil {
			// Retention took it between the insert and the look: the minimum that
			// was read is old.
			return nil, fmt.Errorf("message %s/%d was taken and is gone: %w", p.conv, p.seq, errRace)
		}
	}
	out := make([]watermark.Fate, len(rows))
	for i := range rows {
		p := place{rows[i].Conversation, rows[i].Message.Seq}
		there := standing[p]
		if there == nil && first[p] != nil && first[p] != &rows[i] {
			there = &first[p].Message // inserted by this Change
		}
		switch {
		case there == nil && first[p] == nil:
			out[i] = watermark.Retired
		case there == nil:
			out[i] = watermark.Inserted
		case there.SameAs(&rows[i].Message):
			out[i] = watermark.Replay
		default:
			out[i] = watermark.Conflict
		}
	}
	return out, nil
}

// minima reads the minimum of each row's conversation: what is below it was
// deleted and must not come back.
func (s *Store) minima(ctx context.Context, rows []watermark.Row) (map[watermark.ConversationID]watermark.Seq, error) {
	ids := make([]watermark.ConversationID, 0, len(rows))
	for i := range rows {
		if i == 0 || rows[i].Conversation != rows[i-1].Conversation {
			ids = append(ids, rows[i].Conversation)
		}
	}
	lows := make(map[watermark.ConversationID]watermark.Seq)
	for part := range slices.Chunk(distinct(ids), chunk) {
		opts := options.Find().SetProjection(bson.D{{Key: "mn", Value: 1}}).SetBatchSize(chunk)
		err := each(ctx, s.convs.newest, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: part}}}}, opts, func(d *convDoc) error {
			lows[watermark.ConversationID(d.ID)] = watermark.Seq(d.Min)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read minima: %w", err)
		}
	}
	return lows, nil
}

// insert inserts rows and gives the places that were taken.
func (s *Store) insert(ctx context.Context, rows map[place]*watermark.Row) (taken []place, err error) {
	places := make([]place, 0, len(rows))
	for p := range rows {
		places = append(places, p)
	}
	slices.SortFunc(places, comparePlaces)
	var docs []bson.Raw
	from, size := 0, 0
	flush := func(to int) error {
		if from == to {
			return nil
		}
		some, err := s.insertDocs(ctx, places[from:to], docs)
		taken = append(taken, some...)
		docs, from, size = docs[:0], to, 0
		return err
	}
	for i, p := range places {
		raw, err := bson.Marshal(messageToDoc(p.conv, &rows[p].Message))
		if err != nil {
			return nil, fmt.Errorf("encode message %s/%d: %w", p.conv, p.seq, err)
		}
		if len(docs) == chunk || size+len(raw) > chunkBytes {
			if err := flush(i); err != nil {
				return nil, err
			}
		}
		docs, size = append(docs, raw), size+len(raw)
	}
	return taken, flush(len(places))
}

// insertDocs sends one insert. The write concern is waited for also where
// every document is a duplicate: the server then waits for its newest write,
// so what stands is as durable as what is inserted.
func (s *Store) insertDocs(ctx context.Context, places []place, docs []bson.Raw) (taken []place, err error) {
	_, err = s.messages.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	if err == nil {
		return nil, nil
	}
	indexes, err := duplicates(err, len(docs))
	if err != nil {
		p := places[culprit(err, len(docs))]
		return nil, fmt.Errorf("insert %d messages, %s/%d among them: %w", len(places), p.conv, p.seq, err)
	}
	for _, i := range indexes {
		taken = append(taken, places[i])
	}
	return taken, nil
}

// duplicates gives the indexes of the n operations of an unordered bulk that
// failed with a duplicate key, and the error itself if that is not all that was
// wrong.
func duplicates(err error, n int) ([]int, error) {
	bulk, ok := errors.AsType[mongo.BulkWriteException](err)
	if !ok || bulk.WriteConcernError != nil {
		return nil, err
	}
	out := make([]int, 0, len(bulk.WriteErrors))
	for _, e := range bulk.WriteErrors {
		if !isDuplicate(e.Code) || e.Index < 0 || e.Index >= n {
			return nil, err
		}
		out = append(out, e.Index)
	}
	return out, nil
}

// culprit gives the index of the first of n operations that failed with
// something else than a duplicate key.
func culprit(err error, n int) int {
	bulk, _ := errors.AsType[mongo.BulkWriteException](err)
	for _, e := range bulk.WriteErrors {
		if !isDuplicate(e.Code) && 0 <= e.Index && e.Index < n {
			return e.Index
		}
	}
	return 0
}

// standing reads who stands at places.
func (s *Store) standing(ctx context.Context, places []place) (map[place]*watermark.Message, error) {
	slices.SortFunc(places, comparePlaces)
	places = slices.Compact(places)
	out := make(map[place]*watermark.Message, len(places))
	for part := range slices.Chunk(places, chunk) {
		opts := options.Find().SetProjection(identity).SetBatchSize(chunk)
		err := each(ctx, s.messages.newest, atPlaces(part), opts, func(d *messageDoc) error {
			m, err := d.message()
			out[place{watermark.ConversationID(d.Conv), m.Seq}] = &m
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read standing messages: %w", err)
		}
	}
	return out, nil
}

// identity is what tells a replay from a conflict.
var identity = bson.D{{Key: "c", Value: 1}, {Key: "s", Value: 1}, {Key: "f", Value: 1}, {Key: "i", Value: 1}, {Key: "h", Value: 1}}

// atPlaces gives the filter for places, which are sorted. A list of _ids would
// be shorter, but on a clustered collection it is read as everything between
// the lowest and the highest.
func atPlaces(places []place) bson.D {
	var branches bson.A
	for from := 0; from < len(places); {
		to := from
		var seqs []int64
		for ; to < len(places) && places[to].conv == places[from].conv; to++ {
			seqs = append(seqs, int64(places[to].seq))
		}
		branches = append(branches, bson.D{
			{Key: "c", Value: places[from].conv},
			{Key: "s", Value: bson.D{{Key: "$in", Value: seqs}}},
		})
		from = to
	}
	return anyOf(branches)
}

func anyOf(branches bson.A) bson.D {
	if len(branches) == 1 {
		return branches[0].(bson.D)
	}
	return bson.D{{Key: "$or", Value: branches}}
}

// content is what a tombstone and a row that retention took do not have.
var content = bson.D{{Key: "bt", Value: ""}, {Key: "b", Value: ""}, {Key: "m", Value: ""}, {Key: "a", Value: ""}}

func absent(field string) bson.E {
	return bson.E{Key: field, Value: bson.D{{Key: "$exists", Value: false}}}
}

// revoke turns rows into tombstones. The first revoke of a row stands, so that
// a log that is read again changes nothing.
func (s *Store) revoke(ctx context.Context, revokes []watermark.RevokedRow) error {
	firsts := make(map[place]watermark.Revoked, len(revokes))
	var places []place
	for _, r := range revokes {
		p := place{r.Conversation, r.Revoked.Seq}
		if _, ok := firsts[p]; !ok {
			firsts[p] = r.Revoked
			places = append(places, p)
		}
	}
	slices.SortFunc(places, comparePlaces)
	models := make([]mongo.WriteModel, len(places))
	for i, p := range places {
		r := firsts[p]
		models[i] = mongo.NewUpdateOneModel().
			SetFilter(bson.D{{Key: "_id", Value: rowKey(p.conv, p.seq)}, absent("rv")}).
			SetUpdate(bson.D{
				{Key: "$set", Value: bson.D{{Key: "rv", Value: revokedField{string(r.By), r.Time, r.At}}}},
				{Key: "$unset", Value: content},
			})
	}
	return s.upserts(ctx, s.messages.Collection, models)
}

// upserts sends updates in unordered bulks, and again those that met another
// writer's insert of the same document.
func (s *Store) upserts(ctx context.Context, coll *mongo.Collection, models []mongo.WriteModel) error {
	for try := 0; len(models) > 0; try++ {
		if try == tries {
			return fmt.Errorf("%d updates: %w", len(models), errRace)
		}
		if try > 0 {
			s.metrics.races.Add(float64(len(models)))
		}
		lost, err := bulk(ctx, coll, models)
		if err != nil {
			return err
		}
		again := make([]mongo.WriteModel, len(lost))
		for i, at := range lost {
			again[i] = models[at]
		}
		models = again
	}
	return nil
}

// bulk sends updates in unordered bulks and gives the indexes of those that
// failed with a duplicate key.
func bulk(ctx context.Context, coll *mongo.Collection, models []mongo.WriteModel) (lost []int, err error) {
	for from := 0; from < len(models); from += chunk {
		part := models[from:min(from+chunk, len(models))]
		_, err := coll.BulkWrite(ctx, part, options.BulkWrite().SetOrdered(false))
		if err == nil {
			continue
		}
		indexes, err := duplicates(err, len(part))
		if err != nil {
			return nil, err
		}
		slices.Sort(indexes)
		for _, i := range indexes {
			lost = append(lost, from+i)
		}
	}
	return lost, nil
}

// writeConversations merges bounds. Everything is a max or a min, so order and
// repetition do not matter.
func (s *Store) writeConversations(ctx context.Context, convs []watermark.Conversation) error {
	merged := make(map[watermark.ConversationID]*watermark.Conversation, len(convs))
	var ids []watermark.ConversationID
	for i := range convs {
		id := convs[i].ID
		if merged[id] == nil {
			merged[id] = &watermark.Conversation{ID: id}
			ids = append(ids, id)
		}
		merged[id].Merge(convs[i])
	}
	slices.Sort(ids)
	models := make([]mongo.WriteModel, len(ids))
	for i, id := range ids {
		models[i] = mongo.NewUpdateOneModel().SetUpsert(true).
			SetFilter(bson.D{{Key: "_id", Value: id}}).SetUpdate(conversationUpdate(merged[id]))
	}
	return s.upserts(ctx, s.convs.Collection, models)
}

func conversationUpdate(c *watermark.Conversation) bson.D {
	policy := "adv"
	if c.Policy == watermark.KeepOnSend {
		policy = "keep"
	}
	highest := bson.D{
		{Key: "mn", Value: int64(c.Min)},
		{Key: "mx", Value: int64(c.Max)},
		{Key: policy, Value: int64(c.Max)},
		{Key: "rn", Value: c.Repair.Number},
		{Key: "lt", Value: c.LastTime},
		{Key: "at", Value: c.ChangedAt},
		{Key: "po", Value: c.Override.Code()},
	}
	for p, offset := range c.Inputs {
		highest = append(highest, bson.E{Key: "in." + inputField(p), Value: offset})
	}
	update := bson.D{{Key: "$max", Value: highest}}
	if c.Repair.From != 0 {
		update = append(update, bson.E{Key: "$min", Value: bson.D{{Key: "rf", Value: int64(c.Repair.From)}}})
	}
	return update
}
