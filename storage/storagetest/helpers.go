package storagetest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// whole is more than there can be.
var whole = watermark.Interval{First: -1 << 62, Last: 1 << 62}

// tb is what testing.T and rapid.T share of what the helpers need.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// equal compares; an empty list is as good as none.
func equal(t tb, what string, got, want any) {
	t.Helper()
	if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, diff)
	}
}

// must gives v, and ends the test on an error.
func must[T any](v T, err error) func(tb) T {
	return func(t tb) T {
		t.Helper()
		if err != nil {
			t.Fatalf("history: %v", err)
		}
		return v
	}
}

// write applies c. A store may answer two writers at once with a transient
// error; like any worker, the helper then tries again.
func write(t *testing.T, h History, c watermark.Change) watermark.Written {
	t.Helper()
	w, err := tryWrite(t, h, c)
	if err != nil {
		t.Fatalf("write: %v", err)
	}
	return w
}

func tryWrite(t *testing.T, h History, c watermark.Change) (w watermark.Written, err error) {
	deadline := time.Now().Add(30 * time.Second)
	for {
		w, err = h.Write(t.Context(), c)
		if err == nil || fault.ClassOf(err) != fault.Transient || time.Now().After(deadline) {
			return w, err
		}
	}
}

// text gives a message whose content follows from its seq and client id.
func text(seq watermark.Seq, sender watermark.UserID, clientID string) watermark.Message {
	m := watermark.Message{
		Seq: seq, Sender: sender, ClientID: clientID, Kind: "chat", SendTime: 1000 + int64(seq), RecordTime: 2000 + int64(seq),
		Mentions: []watermark.UserID{"bob", "carol"}, Attributes: map[string]string{"k": "v", "é": "\"<&>"},
		Device: "phone", BodyType: watermark.BodyText, Body: fmt.Appendf(nil, "%s says %s", sender, clientID),
	}
	m.Hash = m.SumHash()
	return m
}

// texts gives n rows of conv from seq first on.
func texts(conv watermark.ConversationID, first watermark.Seq, n int) []watermark.Row {
	rows := make([]watermark.Row, n)
	for i := range rows {
		seq := first + watermark.Seq(i)
		rows[i] = watermark.Row{Conversation: conv, Message: text(seq, "alice", fmt.Sprint("id-", seq))}
	}
	return rows
}

func rowsOf(conv watermark.ConversationID, ms ...watermark.Message) watermark.Change {
	var c watermark.Change
	for _, m := range ms {
		c.Rows = append(c.Rows, watermark.Row{Conversation: conv, Message: m})
	}
	return c
}

func membersOf(conv watermark.ConversationID, ms ...watermark.Member) watermark.Change {
	var c watermark.Change
	for _, m := range ms {
		c.Members = append(c.Members, watermark.MemberRow{Conversation: conv, Member: m})
	}
	return c
}

func convsOf(cs ...watermark.Conversation) watermark.Change {
	return watermark.Change{Conversations: cs}
}

func revokesOf(conv watermark.ConversationID, rs ...watermark.Revoked) watermark.Change {
	var c watermark.Change
	for _, r := range rs {
		c.Revokes = append(c.Revokes, watermark.RevokedRow{Conversation: conv, Revoked: r})
	}
	return c
}

// together joins Changes into one.
func together(cs ...watermark.Change) watermark.Change {
	var out watermark.Change
	for _, c := range cs {
		out.Rows = append(out.Rows, c.Rows...)
		out.Revokes = append(out.Revokes, c.Revokes...)
		out.Members = append(out.Members, c.Members...)
		out.Conversations = append(out.Conversations, c.Conversations...)
		out.Positions = append(out.Positions, c.Positions...)
	}
	return out
}

func stored(t *testing.T, h History, conv watermark.ConversationID) []watermark.Message {
	t.Helper()
	return must(h.Messages(t.Context(), conv, whole, watermark.MaxPage))(t)
}

func seqs(ms []watermark.Message) []watermark.Seq {
	out := make([]watermark.Seq, len(ms))
	for i := range ms {
		out[i] = ms[i].Seq
	}
	return out
}

func upTo(first, last watermark.Seq) []watermark.Seq {
	var out []watermark.Seq
	for s := first; s <= last; s++ {
		out = append(out, s)
	}
	return out
}

func member(t *testing.T, h History, conv watermark.ConversationID, u watermark.UserID) watermark.Member {
	t.Helper()
	ms := must(h.Members(t.Context(), conv, []watermark.UserID{u}))(t)
	if len(ms) != 1 {
		t.Fatalf("member %s of %s: %d rows", u, conv, len(ms))
	}
	return ms[0]
}

func conversation(t *testing.T, h History, id watermark.ConversationID) watermark.Conversation {
	t.Helper()
	cs := must(h.Conversations(t.Context(), []watermark.ConversationID{id}))(t)
	if len(cs) != 1 {
		t.Fatalf("%d conversations for one id", len(cs))
	}
	return cs[0]
}

func byUser(ms []watermark.Member) []watermark.Member {
	slices.SortFunc(ms, func(a, b watermark.Member) int { return cmp.Compare(a.User, b.User) })
	return ms
}

// paged follows pages until one is empty.
func paged[T any](t *testing.T, next func(last *T) []T) (all []T, sizes []int) {
	t.Helper()
	var last *T
	for {
		page := next(last)
		all, sizes = append(all, page...), append(sizes, len(page))
		if len(page) == 0 {
			return all, sizes
		}
		if len(sizes) > 1000 {
			t.Fatalf("paging does not end: %d entries", len(all))
		}
		last = &page[len(page)-1]
	}
}

func rosterOf(t *testing.T, h History, conv watermark.ConversationID, limit int) func(*watermark.Member) []watermark.Member {
	return func(last *watermark.Member) []watermark.Member {
		var after watermark.UserID
		if last != nil {
			after = last.User
		}
		return must(h.Roster(t.Context(), conv, after, limit))(t)
	}
}

func membershipsOf(t *testing.T, h History, u watermark.UserID, limit int) func(*watermark.MemberRow) []watermark.MemberRow {
	return func(last *watermark.MemberRow) []watermark.MemberRow {
		var after watermark.ConversationID
		if last != nil {
			after = last.Conversation
		}
		return must(h.MembershipsOf(t.Context(), u, after, limit))(t)
	}
}
