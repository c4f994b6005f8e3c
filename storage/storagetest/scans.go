package storagetest

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

var scanTests = []test{
	{"everything, in the order of keys, whatever the page", scanEverything},
	{"what nobody is served", scanHidden},
	{"pages end by bytes", scanBytes},
	{"bounds", scanBounds},
	{"sizes", scanSizes},
}

// jumbled writes rows, members and conversations under ids that sort one way by
// themselves and another way with something behind them.
func jumbled(t *testing.T, h History) (rows []watermark.StoredRow, members []watermark.MemberRow, convs []watermark.Conversation) {
	t.Helper()
	var c watermark.Change
	for i, name := range []string{"a", "a-", "a.", "a-b", "A", "aa", "~", "@", "-", "0", "z", strings.Repeat("z", 64)} {
		conv := watermark.GroupOf(name)
		for _, seq := range []watermark.Seq{1, 2, 3, 256, watermark.MaxSeq}[:1+i%5] {
			m := text(seq, "alice", fmt.Sprint(name, seq)[:min(len(name)+1, 64)])
			rows = append(rows, watermark.StoredRow{Row: watermark.Row{Conversation: conv, Message: m}})
		}
		for _, u := range []watermark.UserID{"u", "u-", "u.", "U", watermark.UserID(name)}[:1+i%5] {
			members = append(members, watermark.MemberRow{Conversation: conv, Member: watermark.Member{
				User: u, Version: 2, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 2}},
				Ops: []watermark.AppliedOp{{ID: "op", Edge: 1}}, Read: 2, Receipt: 1, ChangedAt: 9, Own: []watermark.Seq{3, 5},
			}})
		}
		if i%3 == 0 {
			continue // rows and members alone
		}
		convs = append(convs, watermark.Conversation{
			ID: conv, Max: 3, Policy: watermark.KeepOnSend, LastTime: 7, Repair: watermark.Repaired{Number: 2, From: 1},
			Inputs: map[watermark.Partition]int64{{TopicID: "t", Number: 1}: int64(i), {TopicID: "t", Number: 0}: 0},
		})
	}
	for i := range rows {
		c.Rows = append(c.Rows, rows[i].Row)
	}
	c.Members, c.Conversations = members, convs
	write(t, h, c)
	slices.SortFunc(rows, func(a, b watermark.StoredRow) int { return a.Key().Compare(b.Key()) })
	slices.SortFunc(members, func(a, b watermark.MemberRow) int { return a.Key().Compare(b.Key()) })
	slices.SortFunc(convs, func(a, b watermark.Conversation) int { return cmp.Compare(a.ID, b.ID) })
	return rows, members, convs
}

func scanRowsOf(t *testing.T, h History, s watermark.RowScan) func(*watermark.StoredRow) []watermark.StoredRow {
	return func(last *watermark.StoredRow) []watermark.StoredRow {
		if last != nil {
			s.After = last.Key()
		}
		return must(h.ScanRows(t.Context(), s))(t)
	}
}

func scanEverything(t *testing.T, h History) {
	rows, members, convs := jumbled(t, h)
	for _, limit := range []int{1, 2, 3, 7, watermark.MaxPage} {
		got, _ := paged(t, scanRowsOf(t, h, watermark.RowScan{Limit: limit}))
		equal(t, fmt.Sprintf("rows by %d", limit), got, rows)
		gotMembers, _ := paged(t, func(last *watermark.MemberRow) []watermark.MemberRow {
			var after watermark.MemberKey
			if last != nil {
				after = last.Key()
			}
			return must(h.ScanMembers(t.Context(), after, limit))(t)
		})
		equal(t, fmt.Sprintf("members by %d", limit), gotMembers, members)
		gotConvs, _ := paged(t, func(last *watermark.Conversation) []watermark.Conversation {
			var after watermark.ConversationID
			if last != nil {
				after = last.ID
			}
			return must(h.ScanConversations(t.Context(), after, limit))(t)
		})
		equal(t, fmt.Sprintf("conversations by %d", limit), gotConvs, convs)
	}
	var want []watermark.StoredRow
	for _, r := range rows {
		if r.Conversation > "group:a-" && r.Conversation <= "group:aa" {
			want = append(want, r)
		}
	}
	got, _ := paged(t, scanRowsOf(t, h, watermark.RowScan{After: watermark.RowKey{Conversation: "group:a-", Seq: watermark.MaxSeq}, Last: "group:aa", Limit: 2}))
	equal(t, "rows of some conversations", got, want)
	got, _ = paged(t, scanRowsOf(t, h, watermark.RowScan{After: watermark.RowKey{Conversation: "group:b"}, Last: "group:aa", Limit: 2}))
	equal(t, "rows of none", got, []watermark.StoredRow(nil))
}

