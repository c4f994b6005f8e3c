package convert

import (
	"strings"

	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// MemberToAPI gives a member's state. Own and ChangedAt are not part of it:
// they follow from the log.
func MemberToAPI(m *watermark.Member) *v1.MemberState {
	out := &v1.MemberState{
		User:           string(m.User),
		Version:        m.Version,
		LastMembership: m.LastMembership,
		ReadSeq:        int64(m.Read),
		ReceiptSeq:     int64(m.Receipt),
	}
	for _, w := range m.Memberships {
		out.Memberships = append(out.Memberships, &v1.Membership{Number: w.Number, Lower: int64(w.Lower), Upper: int64(w.Upper)})
	}
	out.Attributes = m.Attributes
	for _, op := range m.Ops {
		out.Ops = append(out.Ops, &v1.AppliedOp{OpId: op.ID, Edge: int64(op.Edge)})
	}
	return out
}

// MemberFromAPI is the way back. It checks what package watermark relies on:
// memberships ascend and do not overlap, and only the last one is open.
func MemberFromAPI(s *v1.MemberState) (watermark.Member, error) {
	var f faults
	m := watermark.Member{
		User:           f.user("user", s.GetUser()),
		Version:        s.GetVersion(),
		LastMembership: s.GetLastMembership(),
		Read:           f.bound("read_seq", s.GetReadSeq()),
		Receipt:        f.bound("receipt_seq", s.GetReceiptSeq()),
	}
	f.within("version", m.Version, 0, maxCount)
	if m.LastMembership < 0 {
		f.addf("last_membership", "%d is negative", m.LastMembership)
	}
	m.Memberships = f.memberships(s)
	if n := len(s.GetOps()); n > watermark.KeptOps {
		f.addf("ops", "%d of them, at most %d are kept", n, watermark.KeptOps)
	} else {
		for _, op := range s.GetOps() {
			m.Ops = append(m.Ops, watermark.AppliedOp{ID: f.key("ops.op_id", op.GetOpId()), Edge: f.bound("ops.edge", op.GetEdge())})
		}
	}
	m.Attributes = f.memberAttributes("attributes", s.GetAttributes(), 1)
	if err := f.err("member"); err != nil {
		return watermark.Member{}, err
	}
	return m, nil
}

func (f *faults) memberships(s *v1.MemberState) []watermark.Membership {
	list := s.GetMemberships()
	if len(list) == 0 {
		return nil
	}
	if len(list) > watermark.MaxMemberships {
		f.addf("memberships", "%d of them, at most %d are allowed", len(list), watermark.MaxMemberships)
		return nil
	}
	out := make([]watermark.Membership, 0, len(list))
	var number int32
	var upper watermark.Seq
	for i, w := range list {
		// A member who joins a full conversation sees nothing from MaxSeq+1 on.
		f.within("memberships.lower", w.GetLower(), 0, int64(watermark.MaxSeq)+1)
		x := watermark.Membership{Number: w.GetNumber(), Lower: watermark.Seq(w.GetLower()), Upper: f.bound("memberships.upper", w.GetUpper())}
		switch {
		case x.Number <= number || x.Number > s.GetLastMembership():
			f.addf("memberships.number", "%d is not above %d and at most %d", x.Number, number, s.GetLastMembership())
		case i > 0 && x.Lower <= upper:
			f.addf("memberships.lower", "%d is not above %d, the end of the one before", x.Lower, upper)
		case x.Upper == 0 && i < len(list)-1:
			f.addf("memberships.upper", "number %d is open and not the last", x.Number)
		case x.Upper != 0 && x.Upper < x.Lower:
			f.addf("memberships.upper", "%d is below its lower edge %d", x.Upper, x.Lower)
		}
		number, upper = x.Number, x.Upper
		out = append(out, x)
	}
	return out
}

// memberAttributes checks what a member set about a conversation: each value
// must have least bytes.
func (f *faults) memberAttributes(field string, attrs map[string]string, least int) map[string]string {
	if len(attrs) > watermark.MaxAttributes {
		f.addf(field, "%d of them, at most %d are allowed", len(attrs), watermark.MaxAttributes)
		return nil
	}
	for k, v := range attrs {
		if len(k) < 1 || len(k) > watermark.MaxAttributeName || strings.ContainsFunc(k, notLabel) {
			f.addf(field, "the name %s is not 1-%d bytes of [A-Za-z0-9._-]", clip(k), watermark.MaxAttributeName)
		}
		if len(v) < least {
			f.addf(field, "%s is empty", clip(k))
		}
		f.text(field, v, watermark.MaxAttributeLength)
	}
	if len(attrs) == 0 {
		return nil
	}
	return attrs
}

func notLabel(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune("._-", r)
}
