package importer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/watermark"
)

// memberSpec is what a line says of a member. Nil windows are not said.
type memberSpec struct {
	user          watermark.UserID
	windows       watermark.Intervals // Last of 0: open
	said          bool                // windows are given, perhaps none
	read, receipt watermark.Seq
}

// sender is what sending alone says of a user.
type sender struct {
	read watermark.Seq
	own  []watermark.Seq
}

func (c *conversation) sender(u watermark.UserID) *sender {
	s := c.sent[u]
	if s == nil {
		s = &sender{}
		c.sent[u] = s
	}
	return s
}

// said folds a message as the log's fold does: sending marks everything read,
// or the message is listed as the sender's own.
func (s *sender) said(seq watermark.Seq, policy watermark.UnreadPolicy) {
	if policy != watermark.KeepOnSend {
		s.read = seq
		return
	}
	if s.own = append(s.own, seq); len(s.own) > watermark.MaxOwn {
		s.read, s.own = s.own[0], s.own[1:]
	}
}

func (p *pass) member(ctx context.Context, e *entry) error {
	c, m := p.cur, &e.member
	c.members = true
	switch {
	case !c.id.Admits(m.user):
		return p.fault(e.at, "%s is not one of the two users", m.user)
	case c.seen[m.user]:
		return p.fault(e.at, "member %s stands twice", m.user)
	}
	c.seen[m.user] = true
	out, err := c.memberOf(m)
	if err != nil {
		return p.fault(e.at, "member %s: %w", m.user, err)
	}
	return p.pend(ctx, e.at, out)
}

// memberOf checks what is said of a member against the bounds of c.
func (c *conversation) memberOf(m *memberSpec) (watermark.Member, error) {
	out := watermark.Member{User: m.user, Read: m.read, Receipt: m.receipt}
	var errs []error
	if m.read < 0 || m.read > c.max() {
		errs = append(errs, fmt.Errorf("read %d is outside 0..%d", m.read, c.max()))
	}
	if m.receipt < 0 || m.receipt > c.max() {
		errs = append(errs, fmt.Errorf("receipt %d is outside 0..%d", m.receipt, c.max()))
	}
	if m.receipt > 0 && !c.id.Single() {
		errs = append(errs, errors.New("receipt: a group has none, what a member has read is its receipt"))
	}
	windows := m.windows
	if !m.said && !c.id.Single() {
		windows, m.said = watermark.Intervals{{First: 1}}, true
	}
	if len(windows) > watermark.MaxMemberships {
		errs = append(errs, fmt.Errorf("%d windows, at most %d are allowed", len(windows), watermark.MaxMemberships))
	}
	low := watermark.Seq(1)
	for i, w := range windows {
		switch open := w.Last == 0; {
		case open && i < len(windows)-1:
			errs = append(errs, fmt.Errorf("the window from %d is open and not the last one", w.First))
		case w.First < low:
			errs = append(errs, fmt.Errorf("the window from %d must begin at %d or above", w.First, low))
		case open && w.First > c.next, !open && w.Last > c.max():
			errs = append(errs, fmt.Errorf("the window %d to %d is above the last seq %d", w.First, w.Last, c.max()))
		case !open && w.Last < w.First:
			errs = append(errs, fmt.Errorf("the window from %d ends at %d", w.First, w.Last))
		}
		low = w.Last + 1
		// A join raises the version by one, and a leave.
		out.Version++
		out.LastMembership++
		if w.Last != 0 {
			out.Version++
		}
		lower := w.First
		if lower == 1 {
			lower = 0 // not set
		}
		out.Memberships = append(out.Memberships, watermark.Membership{Number: out.LastMembership, Lower: lower, Upper: w.Last})
	}
	if m.said && len(windows) == 0 {
		out.Version, out.LastMembership = 2, 1 // joined and left with nothing to see
	}
	if s := c.sent[m.user]; s != nil {
		out.Merge(watermark.Member{User: m.user, Read: s.read, Own: s.own})
	}
	return out, errors.Join(errs...)
}

// silent gives those a member row of whom nothing but messages is known, as the
// log's fold does: who sent, and both users of a single conversation.
func (p *pass) silent(ctx context.Context) error {
	c := p.cur
	users := slices.Collect(maps.Keys(c.sent))
	if a, b, ok := c.id.Users(); ok && c.messages > 0 {
		users = append(users, a, b)
	}
	slices.Sort(users)
	for _, u := range slices.Compact(users) {
		if c.seen[u] {
			continue
		}
		m := watermark.Member{User: u}
		if s := c.sent[u]; s != nil {
			m.Read, m.Own = s.read, s.own
		}
		if err := p.pend(ctx, c.began, m); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) pend(ctx context.Context, at string, m watermark.Member) error {
	c := p.cur
	if c.pending = append(c.pending, pending{at, m}); len(c.pending) < p.page() {
		return nil
	}
	return p.members(ctx)
}

// members compares the pending members with those that stand, and writes what
// the target does not know of them.
func (p *pass) members(ctx context.Context) error {
	c := p.cur
	all := c.pending
	c.pending = nil
	if len(all) == 0 || c.live {
		return p.passed(0, int64(len(all)), 0)
	}
	users := make([]watermark.UserID, len(all))
	for i := range all {
		users[i] = all[i].member.User
	}
	rows, err := transfer.Patiently(ctx, func() ([]watermark.Member, error) { return p.To.Members(ctx, c.id, users) })
	if err != nil {
		return fmt.Errorf("read the target: %w", err)
	}
	there := make(map[watermark.UserID]*watermark.Member, len(rows))
	for i := range rows {
		there[rows[i].User] = &rows[i]
	}
	for i := range all {
		m, old := &all[i].member, there[all[i].member.User]
		if old != nil && old.Version > 0 && old.Version >= m.Version && !sameWindows(old, m) {
			if err := p.fault(all[i].at, "the windows of %s stand otherwise in the target, at version %d; the input makes %d", m.User, old.Version, m.Version); err != nil {
				return err
			}
			continue
		}
		if old != nil && holds(old, m) {
			if err := p.passed(0, 1, 0); err != nil {
				return err
			}
			continue
		}
		switch p.stage {
		case Verifying:
			return fmt.Errorf("%w: member %s of %s does not stand as it was written", errChanged, m.User, c.id)
		case Importing:
			p.change.Members = append(p.change.Members, watermark.MemberRow{Conversation: c.id, Member: *m})
			p.rep.Written.Members++
			if err := p.mayFlush(ctx); err != nil {
				return err
			}
		case Checking:
		}
	}
	return nil
}

// holds tells whether old knows everything that m says.
func holds(old, m *watermark.Member) bool {
	return old.Version >= m.Version && old.Read >= m.Read && old.Receipt >= m.Receipt &&
		!slices.ContainsFunc(m.Own, func(s watermark.Seq) bool { return s > old.Read && !slices.Contains(old.Own, s) })
}

func sameWindows(a, b *watermark.Member) bool {
	return a.LastMembership == b.LastMembership && slices.Equal(a.Memberships, b.Memberships)
}