// scanHidden looks at what Messages does not give: what is below the minimum,
// and what retention has emptied.
func scanHidden(t *testing.T, h History) {
	r := watermark.Revoked{Seq: 3, By: "admin", Time: 4}
	write(t, h, together(watermark.Change{Rows: texts(group, 1, 10)}, revokesOf(group, r)))
	write(t, h, convsOf(watermark.Conversation{ID: group, Min: 8, Max: 10}))
	var want []watermark.StoredRow
	for _, row := range texts(group, 1, 10) {
		if row.Message.Seq == r.Seq {
			row.Message = row.Message.Tombstone(r)
		}
		want = append(want, watermark.StoredRow{Row: row})
	}
	scan := func() []watermark.StoredRow {
		got, _ := paged(t, scanRowsOf(t, h, watermark.RowScan{Limit: 4}))
		return got
	}
	equal(t, "rows below the minimum", scan(), want)
	drain(t, h, group, 8, 100)
	for i := range 7 {
		m := &want[i].Message
		m.Body, m.BodyType, m.Mentions, m.Attributes, want[i].Gone = nil, watermark.BodyNone, nil, nil, true
	}
	equal(t, "emptied rows", scan(), want)
	write(t, h, convsOf(watermark.Conversation{ID: group, Max: watermark.DedupeHorizon + 5}))
	drain(t, h, group, 8, 100)
	equal(t, "rows behind the horizon", scan(), want[5:])
}

func scanBytes(t *testing.T, h History) {
	for seq := watermark.Seq(1); seq <= 6; seq++ {
		m := watermark.Message{Seq: seq, Sender: "a", ClientID: fmt.Sprint(seq), Body: bytes.Repeat([]byte{'x'}, 1000)}
		m.Hash = m.SumHash()
		write(t, h, rowsOf(group, m))
	}
	for _, tt := range []struct{ bytes, want int }{{1, 1}, {1000, 1}, {1001, 2}, {3000, 3}, {1 << 40, 6}, {0, 6}, {-1, 6}} {
		got := must(h.ScanRows(t.Context(), watermark.RowScan{Limit: 100, Bytes: tt.bytes}))(t)
		equal(t, fmt.Sprintf("rows within %d bytes", tt.bytes), len(got), tt.want)
	}
}

func scanBounds(t *testing.T, h History) {
	const n = watermark.MaxPage + 5
	c := watermark.Change{Rows: texts(group, 1, n)}
	for i := range n {
		conv := watermark.GroupOf(fmt.Sprintf("c%04d", i))
		c.Members = append(c.Members, watermark.MemberRow{Conversation: conv, Member: watermark.Member{User: "busy"}})
		c.Conversations = append(c.Conversations, watermark.Conversation{ID: conv, Max: 1})
	}
	write(t, h, c)
	for limit, want := range map[int]int{math.MaxInt: watermark.MaxPage, watermark.MaxPage + 1: watermark.MaxPage, 3: 3, 0: 0, -1: 0, math.MinInt: 0} {
		equal(t, "rows", len(must(h.ScanRows(t.Context(), watermark.RowScan{Limit: limit}))(t)), want)
		equal(t, "members", len(must(h.ScanMembers(t.Context(), watermark.MemberKey{}, limit))(t)), want)
		equal(t, "conversations", len(must(h.ScanConversations(t.Context(), "", limit))(t)), want)
	}
}

func scanSizes(t *testing.T, h History) {
	equal(t, "of nothing", must(h.Sizes(t.Context()))(t), watermark.Sizes{})
	c, _ := crowd(group, 20)
	write(t, h, together(watermark.Change{Rows: texts(group, 1, 30)}, c, convsOf(watermark.Conversation{ID: group, Max: 30})))
	equal(t, "sizes", must(h.Sizes(t.Context()))(t), watermark.Sizes{Conversations: 1, Members: 20, Rows: 30})
}
