package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// Peek answers peeks, in order: the row at Peek.Last, the seqs within
// Peek.Mentions at which Peek.User is mentioned, at most the lowest MaxMentions
// of each interval, and what was revoked from Peek.RevokedFrom on, at most the
// first MaxRevoked. It takes one query for the rows, one per user for the
// mentions and one for the revokes, for each 500, and one more where there are
// MaxMentions or MaxRevoked.
func (s *Store) Peek(ctx context.Context, peeks []watermark.Peek) (out []watermark.Peeked, err error) {
	defer s.done("peek", time.Now(), &err)
	out = make([]watermark.Peeked, len(peeks))
	if err := s.peekRows(ctx, peeks, out); err != nil {
		return nil, fmt.Errorf("read last messages: %w", err)
	}
	if err := s.peekMentions(ctx, peeks, out); err != nil {
		return nil, fmt.Errorf("read mentions: %w", err)
	}
	if err := s.peekRevokes(ctx, peeks, out); err != nil {
		return nil, fmt.Errorf("read revokes: %w", err)
	}
	return out, nil
}

func (s *Store) peekRows(ctx context.Context, peeks []watermark.Peek, out []watermark.Peeked) error {
	var places []place
	for _, p := range peeks {
		if p.Last > 0 {
			places = append(places, place{p.Conversation, p.Last})
		}
	}
	slices.SortFunc(places, comparePlaces)
	places = slices.Compact(places)
	found := make(map[place]*watermark.Message, len(places))
	for part := range slices.Chunk(places, chunk) {
		err := each(ctx, s.messages.Collection, atPlaces(part), options.Find().SetBatchSize(chunk), func(d *messageDoc) error {
			m, err := d.message()
			if !d.Gone {
				found[place{watermark.ConversationID(d.Conv), m.Seq}] = &m
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for i, p := range peeks {
		if p.Last > 0 {
			out[i].Last = found[place{p.Conversation, p.Last}]
		}
	}
	return nil
}

// mentionSpan is one interval of one peek.
type mentionSpan struct {
	peek int
	conv watermark.ConversationID
	user watermark.UserID
	in   watermark.Interval
}

func (m *mentionSpan) filter() bson.D {
	return bson.D{
		{Key: "m", Value: m.user}, {Key: "c", Value: m.conv},
		{Key: "s", Value: bson.D{{Key: "$gte", Value: int64(m.in.First)}, {Key: "$lte", Value: int64(m.in.Last)}}},
	}
}

func (s *Store) peekMentions(ctx context.Context, peeks []watermark.Peek, out []watermark.Peeked) error {
	var spans []mentionSpan
	for i, p := range peeks {
		for _, in := range p.Mentions {
			if in = in.Intersect(watermark.Interval{First: 1, Last: watermark.MaxSeq}); !in.Empty() {
				spans = append(spans, mentionSpan{i, p.Conversation, p.User, in})
			}
		}
	}
	slices.SortStableFunc(spans, func(a, b mentionSpan) int {
		return cmp.Or(cmp.Compare(a.user, b.user), cmp.Compare(a.conv, b.conv), cmp.Compare(a.in.First, b.in.First))
	})
	for len(spans) > 0 {
		n, err := s.mentions(ctx, spans[:alike(spans)], out)
		if err != nil {
			return err
		}
		spans = spans[n:]
	}
	return nil
}

// alike tells how many spans one query takes: those of one user, none of which
// overlap, so that in the order of (conversation, seq) they come one after the
// other. Two peeks of one conversation and user go apart.
func alike(spans []mentionSpan) int {
	n := 1
	for n < min(len(spans), chunk) && spans[n].user == spans[0].user &&
		(spans[n].conv != spans[n-1].conv || spans[n].in.First > spans[n-1].in.Last) {
		n++
	}
	return n
}

// mentions reads the mentions of spans in their order, up to and with the
// first span that has MaxMentions, and gives how many spans those are: what
// lies behind the bound is not read, and the others need no query of their own.
func (s *Store) mentions(ctx context.Context, spans []mentionSpan, out []watermark.Peeked) (n int, err error) {
	branches := make(bson.A, len(spans))
	for i := range spans {
		branches[i] = spans[i].filter()
	}
	opts := options.Find().SetProjection(bson.D{{Key: "c", Value: 1}, {Key: "s", Value: 1}}).
		SetSort(bson.D{{Key: "c", Value: 1}, {Key: "s", Value: 1}}).SetBatchSize(mentionBatch)
	at, count := 0, 0
	err = each(ctx, s.messages.Collection, anyOf(branches), opts, func(d *messageDoc) error {
		for at < len(spans) && (d.Conv != string(spans[at].conv) || !spans[at].in.Contains(watermark.Seq(d.Seq))) {
			at, count = at+1, 0
		}
		if at == len(spans) {
			return fmt.Errorf("message %s/%d was not asked for: %w", d.Conv, d.Seq, errCorrupt)
		}
		p := &out[spans[at].peek]
		p.Mentions = append(p.Mentions, watermark.Seq(d.Seq))
		if count++; count == watermark.MaxMentions {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		return len(spans), err
	}
	return at + 1, nil
}

// mentionBatch is how many mentions come with one answer, and so what may be
// read in vain.
const mentionBatch = 1000

// peekRevokes reads what was revoked. Two peeks of one conversation go apart.
func (s *Store) peekRevokes(ctx context.Context, peeks []watermark.Peek, out []watermark.Peeked) error {
	var asks []int // which of peeks
	for i, p := range peeks {
		if p.RevokedFrom > 0 {
			asks = append(asks, i)
		}
	}
	slices.SortStableFunc(asks, func(a, b int) int { return cmp.Compare(peeks[a].Conversation, peeks[b].Conversation) })
	for len(asks) > 0 {
		n := 1
		for n < min(len(asks), chunk) && peeks[asks[n]].Conversation != peeks[asks[n-1]].Conversation {
			n++
		}
		n, err := s.revoked(ctx, asks[:n], peeks, out)
		if err != nil {
			return err
		}
		asks = asks[n:]
	}
	return nil
}

// revoked reads the revokes of asks in their order, up to and with the first
// that has MaxRevoked, and gives how many asks those are, as mentions does.
func (s *Store) revoked(ctx context.Context, asks []int, peeks []watermark.Peek, out []watermark.Peeked) (n int, err error) {
	branches := make(bson.A, len(asks))
	for i, a := range asks {
		branches[i] = bson.D{
			{Key: "c", Value: peeks[a].Conversation},
			{Key: revokedAt, Value: bson.D{{Key: "$gte", Value: peeks[a].RevokedFrom}, {Key: "$lte", Value: int64(math.MaxInt64)}}},
		}
	}
	opts := options.Find().SetProjection(bson.D{{Key: "c", Value: 1}, {Key: "s", Value: 1}}).
		SetSort(bson.D{{Key: "c", Value: 1}, {Key: revokedAt, Value: 1}}).SetBatchSize(watermark.MaxRevoked)
	at := 0
	err = each(ctx, s.messages.Collection, anyOf(branches), opts, func(d *messageDoc) error {
		for at < len(asks) && d.Conv != string(peeks[asks[at]].Conversation) {
			at++
		}
		if at == len(asks) {
			return fmt.Errorf("message %s/%d was not asked for: %w", d.Conv, d.Seq, errCorrupt)
		}
		p := &out[asks[at]]
		if p.Revoked = append(p.Revoked, watermark.Seq(d.Seq)); len(p.Revoked) == watermark.MaxRevoked {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return 0, err
	}
	for _, a := range asks {
		slices.Sort(out[a].Revoked)
	}
	if err == nil {
		return len(asks), nil
	}
	return at + 1, nil
}
