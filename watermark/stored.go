package watermark

import "cmp"

// This file holds what reads all of a history, row by row, in the order in
// which every store can give it from an index.

// RowKey names a row of messages. Rows sort by conversation, then by seq.
type RowKey struct {
	Conversation ConversationID
	Seq          Seq
}

// Compare sorts as a store does.
func (k RowKey) Compare(o RowKey) int {
	return cmp.Or(cmp.Compare(k.Conversation, o.Conversation), cmp.Compare(k.Seq, o.Seq))
}

// MemberKey names a member row. Member rows sort by user, then by conversation.
type MemberKey struct {
	User         UserID
	Conversation ConversationID
}

// Compare sorts as a store does.
func (k MemberKey) Compare(o MemberKey) int {
	return cmp.Or(cmp.Compare(k.User, o.User), cmp.Compare(k.Conversation, o.Conversation))
}

// Key names r.
func (r *MemberRow) Key() MemberKey { return MemberKey{r.Member.User, r.Conversation} }

// StoredRow is a row as it stands, also where nobody is served it.
type StoredRow struct {
	Row
	// Gone says that retention took the content; sender, client id and hash are
	// left for as long as a resend must be recognised.
	Gone bool
}

// Key names r.
func (r *StoredRow) Key() RowKey { return RowKey{r.Conversation, r.Message.Seq} }

// RowScan asks for a page of rows.
type RowScan struct {
	// After is where the page before ended; its zero value is the beginning.
	After RowKey
	// Last is the last conversation of interest. Empty: there is none.
	Last ConversationID
	// Limit bounds the rows, Bytes their bodies: a page ends with the row that
	// reaches it. Bytes of 0 or less: DefaultScanBytes.
	Limit, Bytes int
}

// DefaultScanBytes is where a page of rows ends unless RowScan says otherwise.
const DefaultScanBytes = 4 << 20

// Sizes is about how much a history holds: for progress, not for proof.
type Sizes struct {
	Conversations, Members, Rows int64
}
