package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/tidemark-im/tidemark/watermark"
)

// This file has the second looks. Everything that is compared only rises, or
// never changes once it stands, so what one store had at the first look the
// other must have by now, whatever happened in between.

func (s *suspicion) againCounter(now *second) []Finding {
	switch {
	case !now.head.Warm:
		return nil
	case now.head.Last > now.head.Max:
		return []Finding{s.finding(RedisBehind, "the counter is at %d, the hot log ends at %d", now.head.Max, now.head.Last).with(cool)}
	case now.head.Max < s.seq:
		return []Finding{s.finding(RedisBehind, "the counter is at %d, %d was given", now.head.Max, s.seq).with(cool)}
	}
	return nil
}

// againGap finds what of a stretch of seqs history still lacks.
func (s *suspicion) againGap(ctx context.Context, now *second, in watermark.Interval) ([]Finding, error) {
	in.First = max(in.First, lowest(now.conversation.Min))
	var out []Finding
	for !in.Empty() {
		// The next stretch without rows, or, where there is none, the end.
		rows, err := now.a.cfg.History.Messages(ctx, s.conv, in, pageRows)
		if err != nil {
			return nil, err
		}
		missing := watermark.Interval{First: in.First, Last: in.Last}
		next := in.Last + 1
		for i := range rows {
			if rows[i].Seq > missing.First {
				missing.Last, next = rows[i].Seq-1, rows[i].Seq
				break
			}
			missing.First = rows[i].Seq + 1
			if i == len(rows)-1 && len(rows) == pageRows {
				missing.Last, next = rows[i].Seq, rows[i].Seq+1
			}
		}
		if !missing.Empty() {
			found, err := s.missing(ctx, now, missing)
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
		}
		if len(out) > 2*maxListed {
			return out, nil
		}
		in.First = next
	}
	return out, nil
}

// missing tells of a stretch without rows: what Redis has of it was never
// appended, or lost since; the rest is a hole.
func (s *suspicion) missing(ctx context.Context, now *second, in watermark.Interval) (out []Finding, err error) {
	var run watermark.Interval // of seqs that Redis has
	run.Last = -1
	flush := func() {
		if run.Empty() {
			return
		}
		f := *s
		f.seq = run.First
		found := f.finding(NeverAppended, "redis gave %s, and history never got it", span(run))
		out = append(out, found.with(appendMessages(now.head.Policy, run)))
		run = watermark.Interval{Last: -1}
	}
	for now.head.Warm && !in.Empty() && len(out) <= 2*maxListed {
		entries, _, err := now.a.cfg.Redis.Entries(ctx, s.conv, in)
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			break
		}
		for i := range entries {
			seq := entries[i].Seq
			if run.Empty() || seq != run.Last+1 {
				flush()
				out = append(out, s.hole(now, watermark.Interval{First: in.First, Last: seq - 1})...)
				run.First = seq
			}
			run.Last, in.First = seq, seq+1
		}
	}
	flush()
	return append(out, s.hole(now, in)...), nil
}

// hole tells of a stretch of which Redis has nothing either.
func (s *suspicion) hole(now *second, in watermark.Interval) []Finding {
	if in.Empty() || s.what == ahead && s.cooled(now) {
		return nil
	}
	f := *s
	f.seq = in.First
	switch {
	case s.what == ahead:
		return []Finding{f.finding(NeverAppended, "redis gave %s, of which neither history nor the hot log has anything", span(in))}
	case s.top && in.Last == s.last:
		return []Finding{f.finding(MaxAboveRows, "the maximum is %d, but there are no rows from %d on", now.conversation.Max, in.First)}
	}
	return []Finding{f.finding(Hole, "history lacks %s", span(in))}
}

// cooled tells whether Redis no longer says what made s.
func (s *suspicion) cooled(now *second) bool { return !now.head.Warm || now.head.Max < s.seq }

func span(in watermark.Interval) string {
	if in.First == in.Last {
		return fmt.Sprintf("seq %d", in.First)
	}
	return fmt.Sprintf("seqs %d..%d", in.First, in.Last)
}

func (s *suspicion) againAbove(now *second) []Finding {
	if now.conversation.Max >= s.seq {
		return nil
	}
	f := s.finding(RowsAboveMax, "the maximum is %d, there is a row at %d", now.conversation.Max, s.seq)
	return []Finding{f.with(raiseMax(now.conversation))}
}

