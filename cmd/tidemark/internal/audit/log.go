package audit

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// logged is one thing that the log says and history must have. One field is
// set.
type logged struct {
	message *watermark.Message
	policy  watermark.UnreadPolicy
	revoke  *watermark.Revoked
	mark    *watermark.Member
	window  *watermark.Member
	bounds  *watermark.Conversation
}

// talk is what a chunk of the log says of one conversation.
type talk struct {
	runs    []watermark.MessagesSequenced
	revokes map[watermark.Seq]watermark.Revoked
	marks   map[watermark.UserID]watermark.Member
	windows map[watermark.UserID]watermark.Member
	bounds  watermark.Conversation
}

// chunk is a piece of the log, in order for each conversation.
type chunk struct {
	records, messages, bytes int
	talks                    map[watermark.ConversationID]*talk
}

func (c *chunk) full() bool {
	return c.records >= chunkRecords || c.messages >= chunkMessages || c.bytes >= chunkBytes
}

func (c *chunk) add(rec watermark.Record) {
	if c.talks == nil {
		c.talks = map[watermark.ConversationID]*talk{}
	}
	t := c.talks[rec.Conversation]
	if t == nil {
		t = &talk{
			revokes: map[watermark.Seq]watermark.Revoked{},
			marks:   map[watermark.UserID]watermark.Member{}, windows: map[watermark.UserID]watermark.Member{},
			bounds: watermark.Conversation{ID: rec.Conversation},
		}
		c.talks[rec.Conversation] = t
	}
	c.records++
	for _, e := range rec.Events {
		switch e := e.(type) {
		case watermark.MessagesSequenced:
			t.runs = append(t.runs, e)
			c.messages += len(e.Messages)
			for i := range e.Messages {
				c.bytes += len(e.Messages[i].Body)
			}
		case watermark.Revoked:
			if _, ok := t.revokes[e.Seq]; !ok {
				e.At = rec.Offset + 1
				t.revokes[e.Seq] = e
			}
		case watermark.ReadAdvanced:
			t.mark(e.User, e.Read, e.Receipt)
		case watermark.WindowChanged:
			t.mark(e.Member.User, e.Member.Read, e.Member.Receipt)
			m := e.Member
			m.Own, m.Read, m.Receipt, m.ChangedAt = nil, 0, 0, rec.Offset+1
			// Of one version the first stands.
			if t.windows[m.User].Version < m.Version {
				t.windows[m.User] = m
			}
		case watermark.MinSeqRaised:
			t.bounds.Min = max(t.bounds.Min, e.Min)
		case watermark.Repaired:
			t.bounds.Repair.Merge(e)
		case watermark.PolicyChanged:
			t.bounds.Override.Merge(e)
		}
	}
}

func (t *talk) mark(u watermark.UserID, read, receipt watermark.Seq) {
	m := t.marks[u]
	m.User, m.Read, m.Receipt = u, max(m.Read, read), max(m.Receipt, receipt)
	t.marks[u] = m
}

