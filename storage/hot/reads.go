package hot

import (
	"context"
	"fmt"
	"slices"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// RaiseReads raises the Read and Receipt of members, and drops own seqs that
// Read passes, in conversations that are warm or being warmed up; elsewhere it
// does nothing. Append the marks to the sequenced log first: then a warm-up
// that begins in between brings them.
//
// Marks never fall. A mark of a user whom Redis does not know is kept and does
// not make the user known. 0 and less leave a mark as it is. Groups have no
// receipts.
func (h *Hot) RaiseReads(ctx context.Context, rows []watermark.MemberRow) (err error) {
	defer h.observe("raise_reads", &err)()
	var order []watermark.ConversationID // of calls, one for each entry of args
	var args [][]any
	open := make(map[watermark.ConversationID]int)
	for i := range rows {
		c, m := rows[i].Conversation, &rows[i].Member
		read, told := score(m.Read), receipt(c, m)
		if read == 0 && told == 0 {
			continue
		}
		at, ok := open[c]
		if !ok || len(args[at]) >= callArgs {
			at = len(args)
			open[c] = at
			order = append(order, c)
			args = append(args, []any{h.space.ExpirySeconds()})
		}
		args[at] = append(args[at], string(m.User), read, told)
	}
	if stands, err := h.anyStands(ctx, order); err != nil || !stands {
		return err
	}
	calls := make([]keyspace.Call, len(args))
	for i := range args {
		calls[i] = h.call(raiseScript, order[i], sharedExpiry, args[i]...)
	}
	for i, res := range h.runner.Run(ctx, calls) {
		if res.Err != nil {
			return failed("read marks", order[i], res.Err)
		}
	}
	return nil
}

// manyMarks is from how many script calls on it is asked first whether any of
// the conversations stands: those of a list that Redis has nothing of are
// thousands.
const manyMarks = 32

// anyStands tells whether one of convs has a meta, or that it may have one. What
// has none is cold at that moment, and a warm-up that begins after it loads the
// marks, which were appended before.
func (h *Hot) anyStands(ctx context.Context, convs []watermark.ConversationID) (bool, error) {
	if len(convs) < manyMarks || !h.runner.Together() {
		return true, nil
	}
	metas := h.space.FlatKeys(convs, []keyspace.Part{keyspace.Meta})
	for some := range slices.Chunk(metas, pipelineEntries) {
		n, err := h.redis.Exists(ctx, some...).Result()
		if err != nil {
			return false, fmt.Errorf("metas of %d conversations: %w", len(some), keyspace.Classify(err))
		}
		if n > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Reader is a user, how far it has read, and its window.
type Reader = watermark.Reader

// Readership is who has read a seq.
type Readership = watermark.Readership

// MaxReaders is the most readers of one page.
const MaxReaders = 1000

var readerParts = []keyspace.Part{keyspace.Meta, keyspace.Read, keyspace.Members}

// Readers gives the users whose read mark is at or above seq: a page of at most
// limit (<= 0 or above MaxReaders: MaxReaders) that come after a reader, the
// last of the page before; the zero Reader begins. A reader whose mark rises
// between two pages may come twice, none is left out. Whether a reader's window
// contains seq is for the caller to see.
func (h *Hot) Readers(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq, after Reader, limit int) (Readership, error) {
	if limit <= 0 || limit > MaxReaders {
		limit = MaxReaders
	}
	return h.readers(ctx, "readers", conv, seq, after, limit)
}

// ReadCount gives the Count of Readers alone.
func (h *Hot) ReadCount(ctx context.Context, conv watermark.ConversationID, seq watermark.Seq) (Readership, error) {
	return h.readers(ctx, "read_count", conv, seq, Reader{}, 0)
}

func (h *Hot) readers(ctx context.Context, call string, conv watermark.ConversationID, seq watermark.Seq, after Reader, limit int) (out Readership, err error) {
	defer h.observe(call, &err)()
	// Nobody has read seq 0 less than seq 1: a mark of 0 is none.
	value, err := h.runner.One(ctx, h.call(readersScript, conv, readerParts,
		max(score(seq), 1), limit, score(after.Read), string(after.User)))
	if err != nil {
		return Readership{}, failed("readers", conv, err)
	}
	r := newReply(value)
	switch status := r.text(); {
	case r.err != nil:
	case status == "unknown":
		return Readership{}, nil
	case status != "known":
		r.err = fmt.Errorf("%w: status %.20q", errReply, status)
	}
	out = Readership{Known: true, Count: r.number()}
	for r.more() {
		x := Reader{User: watermark.UserID(r.text()), Read: r.seq()}
		m := r.member(x.User)
		x.Window = m.Window()
		out.Readers = append(out.Readers, x)
	}
	if r.err != nil {
		return Readership{}, failed("readers", conv, r.err)
	}
	return out, nil
}
