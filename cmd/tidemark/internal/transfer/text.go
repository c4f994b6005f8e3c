package transfer

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// This file gives rows as bytes, so that two are the same exactly when their
// bytes are: every field with its length, nothing left out.

type text []byte

func (t *text) num(ns ...int64) {
	for _, n := range ns {
		*t = binary.AppendVarint(*t, n)
	}
}

func (t *text) str(ss ...string) {
	for _, s := range ss {
		t.num(int64(len(s)))
		*t = append(*t, s...)
	}
}

// rowText gives a row as far as it counts.
func rowText(r *watermark.StoredRow, as standing) text {
	var t text
	m := &r.Message
	t.str(string(r.Conversation), string(m.Sender), m.ClientID, string(m.Hash[:]))
	t.num(int64(m.Seq))
	if as != served {
		return t
	}
	gone := int64(0)
	if r.Gone {
		gone = 1
	}
	t.num(gone, m.SendTime, m.RecordTime, int64(m.BodyType), int64(len(m.Mentions)))
	for _, u := range m.Mentions {
		t.str(string(u))
	}
	t.num(int64(len(m.Attributes)))
	for _, k := range slices.Sorted(maps.Keys(m.Attributes)) {
		t.str(k, m.Attributes[k])
	}
	t.str(m.Kind, m.Device, string(m.Body))
	if m.Revoked != nil {
		t.num(int64(m.Revoked.Seq), m.Revoked.Time, m.Revoked.At)
		t.str(string(m.Revoked.By))
	}
	return t
}

func conversationText(c *watermark.Conversation) text {
	var t text
	policy := c.Policy
	if c.Max == 0 {
		policy = 0 // it comes with a message
	}
	t.str(string(c.ID))
	t.num(int64(c.Min), int64(c.Max), int64(policy), c.Repair.Number, int64(c.Repair.From), c.LastTime,
		c.ChangedAt, c.Override.Version, int64(c.Override.Choice), int64(len(c.Inputs)))
	for _, p := range slices.SortedFunc(maps.Keys(c.Inputs), func(a, b watermark.Partition) int {
		return cmp.Or(cmp.Compare(a.TopicID, b.TopicID), cmp.Compare(a.Number, b.Number))
	}) {
		t.str(p.TopicID)
		t.num(int64(p.Number), c.Inputs[p])
	}
	return t
}

func memberText(r *watermark.MemberRow) text {
	var t text
	m := &r.Member
	t.str(string(r.Conversation), string(m.User))
	t.num(m.Version, int64(m.LastMembership), int64(m.Read), int64(m.Receipt), m.ChangedAt, int64(len(m.Memberships)))
	for _, w := range m.Memberships {
		t.num(int64(w.Number), int64(w.Lower), int64(w.Upper))
	}
	t.num(int64(len(m.Ops)))
	for _, op := range m.Ops {
		t.str(op.ID)
		t.num(int64(op.Edge))
	}
	t.num(int64(len(m.Attributes)))
	for _, k := range slices.Sorted(maps.Keys(m.Attributes)) {
		t.str(k, m.Attributes[k])
	}
	t.num(int64(len(m.Own)))
	for _, s := range m.Own {
		t.num(int64(s))
	}
	return t
}

func positionText(p watermark.Position) text {
	var t text
	t.str(p.Topic, p.TopicID)
	t.num(int64(p.Number), p.Next)
	return t
}

func deviceText(r *watermark.DeviceRow) text {
	var t text
	t.str(string(r.User), r.Device.ID, string(r.Device.Platform), r.Device.Token)
	t.num(r.Device.RegisteredAt)
	return t
}
