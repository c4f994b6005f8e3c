package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// between gives the filter for ids above after, up to last; without it, to the
// end.
func between(field string, after, last watermark.ConversationID) bson.D {
	if last == "" {
		return bson.D{{Key: field, Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: afterIDs}}}}
	}
	return bson.D{{Key: field, Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lte", Value: last}}}}
}

// ScanConversations gives the conversations above after, by id, at most limit.
func (s *Store) ScanConversations(ctx context.Context, after watermark.ConversationID, limit int) (out []watermark.Conversation, err error) {
	defer s.done("scan", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	opts := options.Find().SetSort(byID).SetLimit(int64(limit)).SetBatchSize(int32(limit))
	err = each(ctx, s.convs.Collection, between("_id", after, ""), opts, func(d *convDoc) error {
		c, err := d.conversation()
		out = append(out, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("scan conversations: %w", err)
	}
	return out, nil
}

// seqsWithin gives the filter for the rows of conv above a seq up to another.
func seqsWithin(conv watermark.ConversationID, above, last watermark.Seq) bson.D {
	return bson.D{
		{Key: "c", Value: conv},
		{Key: "s", Value: bson.D{{Key: "$gt", Value: int64(max(above, 0))}, {Key: "$lte", Value: int64(last)}}},
	}
}

// bySeq is the order of the index of messages by conversation and seq.
var bySeq = bson.D{{Key: "c", Value: 1}, {Key: "s", Value: 1}}

// ScanRows gives what stands of all conversations, by conversation and seq:
// first what is left of the one where the page before ended, then those behind
// it. Seqs are dense, so the next rows are nearly always the next seqs; asked
// for by themselves they cost the same on a server that finds all that matches
// before it cuts off what is too much. One filter for everything would be an
// $or, which not every server gives in the order of the index.
func (s *Store) ScanRows(ctx context.Context, scan watermark.RowScan) (out []watermark.StoredRow, err error) {
	defer s.done("scan", time.Now(), &err)
	limit, bytes := min(scan.Limit, watermark.MaxPage), scan.Bytes
	if bytes <= 0 {
		bytes = watermark.DefaultScanBytes
	}
	var filters []bson.D
	if after := scan.After; after.Conversation != "" && (scan.Last == "" || after.Conversation <= scan.Last) && after.Seq < watermark.MaxSeq {
		near := min(max(after.Seq, 0)+watermark.Seq(max(limit, 0)), watermark.MaxSeq)
		filters = append(filters, seqsWithin(after.Conversation, after.Seq, near), seqsWithin(after.Conversation, near, watermark.MaxSeq))
	}
	filters = append(filters, between("c", scan.After.Conversation, scan.Last))
	for _, filter := range filters {
		left := limit - len(out)
		if left <= 0 || bytes <= 0 {
			break
		}
		opts := options.Find().SetSort(bySeq).SetLimit(int64(left)).SetBatchSize(int32(left))
		err := each(ctx, s.messages.Collection, filter, opts, func(d *messageDoc) error {
			m, err := d.message()
			if err != nil {
				return err
			}
			out = append(out, watermark.StoredRow{
				Row:  watermark.Row{Conversation: watermark.ConversationID(d.Conv), Message: m},
				Gone: d.Gone,
			})
			if bytes -= len(m.Body); bytes <= 0 {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return nil, fmt.Errorf("scan messages: %w", err)
		}
	}
	return out, nil
}

// ScanMembers gives the member rows above after, by user and conversation, at
// most limit.
func (s *Store) ScanMembers(ctx context.Context, after watermark.MemberKey, limit int) (out []watermark.MemberRow, err error) {
	defer s.done("scan", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	order := bson.D{{Key: "u", Value: 1}, {Key: "c", Value: 1}}
	filters := []bson.D{between("u", watermark.ConversationID(after.User), "")}
	if after.User != "" {
		filters = append([]bson.D{append(bson.D{{Key: "u", Value: after.User}}, between("c", after.Conversation, "")...)}, filters...)
	}
	for _, filter := range filters {
		rows, err := s.page(ctx, filter, order, limit-len(out))
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	return out, nil
}

// Sizes gives about how much there is, as the server has counted.
func (s *Store) Sizes(ctx context.Context) (n watermark.Sizes, err error) {
	defer s.done("sizes", time.Now(), &err)
	conversations, err1 := s.convs.EstimatedDocumentCount(ctx)
	members, err2 := s.members.EstimatedDocumentCount(ctx)
	rows, err3 := s.messages.EstimatedDocumentCount(ctx)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return n, fmt.Errorf("count documents: %w", err)
	}
	return watermark.Sizes{Conversations: conversations, Members: members, Rows: rows}, nil
}
