package keyspace

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tidemark-im/tidemark/watermark"
)

// errMember is wrapped by every error of ParseMember.
var errMember = errors.New("member text is damaged")

// MemberText gives the windows of a member as they stand in Members:
//
//	version|last membership|number:lower:upper,...|op;edge,...|name;value,...
//
// The last part, with its separator, is left out where nothing is set.
// All numbers are decimal, op ids are escaped so that no separator occurs in
// one. A user who never had a window is NoWindow. Marks, own messages and
// ChangedAt are not part of it.
func MemberText(m *watermark.Member) string {
	if !m.Known() {
		return NoWindow
	}
	b := make([]byte, 0, 64)
	b = strconv.AppendInt(b, m.Version, 10)
	b = append(b, '|')
	b = strconv.AppendInt(b, int64(m.LastMembership), 10)
	b = append(b, '|')
	for i, w := range m.Memberships {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(w.Number), 10)
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(w.Lower), 10)
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(w.Upper), 10)
	}
	b = append(b, '|')
	for i, op := range m.Ops {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, escape(op.ID)...)
		b = append(b, ';')
		b = strconv.AppendInt(b, int64(op.Edge), 10)
	}
	if len(m.Attributes) > 0 {
		b = append(b, '|')
		b = append(b, AttributesText(m.Attributes)...)
	}
	return string(b)
}

// ParseMember is the inverse of MemberText.
func ParseMember(u watermark.UserID, s string) (watermark.Member, error) {
	m := watermark.Member{User: u}
	if s == NoWindow {
		return m, nil
	}
	var parts [5]string // not a slice: thousands of members are parsed for a list
	n := strings.Count(s, "|") + 1
	if n != 4 && n != 5 {
		return m, fmt.Errorf("%w: %d parts instead of 4 or 5", errMember, n)
	}
	for i := range n {
		parts[i], s, _ = strings.Cut(s, "|")
	}
	p := parser{}
	m.Version = p.num(parts[0], 64)
	m.LastMembership = int32(p.num(parts[1], 32))
	for _, w := range list(parts[2]) {
		number, edges, ok := strings.Cut(w, ":")
		lower, upper, ok2 := strings.Cut(edges, ":")
		if !ok || !ok2 || strings.Contains(upper, ":") {
			return m, fmt.Errorf("%w: membership %q", errMember, w)
		}
		m.Memberships = append(m.Memberships, watermark.Membership{
			Number: int32(p.num(number, 32)),
			Lower:  watermark.Seq(p.num(lower, 64)), Upper: watermark.Seq(p.num(upper, 64)),
		})
	}
	for _, o := range list(parts[3]) {
		id, edge, ok := strings.Cut(o, ";")
		op, err := url.QueryUnescape(id)
		if !ok || err != nil {
			return m, fmt.Errorf("%w: op %q", errMember, o)
		}
		m.Ops = append(m.Ops, watermark.AppliedOp{ID: op, Edge: watermark.Seq(p.num(edge, 64))})
	}
	if n == 5 {
		m.Attributes = make(map[string]string)
		for _, a := range list(parts[4]) {
			name, value, ok := strings.Cut(a, ";")
			k, err1 := url.QueryUnescape(name)
			v, err2 := url.QueryUnescape(value)
			if !ok || err1 != nil || err2 != nil || k == "" || v == "" {
				return m, fmt.Errorf("%w: attribute %q", errMember, a)
			}
			m.Attributes[k] = v
		}
		if len(m.Attributes) == 0 {
			return m, fmt.Errorf("%w: no attributes", errMember)
		}
	}
	if m.Version <= 0 && p.err == nil {
		p.err = fmt.Errorf("version %d", m.Version)
	}
	if p.err != nil {
		return m, fmt.Errorf("%w: %w", errMember, p.err)
	}
	return m, nil
}

// AttributesText gives attributes as they stand in a member's text, sorted by
// name.
func AttributesText(attrs map[string]string) string {
	var b []byte
	for i, k := range slices.Sorted(maps.Keys(attrs)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, escape(k)...)
		b = append(b, ';')
		b = append(b, escape(attrs[k])...)
	}
	return string(b)
}

// EscapeOp gives an op id as it stands in a member's text.
func EscapeOp(id string) string { return escape(id) }

type parser struct{ err error }

func (p *parser) num(s string, bits int) int64 {
	n, err := strconv.ParseInt(s, 10, bits)
	if err == nil && n < 0 {
		err = fmt.Errorf("number %d is negative", n)
	}
	if err != nil && p.err == nil {
		p.err = err
	}
	return n
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// escape leaves letters, digits and "-_.~" as they are.
func escape(s string) string { return url.QueryEscape(s) }
