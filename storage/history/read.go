package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// errEnough ends a read early.
var errEnough = errors.New("enough")

// each runs a query and hands over its documents one by one. The document is
// new each time.
func each[D any](ctx context.Context, coll *mongo.Collection, filter any, opts *options.FindOptionsBuilder, f func(*D) error) (err error) {
	cur, err := coll.Find(ctx, filter, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cur.Close(ctx)) }()
	for cur.Next(ctx) {
		d := new(D)
		if err := cur.Decode(d); err != nil {
			return fmt.Errorf("decode: %w: %w", err, errCorrupt)
		}
		if err := f(d); err != nil {
			return err
		}
	}
	return cur.Err()
}

func distinct[T comparable](list []T) []T {
	seen := make(map[T]bool, len(list))
	out := make([]T, 0, len(list))
	for _, v := range list {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}

func in[T any](field string, list []T) bson.D {
	return bson.D{{Key: field, Value: bson.D{{Key: "$in", Value: list}}}}
}

// Conversations gives what stands of each conversation, in the order of ids; an
// unknown one has its ID and nothing else.
func (s *Store) Conversations(ctx context.Context, ids []watermark.ConversationID) (out []watermark.Conversation, err error) {
	defer s.done("conversations", time.Now(), &err)
	found, err := s.conversations(ctx, distinct(ids))
	if err != nil {
		return nil, err
	}
	out = make([]watermark.Conversation, len(ids))
	for i, id := range ids {
		out[i].ID = id
		out[i].Merge(found[id])
	}
	return out, nil
}

// ConversationsAfter gives the ids above after of the conversations that stand,
// or that have a row of a message, in byte order, at most limit. Whoever pages
// ends at an empty answer.
//
// Rows without a conversation are looked for between the ids that stand, all
// gaps of a page in one query: it reads an index key for each and gives nothing
// where nothing was lost.
func (s *Store) ConversationsAfter(ctx context.Context, after watermark.ConversationID, limit int) (out []watermark.ConversationID, err error) {
	defer s.done("conversations_after", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: afterIDs}}}}
	opts := options.Find().SetSort(byID).SetLimit(int64(limit)).SetBatchSize(int32(limit)).SetProjection(bson.D{{Key: "_id", Value: 1}})
	err = each(ctx, s.convs.Collection, filter, opts, func(d *convDoc) error {
		out = append(out, watermark.ConversationID(d.ID))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read conversations: %w", err)
	}
	end := watermark.ConversationID(afterIDs)
	if len(out) == limit {
		end = out[limit-1]
	}
	var gaps []gap
	for _, id := range append(slices.Clone(out), end) {
		if id > after {
			gaps = append(gaps, gap{after, id})
		}
		after = id
	}
	for part := range slices.Chunk(gaps, chunk) {
		lost, err := s.lost(ctx, part, limit)
		if err != nil {
			return nil, fmt.Errorf("read conversations: %w", err)
		}
		out = append(out, lost...)
	}
	slices.Sort(out)
	return out[:min(len(out), limit)], nil
}

// gap lies between two conversations.
type gap struct{ above, below watermark.ConversationID }

// lost gives conversations within gaps that have rows: the limit lowest of
// each gap.
func (s *Store) lost(ctx context.Context, gaps []gap, limit int) (out []watermark.ConversationID, err error) {
	found := make(map[watermark.ConversationID]int) // the end of its gap -> how many
	for len(gaps) > 0 {
		branches := make(bson.A, len(gaps))
		for i, g := range gaps {
			branches[i] = bson.D{{Key: "c", Value: bson.D{{Key: "$gt", Value: g.above}, {Key: "$lt", Value: g.below}}}}
		}
		var hit watermark.ConversationID
		opts := options.Find().SetLimit(1).SetSort(bson.D{{Key: "c", Value: 1}, {Key: "s", Value: 1}}).SetProjection(bson.D{{Key: "c", Value: 1}})
		err := each(ctx, s.messages.Collection, anyOf(branches), opts, func(d *messageDoc) error {
			hit = watermark.ConversationID(d.Conv)
			return nil
		})
		if err != nil || hit == "" {
			return out, err
		}
		// The lowest of all: what is below has none, and its own gap goes on
		// behind it.
		out = append(out, hit)
		i := slices.IndexFunc(gaps, func(g gap) bool { return g.above < hit && hit < g.below })
		end := gaps[i].below
		gaps = gaps[i:]
		gaps[0].above = hit
		if found[end]++; found[end] == limit {
			gaps = gaps[1:]
		}
	}
	return out, nil
}

// conversations gives those that exist.
func (s *Store) conversations(ctx context.Context, ids []watermark.ConversationID) (map[watermark.ConversationID]watermark.Conversation, error) {
	found := make(map[watermark.ConversationID]watermark.Conversation, len(ids))
	for part := range slices.Chunk(ids, chunk) {
		err := each(ctx, s.convs.Collection, in("_id", part), options.Find().SetBatchSize(chunk), func(d *convDoc) error {
			c, err := d.conversation()
			found[c.ID] = c
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read conversations: %w", err)
		}
	}
	return found, nil
}

// seqRange gives the filter for the keys of conv within in, and false if there
// can be none. It names nothing but _id, so that only one way to read it is
// there: with the conversation beside it, a server could choose the index by
// seq, use its first field alone, and read the whole conversation.
func seqRange(conv watermark.ConversationID, in watermark.Interval) (bson.D, bool) {
	in = in.Intersect(watermark.Interval{First: 0, Last: math.MaxInt64})
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: rowKey(conv, in.First)}, {Key: "$lte", Value: rowKey(conv, in.Last)}}}}, !in.Empty()
}