func (s *suspicion) againRetention(ctx context.Context, now *second) ([]Finding, error) {
	m, err := now.row(ctx, s.seq)
	if err != nil || m == nil || s.seq >= now.conversation.Min {
		return nil, err
	}
	f := s.finding(PastRetention, "the minimum is %d, there is a row at %d", now.conversation.Min, s.seq)
	return []Finding{f.with(retire(now.conversation.Min))}, nil
}

func (s *suspicion) againTwice(ctx context.Context, now *second) ([]Finding, error) {
	x, err := now.row(ctx, s.seq)
	if err != nil || x == nil {
		return nil, err
	}
	y, err := now.row(ctx, s.last)
	if err != nil || y == nil || x.Sender != y.Sender || x.ClientID != y.ClientID {
		return nil, err
	}
	return []Finding{s.finding(TwoSeqs, "client message id %q of %s stands at seq %d and at %d", x.ClientID, x.Sender, s.seq, s.last)}, nil
}

func (s *suspicion) againDamaged(ctx context.Context, now *second) ([]Finding, error) {
	m, err := now.row(ctx, s.seq)
	if err != nil || m == nil {
		return nil, err
	}
	if why := damage(m); why != "" {
		return []Finding{s.finding(DamagedRow, "the row at seq %d: %s", s.seq, why)}, nil
	}
	return nil, nil
}

func (s *suspicion) againHotRow(ctx context.Context, now *second) ([]Finding, error) {
	e, err := now.entry(ctx, s.seq)
	if err != nil || e == nil {
		return nil, err
	}
	row, err := now.row(ctx, s.seq)
	if err != nil || row == nil || compareEntry([]watermark.Message{*row}, e) != s.field {
		return nil, err
	}
	detail := fmt.Sprintf("seq %d is %s", s.seq, s.field)
	if s.field == fieldContent {
		detail = fmt.Sprintf("history has %q of %s at seq %d, the hot log %q of %s", row.ClientID, row.Sender, s.seq, e.Message.ClientID, e.Message.Sender)
		switch {
		case e.Damaged != nil:
			detail = fmt.Sprintf("the hot log's entry at seq %d cannot be read: %v", s.seq, e.Damaged)
		case row.SameAs(&e.Message):
			detail = fmt.Sprintf("the hot log's entry at seq %d: %s", s.seq, damage(&e.Message))
		}
	}
	f := s.finding(HotRow, "%s", detail)
	// A row that is damaged is no reason to throw away what Redis has, nor is a
	// revoke that only Redis knows.
	if damage(row) == "" && s.field != fieldRevoked {
		f = f.with(cool)
	}
	return []Finding{f}, nil
}

func (s *suspicion) againBounds(now *second) (out []Finding) {
	if !now.head.Warm {
		return nil
	}
	switch had, has := lowest(s.conversation.Min), lowest(now.head.Min); {
	case has < had:
		out = append(out, s.finding(RedisBounds, "redis has minimum %d, history %d", has, had).with(cool))
	case lowest(now.conversation.Min) < lowest(s.head.Min):
		out = append(out, s.finding(ChangeNeverAppended, "redis has minimum %d, history %d", lowest(s.head.Min), lowest(now.conversation.Min)))
	}
	switch had, has := s.conversation.Repair.Number, now.head.Repair; {
	case has < had:
		out = append(out, s.finding(RedisBounds, "redis has repair number %d, history %d", has, had).with(cool))
	case now.conversation.Repair.Number < s.head.Repair:
		out = append(out, s.finding(ChangeNeverAppended, "redis has repair number %d, history %d", s.head.Repair, now.conversation.Repair.Number))
	}
	switch had, has := s.conversation.Override, now.head.Override; {
	case has.Version < had.Version || has.Version == now.conversation.Override.Version && has != now.conversation.Override:
		out = append(out, s.finding(RedisPolicy, "redis has unread policy %s, history %s", policyText(has), policyText(now.conversation.Override)).with(cool))
	case now.conversation.Override.Version < s.head.Override.Version:
		out = append(out, s.finding(ChangeNeverAppended, "redis has unread policy %s, history %s", policyText(s.head.Override), policyText(now.conversation.Override)))
	}
	return out
}