// readLog holds history against the log, piece by piece. Nothing is folded
// beyond a piece: each record by itself says what history must have at least,
// since bounds, marks and versions only rise and rows stay.
func (a *Auditor) readLog(ctx context.Context, scope Scope, ids iter.Seq2[[]watermark.ConversationID, error]) error {
	var only map[watermark.ConversationID]bool // nil: all
	if len(scope.Conversations)+scope.Sample > 0 {
		only = map[watermark.ConversationID]bool{}
		for batch, err := range ids {
			if err != nil {
				return err
			}
			for _, id := range batch {
				only[id] = true
			}
		}
	}
	var c chunk
	read := 0
	flush := func() error {
		if err := a.compareChunk(ctx, &c); err != nil {
			return err
		}
		n := read
		c, read = chunk{}, 0
		return a.advance(ctx, n, func(r *Report) { r.Records += n })
	}
	for rec, err := range a.cfg.Log.Records(ctx) {
		if fault.ClassOf(err) == fault.Poison && err != nil {
			if err := a.advance(ctx, 1, func(r *Report) { r.Records++; r.Refused++ }); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		if read++; only == nil || only[rec.Conversation] {
			c.add(rec)
		}
		if c.full() || read >= chunkRecords {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	return a.settleLosers(ctx)
}

func (a *Auditor) compareChunk(ctx context.Context, c *chunk) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	ids := slices.Sorted(maps.Keys(c.talks))
	for part := range slices.Chunk(ids, batchConversations) {
		convs, err := a.conversations(ctx, part)
		if err != nil {
			return err
		}
		for i := range convs {
			g.Go(func() error {
				if err := a.compareTalk(gctx, convs[i], c.talks[convs[i].ID]); err != nil {
					return fmt.Errorf("the log of %s: %w", convs[i].ID, err)
				}
				return nil
			})
		}
	}
	return g.Wait()
}

func (a *Auditor) compareTalk(ctx context.Context, conv watermark.Conversation, t *talk) error {
	suspect := func(s suspicion) error {
		s.what, s.conv = logEntry, conv.ID
		return a.suspect(ctx, s)
	}
	if conv.Min < t.bounds.Min || conv.Repair.Number < t.bounds.Repair.Number || conv.Override.Version < t.bounds.Override.Version {
		if err := suspect(suspicion{log: &logged{bounds: &t.bounds}}); err != nil {
			return err
		}
	}
	if err := a.compareRuns(ctx, conv, t); err != nil {
		return err
	}
	users := map[watermark.UserID]bool{}
	for u := range t.marks {
		users[u] = true
	}
	for u := range t.windows {
		users[u] = true
	}
	for part := range slices.Chunk(slices.Sorted(maps.Keys(users)), pageMembers) {
		now, err := a.membersNow(ctx, conv.ID, part, false)
		if err != nil {
			return err
		}
		for _, u := range part {
			h := now[u].history
			if m := t.marks[u]; h.Read < m.Read || h.Receipt < m.Receipt {
				if err := suspect(suspicion{user: u, log: &logged{mark: &m}}); err != nil {
					return err
				}
			}
			if w := t.windows[u]; lacksWindow(&h, &w) {
				if err := suspect(suspicion{user: u, log: &logged{window: &w}}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func lacksWindow(h, w *watermark.Member) bool {
	return h.Version < w.Version || w.Version > 0 && h.Version == w.Version && !h.SameState(w)
}

// compareRuns compares messages and revokes, and takes the senders' marks from
// the messages that stand.
func (a *Auditor) compareRuns(ctx context.Context, conv watermark.Conversation, t *talk) error {
	standing, err := a.standing(ctx, conv, t)
	if err != nil {
		return err
	}
	for _, run := range t.runs {
		for i := range run.Messages {
			m := &run.Messages[i]
			row, ok := standing[m.Seq]
			switch {
			case m.Seq < lowest(conv.Min):
			case !ok:
				if err := a.suspect(ctx, suspicion{what: logEntry, conv: conv.ID, seq: m.Seq, log: a.held(m, run.Policy)}); err != nil {
					return err
				}
			case !row.same(m):
				if err := a.lose(ctx, conv.ID, m); err != nil {
					return err
				}
			default:
				a.regain(conv.ID, m)
				if run.Policy == watermark.AdvanceOnSend {
					t.mark(m.Sender, m.Seq, 0)
				}
			}
		}
	}
	for seq, r := range t.revokes {
		if row, ok := standing[seq]; ok && !row.revoked {
			if err := a.suspect(ctx, suspicion{what: logEntry, conv: conv.ID, seq: seq, log: &logged{revoke: &r}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// held gives a message to be held on to, apart from the record that it came in;
// without content when nothing will be mended.
func (a *Auditor) held(m *watermark.Message, policy watermark.UnreadPolicy) *logged {
	kept := *m
	if a.cfg.Mender == nil {
		kept.Body, kept.Mentions, kept.Attributes = nil, nil, nil
	} else {
		kept.Body = slices.Clone(m.Body)
	}
	return &logged{message: &kept, policy: policy}
}

// identity is what of a row is compared with the log.
type identity struct {
	sender   watermark.UserID
	clientID string
	hash     watermark.Hash
	revoked  bool
}

func (i *identity) same(m *watermark.Message) bool {
	return i.sender == m.Sender && i.clientID == m.ClientID && i.hash == m.Hash
}

// near is how far apart seqs are that are read together.
const near = 64

// standing reads the rows of all seqs that t speaks of.
func (a *Auditor) standing(ctx context.Context, conv watermark.Conversation, t *talk) (map[watermark.Seq]*identity, error) {
	var seqs []watermark.Seq
	for _, run := range t.runs {
		for i := range run.Messages {
			seqs = append(seqs, run.Messages[i].Seq)
		}
	}
	seqs = slices.AppendSeq(seqs, maps.Keys(t.revokes))
	slices.Sort(seqs)
	out := make(map[watermark.Seq]*identity, len(seqs))
	for len(seqs) > 0 {
		n := 1
		for n < len(seqs) && seqs[n]-seqs[n-1] <= near {
			n++
		}
		in := watermark.Interval{First: max(seqs[0], lowest(conv.Min)), Last: seqs[n-1]}
		seqs = seqs[n:]
		for !in.Empty() {
			rows, err := a.cfg.History.Messages(ctx, conv.ID, in, pageRows)
			if err != nil {
				return nil, err
			}
			for i := range rows {
				m := &rows[i]
				out[m.Seq] = &identity{m.Sender, m.ClientID, m.Hash, m.Revoked != nil}
			}
			if len(rows) < pageRows {
				break
			}
			in.First = rows[len(rows)-1].Seq + 1
		}
	}
	return out, nil
}

// loserKey names a message that lost its seq to another one.
type loserKey struct {
	conv watermark.ConversationID
	watermark.SentKey
}

type loser struct {
	key watermark.SentKey
	seq watermark.Seq
}

// lose follows a message that does not stand where the log put it: its owner
// must have put it elsewhere, mostly further on in the log.
func (a *Auditor) lose(ctx context.Context, conv watermark.ConversationID, m *watermark.Message) error {
	key := watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}
	a.mu.Lock()
	room := len(a.losers) < maxLosers
	if room {
		a.losers[loserKey{conv, key}] = loser{key, m.Seq}
	}
	a.mu.Unlock()
	if room {
		return nil
	}
	return a.suspect(ctx, suspicion{what: loserGone, conv: conv, seq: m.Seq, loser: loser{key, m.Seq}})
}

// regain notes that a message stands.
func (a *Auditor) regain(conv watermark.ConversationID, m *watermark.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.losers, loserKey{conv, watermark.SentKey{Sender: m.Sender, ClientID: m.ClientID}})
}

// settleLosers suspects those that were not met again.
func (a *Auditor) settleLosers(ctx context.Context) error {
	a.mu.Lock()
	left := a.losers
	a.losers = map[loserKey]loser{}
	a.mu.Unlock()
	for k, l := range left {
		if err := a.suspect(ctx, suspicion{what: loserGone, conv: k.conv, seq: l.seq, loser: l}); err != nil {
			return err
		}
	}
	return nil
}

// againLoser looks for the message in all of history where it can stand: not
// far below the seq that it lost, and above.
func (s *suspicion) againLoser(ctx context.Context, now *second) ([]Finding, error) {
	if s.seq < now.conversation.Min {
		return nil, nil
	}
	in := watermark.Interval{First: max(s.seq-3*watermark.DedupeHorizon, 1), Last: watermark.MaxSeq}
	for {
		rows, err := now.a.cfg.History.Messages(ctx, s.conv, in, pageRows)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if rows[i].Sender == s.loser.key.Sender && rows[i].ClientID == s.loser.key.ClientID {
				return nil, nil
			}
		}
		if len(rows) < pageRows {
			return []Finding{s.finding(LostMessage, "message %q of %s lost seq %d to another one and stands nowhere", s.loser.key.ClientID, s.loser.key.Sender, s.seq)}, nil
		}
		in.First = rows[len(rows)-1].Seq + 1
	}
}

// againLog looks again for what the log says.
func (s *suspicion) againLog(ctx context.Context, now *second) ([]Finding, error) {
	switch l := s.log; {
	case l.bounds != nil:
		c := &now.conversation
		if c.Min >= l.bounds.Min && c.Repair.Number >= l.bounds.Repair.Number && c.Override.Version >= l.bounds.Override.Version {
			return nil, nil
		}
		f := s.finding(MissingBounds, "the log has minimum %d, repair number %d and unread policy %s, history %d, %d and %s",
			l.bounds.Min, l.bounds.Repair.Number, policyText(l.bounds.Override), c.Min, c.Repair.Number, policyText(c.Override))
		return []Finding{f.with(write(watermark.Change{Conversations: []watermark.Conversation{*l.bounds}}))}, nil
	case l.message != nil || l.revoke != nil:
		return s.againLogRow(ctx, now)
	}
	members, err := now.a.membersNow(ctx, s.conv, []watermark.UserID{s.user}, false)
	if err != nil {
		return nil, err
	}
	h := members[s.user].history
	row := func(m watermark.Member) mend {
		return write(watermark.Change{Members: []watermark.MemberRow{{Conversation: s.conv, Member: m}}})
	}
	if m := s.log.mark; m != nil && (h.Read < m.Read || h.Receipt < m.Receipt) {
		f := s.finding(MissingMark, "the log has of %s marks at %d and %d, history %d and %d", s.user, m.Read, m.Receipt, h.Read, h.Receipt)
		return []Finding{f.with(row(*m))}, nil
	}
	if w := s.log.window; w != nil && lacksWindow(&h, w) {
		f := s.finding(MissingWindow, "the log has of %s %s, history %s", s.user, describe(w), describe(&h))
		if h.Version < w.Version {
			f = f.with(row(*w))
		}
		return []Finding{f}, nil
	}
	return nil, nil
}

func (s *suspicion) againLogRow(ctx context.Context, now *second) ([]Finding, error) {
	if s.seq < lowest(now.conversation.Min) {
		return nil, nil
	}
	row, err := now.row(ctx, s.seq)
	if err != nil {
		return nil, err
	}
	if r := s.log.revoke; r != nil {
		if row == nil || row.Revoked != nil {
			return nil, nil
		}
		f := s.finding(MissingRevoke, "the log revokes seq %d, history has it", s.seq)
		return []Finding{f.with(write(watermark.Change{Revokes: []watermark.RevokedRow{{Conversation: s.conv, Revoked: *r}}}))}, nil
	}
	m := s.log.message
	switch {
	case row == nil:
		f := s.finding(MissingRow, "history lacks seq %d, the log has %q of %s", s.seq, m.ClientID, m.Sender)
		change := watermark.Change{Rows: []watermark.Row{{Conversation: s.conv, Message: *m}}}
		if s.log.policy == watermark.AdvanceOnSend {
			mark := watermark.Member{User: m.Sender, Read: m.Seq}
			change.Members = []watermark.MemberRow{{Conversation: s.conv, Member: mark}}
		}
		return []Finding{f.with(write(change))}, nil
	case !row.SameAs(m):
		return nil, now.a.lose(ctx, s.conv, m)
	}
	return nil, nil
}