var byID = bson.D{{Key: "_id", Value: 1}}

// Messages gives the rows of conv within in, ascending, at most limit. Rows
// that retention has taken are not there.
func (s *Store) Messages(ctx context.Context, conv watermark.ConversationID, in watermark.Interval, limit int) (out []watermark.Message, err error) {
	defer s.done("messages", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	filter, some := seqRange(conv, in)
	if !some || limit <= 0 {
		return nil, nil
	}
	opts := options.Find().SetSort(byID).SetLimit(int64(limit)).SetBatchSize(int32(limit))
	err = each(ctx, s.messages.Collection, append(filter, absent("gone")), opts, func(d *messageDoc) error {
		m, err := d.message()
		out = append(out, m)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read messages of %s: %w", conv, err)
	}
	return out, nil
}

// Members gives those of users that exist, in no particular order.
func (s *Store) Members(ctx context.Context, conv watermark.ConversationID, users []watermark.UserID) (out []watermark.Member, err error) {
	defer s.done("members", time.Now(), &err)
	keys := make([]string, len(users))
	for i, u := range users {
		keys[i] = memberKey(conv, u)
	}
	rows, err := s.named(ctx, keys)
	return justMembers(rows), err
}

// named reads the members with the given keys.
func (s *Store) named(ctx context.Context, keys []string) (out []watermark.MemberRow, err error) {
	for part := range slices.Chunk(distinct(keys), chunk) {
		err := each(ctx, s.members.Collection, in("_id", part), options.Find().SetBatchSize(chunk), func(d *memberDoc) error {
			out = append(out, d.row())
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read members: %w", err)
		}
	}
	return out, nil
}

// Roster gives conv's members by user id, those above after, at most limit.
func (s *Store) Roster(ctx context.Context, conv watermark.ConversationID, after watermark.UserID, limit int) (out []watermark.Member, err error) {
	defer s.done("roster", time.Now(), &err)
	rows, err := s.page(ctx, membersAfter(conv, after), byID, limit)
	return justMembers(rows), err
}

// membersAfter gives the filter for conv's members above after.
func membersAfter(conv watermark.ConversationID, after watermark.UserID) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{
		{Key: "$gt", Value: memberKey(conv, after)}, {Key: "$lt", Value: memberKey(conv, afterIDs)},
	}}}
}

// MembershipsOf gives user's member rows by conversation id, those above after,
// at most limit.
func (s *Store) MembershipsOf(ctx context.Context, user watermark.UserID, after watermark.ConversationID, limit int) (out []watermark.MemberRow, err error) {
	defer s.done("memberships", time.Now(), &err)
	return s.page(ctx, bson.D{
		{Key: "u", Value: user}, {Key: "c", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: afterIDs}}},
	}, bson.D{{Key: "c", Value: 1}}, limit)
}

func justMembers(rows []watermark.MemberRow) []watermark.Member {
	var out []watermark.Member
	for _, r := range rows {
		out = append(out, r.Member)
	}
	return out
}

// page reads one page of member rows.
func (s *Store) page(ctx context.Context, filter, order bson.D, limit int) (out []watermark.MemberRow, err error) {
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	opts := options.Find().SetSort(order).SetLimit(int64(limit)).SetBatchSize(int32(limit))
	err = each(ctx, s.members.Collection, filter, opts, func(d *memberDoc) error {
		out = append(out, d.row())
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	return out, nil
}

// Sent gives the client message ids that stand above a seq; of an id that
// stands twice, the higher one. Rows that retention has taken count as long as
// the dedupe horizon needs them.
func (s *Store) Sent(ctx context.Context, conv watermark.ConversationID, above watermark.Seq) (out map[watermark.SentKey]watermark.Sent, err error) {
	defer s.done("sent", time.Now(), &err)
	out = make(map[watermark.SentKey]watermark.Sent)
	err = s.sent(ctx, []sentAbove{{conv, above}}, func(watermark.ConversationID) map[watermark.SentKey]watermark.Sent { return out })
	if err != nil {
		return nil, err
	}
	return out, nil
}

type sentAbove struct {
	conv  watermark.ConversationID
	above watermark.Seq
}

// sent adds the ids of each conversation to the map that into gives for it.
func (s *Store) sent(ctx context.Context, list []sentAbove, into func(watermark.ConversationID) map[watermark.SentKey]watermark.Sent) error {
	for part := range slices.Chunk(list, chunk) {
		opts := options.Find().SetProjection(identity).SetBatchSize(idBatch)
		err := each(ctx, s.messages.Collection, anyAbove(part), opts, func(d *messageDoc) error {
			m, err := d.message()
			if err != nil {
				return err
			}
			ids, k := into(watermark.ConversationID(d.Conv)), watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}
			if m.Seq > ids[k].Seq {
				ids[k] = watermark.Sent{Seq: m.Seq, Hash: m.Hash}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read client ids: %w", err)
		}
	}
	return nil
}

// anyAbove gives the filter for ids.
func anyAbove(list []sentAbove) bson.D {
	branches := make(bson.A, len(list))
	for i, a := range list {
		branches[i] = seqsWithin(a.conv, a.above, watermark.MaxSeq)
	}
	return anyOf(branches)
}

// idBatch is how many ids come with one answer: without it the first has 101
// and each later one 16 MiB.
const idBatch = 10000