// policyText says what a conversation says of the policy.
func policyText(p watermark.PolicyChanged) string {
	return fmt.Sprintf("%d of version %d", p.Choice, p.Version)
}

func (s *suspicion) againMember(ctx context.Context, now *second) ([]Finding, error) {
	members, err := now.a.membersNow(ctx, s.conv, []watermark.UserID{s.user}, now.head.Warm)
	if err != nil {
		return nil, err
	}
	// Its bounds were read before the member, whose marks may have risen since.
	now.forget()
	if err := now.load(ctx); err != nil {
		return nil, err
	}
	then, is := &s.pair, members[s.user]
	if h := &is.history; h.Read < then.history.Read || h.Receipt < then.history.Receipt {
		return []Finding{s.finding(MarkFell, "history had of %s marks at %d and %d, now %d and %d",
			s.user, then.history.Read, then.history.Receipt, h.Read, h.Receipt)}, nil
	}
	out := append(s.unseenNow(now, is), s.lacking(then, is)...)
	return append(out, s.stale(then, is)...), nil
}

// unseenNow tells of marks that are above everything that was ever visible.
func (s *suspicion) unseenNow(now *second, is pair) []Finding {
	top := max(now.conversation.Max, s.last)
	if why := unseen(&is.history, top); why != "" && unseen(&s.pair.history, top) != "" {
		return []Finding{s.finding(MarkUnseen, "%s has in history %s", s.user, why)}
	}
	if !is.warm || !s.pair.warm {
		return nil
	}
	top = max(top, is.redis.Max)
	if why := unseen(&is.redis.Member, top); why != "" && unseen(&s.pair.redis.Member, top) != "" {
		return []Finding{s.finding(MarkUnseen, "%s has in redis %s", s.user, why)}
	}
	return nil
}

// lacking tells what Redis had and history has not got. Where Redis has gone
// cold meanwhile, what only it had is gone for good.
func (s *suspicion) lacking(then *pair, is pair) []Finding {
	if !then.warm {
		return nil
	}
	var what []string
	h, r := &is.history, &then.redis.Member
	marks := h.Read < r.Read || h.Receipt < r.Receipt
	if marks {
		what = append(what, fmt.Sprintf("marks at %d and %d, history %d and %d", r.Read, r.Receipt, h.Read, h.Receipt))
	}
	if then.redis.Known && h.Version < r.Version && is.warm {
		what = append(what, fmt.Sprintf("window version %d, history %d", r.Version, h.Version))
	}
	switch {
	case len(what) == 0:
		return nil
	case !is.warm:
		return []Finding{s.finding(MarkFell, "redis had of %s %s", s.user, what[0])}
	}
	f := s.finding(ChangeNeverAppended, "redis has of %s %s", s.user, strings.Join(what, ", "))
	return []Finding{f.with(appendMember(is.redis.Member))}
}

// stale tells what history had and Redis has not got.
func (s *suspicion) stale(then *pair, is pair) (out []Finding) {
	if !is.redis.Known {
		return nil
	}
	h, r := &then.history, &is.redis.Member
	switch {
	case r.Version < h.Version:
		out = append(out, s.finding(RedisMember, "redis has of %s window version %d, history %d", s.user, r.Version, h.Version).with(cool))
	case r.Version == is.history.Version && !r.SameState(&is.history):
		out = append(out, s.finding(RedisMember, "redis has of %s %s, history %s", s.user, describe(r), describe(&is.history)).with(cool))
	}
	if r.Read < h.Read || r.Receipt < h.Receipt {
		f := s.finding(RedisMark, "redis has of %s marks at %d and %d, history %d and %d", s.user, r.Read, r.Receipt, h.Read, h.Receipt)
		out = append(out, f.with(raiseMarks(*h)))
	} else if then.warm && (r.Read < then.redis.Member.Read || r.Receipt < then.redis.Member.Receipt) {
		f := s.finding(MarkFell, "redis had of %s marks at %d and %d, now %d and %d",
			s.user, then.redis.Member.Read, then.redis.Member.Receipt, r.Read, r.Receipt)
		out = append(out, f.with(raiseMarks(then.redis.Member)))
	}
	return out
}

func describe(m *watermark.Member) string {
	return fmt.Sprintf("version %d with membership %d, window %v, %d ops and %d attributes", m.Version, m.LastMembership, m.Window(), len(m.Ops), len(m.Attributes))
}
