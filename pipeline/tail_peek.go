package pipeline

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/watermark"
)

// Ends gives by partition, all of which must be pinned, the end offset that the
// log had at a moment after the call. What the pin is asked afterwards covers
// everything below.
func (p *Pin) Ends(ctx context.Context) ([]int64, error) {
	t := p.tail
	wait, cancel, err := t.within(ctx)
	if err != nil {
		return nil, t.counted(err)
	}
	defer cancel()
	out := make([]int64, p.all)
	g, wait := errgroup.WithContext(wait)
	for n := range out {
		h, err := p.hold(int32(n))
		if err != nil {
			return nil, err
		}
		g.Go(func() (err error) {
			out[n], err = t.endOf(wait, h)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, t.counted(err)
	}
	return out, nil
}

// Partition tells on which partition a conversation's records stand.
func (p *Pin) Partition(id watermark.ConversationID) int32 { return p.partitionOf(id) }

// Peek gives for each of peeks what the tail has of it: the message at
// Peek.Last, mentions of the user within Peek.Mentions, and all revokes of the
// conversation. Of the mentions in one segment of the tail the highest
// MaxMentions of a user are known, which is enough to count up to there. The
// content of the messages must not be changed.
func (p *Pin) Peek(ctx context.Context, peeks []watermark.Peek) ([]watermark.TailPeek, error) {
	out := make([]watermark.TailPeek, len(peeks))
	by := make(map[int32][]int)
	for i, a := range peeks {
		n := p.partitionOf(a.Conversation)
		by[n] = append(by[n], i)
	}
	wanted := make(map[int32][]tailWanted)
	var mu sync.Mutex
	err := p.settle(ctx, keysOf(by), func(v *tailView) {
		var some []tailWanted
		for _, i := range by[v.partition] {
			some = append(some, v.peek(i, &peeks[i], &out[i])...)
		}
		mu.Lock()
		defer mu.Unlock()
		wanted[v.partition] = some
	})
	if err != nil {
		return nil, err
	}
	for partition, some := range wanted {
		if err := p.tail.peekMessages(ctx, partition, some, peeks, out); err != nil {
			return nil, p.tail.counted(err)
		}
	}
	return out, nil
}

// tailWanted says that the record of ref may hold the message that a peek
// wants.
type tailWanted struct {
	ref  tailRef
	peek int
}

// peek fills in what the view itself knows, and gives the records that may hold
// the message. Called inside use.
func (v *tailView) peek(i int, a *watermark.Peek, out *watermark.TailPeek) (wanted []tailWanted) {
	parts := v.parts(a.Conversation)
	if len(parts) == 0 {
		return nil
	}
	out.Revokes = v.revokes(a.Conversation, watermark.Interval{First: 1, Last: watermark.MaxSeq})
	for _, part := range parts {
		for _, s := range part.mentions[a.User] {
			if a.Mentions.Contains(s) {
				out.Mentions = append(out.Mentions, s)
			}
		}
	}
	slices.Sort(out.Mentions)
	out.Mentions = slices.Compact(out.Mentions)
	for _, r := range v.refs(a.Conversation, watermark.Interval{First: a.Last, Last: a.Last}) {
		wanted = append(wanted, tailWanted{r, i})
	}
	return wanted
}

// peekMessages reads the messages that are wanted of one partition. It goes
// through the log once, so that records that stand together are fetched
// together.
func (t *Tail) peekMessages(ctx context.Context, partition int32, wanted []tailWanted, peeks []watermark.Peek, out []watermark.TailPeek) error {
	slices.SortStableFunc(wanted, func(a, b tailWanted) int { return cmp.Compare(a.ref.offset, b.ref.offset) })
	refs := make([]tailRef, len(wanted))
	for i, w := range wanted {
		refs[i] = w.ref
	}
	reread := make(map[int64][]watermark.Message)
	for i, w := range wanted {
		if out[w.peek].Last != nil { // the first in the log stands
			continue
		}
		messages, ok := t.cache.get(tailPlace{partition, w.ref.offset})
		if !ok {
			messages, ok = reread[w.ref.offset]
		}
		if !ok {
			some, err := t.reread(ctx, partition, refs[i:])
			if err != nil {
				return err
			}
			maps.Copy(reread, some)
			messages = some[w.ref.offset]
		}
		for k := range messages {
			if messages[k].Seq == peeks[w.peek].Last {
				m := messages[k]
				out[w.peek].Last = &m
				break
			}
		}
	}
	return nil
}

// mention notes whom the messages of a run mention. Of each user the highest
// MaxMentions seqs are kept.
func (p *tailPart) mention(run []watermark.Message) {
	for i := range run {
		for _, u := range run[i].Mentions {
			if p.mentions == nil {
				p.mentions = make(map[watermark.UserID][]watermark.Seq)
			}
			if len(p.mentions[u]) == 0 {
				p.bytes += mentionBytes + int64(len(u))
			}
			if len(p.mentions[u]) < watermark.MaxMentions {
				p.bytes += 8
			}
			seqs := append(p.mentions[u], run[i].Seq)
			if n := len(seqs); n > 1 && seqs[n-1] <= seqs[n-2] { // a replay
				slices.Sort(seqs)
				seqs = slices.Compact(seqs)
			}
			if len(seqs) > watermark.MaxMentions {
				seqs = seqs[1:]
			}
			p.mentions[u] = seqs
		}
	}
}
