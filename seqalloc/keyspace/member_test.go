package keyspace_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

func TestMemberTextKeepsEverything(t *testing.T) {
	for name, c := range map[string]struct {
		member watermark.Member
		text   string
	}{
		"never had a window": {watermark.Member{}, "-"},
		"open":               {watermark.Member{Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1, Lower: 7}}}, "1|1|1:7:0|"},
		"nothing to see":     {watermark.Member{Version: 2, LastMembership: 1}, "2|1||"},
		"rejoined, at the largest seq, with odd op ids": {
			watermark.Member{
				Version: 3, LastMembership: 2,
				Memberships: []watermark.Membership{{Number: 1, Lower: 0, Upper: 4}, {Number: 2, Lower: watermark.MaxSeq, Upper: watermark.MaxSeq}},
				Ops:         []watermark.AppliedOp{{ID: "a|b;c,d:e%", Edge: 4}, {ID: "日本 +", Edge: watermark.MaxSeq}},
			},
			"3|2|1:0:4,2:9007199254740991:9007199254740991|a%7Cb%3Bc%2Cd%3Ae%25;4,%E6%97%A5%E6%9C%AC+%2B;9007199254740991",
		},
		"with attributes": {
			watermark.Member{Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}}, Attributes: map[string]string{"pinned": "a|b;c,d", "m.u_t-ed": "é"}},
			"1|1|1:0:0||m.u_t-ed;%C3%A9,pinned;a%7Cb%3Bc%2Cd",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := keyspace.MemberText(&c.member); got != c.text {
				t.Errorf("text %q, want %q", got, c.text)
			}
			c.member.User = "u"
			got, err := keyspace.ParseMember("u", c.text)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.member, got, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDamagedMemberTextIsAnError(t *testing.T) {
	for _, s := range []string{"", "1", "1|1|", "x|1||", "0|1||", "-1|1||", "1|99999999999||", "1|1|1:2|", "1|1|1:2:x|", "1|1||op", "1|1||%zz;1", "1|1||a;b", "1|1|||", "1|1|||a", "1|1|||a;", "1|1|||;a", "1|1|||%zz;1", "1|1|||a;1|"} {
		if m, err := keyspace.ParseMember("u", s); err == nil {
			t.Errorf("%q was read as %+v", s, m)
		}
	}
}

func FuzzParseMember(f *testing.F) {
	f.Add("-")
	f.Add("3|2|1:0:4,2:9:0|a%7C;4,b;9")
	f.Add("3|2|1:0:4,2:9:0|a%7C;4,b;9|muted;1,x;%7C")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := keyspace.ParseMember("u", s)
		if err != nil {
			return
		}
		text := keyspace.MemberText(&m)
		again, err := keyspace.ParseMember("u", text)
		if err != nil {
			t.Fatalf("%q was written as %q, which is %v", s, text, err)
		}
		if d := cmp.Diff(m, again, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzParseTombstone(f *testing.F) {
	f.Add("12|bob|header|with bars")
	f.Fuzz(func(t *testing.T, s string) {
		tomb, err := keyspace.ParseTombstone(s)
		if err != nil {
			return
		}
		again, err := keyspace.ParseTombstone(tomb.String())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tomb, again); d != "" {
			t.Fatal(d)
		}
	})
}

func TestTombstoneKeepsBinaryHeader(t *testing.T) {
	want := keyspace.Tombstone{By: "bob", Time: 12, Header: []byte("a|\x00\xff|")}
	got, err := keyspace.ParseTombstone(want.String())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestOwnMembersSortBySeqWithinAUser(t *testing.T) {
	prev := ""
	for _, s := range []watermark.Seq{1, 9, 10, 255, 256, 1 << 40, watermark.MaxSeq} {
		m := keyspace.OwnMember("bob", s)
		if m <= prev {
			t.Errorf("seq %d sorts before the one below it", s)
		}
		prev = m
		lo, hi := keyspace.OwnRange("bob")
		if m < lo[1:] || m >= hi[1:] {
			t.Errorf("seq %d is outside its user's range", s)
		}
		if other := keyspace.OwnMember("bob2", s); other >= lo[1:] && other < hi[1:] {
			t.Errorf("another user's seq %d is inside", s)
		}
		u, seq, err := keyspace.ParseOwnMember(m)
		if err != nil || u != "bob" || seq != s {
			t.Errorf("read back %q %d %v", u, seq, err)
		}
	}
	for _, s := range []string{"", "bob", "bob\x00", "bob\x00zz", "bob\x00" + strings.Repeat("f", 16), "bob\x0000"} {
		if _, _, err := keyspace.ParseOwnMember(s); err == nil {
			t.Errorf("%q was read", s)
		}
	}
}

func TestKeysOfAConversationShareOneHashTag(t *testing.T) {
	s := keyspace.Space{Prefix: "x:"}
	got := append(s.Keys("group:g", keyspace.Meta, keyspace.Log), s.PushedKey("group:g"),
		s.AnswerKey(watermark.AnswerKey{Conversation: "group:g", Caller: "c:{1}", OpID: "a/b:c"}))
	want := []string{"x:tm:{group:g}:meta", "x:tm:{group:g}:log", "x:tm:{group:g}:push", "x:tm:{group:g}:ans:c%3A%7B1%7D:a%2Fb%3Ac"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
