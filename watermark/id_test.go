package watermark_test

import (
	"errors"
	"strings"
	"testing"

	wm "github.com/tidemark-im/tidemark/watermark"
)

func TestParseConversationID(t *testing.T) {
	long := strings.Repeat("x", 64)
	tests := []struct {
		id   string
		says string // part of the error; empty: accepted
	}{
		{"group:g1", ""},
		{"single:A:B", ""},
		{"group:" + long, ""},
		{"group:" + long + "x", "65 bytes"},
		{"single:B:A", `"single:A:B"`},
		{"single:A:A", "two and in byte order"},
		{"single:A", "single:<user>:<user>"},
		{"single:A:B:C", "not of"},
		{"group:a:b", "not of"},
		{"group:{x}", "not of"},
		{"group:", "empty"},
		{"single::B", "empty"},
		{"", "must be"},
		{"g1", "must be"},
		{"GROUP:g1", "must be"},
		{"group:é", "not of"},
		{"group:a\x00b", "not of"},
		{strings.Repeat("y", 1<<20), "must be"},
	}
	for _, tt := range tests {
		_, err := wm.ParseConversationID(tt.id)
		switch {
		case tt.says == "" && err != nil:
			t.Errorf("%q is refused: %v", tt.id, err)
		case tt.says != "" && !errors.Is(err, wm.ErrBadID):
			t.Errorf("%.90q: err = %v, want ErrBadID", tt.id, err)
		case tt.says != "" && !strings.Contains(err.Error(), tt.says):
			t.Errorf("%.90q: %v does not say %q", tt.id, err, tt.says)
		case err != nil && len(err.Error()) > 400:
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
}

func TestSingleConversations(t *testing.T) {
	c := wm.SingleOf("bob", "alice")
	if c != "single:alice:bob" {
		t.Fatalf("single of bob and alice = %s", c)
	}
	if p, ok := c.Peer("bob"); !ok || p != "alice" {
		t.Errorf("peer of bob = %s, %v", p, ok)
	}
	if _, ok := c.Peer("carol"); ok || c.Admits("carol") || !c.Admits("alice") {
		t.Error("carol is no party to it, alice is")
	}
	if g := wm.GroupOf("g"); g.Single() || !g.Admits("anybody") {
		t.Error("a group admits anybody")
	}
}

func TestCheckKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"x": true, "a b:c{d}": true, "é": true, strings.Repeat("k", 64): true,
		"": false, strings.Repeat("k", 65): false, "a\nb": false, "\xff": false, "a\x00": false,
	} {
		if err := wm.CheckKey("client_message_id", key); (err == nil) != ok {
			t.Errorf("%q: err = %v, want ok = %v", key, err, ok)
		}
	}
}

func FuzzParseConversationID(f *testing.F) {
	f.Add("single:A:B")
	f.Add("group:g1")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := wm.ParseConversationID(s)
		if err != nil {
			return
		}
		if strings.ContainsAny(string(c), "{}\x00 ") || len(c) > len("single:")+2*wm.MaxIDLen+1 {
			t.Fatalf("accepted %q", s)
		}
		if a, b, ok := c.Users(); ok && wm.SingleOf(b, a) != c {
			t.Fatalf("%q is not the conversation of its users", s)
		}
	})
}
